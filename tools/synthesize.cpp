// pocket synthesize: a package of a known shape with seeded random weights, for speed and memory. The same seed gives
// the same file on every machine.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "common.hpp"
#include "pocket/files/package.hpp"
#include "pocket/generate/sampler.hpp"
#include "progress.hpp"

namespace tools {

inline float uniform(Random& random) { return static_cast<float>(random.next() >> 40) * 0x1p-24f; }  // [0, 1)

// Codes are uniform over 0..15 (standard deviation 4.61), scales vary by a quarter around what gives the weights a
// standard deviation of `deviation`, and the minimum is -7.5 scales.
inline void random_block(Random& random, float deviation, std::size_t k, std::byte* out) {
  for (std::size_t t = 0; t < div_up(k, tile_cols); ++t, out += W4G64::bytes) {
    for (std::size_t r = 0; r < tile_rows; ++r) {
      const f16 scale = to_f16(deviation / 4.61f * (0.75f + 0.5f * uniform(random)));
      const f16 minimum = to_f16(-7.5f * to_float(scale));
      std::memcpy(out + W4G64::scales_offset(0) + 2 * r, &scale, 2);
      std::memcpy(out + W4G64::minima_offset(0) + 2 * r, &minimum, 2);
    }
    for (std::size_t i = W4G64::codes_offset; i < W4G64::bytes; i += 8) {
      const std::uint64_t codes = random.next();
      std::memcpy(out + i, &codes, 8);
    }
  }
}

int synthesize(const SynthesizeOptions& o) {
  const RuntimeSpec spec = o.spec == "qwen3-0.6b" ? runtime_spec(Qwen3_06B{}) : runtime_spec(MnnPocket03B{});
  std::error_code error;
  std::filesystem::create_directories(o.out, error);
  if (error) die({Errc::io, o.out + ": cannot create the directory: " + error.message()});
  SafetensorsWriter writer;
  // Qwen3's own constants: the published model's are not at hand, and speed and memory do not depend on them.
  const std::string path = package_path(o.out);
  if (!o.force && std::filesystem::exists(path)) die({Errc::io, path + " exists already; --force replaces it"});
  check_or_die(begin_package(writer, spec, "qwen3", 1e-6f, 1e6, WeightFormat::w4_g64, path, o.force));
  Random seeds(o.seed);
  HostWeights names;
  names.layers.resize(spec.layers);
  const std::size_t total = weight_bytes(spec, WeightFormat::w4_g64);
  std::size_t done = 0;
  const ProgressLine line("writing " + o.out);
  const auto progress = [&](std::size_t bytes) {
    done += bytes;
    line.show(done, total);
  };
  const auto matrix = [&](const std::string& name, PackedMatrix&, std::size_t n, std::size_t k) -> Expected<void> {
    Random random(seeds.next());
    const float deviation = name == "embedding" ? 1.0f : 1.0f / std::sqrt(static_cast<float>(k));
    std::vector<std::byte> block(packed_bytes(WeightFormat::w4_g64, tile_rows, k));
    for (std::size_t b = 0; b < div_up(n, tile_rows); ++b) {
      random_block(random, deviation, k, block.data());
      POCKET_CHECK(writer.append(name, block));
      progress(block.size());
    }
    return {};
  };
  const auto vector = [&](const std::string& name, const float*&, std::size_t n) -> Expected<void> {
    Random random(seeds.next());
    std::vector<float> gamma(n);
    for (float& g : gamma) g = 0.9f + 0.2f * uniform(random);
    progress(n * sizeof(float));
    return writer.append(name, std::as_bytes(std::span(gamma)));
  };
  check_or_die(pocket::detail::for_each_tensor(spec, names, true, matrix, vector));
  check_or_die(writer.finish());
  std::printf("%s: %.1f MB of weights in shape %s, seed %llu (random: it will not make sense)\n",
              package_path(o.out).c_str(), static_cast<double>(total) * 1e-6, o.spec.c_str(),
              static_cast<unsigned long long>(o.seed));
  return 0;
}

}  // namespace tools
