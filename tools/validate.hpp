// What `pocket validate` finds out, and its three forms: terminal, JSON, page.
#ifndef POCKET_TOOLS_VALIDATE_HPP
#define POCKET_TOOLS_VALIDATE_HPP

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "pocket/validate/divergence.hpp"
#include "pocket/validate/findings.hpp"
#include "pocket/validate/reference_weights.hpp"
#include "pocket/validate/weight_loss.hpp"

namespace tools {

// One step from the reference to the kernels: what this rounding alone costs.
struct BreakdownStep {
  std::string name;
  pocket::Divergence from_previous, from_reference;
};

// Greedy continuations of one prompt.
struct Continuation {
  std::string prompt, reference, model;
  std::size_t tokens = 0, equal = 0;  // of the continuation; equal at its beginning
};

// A layer, over the tokens of the detailed run.
struct LayerReport {
  double after_attention = 0, after_ffn = 0;                      // relative error of the residual
  std::array<pocket::WeightLoss, pocket::projections> weights{};  // where the reference has weights
  std::array<double, pocket::projections> products{};             // ||h (W_model - W_reference)'|| / ||h W_reference'||
};

struct ValidationReport {
  std::string model, formats, activations, isa;
  std::string reference, arithmetic;  // arithmetic: "bf16", "f64" .. ; empty for a file of logits
  std::string text;                   // where the tokens are from
  std::size_t windows = 0, length = 0, vocab = 0;
  pocket::Divergence total;
  std::vector<pocket::PositionDivergence> positions;  // [windows * length]
  std::size_t detail_tokens = 0;
  pocket::Findings findings;        // of the kernels
  bool has_weights = false;         // the reference is a model, not a file of logits
  std::vector<LayerReport> layers;  // empty without reference weights
  pocket::WeightLoss embedding, head;
  double head_product = 0;
  bool tied = true;
  std::vector<BreakdownStep> breakdown;
  std::vector<Continuation> continuations;
  double seconds = 0;
  std::vector<std::string> faults;   // the kernels are wrong here
  std::vector<std::string> remarks;  // worth a look
};

std::string to_json(const ValidationReport&);
void print(const ValidationReport&);
std::string to_page(const ValidationReport&);

}  // namespace tools

#endif
