// AArch64 with nothing beyond its baseline (Cortex-A53 2012, A72 and later).
#ifndef POCKET_KERNELS_NEON_HPP
#define POCKET_KERNELS_NEON_HPP

#include "../pocket/config.hpp"

#if POCKET_ARCH_ARM64
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels.hpp"

POCKET_NAMESPACE_BEGIN

namespace neon {

// Of one token's product: one place in memory, read in order.
inline constexpr std::size_t streams_at_once = 1;

#include "body/neon.inl"

// 4-bit codes: smull and smlal sum in int16, at most 15 * 128 = 1920 a product; eight of them, a whole group of 64
// columns, stay below 15360, and two neighbouring sums (30720) below 32768.
// 8-bit codes: one product is up to 128 * 128, so each is widened at once.
template <int Bits>
struct Dot;
template <>
struct Dot<4> {
  struct Sums {
    int16x8_t even, odd;  // row
  };
  static POCKET_ALWAYS_INLINE Sums product(int8x16_t q, int8x16_t a) {
    return {vmull_s8(vget_low_s8(q), vget_low_s8(a)), vmull_high_s8(q, a)};
  }
  static POCKET_ALWAYS_INLINE Sums add(Sums sums, int8x16_t q, int8x16_t a) {
    return {vmlal_s8(sums.even, vget_low_s8(q), vget_low_s8(a)), vmlal_high_s8(sums.odd, q, a)};
  }
  static POCKET_ALWAYS_INLINE void keep(Sums& a, Sums& b, Sums& c, Sums& d) {
    keep_here(a.even, a.odd, b.even, b.odd);
    keep_here(c.even, c.odd, d.even, d.odd);
  }
  static POCKET_ALWAYS_INLINE int32x4_t total(Sums sums) { return vpaddlq_s16(vpaddq_s16(sums.even, sums.odd)); }
};
template <>
struct Dot<8> {
  struct Sums {
    int32x4_t even, odd;
  };
  static POCKET_ALWAYS_INLINE Sums product(int8x16_t q, int8x16_t a) {
    return {vpaddlq_s16(vmull_s8(vget_low_s8(q), vget_low_s8(a))), vpaddlq_s16(vmull_high_s8(q, a))};
  }
  static POCKET_ALWAYS_INLINE Sums add(Sums sums, int8x16_t q, int8x16_t a) {
    return {vpadalq_s16(sums.even, vmull_s8(vget_low_s8(q), vget_low_s8(a))),
            vpadalq_s16(sums.odd, vmull_high_s8(q, a))};
  }
  static POCKET_ALWAYS_INLINE void keep(Sums& a, Sums& b, Sums& c, Sums& d) {
    keep_here(a.even, a.odd, b.even, b.odd);
    keep_here(c.even, c.odd, d.even, d.odd);
  }
  static POCKET_ALWAYS_INLINE int32x4_t total(Sums sums) { return vpaddq_s32(sums.even, sums.odd); }
};

// Sixteen registers of sums: of one plane all rows at once, of two planes half.
template <class Dot, class Form, std::size_t Pairs>
struct Repeated;
template <class Format, class Form>
using Method = Repeated<Dot<Format::bits>, Form, std::is_same_v<Form, A8> ? 8 : 4>;

#include "body/neon_dot.inl"

// after the primitives
#include "body/exp.inl"
// before attention
#include "body/neon_attention.inl"
// after its loops
#include "body/attention.inl"
#include "body/matmul.inl"

// Many tokens go by pairs, as few do.
template <class Format, class Form>
std::size_t many_tokens(const Matmul&, std::size_t, std::size_t, float*) {
  return 0;
}

#include "body/prepare.inl"

}  // namespace neon

inline constexpr Kernels neon_kernels{Isa::neon, "neon", &neon::prepare, &neon::matmul, &neon::gate, &neon::attention};

POCKET_NAMESPACE_END

#endif
#endif
