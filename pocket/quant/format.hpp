// Weights in 4 or 8 bits: what the numbers mean, and the packed tile that every instruction set reads as it lies.
//
//   w[n, k] = s * (q - o) + m      q: the code; s, m: float16, one pair for each output row n and group of columns;
//                                  o: one constant of the matrix (0: Q4_1 and Pocket's quantiser; 8: Q4_0 and MNN;
//                                  8-bit codes are signed and have o = 0)
//
//   format   codes            group  minimum m   bits per weight
//   w4_g64   0..15            64     yes         4.5
//   w4_g32   0..15            32     yes         5.0
//   w8_g32   -128..127        32     no (0)      8.5
//
// A tile holds 16 output rows x 64 columns; the tiles of a row block follow each other along k, the row blocks along n:
// a product reads one sequential stream. Rows and columns are padded with zero codes, scales and minima.
//
//   w4_g64, 576 bytes          w4_g32, 640 bytes                w8_g32, 1088 bytes
//     0  16 scales  (f16)        0  16 scales  of cols 0..31      0  16 scales of cols 0..31
//    32  16 minima  (f16)       32  16 minima  of cols 0..31     32  16 scales of cols 32..63
//    64  codes, 512 bytes       64  the same of cols 32..63      64  codes, 1024 bytes
//                              128  codes, 512 bytes
//
//   4-bit codes: eight blocks of 64 bytes, four for rows 0..7, four for rows 8..15. Byte 8r+j of a half's block b:
//       bits 0..3: q[r, 16b+j]        bits 4..7: q[r, 16b+8+j]            r = 0..7, j = 0..7
//   8-bit codes: sixteen blocks of 64 bytes, eight for each half. Byte 8r+j of block c of a half: q[r, 8c+j].
//
// Why 8 x 8: sixteen bytes are then 2 rows x 8 columns, the operand of Arm's i8mm; dotprod, maddubs and dpbusd read the
// same bytes against eight activations repeated, with one pairwise addition at the end.
#ifndef POCKET_QUANT_FORMAT_HPP
#define POCKET_QUANT_FORMAT_HPP

#include <cstddef>
#include <cstdint>

#include "../config.hpp"
#include "../core/types.hpp"
#include "../core/view.hpp"

POCKET_NAMESPACE_BEGIN

inline constexpr std::size_t tile_rows = 16;
inline constexpr std::size_t tile_cols = 64;
inline constexpr int layout_version = 1;  // of the tile; stands in every packed file

// The formats of the table at the top of this header; a packed file stores these names.
enum class WeightFormat : std::uint8_t { w4_g64, w4_g32, w8_g32 };

// The numbers of a format at compile time; the three are written as types so that kernels are made once for each.
template <int Bits, int Group, bool Minimum>
struct TileFormat {
  static constexpr int bits = Bits;
  static constexpr std::size_t group = Group;
  static constexpr std::size_t groups = tile_cols / Group;  // per row of a tile
  static constexpr bool has_minimum = Minimum;
  static constexpr std::size_t group_stride = tile_rows * sizeof(f16) * (Minimum ? 2 : 1);  // bytes
  static constexpr std::size_t codes_offset = groups * group_stride;                        // bytes
  static constexpr std::size_t bytes = codes_offset + tile_rows * tile_cols * Bits / 8;

  // Where the 16 scales of column group g begin, in bytes within the tile.
  static constexpr std::size_t scales_offset(std::size_t g) noexcept { return g * group_stride; }
  // The same of the 16 minima.
  static constexpr std::size_t minima_offset(std::size_t g) noexcept {
    return g * group_stride + tile_rows * sizeof(f16);
  }

  // Where q[row, col] lies: the byte within the tile, and for 4 bits the shift within the byte.
  static constexpr std::size_t code_byte(std::size_t row, std::size_t col) noexcept {
    constexpr std::size_t cols_per_block = Bits == 4 ? 16 : 8;
    const std::size_t block = row / 8 * (tile_cols / cols_per_block) + col / cols_per_block;
    return codes_offset + block * 64 + row % 8 * 8 + col % 8;
  }
  static constexpr unsigned code_shift(std::size_t col) noexcept { return Bits == 4 && col % 16 >= 8 ? 4 : 0; }  // bits
};
using W4G64 = TileFormat<4, 64, true>;
using W4G32 = TileFormat<4, 32, true>;
using W8G32 = TileFormat<8, 32, false>;

static_assert(W4G64::bytes == 576 && W4G32::bytes == 640 && W8G32::bytes == 1088);
static_assert(W4G64::bytes % 64 == 0 && W4G32::bytes % 64 == 0 && W8G32::bytes % 64 == 0);
static_assert(W4G64::code_byte(9, 17) == 64 + 5 * 64 + 9 && W4G64::code_shift(17) == 0 && W4G64::code_shift(25) == 4);
static_assert(W8G32::code_byte(9, 17) == 64 + 10 * 64 + 9);

// Calls f with an object of the format's type.
template <class F>
constexpr decltype(auto) with_format(WeightFormat format, F&& f) {
  switch (format) {
    case WeightFormat::w4_g32: return f(W4G32{});
    case WeightFormat::w8_g32: return f(W8G32{});
    default: return f(W4G64{});
  }
}

// Bytes of one tile, scales and minima included; a multiple of 64.
constexpr std::size_t tile_bytes(WeightFormat format) noexcept {
  return with_format(format, [](auto f) { return decltype(f)::bytes; });
}
// As the format is spelt here: "w4_g64".
constexpr const char* name_of(WeightFormat format) noexcept {
  constexpr const char* names[] = {"w4_g64", "w4_g32", "w8_g32"};
  return names[static_cast<int>(format)];
}

// Bytes of a packed n x k matrix; a multiple of 64.
constexpr std::size_t packed_bytes(WeightFormat format, std::size_t n, std::size_t k) noexcept {
  return div_up(n, tile_rows) * div_up(k, tile_cols) * tile_bytes(format);
}

// A packed matrix somewhere in memory: n outputs x k inputs, tiles aligned to 64 bytes, packed_bytes() long.
struct PackedMatrix {
  const std::byte* tiles = nullptr;
  std::size_t n = 0;
  std::size_t k = 0;
  WeightFormat format = WeightFormat::w4_g64;
  float offset = 0;  // the constant o

  constexpr std::size_t row_blocks() const noexcept { return div_up(n, tile_rows); }             // of 16 outputs
  constexpr std::size_t k_tiles() const noexcept { return div_up(k, tile_cols); }                // of one row block
  constexpr std::size_t block_bytes() const noexcept { return k_tiles() * tile_bytes(format); }  // of one row block
  constexpr std::size_t bytes() const noexcept { return row_blocks() * block_bytes(); }          // packed_bytes()
};

POCKET_NAMESPACE_END

#endif
