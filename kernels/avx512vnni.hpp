// AVX-512 with VNNI (Cascade Lake 2019, Zen 4 and later).
#ifndef POCKET_KERNELS_AVX512VNNI_HPP
#define POCKET_KERNELS_AVX512VNNI_HPP

#include "../pocket/config.hpp"

#if POCKET_ARCH_X86
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpuid.hpp"
#include "kernels.hpp"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512vnni,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of g++ 12's own _mm512_undefined
#pragma GCC diagnostic ignored "-Wuninitialized"        // the same
#pragma GCC target("avx512vnni,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif

POCKET_NAMESPACE_BEGIN

namespace avx512vnni {

// An addition is made where it stands. Without this g++ reassociates a group's sums: all products first, which do not
// fit the registers, and the additions at the end.
POCKET_ALWAYS_INLINE void keep_here([[maybe_unused]] __m512i& sums) {
#if !defined(__clang__)
  asm("" : "+v"(sums));
#endif
}

// vpdpbusd adds four products to an int32 lane, vpdpwssd two of int16: nothing saturates, nothing needs widening.
struct Dot {
  static constexpr bool sums_64_columns = true;
  static POCKET_ALWAYS_INLINE __m512i add(__m512i sums, __m512i q, __m512i a) {
    return _mm512_dpbusd_epi32(sums, q, a);
  }
  static POCKET_ALWAYS_INLINE __m512i product(__m512i q, __m512i a) { return add(_mm512_setzero_si512(), q, a); }
  static POCKET_ALWAYS_INLINE __m512i total(__m512i lo) { return lo; }
  static POCKET_ALWAYS_INLINE __m512i total(__m512i hi, __m512i lo) {
    return _mm512_add_epi32(_mm512_slli_epi32(hi, 8), lo);
  }
  static POCKET_ALWAYS_INLINE __m512i add_16(__m512i sums, __m512i q, __m512i a) {
    return _mm512_dpwssd_epi32(sums, q, a);
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

}  // namespace avx512vnni

POCKET_NAMESPACE_END

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC diagnostic pop
#pragma GCC pop_options
#endif

POCKET_NAMESPACE_BEGIN

inline constexpr Kernels avx512vnni_kernels{Isa::avx512vnni,     "avx512vnni",      &avx512vnni::prepare,
                                            &avx512vnni::matmul, &avx512vnni::gate, &avx512vnni::attention};

inline bool cpu_has_avx512vnni() noexcept { return x86_features().avx512vnni; }

POCKET_NAMESPACE_END

#endif
#endif
