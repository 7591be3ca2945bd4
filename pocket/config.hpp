// Pocket: version, the library's namespace, and every macro that a user may set.
//
//   POCKET_SINGLE_TARGET   0 or 1. With 1 the CPU backend holds one instruction set, the best that the compiler's
//                          target flags allow, and dispatches nothing. Default: 1 where those flags ask for more than
//                          the architecture's baseline (-mavx2 -mfma -mf16c, or -march=haswell and later; on AArch64
//                          +dotprod, or -march=armv8.4-a and later), else 0: all instruction sets are built and one is
//                          chosen when the program starts. Apple's compilers always allow +dotprod: there, +i8mm.
//
//   POCKET_EXTERN_KERNELS  0 or 1, the same in all units of a program. With 1 the kernels are compiled in one of them,
//                          which includes kernels/isa_list.hpp (one line is a whole source file), and no longer in
//                          every one that includes pocket/pocket.hpp: the larger part of a unit's compile time.
//                          Default: 0.
#ifndef POCKET_CONFIG_HPP
#define POCKET_CONFIG_HPP

#define POCKET_VERSION_MAJOR 0
#define POCKET_VERSION_MINOR 1
#define POCKET_VERSION_PATCH 0
#define POCKET_VERSION "0.1.0"

// Refused where the compiler tells. g++ has a macro for each dangerous part of -ffast-math; clang has them only for the
// whole and for -ffinite-math-only. What no header can see: clang's -fassociative-math, -freciprocal-math,
// -funsafe-math-optimizations, -fno-signed-zeros, -fapprox-func alone, or -ffast-math -fno-finite-math-only; and that
// g++ was given -ffast-math at the link step, which makes the whole program flush denormal numbers to zero.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ != 0) || \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error \
    "Pocket's results are bit-identical by contract: compile without -ffast-math and its parts (NaN, infinity, the sign of zero and the order of sums matter)"
#endif

#if !defined(__GNUC__) && !defined(__clang__)
#error "Pocket is tested with g++ 12 and clang 19 only"
#endif

#if defined(__x86_64__) || defined(__i386__)
#define POCKET_ARCH_X86 1
#else
#define POCKET_ARCH_X86 0
#endif

// Little-endian, with the vector instructions: what the kernels are written for.
#if defined(__aarch64__) && !defined(__AARCH64EB__) && defined(__ARM_NEON)
#define POCKET_ARCH_ARM64 1
#else
#define POCKET_ARCH_ARM64 0
#endif

// What the compiler's target flags allow, by the names of kernels/.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define POCKET_TARGET_AVX2 1
#else
#define POCKET_TARGET_AVX2 0
#endif
#if POCKET_TARGET_AVX2 && defined(__AVXVNNI__)
#define POCKET_TARGET_AVXVNNI 1
#else
#define POCKET_TARGET_AVXVNNI 0
#endif
#if POCKET_TARGET_AVX2 && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512DQ__)
#define POCKET_TARGET_AVX512BW 1
#else
#define POCKET_TARGET_AVX512BW 0
#endif
#if POCKET_TARGET_AVX512BW && defined(__AVX512VNNI__)
#define POCKET_TARGET_AVX512VNNI 1
#else
#define POCKET_TARGET_AVX512VNNI 0
#endif

#if POCKET_ARCH_ARM64 && defined(__ARM_FEATURE_DOTPROD)
#define POCKET_TARGET_NEON_DOTPROD 1
#else
#define POCKET_TARGET_NEON_DOTPROD 0
#endif
#if POCKET_TARGET_NEON_DOTPROD && defined(__ARM_FEATURE_MATMUL_INT8)
#define POCKET_TARGET_NEON_I8MM 1
#else
#define POCKET_TARGET_NEON_I8MM 0
#endif

