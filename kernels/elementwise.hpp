// Element-wise vector math with xsimd, at the program's own target flags: small next to the products (what needs e^x is
// not, see body/exp.inl), the same on every instruction set. Each function handles one row, in one order, so that a
// token's result does not depend on its batch. Nothing here is inlined into its callers: the compiler may contract a
// multiplication and an addition in one place, and must then do so for every caller.
#ifndef POCKET_KERNELS_ELEMENTWISE_HPP
#define POCKET_KERNELS_ELEMENTWISE_HPP

#include <cmath>
#include <cstddef>
#include <limits>
#include <xsimd/xsimd.hpp>

#include "../pocket/config.hpp"

POCKET_NAMESPACE_BEGIN

namespace elementwise {

namespace detail {
using Batch = xsimd::batch<float>;
inline constexpr std::size_t lanes = Batch::size;

// Calls f(i, load, store) over whole vectors, then once more on a padded copy for the tail.
template <class F>
inline void for_each_vector(std::size_t n, F&& f) {
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, lanes);
  if (i < n) f(i, n - i);
}
inline Batch load(const float* p, std::size_t count, float fill = 0) {
  if (count >= lanes) return Batch::load_unaligned(p);
  alignas(64) float padded[lanes];
  for (std::size_t j = 0; j < lanes; ++j) padded[j] = j < count ? p[j] : fill;
  return Batch::load_aligned(padded);
}
inline void store(float* p, std::size_t count, const Batch& v) {
  if (count >= lanes) return v.store_unaligned(p);
  alignas(64) float padded[lanes];
  v.store_aligned(padded);
  for (std::size_t j = 0; j < count; ++j) p[j] = padded[j];
}
}  // namespace detail

// out[i] = x[i] * gamma[i] / sqrt(mean(x^2) + epsilon). x and out may be the same.
// Sum of squares in float32, four vectors of xsimd's lanes side by side, n/(4*lanes) terms in each: relative error at
// most (n/(4*lanes) + lanes + 8) * 2^-24.
POCKET_NOINLINE inline void rms_norm(const float* x, const float* gamma, std::size_t n, float epsilon, float* out) {
  using namespace detail;
  Batch squares[4] = {Batch(0.0f), Batch(0.0f), Batch(0.0f), Batch(0.0f)};  // one would wait for itself
  std::size_t i0 = 0;
  for (; i0 + 4 * lanes <= n; i0 += 4 * lanes)
    for (std::size_t s = 0; s < 4; ++s) {
      const Batch v = Batch::load_unaligned(x + i0 + s * lanes);
      squares[s] = xsimd::fma(v, v, squares[s]);
    }
  for_each_vector(n - i0, [&](std::size_t i, std::size_t c) {
    const Batch v = load(x + i0 + i, c);
    squares[0] = xsimd::fma(v, v, squares[0]);
  });
  alignas(64) float lane[lanes];
  ((squares[0] + squares[1]) + (squares[2] + squares[3])).store_aligned(lane);
  float sum = 0;
  for (std::size_t j = 0; j < lanes; ++j) sum += lane[j];
  const Batch scale(1.0f / __builtin_sqrtf(sum / static_cast<float>(n) + epsilon));
  for_each_vector(
      n, [&](std::size_t i, std::size_t c) { store(out + i, c, load(x + i, c) * scale * load(gamma + i, c)); });
}

// Joins one chunk's partial result to a running one, both as (max, sum, out[n]) relative to their own maximum. A
// running state starts as (-infinity, 0, zeros).
POCKET_NOINLINE inline void merge_partial(float& max, float& sum, float* out, float chunk_max, float chunk_sum,
                                          const float* chunk_out, std::size_t n) {
  using namespace detail;
  const float top = chunk_max > max ? chunk_max : max;
  const auto weight = [top](float m) { return m == -__builtin_huge_valf() ? 0.0f : __builtin_expf(m - top); };
  const float a = weight(max), b = chunk_max == chunk_max ? weight(chunk_max) : chunk_max;
  max = top;
  sum = __builtin_fmaf(b, chunk_sum, a * sum);
  const Batch wa(a), wb(b);
  for_each_vector(
      n, [&](std::size_t i, std::size_t c) { store(out + i, c, load(out + i, c) * wa + load(chunk_out + i, c) * wb); });
}

// x[i] = x[i] * factor
POCKET_NOINLINE inline void scale(float* x, std::size_t n, float factor) {
  using namespace detail;
  const Batch f(factor);
  for_each_vector(n, [&](std::size_t i, std::size_t c) { store(x + i, c, load(x + i, c) * f); });
}

// Rotary position embedding in the rotate-half form: (a, b) = (x[i], x[i + half]) becomes
// (a*cos - b*sin, b*cos + a*sin), i = 0..half-1.
POCKET_NOINLINE inline void rotate_half(float* x, const float* cosine, const float* sine, std::size_t half) {
  using namespace detail;
  for_each_vector(half, [&](std::size_t i, std::size_t c) {
    const Batch a = load(x + i, c), b = load(x + half + i, c);
    const Batch co = load(cosine + i, c), si = load(sine + i, c);
    store(x + i, c, a * co - b * si);
    store(x + half + i, c, b * co + a * si);
  });
}

}  // namespace elementwise

POCKET_NAMESPACE_END

#endif
