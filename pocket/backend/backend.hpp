// What the graph asks of a backend. A backend is a compile-time policy: Transformer<Spec, Backend> calls these fused
// operations in order and knows nothing of threads, instruction sets or devices. The step's state (tokens, position)
// lives with the backend, so that a device may replay a recorded step with new values.
//
//   begin(tokens, position)      the step's tokens, in host memory, and the position of the first
//   embed(E, x)                  x[m, hidden] = rows of E
//   norm_project(x, g, W, y)     y[m, n] = RMSNorm(x; g) W^T
//   rope_append(qkv, l, qg, kg)  q, k: RMSNorm per head with qg, kg (where the model has them), rotary embedding; k, v
//                                to the cache of layer l; q scaled by 1/sqrt(head_dim)
//   attend(qkv, l, y)            y[m, heads*head_dim]: causal attention over the cache of layer l
//   project_add(y, W, x)         x += y W^T
//   norm_gate(x, g, W, y)        y[m, ffn] = silu(h Wg^T) * (h Wu^T), h = RMSNorm(x; g), W = gate and up interleaved
//   norm_logits(x, first, count, g, W, row)   logits[row..row+count) = RMSNorm(x[first..first+count); g) W^T
//   finish()                     completes the step; the one place where a device reports an error
//   logits(row)                  one row of vocab floats in host memory, valid after finish()
#ifndef POCKET_BACKEND_BACKEND_HPP
#define POCKET_BACKEND_BACKEND_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "../config.hpp"
#include "../core/status.hpp"

POCKET_NAMESPACE_BEGIN

// Has the operations that the top of this header lists, in its own types Weights, Buffer and Options.
template <class B>
concept Backend = requires(B b, const typename B::Weights& w, typename B::Buffer x,
                           std::span<const std::int32_t> tokens, std::size_t i) {
  typename B::Options;
  b.begin(tokens, i);
  b.embed(w.embedding, x);
  b.norm_project(x, w.output_norm, w.head, x);
  b.rope_append(x, i, w.output_norm, w.output_norm);
  b.attend(x, i, x);
  b.project_add(x, w.head, x);
  b.norm_gate(x, w.output_norm, w.head, x);
  b.norm_logits(x, i, i, w.output_norm, w.head, i);
  { b.finish() } -> std::same_as<Expected<void>>;
  { b.logits(i) } -> std::same_as<std::span<const float>>;
  { b.buffers().residual } -> std::convertible_to<typename B::Buffer>;
  { b.buffers().qkv } -> std::convertible_to<typename B::Buffer>;
  { b.buffers().attended } -> std::convertible_to<typename B::Buffer>;
  { b.buffers().gated } -> std::convertible_to<typename B::Buffer>;
};

POCKET_NAMESPACE_END

#endif
