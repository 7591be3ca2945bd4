// The graph: a decoder-only transformer with grouped-query attention (Qwen3 and Llama families), written once over a
// spec and a backend. One object is one session: a context, its cache, its scratch memory.
//
//   auto t = Transformer<RuntimeSpec>::create(spec, weights, {.context = 2048}, {.executor = &pool});
//   t->forward(prompt);                        // in chunks; the last token's logits
//   next = arg_max(t->logits());
//   t->forward({&next, 1});
//
// The weights outlive the session and may serve others at the same time. Not thread-safe: one call at a time.
#ifndef POCKET_MODEL_TRANSFORMER_HPP
#define POCKET_MODEL_TRANSFORMER_HPP

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "../backend/backend.hpp"
#include "../config.hpp"
#include "../core/status.hpp"
#include "memory_plan.hpp"
#include "spec.hpp"
#include "weights.hpp"

POCKET_NAMESPACE_BEGIN

class CpuBackend;  // the default: include backend/cpu.hpp (or pocket.hpp) to use it

// One session: create, forward, logits, as in the lines at the top of this header.
template <ModelSpec Spec, Backend B = CpuBackend>
class Transformer {
 public:
  using Weights = typename B::Weights;

  // Everything is allocated here. shape.threads is set from the executor. Errors: a shape that does not fit the model
  // (context beyond its positions, zero batch), weights that do not fit the spec, too little memory.
  static Expected<Transformer> create(const Spec& spec, const Weights& weights, SessionShape shape,
                                      const typename B::Options& options) {
    const RuntimeSpec runtime = runtime_spec(spec);
    POCKET_CHECK(check_spec(runtime, "model"));
    POCKET_CHECK(check_weights(runtime, weights));
    if (options.executor == nullptr || options.executor->concurrency() == 0)
      return fail(Errc::invalid_argument, "session: an executor with a concurrency of at least 1 is needed");
    shape.threads = options.executor->concurrency();
    if (shape.context == 0 || shape.context > spec.positions)
      return fail(Errc::invalid_argument,
                  "context of " + number(shape.context) + " tokens: the model takes 1 to " + number(spec.positions));
    if (shape.batch == 0 || shape.batch > 65536 || shape.logit_rows == 0 || shape.logit_rows > 65536)
      return fail(Errc::invalid_argument, "batch of " + number(shape.batch) + " tokens and " +
                                              number(shape.logit_rows) + " rows of logits: each may be 1 to 65536");
    shape = fitted(shape);
    POCKET_TRY(backend, B::create(runtime, weights, shape, options));
    return Transformer(spec, weights, shape, std::move(backend));
  }

  // Appends tokens to the context, in steps of at most `batch`, and computes the logits of the last `logit_rows` of
  // them. Errors leave the context as it was, but for `cancelled` (seen between steps), which keeps the whole steps
  // done.
  Expected<void> forward(std::span<const std::int32_t> tokens, std::size_t logit_rows = 1,
                         const std::atomic<bool>* cancel = nullptr) {
    if (tokens.empty()) return fail(Errc::invalid_argument, "forward: no tokens");
    if (logit_rows > shape_.logit_rows || logit_rows > tokens.size())
      return fail(Errc::invalid_argument, "forward: logits of " + number(logit_rows) + " tokens were asked for; " +
                                              number(tokens.size()) + " tokens given, session made for " +
                                              number(shape_.logit_rows));
    if (tokens.size() > shape_.context - position_)
      return fail(Errc::context_full, number(tokens.size()) + " tokens do not fit: " + number(position_) +
                                          " of the context's " + number(shape_.context) + " are used");
    for (const std::int32_t t : tokens)
      if (t < 0 || static_cast<std::size_t>(t) >= spec_.vocab)
        return fail(Errc::invalid_argument,
                    "token " + number(t) + " is outside the vocabulary of " + number(spec_.vocab));
    const std::size_t first_row = tokens.size() - logit_rows;
    for (std::size_t done = 0; done < tokens.size();) {
      if (cancel != nullptr && cancel->load(std::memory_order_relaxed))
        return fail(Errc::cancelled, "cancelled after " + number(done) + " of " + number(tokens.size()) + " tokens");
      const std::size_t count = (std::min)(shape_.batch, tokens.size() - done);
      backend_.begin(tokens.subspan(done, count), position_);
      run_layers();
      if (done + count > first_row) {
        const std::size_t from = (std::max)(done, first_row);
        backend_.norm_logits(backend_.buffers().residual, from - done, done + count - from, weights_->output_norm,
                             weights_->head, from - first_row);
      }
      POCKET_CHECK(backend_.finish());
      position_ += count;
      done += count;
    }
    return {};
  }

  // Logits of the last call's tokens, vocab floats each; row 0 is the first of those asked for. row <
  // shape().logit_rows.
  std::span<const float> logits(std::size_t row = 0) const noexcept { return backend_.logits(row); }

  std::size_t position() const noexcept { return position_; }      // tokens in the context
  std::size_t context() const noexcept { return shape_.context; }  // tokens it has room for
  const SessionShape& shape() const noexcept { return shape_; }    // as fitted to the context and the executor
  const Spec& spec() const noexcept { return spec_; }              // the model's
  const B& backend() const noexcept { return backend_; }           // for measurements and tests

  // Forgets all but the first `position` tokens.
  Expected<void> rewind(std::size_t position) {
    if (position > position_)
      return fail(Errc::invalid_argument, "rewind to " + number(position) + ": the context holds " + number(position_));
    position_ = position;
    return {};
  }

 private:
  Transformer(const Spec& spec, const Weights& weights, const SessionShape& shape, B&& backend)
      : spec_(spec), weights_(&weights), shape_(shape), backend_(std::move(backend)) {}

  void run_layers() {
    const auto [x, qkv, attended, gated] = backend_.buffers();
    backend_.embed(weights_->embedding, x);
    for (std::size_t l = 0; l < spec_.layers; ++l) {
      const auto& layer = weights_->layers[l];
      backend_.norm_project(x, layer.attention_norm, layer.qkv, qkv);
      backend_.rope_append(qkv, l, layer.q_norm, layer.k_norm);
      backend_.attend(qkv, l, attended);
      backend_.project_add(attended, layer.output, x);
      backend_.norm_gate(x, layer.ffn_norm, layer.gate_up, gated);
      backend_.project_add(gated, layer.down, x);
    }
  }

  Spec spec_;
  const Weights* weights_;
  SessionShape shape_;
  B backend_;
  std::size_t position_ = 0;
};

POCKET_NAMESPACE_END

#endif
