// pocket/quant: packing is exact in both directions, the quantiser is never worse than min/max and near the best there
// is.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <vector>

#include "pocket/quant/pack.hpp"
#include "support.hpp"

using namespace pocket;
using test::Random;

TEST_CASE("packing and unpacking return every code, scale and minimum") {
  for (WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32})
    for (std::size_t k : {1u, 64u, 65u, 320u}) {
      Random random(k);
      RowBlock block(format, k), back(format, k);
      for (std::size_t r = 0; r < tile_rows; ++r) {
        for (std::size_t c = 0; c < block.k_padded(); ++c)
          block.codes(r)[c] = static_cast<std::uint8_t>(random.next() & (format == WeightFormat::w8_g32 ? 255 : 15));
        for (std::size_t g = 0; g < block.groups(); ++g) {
          block.scales(r)[g].bits = static_cast<std::uint16_t>(random.next());
          if (format != WeightFormat::w8_g32) block.minima(r)[g].bits = static_cast<std::uint16_t>(random.next());
        }
      }
      std::vector<std::byte> tiles(packed_bytes(format, 16, k));
      pack_block(block, tiles.data());
      unpack_block({tiles.data(), 16, k, format, 0}, 0, back);
      for (std::size_t r = 0; r < tile_rows; ++r) {
        REQUIRE(std::memcmp(block.codes(r), back.codes(r), block.k_padded()) == 0);
        REQUIRE(std::memcmp(block.scales(r), back.scales(r), 2 * block.groups()) == 0);
        REQUIRE(std::memcmp(block.minima(r), back.minima(r), 2 * block.groups()) == 0);
      }
    }
}

TEST_CASE("the tile is the documented one, byte by byte") {
  RowBlock block(WeightFormat::w4_g64, 64);
  block.clear();
  block.codes(11)[37] = 9;  // half 1, block 2, row 3 of it, column 5, low nibble
  block.codes(2)[60] = 5;   // half 0, block 3, row 2, column 4, high nibble
  block.scales(11)[0].bits = 0x1234;
  block.minima(2)[0].bits = 0xabcd;
  std::vector<std::byte> tile(576);
  pack_block(block, tile.data());
  std::vector<std::byte> want(576);
  want[64 + 4 * 64 + 2 * 64 + 3 * 8 + 5] = std::byte{9};
  want[64 + 3 * 64 + 2 * 8 + 4] = std::byte{0x50};
  want[2 * 11] = std::byte{0x34};
  want[2 * 11 + 1] = std::byte{0x12};
  want[32 + 2 * 2] = std::byte{0xcd};
  want[32 + 2 * 2 + 1] = std::byte{0xab};
  REQUIRE(tile == want);
}

namespace {

// What a format made of one group of weights.
struct Quantized {
  std::vector<std::uint8_t> codes;
  f16 scale, minimum;

  // As dequantize_row has it.
  template <class Format>
  float weight(std::size_t i) const {
    const float q =
        Format::bits == 4 ? static_cast<float>(codes[i]) : static_cast<float>(static_cast<std::int8_t>(codes[i]));
    const float product = to_float(scale) * q;  // exact
    return product + to_float(minimum);
  }
};

template <class Format>
Quantized quantized(const std::vector<float>& w, const float* importance = nullptr) {
  Quantized r{std::vector<std::uint8_t>(w.size()), {}, {}};
  REQUIRE(quantize_group<Format>(w.data(), w.size(), r.codes.data(), r.scale, r.minimum, importance));
  return r;
}

// The sum of squared errors, each times the weight's importance.
template <class Format>
double error_of(const std::vector<float>& w, const Quantized& r, const float* importance = nullptr) {
  double sum = 0;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double d = static_cast<double>(w[i]) - static_cast<double>(r.weight<Format>(i));
    sum += (importance != nullptr ? static_cast<double>(importance[i]) : 1.0) * d * d;
  }
  return sum;
}

