// pocket/files/package.hpp: what is written comes back and is used in place; what is damaged is refused.
#include "pocket/files/package.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "pocket/backend/cpu.hpp"
#include "pocket/core/executor.hpp"
#include "pocket/model/transformer.hpp"
#include "support.hpp"

using namespace pocket;

namespace {

struct Directory {
  Directory() {
    char name[] = "/tmp/pocket-package-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path = name;
  }
  ~Directory() { std::filesystem::remove_all(path); }
  std::string path;
};

constexpr RuntimeSpec small{2, 64, 4, 2, 16, 96, 50, 300, true};

// A package of random tiles whose scales are small and finite; returns the bytes of each tensor in order.
std::vector<std::vector<std::byte>> write_package(const std::string& directory, bool overwrite = false) {
  SafetensorsWriter writer;
  REQUIRE(begin_package(writer, small, "qwen3", 1e-6f, 1e6, WeightFormat::w4_g64, package_path(directory), overwrite));
  std::vector<std::vector<std::byte>> written;
  test::Random random(1);
  HostWeights names;
  names.layers.resize(small.layers);
  const auto matrix = [&](const std::string& name, PackedMatrix&, std::size_t n, std::size_t k) {
    std::vector<std::byte> tiles(packed_bytes(WeightFormat::w4_g64, n, k));
    for (std::size_t i = 0; i < tiles.size(); i += 2) {
      const std::size_t in_tile = i % W4G64::bytes;
      const f16 value = to_f16(in_tile < 32 ? 0.02f : -0.15f);
      if (in_tile < 64)
        std::memcpy(&tiles[i], &value, 2);
      else
        tiles[i] = static_cast<std::byte>(random.below(256));
    }
    written.push_back(tiles);
    return writer.append(name, tiles);
  };
  const auto vector = [&](const std::string& name, const float*&, std::size_t n) {
    const std::vector<float> ones(n, 1.0f);
    const auto bytes = std::as_bytes(std::span(ones));
    written.emplace_back(bytes.begin(), bytes.end());
    return writer.append(name, bytes);
  };
  REQUIRE(pocket::detail::for_each_tensor(small, names, true, matrix, vector));
  REQUIRE(writer.finish());
  return written;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace

TEST_CASE("a package comes back as it was written, is used in place, and runs") {
  Directory d;
  const auto written = write_package(d.path);
  auto model = open_package(d.path);
  if (!model) FAIL(model.error().message);
  REQUIRE(model->tied);
  REQUIRE(model->weights.rms_epsilon == 1e-6f);
  REQUIRE(model->weights.rope_base == 1e6);
  REQUIRE(model->weight_bytes == weight_bytes(small, WeightFormat::w4_g64));
  REQUIRE(model->mapped_bytes == model->weight_bytes);
  std::size_t at = 0;
  const auto matrix = [&](const std::string&, PackedMatrix& m, std::size_t, std::size_t) -> Expected<void> {
    REQUIRE(std::memcmp(m.tiles, written[at].data(), written[at].size()) == 0);
    REQUIRE(reinterpret_cast<std::uintptr_t>(m.tiles) % 64 == 0);
    ++at;
    return {};
  };
  const auto vector = [&](const std::string&, const float*& v, std::size_t) -> Expected<void> {
    REQUIRE(std::memcmp(v, written[at].data(), written[at].size()) == 0);
    ++at;
    return {};
  };
  REQUIRE(pocket::detail::for_each_tensor(small, model->weights, true, matrix, vector));
  REQUIRE(at == written.size());

  const LoadedModel moved = *std::move(model);  // pointers stay valid
  SerialExecutor executor;
  CpuBackend::Options options;
  options.executor = &executor;
  SessionShape shape;
  shape.context = 32;
  auto session = Transformer<RuntimeSpec>::create(moved.spec, moved.weights, shape, options);
  REQUIRE(session);
  const std::int32_t tokens[] = {1, 2, 3};
  REQUIRE(session->forward(tokens));
  for (const float v : session->logits()) REQUIRE(std::isfinite(v));
}

TEST_CASE("a package is not overwritten without being asked") {
  Directory d;
  write_package(d.path);
  const std::string before = read_file(package_path(d.path));
  SafetensorsWriter writer;
  const auto refused =
      begin_package(writer, small, "qwen3", 1e-6f, 1e6, WeightFormat::w4_g64, package_path(d.path), false);
  REQUIRE_FALSE(refused);
  REQUIRE(read_file(package_path(d.path)) == before);
  write_package(d.path, true);
  REQUIRE(read_file(package_path(d.path)) == before);  // and the writer is deterministic
}

TEST_CASE("damaged packages are refused with the file's name, whatever byte is hit") {
  Directory d;
  write_package(d.path);
  const std::string path = package_path(d.path), good = read_file(path);
  const std::size_t header = 8 + static_cast<std::size_t>(static_cast<unsigned char>(good[0])) +
                             256 * static_cast<std::size_t>(static_cast<unsigned char>(good[1]));
  for (const std::size_t cut : {std::size_t{0}, std::size_t{7}, header - 1, header, good.size() - 1}) {
    write_file(path, good.substr(0, cut));
    const auto model = open_package(d.path);
    REQUIRE_FALSE(model);
    REQUIRE(model.error().message.find("pocket.safetensors") != std::string::npos);
  }
  // Any changed byte of the header: an error, or a model whose every tile lies inside the file.
  std::size_t refused = 0;
  for (std::size_t i = 0; i < header; ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    write_file(path, bad);
    refused += !open_package(d.path);
  }
  REQUIRE(refused * 10 > header * 9);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string bad = good;
    const std::size_t at = bad.find(from);
    REQUIRE(at != std::string::npos);
    REQUIRE(from.size() == to.size());
    bad.replace(at, from.size(), to);
    write_file(path, bad);
    const auto model = open_package(d.path);
    REQUIRE_FALSE(model);
    return model.error().message;
  };
  REQUIRE(replaced("\"layout\":\"1\"", "\"layout\":\"9\"").find("layout") != std::string::npos);
  REQUIRE(replaced("\"heads\":\"4\"", "\"heads\":\"3\"").find("head") != std::string::npos);
  REQUIRE(replaced("\"hidden\":\"64\"", "\"hidden\":\"80\"").find("64") != std::string::npos);
  REQUIRE(replaced("w4_g64 50 64 0", "w4_g32 50 64 0").find("embedding") != std::string::npos);
  REQUIRE(replaced("w4_g64 50 64 0", "w9_g64 50 64 0").find("embedding") != std::string::npos);
  REQUIRE(replaced("w4_g64 50 64 0", "w4_g64 51 64 0").find("embedding") != std::string::npos);
  REQUIRE(replaced("\"vocab\":\"50\"", "\"vocab\":\"5x\"").find("vocab") != std::string::npos);
  REQUIRE(open_package("/nowhere").error().code == Errc::io);
}
