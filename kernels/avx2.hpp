// AVX2 with FMA and F16C (Haswell 2013, Zen 2017 and later).
#ifndef POCKET_KERNELS_AVX2_HPP
#define POCKET_KERNELS_AVX2_HPP

#include "../pocket/config.hpp"

#if POCKET_ARCH_X86
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpuid.hpp"
#include "kernels.hpp"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

POCKET_NAMESPACE_BEGIN

namespace avx2 {

// An addition is made where it stands. Without this g++ reassociates a group's sums: all products first, which do not
// fit the registers, and the additions at the end.
POCKET_ALWAYS_INLINE void keep_here([[maybe_unused]] __m256i& sums) {
#if !defined(__clang__)
  asm("" : "+x"(sums));
#endif
}

// vpmaddubsw adds two products, at most 2 * 15 * 128 = 3840 in magnitude; eight such pairs, a whole group of 64
// columns, stay within int16 (30720 < 32768). One vpmaddwd per group and plane widens them, by 256 for the high plane
// and by 1 for the low.
struct Dot {
  static POCKET_ALWAYS_INLINE __m256i product(__m256i q, __m256i a) { return _mm256_maddubs_epi16(q, a); }
  static POCKET_ALWAYS_INLINE __m256i add(__m256i sums, __m256i q, __m256i a) {
    return _mm256_add_epi16(sums, product(q, a));
  }
  static POCKET_ALWAYS_INLINE __m256i total(__m256i lo) { return _mm256_madd_epi16(lo, _mm256_set1_epi16(1)); }
  static POCKET_ALWAYS_INLINE __m256i total(__m256i hi, __m256i lo) {
    return _mm256_add_epi32(_mm256_madd_epi16(hi, _mm256_set1_epi16(256)), total(lo));
  }
  static POCKET_ALWAYS_INLINE __m256i add_16(__m256i sums, __m256i q, __m256i a) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(q, a));
  }
};

#include "body/avx2.inl"
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

}  // namespace avx2

POCKET_NAMESPACE_END

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

POCKET_NAMESPACE_BEGIN

inline constexpr Kernels avx2_kernels{Isa::avx2, "avx2", &avx2::prepare, &avx2::matmul, &avx2::gate, &avx2::attention};

inline bool cpu_has_avx2() noexcept { return x86_features().avx2; }

POCKET_NAMESPACE_END

#endif
#endif
