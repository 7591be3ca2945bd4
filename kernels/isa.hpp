// The instruction sets: the choice. isa_list.hpp has the list.
//
// A program compiled without target flags holds all of its architecture's and picks the best at start-up; one compiled
// for a target that already allows the best one holds that alone (POCKET_SINGLE_TARGET). The kernels are compiled in
// each unit that includes this, or, with POCKET_EXTERN_KERNELS, in one.
#ifndef POCKET_KERNELS_ISA_HPP
#define POCKET_KERNELS_ISA_HPP

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "../pocket/config.hpp"
#include "../pocket/core/status.hpp"
#include "kernels.hpp"

#if !POCKET_EXTERN_KERNELS
#include "isa_list.hpp"
#endif

POCKET_NAMESPACE_BEGIN

#if POCKET_EXTERN_KERNELS
namespace detail {
std::span<const IsaEntry> extern_isa_list() noexcept;  // in the unit that includes isa_list.hpp
}  // namespace detail
inline std::span<const IsaEntry> isa_list() noexcept { return detail::extern_isa_list(); }
#else
// All that this program holds, best first.
inline std::span<const IsaEntry> isa_list() noexcept { return detail::isa_list; }
#endif

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