// Every weight with its nearest code.
Quantized on_grid(const std::vector<float>& w, f16 scale, f16 minimum) {
  Quantized r{std::vector<std::uint8_t>(w.size()), scale, minimum};
  const float s = to_float(scale), m = to_float(minimum);
  for (std::size_t i = 0; i < w.size(); ++i)
    r.codes[i] =
        s > 0 ? static_cast<std::uint8_t>(std::clamp(std::nearbyint((w[i] - m) / s), 0.0f, 15.0f)) : std::uint8_t{0};
  return r;
}

// 4 bits, the range covered from end to end.
Quantized min_max(const std::vector<float>& w) {
  const auto [low, high] = std::minmax_element(w.begin(), w.end());
  const f16 minimum = f16_at_most(*low);
  return on_grid(w, f16_at_least((*high - to_float(minimum)) / 15.0f), minimum);
}

// Groups as models have them, and as no model should.
std::vector<std::vector<float>> many_groups(std::size_t count) {
  std::vector<std::vector<float>> groups;
  for (const float v : {0.0f, -0.0f, 0.3f, -0.3f, 1e-11f, 1e-40f, -1e-40f, 65504.0f, -65504.0f})
    groups.emplace_back(count, v);
  groups.emplace_back(count, 0.01f);
  groups.back()[13 % count] = 1e4f;
  groups.emplace_back(count, -65504.0f);
  groups.back()[5 % count] = 0;
  groups.emplace_back(count, -65504.0f);
  groups.back()[0] = 65504.0f;
  Random random(4);
  for (int i = 0; i < 400; ++i) {
    groups.emplace_back(count);
    const float size = std::exp(22 * random.uniform() - 17),
                shift = (random.uniform() - 0.5f) * 4 * size * static_cast<float>(i % 3 == 0 ? 100 : 1);
    for (float& w : groups.back()) w = random.normal() * size + shift;
    if (i % 5 == 0) groups.back()[random.below(count)] *= 100;
    for (float& w : groups.back()) w = std::clamp(w, -65504.0f, 65504.0f);
  }
  return groups;
}

}  // namespace

// Min/max errs by at most half a step, and the float32 rounding of (w - m) / s that chose the code. The search clips
// single weights, but the sum over a group is never above min/max's.
TEST_CASE("no 4-bit group is worse than by min/max, whatever it holds") {
  std::size_t better = 0, all = 0;
  const auto check = [&](auto format, std::size_t count) {
    using F = decltype(format);
    for (const auto& w : many_groups(count)) {
      const Quantized r = quantized<F>(w), plain = min_max(w);
      const double s = static_cast<double>(to_float(plain.scale)), error = error_of<F>(w, r);
      REQUIRE(std::isfinite(to_float(r.scale)));
      REQUIRE(std::isfinite(to_float(r.minimum)));
      REQUIRE_FALSE(std::signbit(to_float(r.scale)));
      REQUIRE(*std::max_element(r.codes.begin(), r.codes.end()) <= 15);
      CAPTURE(count, w[0], s);
      REQUIRE(error <= error_of<F>(w, plain));
      REQUIRE(error <= static_cast<double>(count) * std::pow(s * 0.5 * (1 + 1e-5), 2));
      if (std::all_of(w.begin(), w.end(), [](float v) { return v == 0; })) REQUIRE((error == 0 && r.minimum.bits == 0));
      better += error < error_of<F>(w, plain);
      ++all;
    }
  };
  for (const std::size_t count : {64u, 63u, 8u, 3u, 1u}) check(W4G64{}, count);
  for (const std::size_t count : {32u, 29u}) check(W4G32{}, count);
  REQUIRE(better > all / 2);
}

TEST_CASE("an 8-bit group errs by at most half a scale, whatever it holds") {
  for (const auto& w : many_groups(32)) {
    const Quantized r = quantized<W8G32>(w);
    const double s = static_cast<double>(to_float(r.scale));
    REQUIRE(std::isfinite(s));
    REQUIRE(r.minimum.bits == 0);
    for (std::size_t i = 0; i < w.size(); ++i)
      REQUIRE(std::fabs(static_cast<double>(r.weight<W8G32>(i)) - static_cast<double>(w[i])) <= s * 0.5 * (1 + 1e-5));
  }
}