#ifndef POCKET_SINGLE_TARGET
#if POCKET_ARCH_ARM64 && defined(__APPLE__)
#define POCKET_SINGLE_TARGET POCKET_TARGET_NEON_I8MM
#elif POCKET_ARCH_ARM64
#define POCKET_SINGLE_TARGET POCKET_TARGET_NEON_DOTPROD
#else
#define POCKET_SINGLE_TARGET POCKET_TARGET_AVX2
#endif
#endif

#ifndef POCKET_EXTERN_KERNELS
#define POCKET_EXTERN_KERNELS 0
#endif

// Two units of one program may be compiled for different targets. Their inline functions hold different instructions,
// so they must not be merged by the linker: everything lives in an inline namespace that spells the unit's target.
#ifdef __AVX__
#define POCKET_TAG_AVX _avx
#else
#define POCKET_TAG_AVX
#endif
#ifdef __AVX2__
#define POCKET_TAG_AVX2 2
#else
#define POCKET_TAG_AVX2
#endif
#ifdef __FMA__
#define POCKET_TAG_FMA _fma
#else
#define POCKET_TAG_FMA
#endif
#ifdef __F16C__
#define POCKET_TAG_F16C _f16c
#else
#define POCKET_TAG_F16C
#endif
#ifdef __SSE4_2__
#define POCKET_TAG_SSE4 _sse4
#else
#define POCKET_TAG_SSE4
#endif
#ifdef __AVX512F__
#define POCKET_TAG_AVX512F _avx512f
#else
#define POCKET_TAG_AVX512F
#endif
#ifdef __AVX512BW__
#define POCKET_TAG_AVX512BW bw
#else
#define POCKET_TAG_AVX512BW
#endif
#ifdef __AVXVNNI__
#define POCKET_TAG_AVXVNNI _avxvnni
#else
#define POCKET_TAG_AVXVNNI
#endif
#ifdef __AVX512VNNI__
#define POCKET_TAG_VNNI _vnni
#else
#define POCKET_TAG_VNNI
#endif
#ifdef __ARM_FEATURE_DOTPROD
#define POCKET_TAG_DOTPROD _dotprod
#else
#define POCKET_TAG_DOTPROD
#endif
#ifdef __ARM_FEATURE_MATMUL_INT8
#define POCKET_TAG_I8MM _i8mm
#else
#define POCKET_TAG_I8MM
#endif
#ifdef __ARM_FEATURE_SVE
#define POCKET_TAG_SVE _sve
#else
#define POCKET_TAG_SVE
#endif
#if POCKET_SINGLE_TARGET
#define POCKET_TAG_SINGLE _single
#else
#define POCKET_TAG_SINGLE
#endif

#define POCKET_PASTE_(a, b, c, d, e, f, g, h, i, j, k, l, m, n) a##b##c##d##e##f##g##h##i##j##k##l##m##n
#define POCKET_PASTE(a, b, c, d, e, f, g, h, i, j, k, l, m, n) POCKET_PASTE_(a, b, c, d, e, f, g, h, i, j, k, l, m, n)
#define POCKET_ABI                                                                                               \
  POCKET_PASTE(v0, POCKET_TAG_SSE4, POCKET_TAG_AVX, POCKET_TAG_AVX2, POCKET_TAG_FMA, POCKET_TAG_F16C,            \
               POCKET_TAG_AVXVNNI, POCKET_TAG_AVX512F, POCKET_TAG_AVX512BW, POCKET_TAG_VNNI, POCKET_TAG_DOTPROD, \
               POCKET_TAG_I8MM, POCKET_TAG_SVE, POCKET_TAG_SINGLE)

#define POCKET_NAMESPACE_BEGIN \
  namespace pocket {           \
  inline namespace POCKET_ABI {
#define POCKET_NAMESPACE_END \
  }                          \
  }

#if defined(__clang__)
#define POCKET_NOINLINE __attribute__((noinline))
#else
#define POCKET_NOINLINE __attribute__((noinline, noclone))
#endif
#define POCKET_ALWAYS_INLINE inline __attribute__((always_inline))
#define POCKET_INLINE_LAMBDA __attribute__((always_inline))

#endif
