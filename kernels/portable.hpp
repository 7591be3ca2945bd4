// The portable tier, on Highway's static dispatch: whatever vectors the program's own target flags allow, for CPUs that
// have no file of their own. Without flags on x86-64, Highway 1.0 offers g++ one lane only (it starts at SSSE3):
// correct, and slow. Where Highway's target has no fused multiply-add, the products are rounded before they are added.
//
// A tile's codes are widened to int16 [16][64]; a row of them meets the whole 16-bit activation in pairwise products:
// 64 * 127 * 32639 < 2^31.
#ifndef POCKET_KERNELS_PORTABLE_HPP
#define POCKET_KERNELS_PORTABLE_HPP

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../pocket/config.hpp"
#include "kernels.hpp"

HWY_BEFORE_NAMESPACE();
POCKET_NAMESPACE_BEGIN

namespace portable {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::size_t heads_at_once = 4, rows_at_once = 1;  // attention.inl
// matmul.inl, many_tokens.inl
inline constexpr std::size_t streams_at_once = 1, blocks_at_once = 1;
template <class Form>
inline constexpr std::size_t fewest_unpacked = 2;
template <class Format, class Form>
inline constexpr std::size_t tokens_at_once = 1;
template <class Format, class Form>
inline constexpr std::size_t tokens_from_tiles = 1;

// Kept in memory, since a vector's length may be unknown to the compiler.
struct Rows {
  alignas(64) float v[16];
};
struct RowsI {
  alignas(64) std::int32_t v[16];
};

// Calls f(i) for each group of lanes of a Rows.
template <class F>
POCKET_ALWAYS_INLINE void for_lanes(F&& f) {
  const hn::CappedTag<float, 16> d;
  for (std::size_t i = 0; i < 16; i += hn::Lanes(d)) f(d, i);
}
POCKET_ALWAYS_INLINE Rows broadcast(float x) {
  Rows r;
  for_lanes([&](auto d, std::size_t i) { hn::Store(hn::Set(d, x), d, r.v + i); });
  return r;
}
POCKET_ALWAYS_INLINE Rows zero() { return broadcast(0.0f); }
// r[i] = f(d, a[i], b[i], ...) for each vector of lanes.
template <class F, class... R>
POCKET_ALWAYS_INLINE Rows map(F&& f, const R&... rows) {
  Rows r;
  for_lanes([&](auto d, std::size_t i) { hn::Store(f(d, hn::Load(d, rows.v + i)...), d, r.v + i); });
  return r;
}
POCKET_ALWAYS_INLINE Rows add(const Rows& a, const Rows& b) {
  return map([](auto, auto x, auto y) { return hn::Add(x, y); }, a, b);
}
POCKET_ALWAYS_INLINE Rows subtract(const Rows& a, const Rows& b) {
  return map([](auto, auto x, auto y) { return hn::Sub(x, y); }, a, b);
}
POCKET_ALWAYS_INLINE Rows multiply(const Rows& a, const Rows& b) {
  return map([](auto, auto x, auto y) { return hn::Mul(x, y); }, a, b);
}
POCKET_ALWAYS_INLINE Rows divide(const Rows& a, const Rows& b) {
  return map([](auto, auto x, auto y) { return hn::Div(x, y); }, a, b);
}
POCKET_ALWAYS_INLINE Rows fma(const Rows& a, const Rows& b, const Rows& c) {
  return map([](auto, auto x, auto y, auto z) { return hn::MulAdd(x, y, z); }, a, b, c);
}
POCKET_ALWAYS_INLINE Rows less_select(const Rows& a, const Rows& b, const Rows& x, const Rows& y) {
  return map([](auto, auto l, auto r, auto yes, auto no) { return hn::IfThenElse(hn::Lt(l, r), yes, no); }, a, b, x, y);
}
POCKET_ALWAYS_INLINE Rows round(const Rows& a) {
  return map([](auto, auto x) { return hn::Round(x); }, a);
}
POCKET_ALWAYS_INLINE Rows power_of_two(const Rows& n) {
  return map(
      [](auto d, auto x) {
        const hn::RebindToSigned<decltype(d)> di;
        const auto number = hn::IfThenElse(hn::Eq(x, x), x, hn::Zero(d));  // no integer stands for NaN
        return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, number), hn::Set(di, 127))));
      },
      n);
}
POCKET_ALWAYS_INLINE float sum_of(const Rows& rows) {
  Rows a = rows;
  for (std::size_t half = 8; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  return a.v[0];
}
POCKET_ALWAYS_INLINE float max_of(const Rows& rows) {
  Rows a = rows;
  for (std::size_t half = 8; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) a.v[i] = a.v[i] < a.v[i + half] ? a.v[i + half] : a.v[i];
  return a.v[0];
}
POCKET_ALWAYS_INLINE Rows load(const float* p) {
  Rows r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
POCKET_ALWAYS_INLINE void store(float* p, const Rows& a) { std::memcpy(p, a.v, sizeof a.v); }
POCKET_ALWAYS_INLINE Rows load_f16(const std::byte* p) {
  Rows r;
  f16 h[16];
  std::memcpy(static_cast<void*>(h), p, sizeof h);
  for (std::size_t i = 0; i < 16; ++i) r.v[i] = pocket::to_float(h[i]);
  return r;
}
POCKET_ALWAYS_INLINE Rows to_float(const RowsI& a) {
  Rows r;
  for_lanes([&](auto d, std::size_t i) {
    const hn::RebindToSigned<decltype(d)> di;
    hn::Store(hn::ConvertTo(d, hn::Load(di, a.v + i)), d, r.v + i);
  });
  return r;
}

struct Unpacked {
  alignas(64) std::int16_t codes[tile_rows][tile_cols];
};

template <class Format>
POCKET_ALWAYS_INLINE void unpack(const std::byte* codes, Unpacked& u) {
  constexpr std::size_t cols = Format::bits == 4 ? 16 : 8;  // of one block
  for (std::size_t half = 0; half < 2; ++half)
    for (std::size_t b = 0; b < tile_cols / cols; ++b)
      for (std::size_t r = 0; r < 8; ++r, codes += 8) {
        std::int16_t* out = u.codes[half * 8 + r] + b * cols;
        for (std::size_t j = 0; j < 8; ++j) {
          const auto byte = static_cast<std::uint8_t>(codes[j]);
          if constexpr (Format::bits == 4) {
            out[j] = byte & 15;
            out[8 + j] = static_cast<std::int16_t>(byte >> 4);
          } else {
            out[j] = static_cast<std::int8_t>(byte);
          }
        }
      }
}

// The 64 activations of one group as int16.
template <class Form>
POCKET_ALWAYS_INLINE void widen(const std::int8_t* a, std::int16_t (&out)[tile_cols]) {
  for (std::size_t i = 0; i < tile_cols; ++i) {
    if constexpr (Form::bytes_per_code == 2) {
      const std::int8_t* step = a + i / 8 * 16 + i % 8;
      out[i] = static_cast<std::int16_t>(step[0] * 256 + step[8]);
    } else {
      out[i] = a[i];
    }
  }
}

// Sum of n products, n = 32 or 64; complete in int32.
POCKET_ALWAYS_INLINE std::int32_t dot_16(const std::int16_t* a, const std::int16_t* b, std::size_t n) {
#if HWY_TARGET == HWY_SCALAR
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
#else
  const hn::CappedTag<std::int16_t, 32> d16;
  const hn::RepartitionToWide<decltype(d16)> d32;
  auto sum0 = hn::Zero(d32), sum1 = hn::Zero(d32);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d16))
    sum0 = hn::ReorderWidenMulAccumulate(d32, hn::Load(d16, a + i), hn::Load(d16, b + i), sum0, sum1);
  return hn::GetLane(hn::SumOfLanes(d32, hn::Add(sum0, sum1)));
#endif
}

