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
#include "avx2.hpp"
#include "kernels.hpp"
#if !POCKET_SINGLE_TARGET
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
#if POCKET_ARCH_X86
    {&avx2_kernels, &cpu_has_avx2},
#endif
#if !POCKET_SINGLE_TARGET
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
