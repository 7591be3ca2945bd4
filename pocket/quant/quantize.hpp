// From float weights to codes: one group of a row.
//
//   4 bits: w = s q + m with the float16 scale and minimum that affine_fit.hpp finds
//   8 bits: s = max|w| / 127 rounded up to float16, q = round(w / s), m = 0
//
// What holds for 4 bits: the sum of squared errors is never above that of min/max quantisation (m the least weight, s =
// range / 15), so that a group's root mean square error is at most half of min/max's step; a single weight may err by
// more, where clipping it helps the others. A group that lies on a grid of 16 float16 steps comes back exactly. For 8
// bits |w - dequantised| <= s / 2, but for float32's rounding. All-zero groups (also of -0) decode to exactly 0.
// Weights must be finite and within float16's range (65504): anything else is an error.
#ifndef POCKET_QUANT_QUANTIZE_HPP
#define POCKET_QUANT_QUANTIZE_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../core/types.hpp"
#include "affine_fit.hpp"
#include "format.hpp"

POCKET_NAMESPACE_BEGIN

// One group of `count` weights, 1 <= count <= group (a tail is quantised over what is there). codes: one byte a weight;
// for 8 bits the byte is a signed code. importance: null, or how much an error in each column counts,
// importance[count], finite and not negative: the mean square of the column's input makes the error of the product
// small. Only ratios within the group matter; less than 2^-10 of the greatest counts as that; 8 bits take no notice.
// Returns an error for weights that the format cannot hold.
template <class Format>
Expected<void> quantize_group(const float* w, std::size_t count, std::uint8_t* codes, f16& scale, f16& minimum,
                              const float* importance = nullptr) {
  float most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float a = __builtin_fabsf(w[i]);
    if (!(a <= 65504.0f))
      return fail(Errc::invalid_argument,
                  "weight " + number(w[i]) + ": float16 scales need finite weights of at most 65504");
    most = a > most ? a : most;
  }
  if constexpr (Format::bits == 4) {
    detail::AffineFit<Format::group> fit(w, count, importance);
    fit.search();
    fit.codes(codes);
    scale = fit.scale();
    minimum = fit.minimum();
    if ((minimum.bits & 0x7fffu) == 0) minimum.bits = 0;
  } else {
    minimum = f16{};
    scale = f16_at_least(most / 127.0f);
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
