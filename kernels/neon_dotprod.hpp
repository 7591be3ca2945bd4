// AArch64 with the dot product, sdot (Cortex-A55, A76, Neoverse N1, Apple M1: 2017 and later).
#ifndef POCKET_KERNELS_NEON_DOTPROD_HPP
#define POCKET_KERNELS_NEON_DOTPROD_HPP

#include "../pocket/config.hpp"

#if POCKET_ARCH_ARM64
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwcap.hpp"
#include "kernels.hpp"

#if !POCKET_TARGET_NEON_DOTPROD
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif
#endif

POCKET_NAMESPACE_BEGIN

namespace neon_dotprod {

// Of one token's product: one place in memory, read in order.
inline constexpr std::size_t streams_at_once = 1;

#include "body/neon.inl"
// after the primitives
#include "body/neon_sdot.inl"

template <class Dot, class Form, std::size_t Pairs>
struct Repeated;
template <class Format, class Form>
using Method = Repeated<Dot, Form, 8>;

#include "body/neon_dot.inl"

// ---- several tokens -------------------------------------------------------------------------------------------------

// A register of codes is rearranged to four rows x four columns, which meet four columns of one token, a lane of its
// register: the sums are complete rows, in order.
struct EightRows {
  int32x4_t plane[8][2];  // of a token: rows 0..3, 4..7

