// From float weights to codes: min/max quantisation of one group.
//
//   4 bits: m = the group's minimum (0 if all are positive is not forced), s = (max - m) / 15, q = round((w - m) / s)
//   8 bits: s = max|w| / 127, q = round(w / s), m = 0
//
// m is rounded down and s up to float16, so that the group's range stays covered and |w - dequantised| <= s/2 plus the
// rounding of the result. All-zero groups (also of -0) decode to exactly 0. Weights must be finite and, with m and s,
// within float16's range (65504): anything else is an error, since a clipped weight would be wrong silently.
#ifndef POCKET_QUANT_QUANTIZE_HPP
#define POCKET_QUANT_QUANTIZE_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../core/types.hpp"
#include "format.hpp"

POCKET_NAMESPACE_BEGIN

// The greatest float16 that is not above v.
constexpr f16 f16_at_most(float v) noexcept {
  f16 h = to_f16(v);
  if (to_float(h) > v)
    h.bits = static_cast<std::uint16_t>(h.bits == 0 ? 0x8001 : (h.bits & 0x8000u) != 0 ? h.bits + 1 : h.bits - 1);
  return h;
}
// The smallest float16 that is not below v.
constexpr f16 f16_at_least(float v) noexcept {
  f16 h = to_f16(v);
  if (to_float(h) < v)
    h.bits = static_cast<std::uint16_t>(h.bits == 0x8000u ? 1 : (h.bits & 0x8000u) != 0 ? h.bits - 1 : h.bits + 1);
  return h;
}

// One group of `count` weights, count <= group (a tail is quantised over what is there). codes: one byte a weight;
// for 8 bits the byte is a signed code. Returns an error for weights that the format cannot hold.
template <class Format>
Expected<void> quantize_group(const float* w, std::size_t count, std::uint8_t* codes, f16& scale, f16& minimum) {
  float low = 0, high = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!(__builtin_fabsf(w[i]) <= 65504.0f))
      return fail(Errc::invalid_argument,
                  "weight " + number(w[i]) + ": float16 scales need finite weights of at most 65504");
    low = i == 0 || w[i] < low ? w[i] : low;
    high = i == 0 || w[i] > high ? w[i] : high;
  }
  if constexpr (Format::bits == 4) {
    minimum = f16_at_most(low);
    const float m = to_float(minimum);
    scale = f16_at_least((high - m) / 15.0f);
    const float s = to_float(scale);
    for (std::size_t i = 0; i < count; ++i) {
      const float q = s > 0 ? __builtin_nearbyintf((w[i] - m) / s) : 0.0f;
      codes[i] = static_cast<std::uint8_t>(q < 0 ? 0 : q > 15 ? 15 : q);
    }
    if ((minimum.bits & 0x7fffu) == 0) minimum.bits = 0;
  } else {
    minimum = f16{};
    scale = f16_at_least((-low > high ? -low : high) / 127.0f);
    const float s = to_float(scale);
    for (std::size_t i = 0; i < count; ++i) {
      const float q = s > 0 ? __builtin_nearbyintf(w[i] / s) : 0.0f;
      codes[i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(q < -127 ? -127 : q > 127 ? 127 : q));
    }
  }
  return {};
}

POCKET_NAMESPACE_END

#endif
