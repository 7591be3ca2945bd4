// What this AArch64 processor has, asked of the operating system: the processor's own registers may not be read by a
// program everywhere. Where there is nobody to ask, what the compiler's target flags allow is all that is known.
#ifndef POCKET_KERNELS_HWCAP_HPP
#define POCKET_KERNELS_HWCAP_HPP

#include "../pocket/config.hpp"

#if POCKET_ARCH_ARM64
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#include <sys/types.h>
#endif

#include <cstddef>

POCKET_NAMESPACE_BEGIN

struct ArmFeatures {
  bool dotprod = false;  // FEAT_DotProd: sdot, udot
  bool i8mm = false;     // FEAT_I8MM: smmla, usdot; with dotprod
};

#if defined(__APPLE__)
namespace detail {
inline bool sysctl_says(const char* name) noexcept {
  int value = 0;
  std::size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}
}  // namespace detail
#endif

// Source: Linux, Documentation/arch/arm64/elf_hwcaps.rst and asm/hwcap.h (Android's are the same); Apple, "Determining
// instruction set characteristics". The bits are written out: old C libraries do not name them.
inline ArmFeatures arm_features() noexcept {
  ArmFeatures has;
#if defined(__linux__)
  constexpr unsigned long asimddp = 1ul << 20;  // HWCAP_ASIMDDP in AT_HWCAP
  constexpr unsigned long i8mm = 1ul << 13;     // HWCAP2_I8MM in AT_HWCAP2
  constexpr unsigned long at_hwcap = 16, at_hwcap2 = 26;
  has.dotprod = (getauxval(at_hwcap) & asimddp) != 0;
  has.i8mm = has.dotprod && (getauxval(at_hwcap2) & i8mm) != 0;
#elif defined(__APPLE__)
  has.dotprod = detail::sysctl_says("hw.optional.arm.FEAT_DotProd");
  has.i8mm = has.dotprod && detail::sysctl_says("hw.optional.arm.FEAT_I8MM");
#else
  has.dotprod = POCKET_TARGET_NEON_DOTPROD != 0;
  has.i8mm = POCKET_TARGET_NEON_I8MM != 0;
#endif
  return has;
}

POCKET_NAMESPACE_END

#endif
#endif
