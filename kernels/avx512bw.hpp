// AVX-512 without VNNI (Skylake-X 2017).
#ifndef POCKET_KERNELS_AVX512BW_HPP
#define POCKET_KERNELS_AVX512BW_HPP

#include "../pocket/config.hpp"

#if POCKET_ARCH_X86
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpuid.hpp"
#include "kernels.hpp"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of g++ 12's own _mm512_undefined
#pragma GCC diagnostic ignored "-Wuninitialized"        // the same
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif

POCKET_NAMESPACE_BEGIN

namespace avx512bw {

// An addition is made where it stands. Without this g++ reassociates a group's sums: all products first, which do not
// fit the registers, and the additions at the end.
POCKET_ALWAYS_INLINE void keep_here([[maybe_unused]] __m512i& sums) {
#if !defined(__clang__)
  asm("" : "+v"(sums));
#endif
}

// vpmaddubsw adds two products, at most 2 * 15 * 128 = 3840 in magnitude; eight such pairs, a whole group of 64
// columns in four lanes or 32 in two, stay within int16 (30720 < 32768). One vpmaddwd per group and plane widens them,
// by 256 for the high plane and by 1 for the low.
struct Dot {
  static constexpr bool sums_64_columns = false;
  static POCKET_ALWAYS_INLINE __m512i product(__m512i q, __m512i a) { return _mm512_maddubs_epi16(q, a); }
  static POCKET_ALWAYS_INLINE __m512i add(__m512i sums, __m512i q, __m512i a) {
    return _mm512_add_epi16(sums, product(q, a));
  }
  static POCKET_ALWAYS_INLINE __m512i total(__m512i lo) { return _mm512_madd_epi16(lo, _mm512_set1_epi16(1)); }
  static POCKET_ALWAYS_INLINE __m512i total(__m512i hi, __m512i lo) {
    return _mm512_add_epi32(_mm512_madd_epi16(hi, _mm512_set1_epi16(256)), total(lo));
  }
  static POCKET_ALWAYS_INLINE __m512i add_16(__m512i sums, __m512i q, __m512i a) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(q, a));
  }
};

#include "body/avx512.inl"
// after the primitives
#include "body/exp.inl"
// before attention
#include "body/attention_rows.inl"
// after its loops
#include "body/attention.inl"
#include "body/matmul.inl"
// before many tokens
#include "body/many_tokens.inl"
#include "body/prepare.inl"

}  // namespace avx512bw

POCKET_NAMESPACE_END

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC diagnostic pop
#pragma GCC pop_options
#endif

POCKET_NAMESPACE_BEGIN

inline constexpr Kernels avx512bw_kernels{Isa::avx512bw,     "avx512bw",      &avx512bw::prepare,
                                          &avx512bw::matmul, &avx512bw::gate, &avx512bw::attention};

inline bool cpu_has_avx512bw() noexcept { return x86_features().avx512; }

POCKET_NAMESPACE_END

#endif
#endif
