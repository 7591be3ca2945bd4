// The search behind 4-bit quantisation: for one group of weights w[i] the float16 scale s and minimum m that make
//
//   E(s, m) = sum_i u[i] (w[i] - fl(s q[i] + m))^2      q[i]: the code in 0..15 that is nearest to (w[i] - m) / s
//
// small, where fl rounds to float32 as dequantize_row (pack.hpp) does and u[i] says how much column i counts.
//
//   1. min/max: m = the least weight, s = range / 15. What follows replaces it only by a smaller E.
//   2. Grids of 15, 14, .. 1 steps from the least weight to the greatest: weights that were in 4 bits before lie on one
//      and come back exactly. E = 0 ends the search.
//   3. Starts: steps of range / L, L = 15 to 17 by halves, the least weight at -c for c = 0 to L - 15 by halves: c
//      steps are clipped below, L - 15 - c above. Each start's codes give s and m by least squares, and what is left
//      of E in closed form; from the best three, codes and least squares alternate until E falls no more.
//   4. E itself, for the winner's neighbours in float16: s rounded either way with the m that suits it, and m with s.
//
// On Gaussian weights this leaves 0.81 of min/max's E in groups of 64 and 0.79 in groups of 32; a search without an end
// finds 0.807 and 0.769.
//
// The result is the same bits whatever compiler and processor: sums run in fixed lanes, and every product that is added
// to something is exact, so that a fused multiply-add rounds as two operations do. Step 3 works for that on
// x = (w - low) / range in 12 bits, u has 8 significant bits, a code 4.
#ifndef POCKET_QUANT_AFFINE_FIT_HPP
#define POCKET_QUANT_AFFINE_FIT_HPP

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "../config.hpp"
#include "../core/types.hpp"

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

namespace detail {

// Group: how many weights, a multiple of 4.
template <std::size_t Group>
class AffineFit {
 public:
  // w[count], importance[count] or null (all count alike), 1 <= count <= Group. Weights are finite and at most 65504;
  // importance is finite and not negative, and counts as a share of the group's greatest, 2^-10 at least.
  AffineFit(const float* w, std::size_t count, const float* importance) noexcept : count_(count) {
    low_ = high_ = w[0];
    float most = 0;
    for (std::size_t i = 0; i < count; ++i) {
      low_ = w[i] < low_ ? w[i] : low_;
      high_ = w[i] > high_ ? w[i] : high_;
      if (importance != nullptr) most = importance[i] > most ? importance[i] : most;
    }
    for (std::size_t i = 0; i < Group; ++i) {
      w_[i / 4][i % 4] = i < count ? w[i] : low_;
      u_[i / 4][i % 4] = i >= count ? 0.0f : most > 0 ? share(importance[i], most) : 1.0f;
    }
  }

  // Finds what the functions below return.
  void search() noexcept {
    minimum_ = f16_at_most(low_);
    scale_ = f16_at_least((high_ - to_float(minimum_)) / 15.0f);
    error_ = measure(scale_, minimum_);
    range_ = high_ - low_;
    for (int code = 1; code <= 15 && range_ == 0 && error_ > 0; ++code)
      take_if_better(to_f16((low_ - to_float(minimum_)) / static_cast<float>(code)), minimum_);
    if (error_ == 0 || !(range_ >= 0x1p-20f)) return;  // below that, steps of float16's least are all there is
    normalise();
    Found best[kept];
    try_grids(best);
    if (error_ == 0) return;
    for (int clipped = 0; clipped <= 4; ++clipped)  // half steps
      for (int below = 0; below <= clipped; ++below) {
        const float step = top / (15.0f + 0.5f * static_cast<float>(clipped));
        keep(best, score(step, 0.5f * static_cast<float>(below) * step));
      }
    Found winner;
    for (Found& f : best) {
      for (int i = 0; i < 8 && f.gain > 0; ++i) {
        const Found next = score(f.scale, f.minimum);
        if (!(next.gain > f.gain)) break;
        f = next;
      }
      if (f.gain > winner.gain) winner = f;
    }
    if (winner.gain > 0) try_neighbours(winner);
  }

  f16 scale() const noexcept { return scale_; }
  f16 minimum() const noexcept { return minimum_; }
  double error() const noexcept { return error_; }  // E(scale(), minimum())
  // out[count]
  void codes(std::uint8_t* out) const noexcept {
    const float s = to_float(scale_), m = to_float(minimum_);
    for (std::size_t i = 0; i < count_; ++i)
      out[i] = s > 0 ? static_cast<std::uint8_t>(nearest(w_[i / 4], s, m)[i % 4]) : std::uint8_t{0};
  }

 private:
  using Lanes = float __attribute__((vector_size(16)));  // weight i is in lane i % 4
  static constexpr std::size_t lanes = Group / 4, kept = 3;
  static constexpr float top = 4095;        // of x
  static constexpr float rounder = 0xcp20;  // 1.5 * 2^23: what is added to it is rounded to an integer, ties to even

  // What least squares make of a start's codes, in units of x, and their sums of u q, u q^2 and u x q. gain: how much
  // smaller E is than with one value for all, times the sum of u; not positive: no fit.
  struct Found {
    double gain = -1;
    float scale = 0, minimum = 0, sum_q = 0, sum_qq = 0, sum_xq = 0;
  };