template <class Format, class Form>
POCKET_ALWAYS_INLINE void dot_unpacked(const Unpacked& u, const std::int8_t* a, RowsI (&sum)[Format::groups]) {
  alignas(64) std::int16_t wide[tile_cols];
  widen<Form>(a, wide);
  for (std::size_t r = 0; r < tile_rows; ++r)
    for (std::size_t g = 0; g < Format::groups; ++g)
      sum[g].v[r] = dot_16(u.codes[r] + g * Format::group, wide + g * Format::group, Format::group);
}

template <class Format, class Form>
POCKET_ALWAYS_INLINE void dot(const Unpacked (&u)[1], const std::int8_t* a, std::size_t,
                              RowsI (&sum)[1][1][Format::groups]) {
  dot_unpacked<Format, Form>(u[0], a, sum[0][0]);
}

template <class Format, class Form>
POCKET_ALWAYS_INLINE void dot_packed(const std::byte* codes, const std::int8_t* a, std::size_t,
                                     RowsI (&sum)[1][Format::groups]) {
  Unpacked u;
  unpack<Format>(codes, u);
  dot_unpacked<Format, Form>(u, a, sum[0]);
}

// Quantises 64 floats (see quant/activations.hpp).
template <class Form>
POCKET_ALWAYS_INLINE void prepare_group(const float* a, std::int8_t* codes, GroupScale& scale) {
  std::uint32_t top = 0;  // as integers NaN > infinity > the rest
  for (std::size_t i = 0; i < tile_cols; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, a + i, sizeof bits);
    bits &= 0x7fffffffu;
    top = bits > top ? bits : top;
  }
  float max;
  std::memcpy(&max, &top, sizeof max);
  const bool finite = top < 0x7f800000u;
  const bool live = finite && max >= smallest_activation;
  scale.t = finite ? (live ? max / Form::range : 0.0f) : __builtin_nanf("");
  const float inverse = live ? Form::range / max : 0.0f;
  std::int32_t half[2] = {0, 0};
  for (std::size_t i = 0; i < tile_cols; ++i) {
    const hn::CappedTag<float, 1> d;
    const std::int32_t q = live ? hn::GetLane(hn::NearestInt(hn::Set(d, a[i] * inverse))) : 0;
    half[i / 32] += q;
    if constexpr (Form::bytes_per_code == 2) {
      std::int8_t* step = codes + i / 8 * 16 + i % 8;
      step[0] = static_cast<std::int8_t>((q + 128) >> 8);
      step[8] = static_cast<std::int8_t>(q & 255);
    } else {
      codes[i] = static_cast<std::int8_t>(q);
    }
  }
  scale.sum = scale.t * static_cast<float>(half[0] + half[1]);
  scale.half[0] = scale.t * static_cast<float>(half[0]);
  scale.half[1] = scale.t * static_cast<float>(half[1]);
}

#include "body/exp.inl"
// before attention
#include "body/attention_rows.inl"
// after its loops
#include "body/attention.inl"
#include "body/matmul.inl"
// before many tokens
#include "body/many_tokens.inl"
#include "body/prepare.inl"

inline constexpr Kernels table{Isa::portable, "portable", &prepare, &matmul, &gate, &attention};

}  // namespace HWY_NAMESPACE
}  // namespace portable

inline constexpr const Kernels& portable_kernels = portable::HWY_NAMESPACE::table;

POCKET_NAMESPACE_END
HWY_AFTER_NAMESPACE();

#endif
