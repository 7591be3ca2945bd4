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

TEST_CASE(
    "a source is written with its formats, the same bytes for any executor, and comes back as loaded into memory") {
  // Two layers of random float weights with an untied head, in memory.
  const RuntimeSpec spec = small;
  std::vector<std::vector<float>> storage;
  test::Random random(5);
  const auto tensor = [&](const char* name, std::size_t rows, std::size_t cols) {
    std::vector<float> values(rows * cols);
    for (float& v : values) v = random.normal() * 0.1f;
    storage.push_back(std::move(values));
    const auto bytes = std::as_bytes(std::span(storage.back()));
    return SourceTensor{"memory", name, ElementType::f32, rows, cols, bytes};
  };
  const auto source_in = [&](std::optional<WeightFormat> format) {
    ModelSource source;
    source.name = "memory";
    source.architecture = "qwen3";
    source.spec = spec;
    source.rms_epsilon = 1e-6f;
    source.rope_base = 5e5;
    source.tied = false;
    storage.clear();
    random = test::Random(5);
    static constexpr TensorNames names{"E", "N", "H", "L", "an", "q", "k", "v", "qn", "kn", "o", "fn", "g", "u", "d"};
    const auto rows_and_cols = [&](const std::string& name) -> std::pair<std::size_t, std::size_t> {
      if (name == "E" || name == "H") return {spec.vocab, spec.hidden};
      const std::string last = name.substr(name.rfind('.') + 1);
      if (last == "qn" || last == "kn") return {1, spec.head_dim};
      if (last == "q") return {q_width(spec), spec.hidden};
      if (last == "k" || last == "v") return {kv_width(spec), spec.hidden};
      if (last == "o") return {spec.hidden, q_width(spec)};
      if (last == "g" || last == "u") return {spec.ffn, spec.hidden};
      if (last == "d") return {spec.hidden, spec.ffn};
      return {1, spec.hidden};
    };
    pocket::detail::SourceGatherer gatherer(source, names, 0, format,
                                            [&](const std::string& name) -> Expected<SourceTensor> {
                                              const auto [rows, cols] = rows_and_cols(name);
                                              return tensor("t", rows, cols);
                                            });
    REQUIRE(gatherer.gather());
    return source;
  };
  auto pool = ThreadPool::create(3);
  REQUIRE(pool);
  SerialExecutor serial;
  const auto nothing = [] { return Expected<void>(); };
  for (const WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32}) {
    const ModelSource source = source_in(format);
    Directory one, two;
    std::size_t calls = 0, last = 0, all = 0;
    const auto count = [&](std::size_t done, std::size_t total) {
      ++calls;
      REQUIRE(done > last);
      REQUIRE(done <= total);
      last = done;
      all = total;
      return true;
    };
    REQUIRE(write_package(source, one.path, false, serial, count, nothing));
    REQUIRE(calls > 10);
    REQUIRE(last == all);
    REQUIRE(write_package(source, two.path, false, **pool, {}, nothing));
    REQUIRE(read_file(package_path(one.path)) == read_file(package_path(two.path)));

    auto mapped = open_package(one.path);
    if (!mapped) FAIL(mapped.error().message);
    REQUIRE_FALSE(mapped->tied);
    REQUIRE(mapped->weights.rope_base == 5e5);
    REQUIRE(mapped->weight_bytes == weight_bytes(source));
    auto loaded = load_model(source, **pool);
    REQUIRE(loaded);
    REQUIRE(loaded->quantized_here);
    REQUIRE(loaded->weight_bytes == weight_bytes(source));
    std::vector<const void*> tensors;
    const auto collect_matrix = [&](const std::string&, PackedMatrix& m, std::size_t, std::size_t) -> Expected<void> {
      REQUIRE(m.format == format);
      tensors.push_back(m.tiles);
      return {};
    };
    const auto collect_vector = [&](const std::string&, const float*& v, std::size_t) -> Expected<void> {
      tensors.push_back(v);
      return {};
    };
    REQUIRE(pocket::detail::for_each_tensor(spec, loaded->weights, false, collect_matrix, collect_vector));
    std::size_t at = 0;
    const auto same_matrix = [&](const std::string&, PackedMatrix& m, std::size_t, std::size_t) -> Expected<void> {
      REQUIRE(std::memcmp(m.tiles, tensors[at++], m.bytes()) == 0);
      return {};
    };
    const auto same_vector = [&](const std::string&, const float*& v, std::size_t n) -> Expected<void> {
      REQUIRE(std::memcmp(v, tensors[at++], n * sizeof(float)) == 0);
      return {};
    };
    REQUIRE(pocket::detail::for_each_tensor(spec, mapped->weights, false, same_matrix, same_vector));
  }

  // In memory that the caller lends; too little of it, or cancelled, is an error.
  const ModelSource source = source_in(std::nullopt);
  LoadOptions options;
  auto memory = Workspace::allocate(weight_bytes(source));
  REQUIRE(memory);
  options.memory = {memory->at<std::byte>(0), memory->bytes()};
  auto lent = load_model(source, serial, options);
  REQUIRE(lent);
  REQUIRE(static_cast<const void*>(lent->weights.embedding.tiles) == memory->at<std::byte>(0));
  options.memory = options.memory.first(memory->bytes() - 64);
  REQUIRE(load_model(source, serial, options).error().code == Errc::invalid_argument);
  options.memory = {};
  options.progress = [](std::size_t, std::size_t) { return false; };
  REQUIRE(load_model(source, serial, options).error().code == Errc::cancelled);

  // What fails at the end leaves nothing behind.
  Directory d;
  REQUIRE(write_package(source, d.path, false, serial, options.progress, nothing).error().code == Errc::cancelled);
  REQUIRE_FALSE(
      write_package(source, d.path, false, serial, {}, [] { return Expected<void>(fail(Errc::io, "text")); }));
  REQUIRE(std::filesystem::is_empty(d.path));
}
