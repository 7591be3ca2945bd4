// pocket validate: on the terminal and as JSON.
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "validate.hpp"

namespace tools {

namespace {

using pocket::checked_operations;
using pocket::CheckedOperation;
using pocket::Divergence;
using pocket::Projection;
using pocket::projections;

nlohmann::ordered_json json_of(const Divergence& d) {
  return {{"positions", d.positions},
          {"kl_mean", d.kl_mean},
          {"kl_standard_error", d.kl_error},
          {"kl_99_9", d.kl_99_9},
          {"kl_max", d.kl_most},
          {"kl_max_at", d.kl_most_at},
          {"top1_agreement", d.top1},
          {"top5_agreement", d.top5},
          {"logits_rms", d.rms},
          {"logits_relative", d.relative},
          {"logits_largest", d.largest},
          {"predicted", d.predicted},
          {"reference_perplexity", d.reference_perplexity},
          {"model_perplexity", d.model_perplexity},
          {"perplexity_ratio", d.perplexity_ratio},
          {"log_ratio_standard_error", d.ratio_error}};
}

nlohmann::ordered_json json_of(const pocket::WeightLoss& w) {
  return {{"relative", w.relative},    {"weights", w.weights},  {"not_nearest", w.not_nearest},
          {"furthest_steps", w.steps}, {"furthest_row", w.row}, {"furthest_column", w.column}};
}

}  // namespace

std::string to_json(const ValidationReport& r) {
  nlohmann::ordered_json j;
  j["model"] = {{"path", r.model}, {"formats", r.formats}, {"activations", r.activations}, {"isa", r.isa}};
  j["reference"] = {{"name", r.reference}, {"arithmetic", r.arithmetic}};
  j["text"] = {{"from", r.text}, {"windows", r.windows}, {"length", r.length}, {"vocab", r.vocab}};
  j["total"] = json_of(r.total);
  auto& positions = j["positions"] = nlohmann::ordered_json::object();
  for (const auto& p : r.positions) {
    positions["kl"].push_back(p.kl);
    positions["reference_nll"].push_back(p.reference_nll);
    positions["model_nll"].push_back(p.model_nll);
  }
  auto& kernels = j["kernels"] = {{"tokens", r.detail_tokens}};
  for (const auto& layer : r.findings) {
    nlohmann::ordered_json one;
    for (std::size_t o = 0; o < checked_operations; ++o)
      if (layer[o].norm > 0 || layer[o].share > 0)
        one[name_of(static_cast<CheckedOperation>(o))] = {{"share_of_bound", layer[o].share},
                                                          {"relative", layer[o].relative()}};
    kernels["layers"].push_back(one);
  }
  if (!r.layers.empty()) {
    for (const LayerReport& l : r.layers) {
      nlohmann::ordered_json one = {{"residual_after_attention", l.after_attention},
                                    {"residual_after_ffn", l.after_ffn}};
      for (std::size_t p = 0; p < projections; ++p) {
        auto& matrix = one[name_of(static_cast<Projection>(p))] = json_of(l.weights[p]);
        matrix["product_relative"] = l.products[p];
      }
      j["layers"].push_back(one);
    }
    j["embedding"] = json_of(r.embedding);
    j["head"] = r.tied ? nlohmann::ordered_json{{"tied", true}} : json_of(r.head);
    j["head"]["product_relative"] = r.head_product;
  }
  for (const BreakdownStep& s : r.breakdown)
    j["breakdown"].push_back(
        {{"step", s.name}, {"from_previous", json_of(s.from_previous)}, {"from_reference", json_of(s.from_reference)}});
  for (const Continuation& c : r.continuations)
    j["greedy"].push_back({{"prompt", c.prompt},
                           {"reference", c.reference},
                           {"model", c.model},
                           {"tokens", c.tokens},
                           {"equal", c.equal}});
  j["faults"] = r.faults;
  j["remarks"] = r.remarks;
  j["seconds"] = r.seconds;
  return j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void print(const ValidationReport& r) {
  const Divergence& d = r.total;
  std::printf("model        %s: %s, %s activations on %s\n", r.model.c_str(), r.formats.c_str(), r.activations.c_str(),
              r.isa.c_str());
  const std::string& a = r.arithmetic;
  std::printf("reference    %s%s\n", r.reference.c_str(),
              a.empty()    ? ""
              : a == "f64" ? ", float64, nothing rounded"
              : a == "f16" ? ", float16 as Transformers rounds"
                           : ", BF16 as Transformers rounds");
  std::printf("text         %s: %zu window%s of %zu tokens\n\n", r.text.c_str(), r.windows, r.windows == 1 ? "" : "s",
              r.length);
  if (d.predicted != 0)
    std::printf("perplexity   %.4g, the reference's %.4g: ratio %.5f +- %.5f\n", d.model_perplexity,
                d.reference_perplexity, d.perplexity_ratio, d.perplexity_ratio * d.ratio_error);
  std::printf("KL           mean %.3g +- %.1g nats, 99.9 %% below %.3g, at most %.3g (window %zu, token %zu)\n",
              d.kl_mean, d.kl_error, d.kl_99_9, d.kl_most, d.kl_most_at / r.length, d.kl_most_at % r.length);
  std::printf("agreement    top token %.2f %%, top five %.2f %%\n", 100 * d.top1, 100 * d.top5);
  std::printf("logits       differ by %.3g (rms; %.2g of their own spread), at most %.3g\n", d.rms, d.relative,
              d.largest);

  std::printf("\nOver the first %zu tokens:\n", r.detail_tokens);
  if (!r.layers.empty()) {
    std::printf("  layer    residual, %% off%s\n",
                r.has_weights ? "      products with the model's weights, % off" : "");
    std::printf("         attention      ffn%s\n",
                r.has_weights ? "        q      k      v output   gate     up   down" : "");
    for (std::size_t l = 0; l < r.layers.size(); ++l) {
      const LayerReport& one = r.layers[l];
      std::printf("  %5zu %10.3g %8.3g  ", l, 100 * one.after_attention, 100 * one.after_ffn);
      for (std::size_t p = 0; p < projections && r.has_weights; ++p) std::printf(" %6.3g", 100 * one.products[p]);
      std::printf("\n");
    }
    if (r.has_weights)
      std::printf("   head                                                                  %6.3g\n",
                  100 * r.head_product);
  }
  std::printf("  kernels against float64, largest difference as a share of what their arithmetic allows:\n   ");
  for (std::size_t o = 0; o < checked_operations; ++o) {
    double share = 0;
    for (const auto& layer : r.findings) share = std::fmax(share, layer[o].share);
    std::printf(" %s %.2g%s", name_of(static_cast<CheckedOperation>(o)), share,
                o + 1 < checked_operations ? "," : "\n");
  }

  if (!r.breakdown.empty()) {
    std::printf(
        "\nWhere the error comes from                KL, nats   logits rms   KL from the reference   top token\n");
    for (const BreakdownStep& s : r.breakdown)
      std::printf("  %-34s %12.3g %12.3g %23.3g %10.2f %%\n", s.name.c_str(), s.from_previous.kl_mean,
                  s.from_previous.rms, s.from_reference.kl_mean, 100 * s.from_reference.top1);
  }
  for (const Continuation& c : r.continuations) {
    std::printf("\nprompt       %s\n", c.prompt.c_str());
    if (c.equal == c.tokens)
      std::printf("both         %s\n", c.model.c_str());
    else
      std::printf("reference    %s\nmodel        %s\n             (%zu of %zu tokens equal)\n", c.reference.c_str(),
                  c.model.c_str(), c.equal, c.tokens);
  }
  if (!r.remarks.empty() || !r.faults.empty()) std::printf("\n");
  for (const std::string& s : r.remarks) std::printf("note: %s\n", s.c_str());
  for (const std::string& s : r.faults) std::printf("FAULT: %s\n", s.c_str());
}

}  // namespace tools