  POCKET_ALWAYS_INLINE EightRows() {
    plane[0][0] = zero_sum();
    plane[0][1] = zero_sum();
    plane[1][0] = zero_sum();
    plane[1][1] = zero_sum();
    plane[2][0] = zero_sum();
    plane[2][1] = zero_sum();
    plane[3][0] = zero_sum();
    plane[3][1] = zero_sum();
    plane[4][0] = zero_sum();
    plane[4][1] = zero_sum();
    plane[5][0] = zero_sum();
    plane[5][1] = zero_sum();
    plane[6][0] = zero_sum();
    plane[6][1] = zero_sum();
    plane[7][0] = zero_sum();
    plane[7][1] = zero_sum();
  }
};

template <class Form>
struct Staged {
  POCKET_ALWAYS_INLINE Staged(const std::int8_t* codes, std::size_t bytes) : a(codes), stride(bytes) {}
  const std::int8_t* a;
  std::size_t stride;
};
// Of 8-bit activations sixteen columns of all eight tokens are put side by side, for both halves of the rows: two are
// one load, and no pointer is needed for each.
template <>
struct Staged<A8> {
  POCKET_ALWAYS_INLINE Staged(const std::int8_t* a, std::size_t stride) {
    two(codes, a, stride);
    two(codes + 32, a, stride);
    two(codes + 64, a, stride);
    two(codes + 96, a, stride);
    asm volatile("" ::"r"(codes) : "memory");  // in memory, and in order: clang would spill registers in its own
  }
  static POCKET_ALWAYS_INLINE void two(std::int8_t* out, const std::int8_t*& a, std::size_t stride) {
    const std::int8_t* b = a + stride;
    asm volatile("" : "+r"(b));  // each address from the one before: g++ would keep all eight, in memory
    int8x16_t a0 = vld1q_s8(a), a1 = vld1q_s8(a + 16), b0 = vld1q_s8(b), b1 = vld1q_s8(b + 16);
    keep_here(a0, a1, b0, b1);
    int8x16_t a2 = vld1q_s8(a + 32), a3 = vld1q_s8(a + 48), b2 = vld1q_s8(b + 32), b3 = vld1q_s8(b + 48);
    keep_here(a2, a3, b2, b3);
    put(out, a0, b0);
    put(out + 128, a1, b1);
    put(out + 256, a2, b2);
    put(out + 384, a3, b3);
    a = b + stride;
  }
  static POCKET_ALWAYS_INLINE void put(std::int8_t* out, int8x16_t a, int8x16_t b) {
    vst1q_s8(out, a);
    vst1q_s8(out + 16, b);
  }
  alignas(64) std::int8_t codes[512];  // [block of sixteen columns][token][column]
};

// Sixteen columns of eight rows: [rows 0..3, 4..7][columns 4c..4c+3].
struct Quads {
  int8x16_t q[2][4];
};
// Two registers of two rows x eight columns to the left four columns of four rows, or the right four.
POCKET_ALWAYS_INLINE uint8x16_t left(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u32(vuzp1q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}
POCKET_ALWAYS_INLINE uint8x16_t right(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u32(vuzp2q_u32(vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b)));
}
template <class Format>
POCKET_ALWAYS_INLINE void load_quads(int8x16_t (&q)[4], const std::byte* p) {
  uint8x16_t r0 = load_bytes(p), r1 = load_bytes(p + 16);
  keep_here(r0, r1);
  const uint8x16_t a = left(r0, r1), b = right(r0, r1);
  if constexpr (Format::bits == 4) {
    q[0] = low_nibbles(a);
    q[1] = low_nibbles(b);
    q[2] = high_nibbles(a);
    q[3] = high_nibbles(b);
  } else {
    uint8x16_t r2 = load_bytes(p + 64), r3 = load_bytes(p + 80);
    keep_here(r2, r3);
    q[0] = vreinterpretq_s8_u8(a);
    q[1] = vreinterpretq_s8_u8(b);
    q[2] = vreinterpretq_s8_u8(left(r2, r3));
    q[3] = vreinterpretq_s8_u8(right(r2, r3));
  }
}

// Sixteen columns of two planes: a token's with 16-bit activations, or of tokens Plane and Plane + 1. Four columns are
// a lane of the register of activations. In assembly, since g++ 12 copies the sums from register to register.
#define POCKET_SDOT(columns, x, y)                                                    \
  "sdot %0.4s, %[top" columns "].16b, " x "\n\tsdot %1.4s, %[low" columns "].16b, " x \
  "\n\t"                                                                              \
  "sdot %2.4s, %[top" columns "].16b, " y "\n\tsdot %3.4s, %[low" columns "].16b, " y "\n\t"
template <std::size_t Plane, class Form>
POCKET_ALWAYS_INLINE void add_planes(EightRows& sums, const Quads& w, const Staged<Form>& staged, std::size_t b) {
  int32x4_t(&s)[2] = sums.plane[Plane], (&t)[2] = sums.plane[Plane + 1];
  if constexpr (Form::bytes_per_code == 2) {
    const std::int8_t* a = staged.a + Plane / 2 * staged.stride + b * 32;
    asm volatile(POCKET_SDOT("0", "%[x].4b[0]", "%[x].4b[2]") POCKET_SDOT("1", "%[x].4b[1]", "%[x].4b[3]")
                     POCKET_SDOT("2", "%[y].4b[0]", "%[y].4b[2]") POCKET_SDOT("3", "%[y].4b[1]", "%[y].4b[3]")
                 : "+w"(s[0]), "+w"(s[1]), "+w"(t[0]), "+w"(t[1])
                 : [top0] "w"(w.q[0][0]), [top1] "w"(w.q[0][1]), [top2] "w"(w.q[0][2]), [top3] "w"(w.q[0][3]),
                   [low0] "w"(w.q[1][0]), [low1] "w"(w.q[1][1]), [low2] "w"(w.q[1][2]), [low3] "w"(w.q[1][3]),
                   [x] "w"(vld1q_s8(a)), [y] "w"(vld1q_s8(a + 16)));
  } else {
    const std::int8_t* a = staged.codes + b * 128 + Plane * 16;
    asm volatile(POCKET_SDOT("0", "%[x].4b[0]", "%[y].4b[0]") POCKET_SDOT("1", "%[x].4b[1]", "%[y].4b[1]")
                     POCKET_SDOT("2", "%[x].4b[2]", "%[y].4b[2]") POCKET_SDOT("3", "%[x].4b[3]", "%[y].4b[3]")
                 : "+w"(s[0]), "+w"(s[1]), "+w"(t[0]), "+w"(t[1])
                 : [top0] "w"(w.q[0][0]), [top1] "w"(w.q[0][1]), [top2] "w"(w.q[0][2]), [top3] "w"(w.q[0][3]),
                   [low0] "w"(w.q[1][0]), [low1] "w"(w.q[1][1]), [low2] "w"(w.q[1][2]), [low3] "w"(w.q[1][3]),
                   [x] "w"(vld1q_s8(a)), [y] "w"(vld1q_s8(a + 16)));
  }
}
#undef POCKET_SDOT
template <class Format, class Form>
POCKET_ALWAYS_INLINE void add_columns(EightRows& sums, const std::byte* codes, std::size_t b,
                                      const Staged<Form>& staged) {
  Quads w;
  load_quads<Format>(w.q[0], codes + codes_at<Format>(b, 0));
  load_quads<Format>(w.q[1], codes + codes_at<Format>(b, 2));
  add_planes<0>(sums, w, staged, b);
  add_planes<2>(sums, w, staged, b);
  add_planes<4>(sums, w, staged, b);
  add_planes<6>(sums, w, staged, b);
}
template <class Form, std::size_t Token>
POCKET_ALWAYS_INLINE void join_rows(const EightRows& sums, int32x4_t& low, int32x4_t& high) {
  if constexpr (Form::bytes_per_code == 2) {
    low = vmlaq_n_s32(sums.plane[2 * Token + 1][0], sums.plane[2 * Token][0], 256);
    high = vmlaq_n_s32(sums.plane[2 * Token + 1][1], sums.plane[2 * Token][1], 256);
  } else {
    low = sums.plane[Token][0];
    high = sums.plane[Token][1];
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

}  // namespace neon_dotprod

POCKET_NAMESPACE_END

#if !POCKET_TARGET_NEON_DOTPROD
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

POCKET_NAMESPACE_BEGIN

inline constexpr Kernels neon_dotprod_kernels{Isa::neon_dotprod,     "neon_dotprod",      &neon_dotprod::prepare,
                                              &neon_dotprod::matmul, &neon_dotprod::gate, &neon_dotprod::attention};

inline bool cpu_has_neon_dotprod() noexcept { return arm_features().dotprod; }

POCKET_NAMESPACE_END

#endif
#endif
