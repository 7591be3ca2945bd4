// The VNNI instruction sets on processors without VNNI: the same bodies, with vpdpbusd and vpdpwssd made of AVX2's and
// AVX-512BW's instructions. What stays untested by this is that the compiler's intrinsics are those instructions.
#ifndef POCKET_TEST_EMULATED_VNNI_HPP
#define POCKET_TEST_EMULATED_VNNI_HPP

#include "kernels/cpuid.hpp"
#include "kernels/kernels.hpp"

#if POCKET_ARCH_X86
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of g++ 12's own _mm512_undefined
#pragma GCC diagnostic ignored "-Wuninitialized"        // the same
#endif

POCKET_NAMESPACE_BEGIN

namespace emulated_avxvnni {

POCKET_ALWAYS_INLINE void keep_here(__m256i&) {}

struct Dot {
  // A byte's lane of 32 bits: bytes 0 and 2 by one vpmaddwd, 1 and 3 by another.
  static POCKET_ALWAYS_INLINE __m256i add(__m256i sums, __m256i q, __m256i a) {
    const __m256i even =
        _mm256_madd_epi16(_mm256_and_si256(q, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(q, 8), _mm256_srai_epi16(a, 8));
    return _mm256_add_epi32(sums, _mm256_add_epi32(even, odd));
  }
  static POCKET_ALWAYS_INLINE __m256i product(__m256i q, __m256i a) { return add(_mm256_setzero_si256(), q, a); }
  static POCKET_ALWAYS_INLINE __m256i total(__m256i lo) { return lo; }
  static POCKET_ALWAYS_INLINE __m256i total(__m256i hi, __m256i lo) {
    return _mm256_add_epi32(_mm256_slli_epi32(hi, 8), lo);
  }
  static POCKET_ALWAYS_INLINE __m256i add_16(__m256i sums, __m256i q, __m256i a) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(q, a));
  }
};

#include "../kernels/body/avx2.inl"
// after the primitives
#include "../kernels/body/exp.inl"
// before attention
#include "../kernels/body/attention_rows.inl"
// after its loops
#include "../kernels/body/attention.inl"
#include "../kernels/body/matmul.inl"
// before many tokens
#include "../kernels/body/many_tokens.inl"
#include "../kernels/body/prepare.inl"

}  // namespace emulated_avxvnni

POCKET_NAMESPACE_END

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC diagnostic pop
#pragma GCC pop_options
#endif

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of g++ 12's own _mm512_undefined
#pragma GCC diagnostic ignored "-Wuninitialized"        // the same
#endif

POCKET_NAMESPACE_BEGIN

namespace emulated_avx512vnni {

POCKET_ALWAYS_INLINE void keep_here(__m512i&) {}

struct Dot {
  static constexpr bool sums_64_columns = true;
  // A byte's lane of 32 bits: bytes 0 and 2 by one vpmaddwd, 1 and 3 by another.
  static POCKET_ALWAYS_INLINE __m512i add(__m512i sums, __m512i q, __m512i a) {
    const __m512i even =
        _mm512_madd_epi16(_mm512_and_si512(q, _mm512_set1_epi16(255)), _mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8));
    const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(q, 8), _mm512_srai_epi16(a, 8));
    return _mm512_add_epi32(sums, _mm512_add_epi32(even, odd));
  }
  static POCKET_ALWAYS_INLINE __m512i product(__m512i q, __m512i a) { return add(_mm512_setzero_si512(), q, a); }
  static POCKET_ALWAYS_INLINE __m512i total(__m512i lo) { return lo; }
  static POCKET_ALWAYS_INLINE __m512i total(__m512i hi, __m512i lo) {
    return _mm512_add_epi32(_mm512_slli_epi32(hi, 8), lo);
  }
  static POCKET_ALWAYS_INLINE __m512i add_16(__m512i sums, __m512i q, __m512i a) {
    return _mm512_add_epi32(sums, _mm512_madd_epi16(q, a));
  }
};

#include "../kernels/body/avx512.inl"
// after the primitives
#include "../kernels/body/exp.inl"
// before attention
#include "../kernels/body/attention_rows.inl"
// after its loops
#include "../kernels/body/attention.inl"
#include "../kernels/body/matmul.inl"
// before many tokens
#include "../kernels/body/many_tokens.inl"
#include "../kernels/body/prepare.inl"

}  // namespace emulated_avx512vnni

POCKET_NAMESPACE_END

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC diagnostic pop
#pragma GCC pop_options
#endif

POCKET_NAMESPACE_BEGIN

inline constexpr Kernels emulated_avxvnni_kernels{Isa::avxvnni,
                                                  "avxvnni, emulated",
                                                  &emulated_avxvnni::prepare,
                                                  &emulated_avxvnni::matmul,
                                                  &emulated_avxvnni::gate,
                                                  &emulated_avxvnni::attention};
inline constexpr Kernels emulated_avx512vnni_kernels{Isa::avx512vnni,
                                                     "avx512vnni, emulated",
                                                     &emulated_avx512vnni::prepare,
                                                     &emulated_avx512vnni::matmul,
                                                     &emulated_avx512vnni::gate,
                                                     &emulated_avx512vnni::attention};

POCKET_NAMESPACE_END

#endif
#endif
