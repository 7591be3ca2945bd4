// Which columns of a model's matrices count: the mean square of each projection's input over some tokens. Quantisation
// that weighs its errors with it keeps the error of the products small, instead of that of the weights
// (quant/quantize.hpp): a few inputs of a trained model are hundreds of times as large as the rest, and they are so for
// nearly any tokens.
//
//   auto source = hf_source(directory);
//   calibrate(*source, executor);               // then load_model or write_package
//
// open_model (open.hpp) does that unless told not to. The inputs come from kernels, whose last bits depend on the
// instruction set, and with them, rarely, a code; they do not depend on the number of threads.
#ifndef POCKET_FILES_CALIBRATION_HPP
#define POCKET_FILES_CALIBRATION_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../backend/cpu.hpp"
#include "../config.hpp"
#include "../core/executor.hpp"
#include "../core/status.hpp"
#include "../model/spec.hpp"
#include "../model/transformer.hpp"
#include "../model/weights.hpp"
#include "loaded_model.hpp"
#include "model_source.hpp"

POCKET_NAMESPACE_BEGIN

// For each matrix that multiplies, by its name in a package, one value a column. Where the head is the embedding, its
// values stand under "embedding".
using ColumnImportance = std::map<std::string, std::vector<float>, std::less<>>;

namespace detail {

// A backend in host memory around another that adds up the squares of what goes into each product.
template <class B>
class Observed : public B {
 public:
  using Buffer = typename B::Buffer;

  static Expected<Observed> create(const RuntimeSpec& spec, const typename B::Weights& weights,
                                   const SessionShape& shape, const typename B::Options& options) {
    POCKET_TRY(b, B::create(spec, weights, shape, options));
    return Observed(std::move(b), spec, weights);
  }

  // The sum over all tokens so far, of the squares of each input: of qkv, output, gate_up and down of each layer, then
  // of the head.
  const std::vector<std::vector<double>>& squares() const noexcept { return squares_; }

  void begin(std::span<const std::int32_t> tokens, std::size_t position) {
    tokens_ = tokens.size();
    product_ = 0;
    B::begin(tokens, position);
  }
  void norm_project(Buffer x, const float* gamma, const PackedMatrix& w, Buffer y) {
    add_normed(x, gamma);
    B::norm_project(x, gamma, w, y);
  }
  void project_add(Buffer y, const PackedMatrix& w, Buffer x) {
    std::vector<double>& sum = squares_[product_++];
    for (std::size_t i = 0; i < tokens_; ++i)
      for (std::size_t k = 0; k < w.k; ++k) sum[k] += square(y[i * w.k + k]);
    B::project_add(y, w, x);
  }
  void norm_gate(Buffer x, const float* gamma, const PackedMatrix& w, Buffer y) {
    add_normed(x, gamma);
    B::norm_gate(x, gamma, w, y);
  }
  // The logits of few tokens are asked for; the head's input is taken from all.
  Expected<void> finish() {
    add_normed(B::buffers().residual, output_norm_);
    return B::finish();
  }

 private:
  Observed(B&& b, const RuntimeSpec& spec, const typename B::Weights& weights)
      : B(std::move(b)),
        output_norm_(weights.output_norm),
        epsilon_(static_cast<double>(weights.rms_epsilon)),
        hidden_(spec.hidden) {
    for (std::size_t l = 0; l < spec.layers; ++l)
      for (const std::size_t k : {spec.hidden, q_width(spec), spec.hidden, spec.ffn}) squares_.emplace_back(k);
    squares_.emplace_back(spec.hidden);
  }

  static double square(float v) noexcept { return static_cast<double>(v) * static_cast<double>(v); }
  void add_normed(const float* x, const float* gamma) {
    std::vector<double>& sum = squares_[product_++];
    for (std::size_t i = 0; i < tokens_; ++i, x += hidden_) {
      double all = 0;
      for (std::size_t k = 0; k < hidden_; ++k) all += square(x[k]);
      const double scale = 1 / (all / static_cast<double>(hidden_) + epsilon_);
      for (std::size_t k = 0; k < hidden_; ++k) sum[k] += square(x[k]) * square(gamma[k]) * scale;
    }
  }

  std::vector<std::vector<double>> squares_;
  const float* output_norm_;
  double epsilon_;
  std::size_t hidden_, tokens_ = 0, product_ = 0;
};

}  // namespace detail

