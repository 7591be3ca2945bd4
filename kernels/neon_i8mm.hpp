// AArch64 with the matrix product of bytes, smmla (Cortex-A510, A710, Neoverse V1, Apple M2: 2020 and later).
#ifndef POCKET_KERNELS_NEON_I8MM_HPP
#define POCKET_KERNELS_NEON_I8MM_HPP

#include "../pocket/config.hpp"

#if POCKET_ARCH_ARM64
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwcap.hpp"
#include "kernels.hpp"

#if !POCKET_TARGET_NEON_I8MM
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod,i8mm"))), apply_to = function)
#else
#pragma GCC push_options
#if POCKET_TARGET_NEON_DOTPROD
#pragma GCC target("+i8mm")
#else
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#endif
#endif
#endif

POCKET_NAMESPACE_BEGIN

namespace neon_i8mm {

// Of one token's product: one place in memory, read in order.
inline constexpr std::size_t streams_at_once = 1;

#include "body/neon.inl"
// after the primitives
#include "body/neon_sdot.inl"

template <class Dot, class Form, std::size_t Pairs>
struct Repeated;
template <class Form>
struct Matrix;
// One plane has no use for a matrix product: its second half would be idle.
template <class Format, class Form>
using Method = std::conditional_t<std::is_same_v<Form, A8>, Repeated<Dot, Form, 8>, Matrix<Form>>;

#include "body/neon_dot.inl"

// smmla: two rows x eight columns against two planes x eight columns, all four products: row 0 with plane 0, with plane
// 1, row 1 with plane 0, with plane 1. The planes of a 16-bit activation lie like that.
template <class Form>
struct Matrix {
  using Sums = int32x4_t;
  static constexpr std::size_t registers = 1, pairs = 8;

  static POCKET_ALWAYS_INLINE Columns<1> load(const std::int8_t* a, [[maybe_unused]] std::size_t stride) {
    if constexpr (std::is_same_v<Form, A8Pair>)
      return {{vcombine_s8(vld1_s8(a), vld1_s8(a + stride))}, {vcombine_s8(vld1_s8(a + 8), vld1_s8(a + stride + 8))}};
    else
      return {{vld1q_s8(a)}, {vld1q_s8(a + 16)}};
  }
  static POCKET_ALWAYS_INLINE Sums add(Sums sums, int8x16_t q, int8x16_t a) { return vmmlaq_s32(sums, q, a); }
  static POCKET_ALWAYS_INLINE Sums product(int8x16_t q, int8x16_t a) { return add(zero_sum(), q, a); }
  static POCKET_ALWAYS_INLINE void keep(Sums& a, Sums& b, Sums& c, Sums& d) { keep_here(a, b, c, d); }
  template <std::size_t Token>
  static POCKET_ALWAYS_INLINE int32x4_t join(const Sums (&x)[1], const Sums (&y)[1]) {
    if constexpr (Form::bytes_per_code == 2)
      return vmlaq_n_s32(vuzp2q_s32(x[0], y[0]), vuzp1q_s32(x[0], y[0]), 256);
    else
      return Token == 0 ? vuzp1q_s32(x[0], y[0]) : vuzp2q_s32(x[0], y[0]);
  }
};

// ---- several tokens -------------------------------------------------------------------------------------------------

// Four units, each one token with 16-bit activations or two with 8-bit ones.
struct EightRows {
  int32x4_t unit[4][4];  // [unit][pair of rows]

