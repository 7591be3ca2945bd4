// The oracle: each kernel's definition in double precision, from the formula and sharing no code with the kernels, and
// the error bound that a float32 kernel must keep. For tests and validation; slow.
#ifndef POCKET_KERNELS_REFERENCE_HPP
#define POCKET_KERNELS_REFERENCE_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "../pocket/config.hpp"
#include "../pocket/core/types.hpp"
#include "../pocket/quant/activations.hpp"
#include "../pocket/quant/format.hpp"

POCKET_NAMESPACE_BEGIN

namespace reference {

inline constexpr double unit = 0x1p-24;  // half a unit in the last place of float32, relative

// A quantised matrix in plain order, as exact numbers: w = s * (q - o) + m.
struct Weights {
  std::size_t n = 0, k = 0, group = 64;
  double offset = 0;
  std::vector<int> codes;              // [n][k]
  std::vector<double> scale, minimum;  // [n][groups]

  std::size_t groups() const { return (k + group - 1) / group; }
  double at(std::size_t row, std::size_t col) const {
    const std::size_t g = row * groups() + col / group;
    return scale[g] * (codes[row * k + col] - offset) + minimum[g];
  }
};

// One token's quantised activations: value = scale[i / 64] * code[i].
struct Token {
  std::vector<int> codes;
  std::vector<double> scale;  // one per 64
};

// The definition of A16 and A8 (range 32639 or 127), in float32 where the definition says float32.
inline Token quantize(const float* a, std::size_t k, float range) {
  Token t;
  t.codes.assign(k, 0);
  for (std::size_t g0 = 0; g0 < k; g0 += 64) {
    const std::size_t end = g0 + 64 < k ? g0 + 64 : k;
    float max = 0;
    bool finite = true;
    for (std::size_t i = g0; i < end; ++i) {
      finite = finite && std::isfinite(a[i]);
      max = std::fabs(a[i]) > max ? std::fabs(a[i]) : max;
    }
    const bool live = finite && max >= 0x1p-110f;
    t.scale.push_back(!finite ? std::numeric_limits<double>::quiet_NaN()
                      : live  ? static_cast<double>(max / range)
                              : 0.0);
    const float inverse = live ? range / max : 0.0f;
    for (std::size_t i = g0; i < end && live; ++i) {
      volatile float product = a[i] * inverse;  // rounded to float32 before the nearest integer is taken
      t.codes[i] = static_cast<int>(std::nearbyint(product));
    }
  }
  return t;
}

struct Value {
  double value;
  double bound;  // |kernel - value| may be at most this
};

// y[n] for one token; the bound of kernels.hpp, derived there: each of the 2 steps of a group and the roundings of
// t*isum, t*asum and m - o*s, over the sum of magnitudes.
inline Value dot(const Weights& w, std::size_t row, const Token& a) {
  double y = 0, magnitude = 0;
  for (std::size_t g = 0; g < w.groups(); ++g) {
    const std::size_t begin = g * w.group, end = begin + w.group < w.k ? begin + w.group : w.k;
    double isum = 0, asum = 0;
    for (std::size_t i = begin; i < end; ++i) {
      isum += w.codes[row * w.k + i] * a.codes[i];
      asum += a.codes[i];
    }
    const double t = a.scale[begin / 64], s = w.scale[row * w.groups() + g];
    const double m = w.minimum[row * w.groups() + g] - w.offset * s;
    y += t * (s * isum + m * asum);
    magnitude += t * (std::fabs(s * isum) + std::fabs(m * asum));
  }
  return {y, (2.0 * static_cast<double>(w.groups()) + 4.0) * unit * magnitude};
}

}  // namespace reference

POCKET_NAMESPACE_END

#endif