// Against all (s, m) of a fine lattice around min/max's: in half of the groups the search finds at least as small an
// error. What it may miss in others is what it stopped short of trying, up to 1.7 times: the mean says how often.
TEST_CASE("the search comes near the best scale and minimum there are") {
  const auto best_of = [](const std::vector<float>& w, const float* importance) {
    const auto [low, high] = std::minmax_element(w.begin(), w.end());
    double best = std::numeric_limits<double>::infinity();
    for (float steps = 14; steps <= 19; steps += 0.0625f) {
      const float step = (*high - *low) / steps;
      for (float clipped = -0.5f; clipped <= steps - 14.5f; clipped += 0.0625f) {
        const Quantized r = on_grid(w, to_f16(step), to_f16(*low + clipped * step));
        best = (std::min)(best, error_of<W4G64>(w, r, importance));
      }
    }
    return best;
  };
  const auto check = [&](auto format, bool weighted, double mean_bound, double bound) {
    using F = decltype(format);
    Random random(weighted ? 11 : 12);
    const int groups = test::sanitized ? 20 : 150;
    double sum = 0, most = 0, of_plain = 0;
    int reached = 0;
    for (int g = 0; g < groups; ++g) {
      std::vector<float> w(F::group), importance(F::group);
      const float shift = random.normal();
      for (std::size_t i = 0; i < F::group; ++i) {
        const float x = random.normal();
        w[i] = g % 3 == 0 ? x : g % 3 == 1 ? x * std::fabs(random.normal()) : random.uniform() + shift;
        importance[i] = to_float(to_bf16(std::exp(random.normal())));
      }
      const float* const u = weighted ? importance.data() : nullptr;
      const double ratio = error_of<F>(w, quantized<F>(w, u), u) / best_of(w, u);
      sum += ratio;
      most = (std::max)(most, ratio);
      reached += ratio <= 1;
      of_plain += error_of<F>(w, min_max(w), u) / best_of(w, u);
    }
    std::printf("group %zu%s: %.3f of the lattice's best on average, %.3f at most, %d of %d no worse; min/max %.3f\n",
                F::group, weighted ? ", weighted" : "", sum / groups, most, reached, groups, of_plain / groups);
    CHECK(sum / groups < mean_bound);
    CHECK(most < bound);
    CHECK(2 * reached >= groups);
  };
  check(W4G64{}, false, 1.02, 1.4);
  check(W4G64{}, true, 1.04, 1.7);
  check(W4G32{}, false, 1.04, 1.7);
}

// Weights that were in 4 bits before: the step is a float16 number, the least weight any of the grid's points.
TEST_CASE("a group that lies on a float16 grid comes back exactly") {
  Random random(9);
  std::size_t narrow = 0;
  for (int g = 0; g < 3000; ++g) {
    const std::size_t count = g % 2 == 0 ? 64 : 32;
    const float size = std::exp(14 * random.uniform() - 10);
    const float s = to_float(to_f16(size * (0.5f + random.uniform())));
    const float m = to_float(to_f16(g % 7 == 0 ? 0.0f : -s * 16 * random.uniform() + (g % 5 == 0 ? 40 * s : 0.0f)));
    const auto levels = static_cast<std::size_t>(1 + random.below(16)), first = random.below(17 - levels);
    std::vector<float> w(count);
    for (float& v : w) v = s * static_cast<float>(first + random.below(levels)) + m;
    narrow += levels < 16;
    const Quantized r = count == 64 ? quantized<W4G64>(w) : quantized<W4G32>(w);
    CAPTURE(g, s, m, levels, first);
    for (std::size_t i = 0; i < count; ++i) REQUIRE(r.weight<W4G64>(i) == w[i]);
  }
  REQUIRE(narrow > 1000);
}

