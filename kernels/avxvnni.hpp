// AVX-VNNI: the dot instructions of 256 bits without AVX-512 (Alder Lake 2021, Zen 5 and later).
#ifndef POCKET_KERNELS_AVXVNNI_HPP
#define POCKET_KERNELS_AVXVNNI_HPP

#include "../pocket/config.hpp"

#if POCKET_ARCH_X86
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpuid.hpp"
#include "kernels.hpp"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avxvnni")
#endif

POCKET_NAMESPACE_BEGIN

namespace avxvnni {

// An addition is made where it stands. Without this g++ reassociates a group's sums: all products first, which do not
// fit the registers, and the additions at the end.
POCKET_ALWAYS_INLINE void keep_here([[maybe_unused]] __m256i& sums) {
#if !defined(__clang__)
  asm("" : "+x"(sums));
#endif
}

// vpdpbusd adds four products to an int32 lane, vpdpwssd two of int16: nothing saturates, nothing needs widening.
struct Dot {
  static POCKET_ALWAYS_INLINE __m256i add(__m256i sums, __m256i q, __m256i a) {
    return _mm256_dpbusd_avx_epi32(sums, q, a);
  }
  static POCKET_ALWAYS_INLINE __m256i product(__m256i q, __m256i a) { return add(_mm256_setzero_si256(), q, a); }
  static POCKET_ALWAYS_INLINE __m256i total(__m256i lo) { return lo; }
  static POCKET_ALWAYS_INLINE __m256i total(__m256i hi, __m256i lo) {
    return _mm256_add_epi32(_mm256_slli_epi32(hi, 8), lo);
  }
  static POCKET_ALWAYS_INLINE __m256i add_16(__m256i sums, __m256i q, __m256i a) {
    return _mm256_dpwssd_avx_epi32(sums, q, a);
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

}  // namespace avxvnni

POCKET_NAMESPACE_END

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

POCKET_NAMESPACE_BEGIN

inline constexpr Kernels avxvnni_kernels{Isa::avxvnni,     "avxvnni",      &avxvnni::prepare,
                                         &avxvnni::matmul, &avxvnni::gate, &avxvnni::attention};

inline bool cpu_has_avxvnni() noexcept { return x86_features().avxvnni; }

POCKET_NAMESPACE_END

#endif
#endif
