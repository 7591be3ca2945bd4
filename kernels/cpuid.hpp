// What this x86 processor has and this operating system saves, asked of both directly: the compilers' own
// __builtin_cpu_supports needs a run-time library that not every tool chain brings (Zig's answers no to everything).
#ifndef POCKET_KERNELS_CPUID_HPP
#define POCKET_KERNELS_CPUID_HPP

#include "../pocket/config.hpp"

#if POCKET_ARCH_X86
#include <cpuid.h>

#include <cstdint>

POCKET_NAMESPACE_BEGIN

// A feature is set where it may be used: with the registers that it works on saved by the operating system.
struct X86Features {
  bool avx2 = false;        // with FMA and F16C
  bool avxvnni = false;     // with avx2
  bool avx512 = false;      // F, BW, VL and DQ, with avx2
  bool avx512vnni = false;  // with avx512
};

// Source: Intel's Software Developer's Manual, volume 2, CPUID; volume 1, 13.3 (XCR0).
// Constant masks and nothing else: a unit compiled for a newer processor asks as well, and must not need it for that.
inline X86Features x86_features() noexcept {
  constexpr std::uint32_t fma = 1u << 12, xgetbv = 1u << 27, f16c = 1u << 29;  // leaf 1, ecx
  constexpr std::uint32_t avx2 = 1u << 5;                                      // leaf 7, ebx
  constexpr std::uint32_t avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
  constexpr std::uint32_t avx512vnni = 1u << 11;                               // leaf 7, ecx
  constexpr std::uint32_t avxvnni = 1u << 4;                                   // leaf 7.1, eax
  constexpr std::uint32_t ymm = 0x06, zmm = 0xe6;                              // XCR0
  X86Features has;
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return has;
  if ((c & (fma | xgetbv | f16c)) != (fma | xgetbv | f16c)) return has;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return has;
  std::uint32_t saved = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  has.avx2 = (saved & ymm) == ymm && (b & avx2) != 0;
  has.avx512 = has.avx2 && (saved & zmm) == zmm && (b & avx512) == avx512;
  has.avx512vnni = has.avx512 && (c & avx512vnni) != 0;
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) has.avxvnni = has.avx2 && (a & avxvnni) != 0;
  return has;
}

POCKET_NAMESPACE_END

#endif
#endif
