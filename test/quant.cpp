// pocket/quant: packing is exact in both directions, quantisation keeps its error bound.
#include <catch2/catch.hpp>
#include <cmath>
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

TEST_CASE("a quantised group errs by at most half a scale, whatever it holds") {
  std::vector<std::vector<float>> groups = {std::vector<float>(64, 0.0f),   std::vector<float>(64, -0.0f),
                                            std::vector<float>(64, 0.3f),   std::vector<float>(64, -0.3f),
                                            std::vector<float>(64, 1e-11f), std::vector<float>(64, 1e-40f),
                                            std::vector<float>(64, -1e-40f)};
  groups.emplace_back(64, 0.01f);
  groups.back()[13] = 1e4f;
  groups.emplace_back(64, -65504.0f);
  groups.back()[5] = 0;
  Random random(4);
  for (int i = 0; i < 200; ++i) {
    groups.emplace_back(64);
    const float size = std::exp(20 * random.uniform() - 15), shift = (random.uniform() - 0.5f) * 4 * size;
    for (float& w : groups.back()) w = random.normal() * size + shift;
  }
  const auto check = [&](auto format) {
    using F = decltype(format);
    for (const auto& w : groups) {
      std::vector<std::uint8_t> codes(64);
      f16 s, m;
      REQUIRE(quantize_group<F>(w.data(), F::group, codes.data(), s, m));
      const double scale = static_cast<double>(to_float(s));
      REQUIRE(std::isfinite(scale));
      bool zero = true;
      for (std::size_t i = 0; i < F::group; ++i) {
        const double q = F::bits == 4 ? codes[i] : static_cast<std::int8_t>(codes[i]);
        const double back = scale * q + static_cast<double>(to_float(m));
        // half a step, and the float32 rounding of (w - m) / s that chose the code
        REQUIRE(std::fabs(back - static_cast<double>(w[i])) <= scale * 0.5 * (1 + 1e-5));
        zero = zero && w[i] == 0.0f;
        if (zero) REQUIRE(back == 0.0);
      }
    }
  };
  check(W4G64{});
  check(W4G32{});
  check(W8G32{});
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

TEST_CASE("pack from floats, then rows come back within half a scale") {
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
    for (std::size_t r = 0; r < n; ++r) {
      dequantize_row(*packed, r, row.data());
      for (std::size_t c = 0; c < k; ++c)
        REQUIRE(std::fabs(row[c] - w[r * stride + c]) < (format == WeightFormat::w8_g32 ? 0.02f : 0.27f));
    }
    REQUIRE_FALSE(pack({w.data(), n, k, stride}, format, std::span(memory).subspan(shift, 64)));
    REQUIRE_FALSE(pack({w.data(), n, k, stride}, format, std::span(memory).subspan(shift + 1)));
  }
  REQUIRE_FALSE(pack({w.data(), 0, k, stride}, WeightFormat::w4_g64, {}));
}
