// The instruction sets: the list. A new one is a file with its primitives, and the lines below. isa.hpp includes this;
// where POCKET_EXTERN_KERNELS is 1 it does not, and one unit of the program must: it then holds all kernels.
#ifndef POCKET_KERNELS_ISA_LIST_HPP
#define POCKET_KERNELS_ISA_LIST_HPP

#include <span>

#include "../pocket/config.hpp"
#include "kernels.hpp"

// Does the program hold an instruction set? A single-target one holds the best that its flags allow.
#if POCKET_SINGLE_TARGET
#define POCKET_HOLDS_AVX512VNNI POCKET_TARGET_AVX512VNNI
#define POCKET_HOLDS_AVX512BW (POCKET_TARGET_AVX512BW && !POCKET_TARGET_AVX512VNNI)
#define POCKET_HOLDS_AVXVNNI (POCKET_TARGET_AVXVNNI && !POCKET_TARGET_AVX512BW)
#define POCKET_HOLDS_AVX2 (POCKET_TARGET_AVX2 && !POCKET_TARGET_AVXVNNI && !POCKET_TARGET_AVX512BW)
#define POCKET_HOLDS_NEON_I8MM POCKET_TARGET_NEON_I8MM
#define POCKET_HOLDS_NEON_DOTPROD (POCKET_TARGET_NEON_DOTPROD && !POCKET_TARGET_NEON_I8MM)
#define POCKET_HOLDS_NEON (POCKET_ARCH_ARM64 && !POCKET_TARGET_NEON_DOTPROD)
#define POCKET_HOLDS_PORTABLE (!POCKET_TARGET_AVX2 && !POCKET_ARCH_ARM64)
#else
#define POCKET_HOLDS_AVX512VNNI POCKET_ARCH_X86
#define POCKET_HOLDS_AVX512BW POCKET_ARCH_X86
#define POCKET_HOLDS_AVXVNNI POCKET_ARCH_X86
#define POCKET_HOLDS_AVX2 POCKET_ARCH_X86
#define POCKET_HOLDS_NEON_I8MM POCKET_ARCH_ARM64
#define POCKET_HOLDS_NEON_DOTPROD POCKET_ARCH_ARM64
#define POCKET_HOLDS_NEON POCKET_ARCH_ARM64
#define POCKET_HOLDS_PORTABLE 1
#endif

#if POCKET_HOLDS_AVX512VNNI
#include "avx512vnni.hpp"
#endif
#if POCKET_HOLDS_AVX512BW
#include "avx512bw.hpp"
#endif
#if POCKET_HOLDS_AVXVNNI
#include "avxvnni.hpp"
#endif
#if POCKET_HOLDS_AVX2
#include "avx2.hpp"
#endif
#if POCKET_HOLDS_NEON_I8MM
#include "neon_i8mm.hpp"
#endif
#if POCKET_HOLDS_NEON_DOTPROD
#include "neon_dotprod.hpp"
#endif
#if POCKET_HOLDS_NEON
#include "neon.hpp"
#endif
#if POCKET_HOLDS_PORTABLE
#include "portable.hpp"
#endif

POCKET_NAMESPACE_BEGIN

namespace detail {
inline bool always() noexcept { return true; }
inline constexpr IsaEntry isa_list[] = {
// best first
#if POCKET_HOLDS_AVX512VNNI
    {&avx512vnni_kernels, &cpu_has_avx512vnni},
#endif
#if POCKET_HOLDS_AVX512BW
    {&avx512bw_kernels, &cpu_has_avx512bw},
#endif
#if POCKET_HOLDS_AVXVNNI
    {&avxvnni_kernels, &cpu_has_avxvnni},
#endif
#if POCKET_HOLDS_AVX2
    {&avx2_kernels, &cpu_has_avx2},
#endif
#if POCKET_HOLDS_NEON_I8MM
    {&neon_i8mm_kernels, &cpu_has_neon_i8mm},
#endif
#if POCKET_HOLDS_NEON_DOTPROD
    {&neon_dotprod_kernels, &cpu_has_neon_dotprod},
#endif
#if POCKET_HOLDS_NEON
    {&neon_kernels, &always},
#endif
#if POCKET_HOLDS_PORTABLE
    {&portable_kernels, &always},
#endif
};

#if POCKET_EXTERN_KERNELS
std::span<const IsaEntry> extern_isa_list() noexcept;
std::span<const IsaEntry> extern_isa_list() noexcept { return isa_list; }
#endif
}  // namespace detail

POCKET_NAMESPACE_END

#endif