// Runs the tokens through the model, in windows that know nothing of each other, and takes the mean over all. window:
// at most the model's positions. progress counts tokens. Beside the model it takes the memory of a session.
inline Expected<ColumnImportance> measure_importance(const LoadedModel& model, std::span<const std::int32_t> tokens,
                                                     Executor& executor, std::size_t window = 256,
                                                     const Progress& progress = {}, const Kernels* kernels = nullptr) {
  if (tokens.empty() || window == 0) return fail(Errc::invalid_argument, "calibration: no tokens");
  window = (std::min)(window, tokens.size());
  auto session = Transformer<RuntimeSpec, detail::Observed<CpuBackend>>::create(
      model.spec, model.weights, {.context = window}, {.executor = &executor, .kernels = kernels, .memory = {}});
  if (!session) return std::move(session).error();
  for (std::size_t done = 0; done < tokens.size();) {
    const std::size_t count = (std::min)(window, tokens.size() - done);
    POCKET_CHECK(session->rewind(0));
    POCKET_CHECK(session->forward(tokens.subspan(done, count)));
    done += count;
    if (progress && !progress(done, tokens.size()))
      return fail(Errc::cancelled, "calibration: cancelled after " + std::to_string(done) + " tokens");
  }
  ColumnImportance importance;
  auto squares = session->backend().squares().begin();
  const auto add = [&](const std::string& name) -> Expected<void> {
    std::vector<float>& mean = importance[name];
    for (const double sum : *squares) mean.push_back(static_cast<float>(sum / static_cast<double>(tokens.size())));
    for (const float v : mean)
      if (!(v <= (std::numeric_limits<float>::max)()))
        return fail(Errc::unsupported, model.name + ": the input of " + name + " is not finite on this text");
    ++squares;
    return {};
  };
  for (std::size_t l = 0; l < model.spec.layers; ++l)
    for (const char* const matrix : {"qkv", "output", "gate_up", "down"})
      POCKET_CHECK(add("layers." + std::to_string(l) + "." + matrix));
  POCKET_CHECK(add(model.tied ? "embedding" : "head"));
  return importance;
}

// From now on the source's matrices are quantised so; what is packed exactly stays exact. An embedding that is not the
// head too is looked up, not multiplied: its columns count alike. Errors name the matrix and leave the source as it
// was.
inline Expected<void> weigh_columns(ModelSource& source, const ColumnImportance& importance) {
  const auto is_looked_up = [&](const SourceMatrix& m) { return !source.tied && m.name == "embedding"; };
  for (const SourceMatrix& m : source.matrices) {
    const auto found = importance.find(m.name);
    if (is_looked_up(m)) continue;
    if (found == importance.end())
      return fail(Errc::invalid_argument, source.name + ": no importance of the columns of '" + m.name + "'");
    if (found->second.size() != m.k)
      return fail(Errc::invalid_argument, source.name + ": importance of " + std::to_string(found->second.size()) +
                                              " columns of '" + m.name + "', which has " + std::to_string(m.k));
    for (const float v : found->second)
      if (!(v >= 0 && v <= (std::numeric_limits<float>::max)()))
        return fail(Errc::invalid_argument,
                    source.name + ": importance of the columns of '" + m.name + "': a value is negative or not finite");
  }
  for (SourceMatrix& m : source.matrices)
    if (!is_looked_up(m)) m.importance = importance.find(m.name)->second;
  return {};
}

// Tokens to calibrate with where there is no text: 256 drawn from the vocabulary, always the same. They serve
// nearly as well as English: on SmolLM2-135M, w4_g64, the mean KL divergence from the float model is 0.19 by these,
// 0.17 by a text, 0.48 uncalibrated.
inline std::vector<std::int32_t> calibration_tokens(const RuntimeSpec& spec) {
  std::vector<std::int32_t> tokens((std::min)(std::size_t{256}, std::size_t{spec.positions}));
  std::uint64_t state = 0x9e3779b97f4a7c15u;  // xorshift64*
  for (std::int32_t& t : tokens) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    t = static_cast<std::int32_t>((state * 0x2545f4914f6cdd1du >> 32) * spec.vocab >> 32);
  }
  return tokens;
}

// Is anything quantised to 4 bits? Else calibration changes nothing.
inline bool takes_calibration(const ModelSource& source) noexcept {
  for (const SourceMatrix& m : source.matrices)
    if (!m.exact && m.format != WeightFormat::w8_g32) return true;
  return false;
}

// Measures on the source's own weights, those that are not exact in 8 bits, and weighs its columns. tokens: of any
// text, in windows of 256; empty: those above. For the while it takes the memory of that model and a session.
inline Expected<void> calibrate(ModelSource& source, Executor& executor, std::span<const std::int32_t> tokens = {},
                                const Progress& progress = {}) {
  if (!takes_calibration(source)) return {};
  ModelSource precise = source;
  for (SourceMatrix& m : precise.matrices)
    if (!m.exact) m.format = WeightFormat::w8_g32;
  POCKET_TRY(model, load_model(precise, executor));
  const std::vector<std::int32_t> drawn =
      tokens.empty() ? calibration_tokens(source.spec) : std::vector<std::int32_t>{};
  POCKET_TRY(importance,
             measure_importance(model, tokens.empty() ? std::span(drawn) : tokens, executor,
                                (std::min)(std::size_t{256}, std::size_t{source.spec.positions}), progress));
  return weigh_columns(source, importance);
}

POCKET_NAMESPACE_END

#endif
