// Packing: from codes, scales and minima in plain order to tiles, and back, bit for bit. From float rows in one call.
// Everything works on row blocks (16 rows), so that a model of any size is packed with a buffer of a few kilobytes.
#ifndef POCKET_QUANT_PACK_HPP
#define POCKET_QUANT_PACK_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../core/types.hpp"
#include "../core/view.hpp"
#include "format.hpp"
#include "quantize.hpp"

POCKET_NAMESPACE_BEGIN

// Up to 16 rows in plain order. codes: [rows][k_padded], one byte each; scales, minima: [rows][k_padded / group].
// k_padded = k rounded up to 64. Unused rows and columns are zero. `minima` is ignored by formats that have none.
class RowBlock {
 public:
  RowBlock(WeightFormat format, std::size_t k)
      : format_(format),
        k_padded_(round_up(k, tile_cols)),
        groups_(k_padded_ / with_format(format, [](auto f) { return decltype(f)::group; })),
        codes_(tile_rows * k_padded_),
        scales_(tile_rows * groups_),
        minima_(tile_rows * groups_) {}

  WeightFormat format() const noexcept { return format_; }     // as constructed
  std::size_t k_padded() const noexcept { return k_padded_; }  // columns of a row here
  std::size_t groups() const noexcept { return groups_; }      // per row
  // Row `row` < 16, unchecked.
  std::uint8_t* codes(std::size_t row) noexcept { return codes_.data() + row * k_padded_; }              // [k_padded]
  const std::uint8_t* codes(std::size_t row) const noexcept { return codes_.data() + row * k_padded_; }  // [k_padded]
  f16* scales(std::size_t row) noexcept { return scales_.data() + row * groups_; }                       // [groups]
  const f16* scales(std::size_t row) const noexcept { return scales_.data() + row * groups_; }           // [groups]
  f16* minima(std::size_t row) noexcept { return minima_.data() + row * groups_; }                       // [groups]
  const f16* minima(std::size_t row) const noexcept { return minima_.data() + row * groups_; }           // [groups]
  // All zero.
  void clear() noexcept {
    std::memset(codes_.data(), 0, codes_.size());
    std::memset(static_cast<void*>(scales_.data()), 0, scales_.size() * sizeof(f16));
    std::memset(static_cast<void*>(minima_.data()), 0, minima_.size() * sizeof(f16));
  }

 private:
  WeightFormat format_;
  std::size_t k_padded_, groups_;
  std::vector<std::uint8_t> codes_;
  std::vector<f16> scales_, minima_;
};

namespace detail {
inline f16 load_f16(const std::byte* p) noexcept {
  f16 h;
  std::memcpy(&h, p, sizeof h);
  return h;
}
}  // namespace detail

// out: k_padded / 64 tiles, every byte of which is written.
inline void pack_block(const RowBlock& block, std::byte* out) noexcept {
  with_format(block.format(), [&](auto format) {
    using F = decltype(format);
    for (std::size_t t = 0; t < block.k_padded() / tile_cols; ++t, out += F::bytes) {
      std::memset(out, 0, F::bytes);
      for (std::size_t r = 0; r < tile_rows; ++r) {
        for (std::size_t g = 0; g < F::groups; ++g) {
          std::memcpy(out + F::scales_offset(g) + 2 * r, &block.scales(r)[t * F::groups + g], 2);
          if constexpr (F::has_minimum)
            std::memcpy(out + F::minima_offset(g) + 2 * r, &block.minima(r)[t * F::groups + g], 2);
        }
        const std::uint8_t* q = block.codes(r) + t * tile_cols;
        for (std::size_t c = 0; c < tile_cols; ++c)
          out[F::code_byte(r, c)] |= static_cast<std::byte>(q[c] << F::code_shift(c));
      }
    }
  });
}

// The inverse: tiles of row block `index` of w into `block`, which has w's format and k.
inline void unpack_block(const PackedMatrix& w, std::size_t index, RowBlock& block) noexcept {
  with_format(w.format, [&](auto format) {
    using F = decltype(format);
    const std::byte* tile = w.tiles + index * w.block_bytes();
    for (std::size_t t = 0; t < w.k_tiles(); ++t, tile += F::bytes) {
      for (std::size_t r = 0; r < tile_rows; ++r) {
        for (std::size_t g = 0; g < F::groups; ++g) {
          block.scales(r)[t * F::groups + g] = detail::load_f16(tile + F::scales_offset(g) + 2 * r);
          if constexpr (F::has_minimum)
            block.minima(r)[t * F::groups + g] = detail::load_f16(tile + F::minima_offset(g) + 2 * r);
        }
        std::uint8_t* q = block.codes(r) + t * tile_cols;
        for (std::size_t c = 0; c < tile_cols; ++c) {
          const auto byte = static_cast<std::uint8_t>(tile[F::code_byte(r, c)]);
          q[c] = F::bits == 4 ? static_cast<std::uint8_t>(byte >> F::code_shift(c) & 15u) : byte;
        }
      }
    }
  });
}

