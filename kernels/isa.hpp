// The instruction sets: the list, and the choice. A new one is a file with its primitives, and one line below.
//
// A program compiled without target flags holds all of its architecture's and picks the best at start-up; one compiled
// for a target that already allows the best one holds that alone (POCKET_SINGLE_TARGET).
#ifndef POCKET_KERNELS_ISA_HPP
#define POCKET_KERNELS_ISA_HPP

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "../pocket/config.hpp"
#include "../pocket/core/status.hpp"
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

// One instruction set of the list.
struct IsaEntry {
  const Kernels* kernels;
  bool (*runs_here)() noexcept;  // does this CPU, with this operating system, have what the kernels need?
};

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
}  // namespace detail

// All that this program holds, best first.
inline std::span<const IsaEntry> isa_list() noexcept { return detail::isa_list; }

// The best that runs on this CPU. A single-target program on a CPU without it is the one case that has none.
inline Expected<const Kernels*> best_kernels() {
  for (const IsaEntry& e : isa_list())
    if (e.runs_here()) return e.kernels;
  return fail(Errc::unsupported,
              Text("this program was compiled for ") + isa_list()[0].kernels->name + ", which this CPU does not have");
}

// By name, for tests and --isa; an unknown or unavailable one is an error that lists what there is.
inline Expected<const Kernels*> kernels_by_name(std::string_view name) {
  std::string known;
  for (const IsaEntry& e : isa_list()) {
    if (name == e.kernels->name) {
      if (e.runs_here()) return e.kernels;
      return fail(Errc::unsupported, "instruction set " + Text(name) + ": this CPU does not have it");
    }
    known += known.empty() ? "" : ", ";
    known += e.kernels->name;
  }
  return fail(Errc::invalid_argument, "instruction set '" + Text(name) + "' is unknown; there are " + known);
}

POCKET_NAMESPACE_END

#endif
