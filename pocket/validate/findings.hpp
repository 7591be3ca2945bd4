// What checked_backend.hpp finds out, apart from it: reports need no Eigen.
#ifndef POCKET_VALIDATE_FINDINGS_HPP
#define POCKET_VALIDATE_FINDINGS_HPP

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../config.hpp"

POCKET_NAMESPACE_BEGIN

// In the order in which a layer runs them.
enum class CheckedOperation : std::uint8_t { embed, qkv, rotate, attention, output, gate_up, down, logits };
inline constexpr std::size_t checked_operations = 8;
// "embed" .. "logits"
constexpr const char* name_of(CheckedOperation o) noexcept {
  constexpr const char* names[checked_operations] = {"embed",  "qkv",     "rotate", "attention",
                                                     "output", "gate_up", "down",   "logits"};
  return names[static_cast<std::size_t>(o)];
}

// Of one operation in one layer, over all calls.
struct Finding {
  double error = 0, norm = 0;  // sums of squares: of the difference, of the exact result
  double share = 0;            // the largest difference, as a share of its bound; infinite if a value is not finite
  double relative() const noexcept { return norm > 0 ? std::sqrt(error / norm) : 0; }  // over all values
};

// findings[layer][operation]; embed stands in layer 0, logits in the last one.
using Findings = std::vector<std::array<Finding, checked_operations>>;

POCKET_NAMESPACE_END

#endif