// Row `row` of w as floats, s*q + (m - o*s) with each step rounded to float32 (s*q is exact): out[k].
inline void dequantize_row(const PackedMatrix& w, std::size_t row, float* out) noexcept {
  with_format(w.format, [&](auto format) {
    using F = decltype(format);
    const std::size_t r = row % tile_rows;
    const std::byte* tile = w.tiles + row / tile_rows * w.block_bytes();
    for (std::size_t k0 = 0; k0 < w.k; k0 += tile_cols, tile += F::bytes) {
      for (std::size_t c = 0; c < tile_cols && k0 + c < w.k; ++c) {
        const std::size_t g = c / F::group;
        const float s = to_float(detail::load_f16(tile + F::scales_offset(g) + 2 * r));
        const auto byte = static_cast<std::uint8_t>(tile[F::code_byte(r, c)]);
        if constexpr (F::bits == 4) {
          const float m = to_float(detail::load_f16(tile + F::minima_offset(g) + 2 * r));
          const float shifted = m - w.offset * s;
          out[k0 + c] = s * static_cast<float>(byte >> F::code_shift(c) & 15u) + shifted;
        } else {
          out[k0 + c] = s * static_cast<float>(static_cast<std::int8_t>(byte));
        }
      }
    }
  });
}

// Quantises rows of floats into the rows of `block` from `first` on: rows.cols = k, first + rows.rows <= 16.
// importance: null, or one value for each column (quantize.hpp).
inline Expected<void> quantize_rows(MatrixView<const float> rows, RowBlock& block, std::size_t first = 0,
                                    const float* importance = nullptr) {
  return with_format(block.format(), [&](auto format) -> Expected<void> {
    using F = decltype(format);
    for (std::size_t r = 0; r < rows.rows; ++r)
      for (std::size_t g = 0; g * F::group < rows.cols; ++g) {
        const std::size_t k0 = g * F::group, left = rows.cols - k0;
        POCKET_CHECK(quantize_group<F>(rows.row(r) + k0, left < F::group ? left : F::group, block.codes(first + r) + k0,
                                       block.scales(first + r)[g], block.minima(first + r)[g],
                                       importance == nullptr ? nullptr : importance + k0));
      }
    return {};
  });
}

// Quantises and packs a float matrix w[n, k]. `out` is 64-byte aligned and holds packed_bytes(format, n, k).
// importance: null, or importance[k] (quantize.hpp).
inline Expected<PackedMatrix> pack(MatrixView<const float> w, WeightFormat format, std::span<std::byte> out,
                                   const float* importance = nullptr) {
  if (w.rows == 0 || w.cols == 0 || w.stride < w.cols)
    return fail(Errc::invalid_argument,
                "pack: a matrix of " + number(w.rows) + " x " + number(w.cols) + " with stride " + number(w.stride));
  PackedMatrix packed{out.data(), w.rows, w.cols, format, 0};
  if (out.size() < packed.bytes() || reinterpret_cast<std::uintptr_t>(out.data()) % 64 != 0)
    return fail(Errc::invalid_argument, "pack: needs " + number(packed.bytes()) + " bytes at a multiple of 64, got " +
                                            number(out.size()) + " at " +
                                            number(reinterpret_cast<std::uintptr_t>(out.data())));
  RowBlock block(format, w.cols);
  for (std::size_t n0 = 0; n0 < w.rows; n0 += tile_rows) {
    const std::size_t rows = w.rows - n0 < tile_rows ? w.rows - n0 : tile_rows;
    block.clear();
    POCKET_CHECK(quantize_rows({w.row(n0), rows, w.cols, w.stride}, block, 0, importance));
    pack_block(block, out.data() + n0 / tile_rows * packed.block_bytes());
  }
  return packed;
}

POCKET_NAMESPACE_END

#endif