  // 8 significant bits.
  static float share(float importance, float most) noexcept {
    const float u = importance / most;
    return to_float(to_bf16(u > 0x1p-10f ? u : 0x1p-10f));
  }
  static float sum(Lanes v) noexcept { return (v[0] + v[1]) + (v[2] + v[3]); }
  // The codes of four values.
  static Lanes nearest(Lanes v, float scale, float minimum) noexcept {
    const Lanes zero{}, s = zero + scale;
    Lanes t = (v - minimum) / s;
    t = t > zero ? t : zero;
    t = 15.0f - t;
    t = t > zero ? t : zero;
    return ((rounder + 15.0f) - t) - rounder;
  }

  // E(s, m).
  double measure(f16 scale, f16 minimum) const noexcept {
    const float s = to_float(scale), m = to_float(minimum);
    double even = 0, odd = 0;
    for (std::size_t i = 0; i < lanes; ++i) {
      const Lanes d = w_[i] - (s * nearest(w_[i], s, m) + m), ud = u_[i] * d;
      even += static_cast<double>(ud[0]) * static_cast<double>(d[0]);
      odd += static_cast<double>(ud[1]) * static_cast<double>(d[1]);
      even += static_cast<double>(ud[2]) * static_cast<double>(d[2]);
      odd += static_cast<double>(ud[3]) * static_cast<double>(d[3]);
    }
    return even + odd;
  }
  void take_if_better(f16 scale, f16 minimum) noexcept {
    if ((scale.bits & 0x7c00u) == 0x7c00u || (minimum.bits & 0x7c00u) == 0x7c00u || (scale.bits & 0x8000u) != 0) return;
    if (const double e = measure(scale, minimum); e < error_) {
      error_ = e;
      scale_ = scale;
      minimum_ = minimum;
    }
  }

  void normalise() noexcept {
    const Lanes zero{}, all = zero + range_;
    Lanes sum_u{}, sum_x{};
    for (std::size_t i = 0; i < lanes; ++i) {
      const Lanes x = (((w_[i] - low_) / (all / top)) + rounder) - rounder;
      x_[i] = x;
      ux_[i] = u_[i] * x;
      sum_u += u_[i];
      sum_x += ux_[i];
    }
    sum_u_ = sum(sum_u);
    sum_x_ = sum(sum_x);
    unit_ = range_ / top;
  }

  // One start, or one turn of the alternation: the codes for (scale, minimum), least squares for the codes.
  Found score(float scale, float minimum) const noexcept {
    Lanes q1{}, q2{}, xq{};
    for (std::size_t i = 0; i < lanes; ++i) {
      const Lanes q = nearest(x_[i], scale, minimum), uq = u_[i] * q;
      q1 += uq;
      q2 += uq * q;
      xq += ux_[i] * q;
    }
    Found f;
    f.sum_q = sum(q1);
    f.sum_qq = sum(q2);
    f.sum_xq = sum(xq);
    const double u = sum_u_, x = sum_x_, q = f.sum_q;  // floats, so that products of two are exact
    const double covariance = u * f.sum_xq - x * q, variance = u * f.sum_qq - q * q;
    if (!(variance > 0 && covariance > 0)) return f;
    f.gain = covariance * covariance / variance;
    f.scale = static_cast<float>(covariance / variance);
    f.minimum = static_cast<float>((x - static_cast<double>(f.scale) * q) / u);
    return f;
  }
  // Keeps the best, the best first; of equals the earlier.
  static void keep(Found (&best)[kept], const Found& f) noexcept {
    std::size_t place = kept;
    while (place > 0 && f.gain > best[place - 1].gain) {
      if (place < kept) best[place] = best[place - 1];
      --place;
    }
    if (place < kept) best[place] = f;
  }

  // Grids of which the least weight and the greatest are points. A sixteenth of a step off, the group may still have
  // been on one before it was rounded to 16 bits: a start.
  void try_grids(Found (&best)[kept]) noexcept {
    for (int steps = 15; steps > 0; --steps) {
      const float step = range_ / static_cast<float>(steps);
      std::size_t i = 0;
      for (; i < count_; ++i) {
        const float t = (w_[i / 4][i % 4] - low_) / step, off = t - ((t + rounder) - rounder);
        if (!(off < 0.0625f && off > -0.0625f)) break;
      }
      if (i < count_) continue;
      for (int code = 0; code <= 15 - steps && error_ > 0; ++code)  // of the least weight
        take_if_better(to_f16(step), to_f16(static_cast<float>(low_ - static_cast<double>(code) * step)));
      keep(best, score(top / static_cast<float>(steps), 0));
    }
  }

  void try_neighbours(const Found& f) noexcept {
    const float s = static_cast<float>(static_cast<double>(f.scale) * unit_);
    const float m = static_cast<float>(low_ + static_cast<double>(f.minimum) * unit_);
    for (const f16 scale : {f16_at_most(s), f16_at_least(s)}) {
      const auto x = static_cast<float>((sum_x_ - static_cast<double>(to_float(scale) / unit_) * f.sum_q) / sum_u_);
      take_if_better(scale, to_f16(static_cast<float>(low_ + static_cast<double>(x) * unit_)));
    }
    for (const f16 minimum : {f16_at_most(m), f16_at_least(m)}) {
      const auto x = static_cast<double>((to_float(minimum) - low_) / unit_);
      take_if_better(to_f16(static_cast<float>((f.sum_xq - x * f.sum_q) / f.sum_qq) * unit_), minimum);
    }
  }

  std::size_t count_;
  float low_ = 0, high_ = 0, range_ = 0, unit_ = 0, sum_u_ = 0, sum_x_ = 0;
  Lanes w_[lanes], u_[lanes], x_[lanes], ux_[lanes];
  f16 scale_{}, minimum_{};
  double error_ = 0;
};

}  // namespace detail

POCKET_NAMESPACE_END

#endif