TEST_CASE("importance: what counts more is met better, and only ratios within a group matter") {
  Random random(21);
  double even = 0, weighted = 0;
  for (int g = 0; g < 200; ++g) {
    std::vector<float> w(64), importance(64), scaled(64);
    for (std::size_t i = 0; i < 64; ++i) {
      w[i] = random.normal();
      importance[i] = std::exp(2 * random.normal());
      scaled[i] = importance[i] * 0x1p-60f;
    }
    const Quantized r = quantized<W4G64>(w, importance.data()), same = quantized<W4G64>(w, scaled.data());
    REQUIRE((r.codes == same.codes && r.scale.bits == same.scale.bits && r.minimum.bits == same.minimum.bits));
    even += error_of<W4G64>(w, quantized<W4G64>(w), importance.data());
    weighted += error_of<W4G64>(w, r, importance.data());
    const std::vector<float> none(64, 0.0f), all(64, 3.0f);
    const Quantized plain = quantized<W4G64>(w);
    REQUIRE(quantized<W4G64>(w, none.data()).codes == plain.codes);
    REQUIRE(quantized<W4G64>(w, all.data()).codes == plain.codes);
  }
  REQUIRE(weighted < 0.8 * even);
}

// The same bits from every compiler, for every processor: a change of this number changes every quantised package.
TEST_CASE("the quantiser's bits") {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  const auto add = [&](std::uint64_t v) { hash = (hash ^ v) * 1099511628211u; };
  const auto take = [&](const Quantized& r) {
    for (const std::uint8_t q : r.codes) add(q);
    add(r.scale.bits);
    add(r.minimum.bits);
  };
  Random random(33);
  for (int g = 0; g < 400; ++g) {
    const std::size_t count = g % 4 == 0 ? 17 : g % 4 == 1 ? 32 : 64;
    const int shift = static_cast<int>(random.below(1 << 14)) - (1 << 13),
              exponent = -static_cast<int>(random.below(30));
    std::vector<float> w(count), importance(count);
    for (std::size_t i = 0; i < count; ++i) {  // integers, so that the numbers are the same everywhere
      int v = shift;
      for (int k = 0; k < 6; ++k) v += static_cast<int>(random.below(1 << 12)) - (1 << 11);
      w[i] = std::ldexp(static_cast<float>(v), exponent);
      importance[i] = static_cast<float>(random.below(1 << 10) * random.below(1 << 10));
    }
    take(quantized<W4G64>(w));
    take(quantized<W4G64>(w, importance.data()));
    if (count > 32) continue;
    take(quantized<W4G32>(w));
    take(quantized<W4G32>(w, importance.data()));
    take(quantized<W8G32>(w));
  }
  CHECK(hash == 0x24dd10f95b1e2037u);
}

TEST_CASE("weights that float16 scales cannot hold are refused") {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 7e4f, -7e4f}) {
    std::vector<float> w(64, 1.0f);
    w[9] = bad;
    std::vector<std::uint8_t> codes(64);
    f16 s, m;
    REQUIRE_FALSE(quantize_group<W4G64>(w.data(), 64, codes.data(), s, m));
  }
}

TEST_CASE("pack from floats, then rows come back as their groups were quantised") {
  Random random(6);
  const std::size_t n = 37, k = 200, stride = 211;
  std::vector<float> w(n * stride), row(k);
  for (float& v : w) v = random.normal();
  for (WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32}) {
    std::vector<std::byte> memory(packed_bytes(format, n, k) + 64);
    const std::size_t shift =
        round_up(reinterpret_cast<std::uintptr_t>(memory.data()), 64) - reinterpret_cast<std::uintptr_t>(memory.data());
    const auto packed = pack({w.data(), n, k, stride}, format, std::span(memory).subspan(shift));
    REQUIRE(packed);
    with_format(format, [&](auto f) {
      using F = decltype(f);
      for (std::size_t r = 0; r < n; ++r) {
        dequantize_row(*packed, r, row.data());
        for (std::size_t c = 0; c < k; c += F::group) {
          const auto group = std::span(w).subspan(r * stride + c, (std::min)(F::group, k - c));
          const Quantized want = quantized<F>({group.begin(), group.end()});
          for (std::size_t i = 0; i < group.size(); ++i) REQUIRE(row[c + i] == want.weight<F>(i));
        }
      }
    });
    REQUIRE_FALSE(pack({w.data(), n, k, stride}, format, std::span(memory).subspan(shift, 64)));
    REQUIRE_FALSE(pack({w.data(), n, k, stride}, format, std::span(memory).subspan(shift + 1)));
  }
  REQUIRE_FALSE(pack({w.data(), 0, k, stride}, WeightFormat::w4_g64, {}));
}