  POCKET_ALWAYS_INLINE EightRows() {
    unit[0][0] = zero_sum();
    unit[0][1] = zero_sum();
    unit[0][2] = zero_sum();
    unit[0][3] = zero_sum();
    unit[1][0] = zero_sum();
    unit[1][1] = zero_sum();
    unit[1][2] = zero_sum();
    unit[1][3] = zero_sum();
    unit[2][0] = zero_sum();
    unit[2][1] = zero_sum();
    unit[2][2] = zero_sum();
    unit[2][3] = zero_sum();
    unit[3][0] = zero_sum();
    unit[3][1] = zero_sum();
    unit[3][2] = zero_sum();
    unit[3][3] = zero_sum();
  }
};

// For each eight columns of a unit sixteen bytes: of 16-bit activations they lie in memory, of 8-bit ones they are
// written here, for both halves of the rows.
template <class Form>
struct Staged {
  POCKET_ALWAYS_INLINE Staged(const std::int8_t* codes, std::size_t bytes) : a(codes), stride(bytes) {}
  POCKET_ALWAYS_INLINE const std::int8_t* unit(std::size_t i) const { return a + i * stride; }
  const std::int8_t* a;
  std::size_t stride;
};
template <>
struct Staged<A8> {
  POCKET_ALWAYS_INLINE Staged(const std::int8_t* a, std::size_t stride) {
    std::int8_t* out = codes;
    two(out, a, stride);
    two(out, a, stride);
    two(out, a, stride);
    two(out, a, stride);
  }
  // Eight columns of one token and eight of the next in turn: st2. Its two registers must be neighbours: g++ 12 puts
  // them together in memory, therefore by hand.
  static POCKET_ALWAYS_INLINE void two(std::int8_t*& out, const std::int8_t*& a, std::size_t stride) {
    const std::int8_t* b = a + stride;
    asm volatile(
        "ldp q28, q30, [%1]\n\t"
        "ldp q29, q31, [%2]\n\t"
        "st2 {v28.2d, v29.2d}, [%0], #32\n\t"
        "st2 {v30.2d, v31.2d}, [%0], #32\n\t"
        "ldp q28, q30, [%1, #32]\n\t"
        "ldp q29, q31, [%2, #32]\n\t"
        "st2 {v28.2d, v29.2d}, [%0], #32\n\t"
        "st2 {v30.2d, v31.2d}, [%0], #32"
        : "+r"(out), "+r"(a)
        : "r"(b)
        : "v28", "v29", "v30", "v31", "memory");
    a += 2 * stride;
  }
  POCKET_ALWAYS_INLINE const std::int8_t* unit(std::size_t i) const { return codes + i * 128; }
  alignas(64) std::int8_t codes[512];
};

// Sixteen columns of one unit. q01, q23: see load_pairs.
POCKET_ALWAYS_INLINE void add_unit(int32x4_t (&sums)[4], const int8x16_t (&q01)[4], const int8x16_t (&q23)[4],
                                   const std::int8_t* a) {
  int8x16_t low = vld1q_s8(a), high = vld1q_s8(a + 16);
  keep_here(low, high);
  sums[0] = vmmlaq_s32(sums[0], q01[0], low);
  sums[1] = vmmlaq_s32(sums[1], q01[1], low);
  sums[2] = vmmlaq_s32(sums[2], q23[0], low);
  sums[3] = vmmlaq_s32(sums[3], q23[1], low);
  keep_here(sums[0], sums[1], sums[2], sums[3]);
  sums[0] = vmmlaq_s32(sums[0], q01[2], high);
  sums[1] = vmmlaq_s32(sums[1], q01[3], high);
  sums[2] = vmmlaq_s32(sums[2], q23[2], high);
  sums[3] = vmmlaq_s32(sums[3], q23[3], high);
  keep_here(sums[0], sums[1], sums[2], sums[3]);
}
template <class Format, class Form>
POCKET_ALWAYS_INLINE void add_columns(EightRows& sums, const std::byte* codes, std::size_t b,
                                      const Staged<Form>& staged) {
  int8x16_t q01[4], q23[4];
  load_pairs<Format>(q01, codes + codes_at<Format>(b, 0));
  load_pairs<Format>(q23, codes + codes_at<Format>(b, 2));
  add_unit(sums.unit[0], q01, q23, staged.unit(0) + b * 32);
  add_unit(sums.unit[1], q01, q23, staged.unit(1) + b * 32);
  add_unit(sums.unit[2], q01, q23, staged.unit(2) + b * 32);
  add_unit(sums.unit[3], q01, q23, staged.unit(3) + b * 32);
}
template <class Form, std::size_t Token>
POCKET_ALWAYS_INLINE void join_rows(const EightRows& sums, int32x4_t& low, int32x4_t& high) {
  const int32x4_t(&unit)[4] = sums.unit[Form::bytes_per_code == 2 ? Token : Token / 2];
  if constexpr (Form::bytes_per_code == 2) {
    low = vmlaq_n_s32(vuzp2q_s32(unit[0], unit[1]), vuzp1q_s32(unit[0], unit[1]), 256);
    high = vmlaq_n_s32(vuzp2q_s32(unit[2], unit[3]), vuzp1q_s32(unit[2], unit[3]), 256);
  } else if constexpr (Token % 2 == 0) {
    low = vuzp1q_s32(unit[0], unit[1]);
    high = vuzp1q_s32(unit[2], unit[3]);
  } else {
    low = vuzp2q_s32(unit[0], unit[1]);
    high = vuzp2q_s32(unit[2], unit[3]);
  }
}

// after the primitives
#include "body/exp.inl"
// before attention
#include "body/neon_attention.inl"
// after its loops
#include "body/attention.inl"
#include "body/matmul.inl"
// before many tokens
#include "body/neon_tokens.inl"
#include "body/prepare.inl"

}  // namespace neon_i8mm

POCKET_NAMESPACE_END

#if !POCKET_TARGET_NEON_I8MM
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

POCKET_NAMESPACE_BEGIN

inline constexpr Kernels neon_i8mm_kernels{Isa::neon_i8mm,     "neon_i8mm",      &neon_i8mm::prepare,
                                           &neon_i8mm::matmul, &neon_i8mm::gate, &neon_i8mm::attention};

inline bool cpu_has_neon_i8mm() noexcept { return arm_features().i8mm; }

POCKET_NAMESPACE_END

#endif
#endif
