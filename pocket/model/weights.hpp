// A model's weights, as a backend sees them: matrices and vectors somewhere in memory, owned by whoever loaded them.
// One const object serves any number of sessions at once.
//
//   qkv       [heads*head_dim + 2*kv_heads*head_dim, hidden]   rows of q, then k, then v; rotate-half order
//   output    [hidden, heads*head_dim]
//   gate_up   [2*ffn, hidden]   16 rows of gate, the same 16 of up, and so on
//   down      [hidden, ffn]
//   embedding [vocab, hidden], head [vocab, hidden] (the same tiles when they are tied)
//   norms     float32; q_norm and k_norm [head_dim], absent in models without them
#ifndef POCKET_MODEL_WEIGHTS_HPP
#define POCKET_MODEL_WEIGHTS_HPP

#include <cstddef>
#include <string>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../quant/format.hpp"
#include "spec.hpp"

POCKET_NAMESPACE_BEGIN

// One layer's; the top of this header gives the shapes.
template <class Matrix, class Vector>
struct LayerWeights {
  Vector attention_norm{}, q_norm{}, k_norm{}, ffn_norm{};
  Matrix qkv{}, output{}, gate_up{}, down{};
};

// A whole model's, in a backend's types of matrix and vector.
template <class Matrix, class Vector>
struct ModelWeights {
  Matrix embedding{}, head{};
  Vector output_norm{};
  std::vector<LayerWeights<Matrix, Vector>> layers;
  float rms_epsilon = 0;
  double rope_base = 0;
};

// In host memory: what files give, and what the CPU backend uses as it is.
using HostWeights = ModelWeights<PackedMatrix, const float*>;

// Refuses an epsilon outside [0, 1) and a rotary base outside [1, 1e12).
inline Expected<void> check_constants(float rms_epsilon, double rope_base) {
  if (rms_epsilon >= 0 && rms_epsilon < 1 && rope_base >= 1 && rope_base < 1e12) return {};
  return fail(Errc::invalid_argument, "norm epsilon " + number(rms_epsilon) + " or rotary base " + number(rope_base) +
                                          " is out of range (0 to 1, 1 to 1e12)");
}

// Does every tensor that the spec asks for exist, with its shape?
inline Expected<void> check_weights(const RuntimeSpec& s, const HostWeights& w) {
  const auto matrix = [](const PackedMatrix& m, std::size_t n, std::size_t k, const Text& name) -> Expected<void> {
    if (m.tiles == nullptr || m.n != n || m.k != k)
      return fail(Errc::invalid_argument, "weights: " + name + " is " + number(m.n) + " x " + number(m.k) +
                                              ", the model's shape asks for " + number(n) + " x " + number(k));
    if (m.format > WeightFormat::w8_g32 || !(m.offset >= 0 && m.offset <= 255))
      return fail(Errc::invalid_argument, "weights: " + name + " has an unknown format or an offset outside 0 to 255");
    if (reinterpret_cast<std::uintptr_t>(m.tiles) % 64 != 0)
      return fail(Errc::invalid_argument, "weights: " + name + " is not aligned to 64 bytes");
    return {};
  };
  const auto vector = [](const float* v, const Text& name) -> Expected<void> {
    if (v == nullptr) return fail(Errc::invalid_argument, "weights: " + name + " is missing");
    return {};
  };
  POCKET_CHECK(matrix(w.embedding, s.vocab, s.hidden, "embedding"));
  POCKET_CHECK(matrix(w.head, s.vocab, s.hidden, "head"));
  POCKET_CHECK(vector(w.output_norm, "output norm"));
  if (w.layers.size() != s.layers)
    return fail(Errc::invalid_argument,
                "weights: " + number(w.layers.size()) + " layers, the model's shape asks for " + number(s.layers));
  POCKET_CHECK(check_constants(w.rms_epsilon, w.rope_base));
  for (std::size_t l = 0; l < s.layers; ++l) {
    const auto& layer = w.layers[l];
    const Text at = "layer " + number(l) + " ";
    POCKET_CHECK(matrix(layer.qkv, qkv_width(s), s.hidden, at + "qkv"));
    POCKET_CHECK(matrix(layer.output, s.hidden, q_width(s), at + "output"));
    POCKET_CHECK(matrix(layer.gate_up, gate_up_width(s), s.hidden, at + "gate_up"));
    POCKET_CHECK(matrix(layer.down, s.hidden, s.ffn, at + "down"));
    POCKET_CHECK(vector(layer.attention_norm, at + "attention norm"));
    POCKET_CHECK(vector(layer.ffn_norm, at + "feed-forward norm"));
    if (s.qk_norm) {
      POCKET_CHECK(vector(layer.q_norm, at + "q norm"));
      POCKET_CHECK(vector(layer.k_norm, at + "k norm"));
    }
  }
  return {};
}

// Bytes of all packed matrices and norms of a model whose matrices have one format; tied embedding counted once.
template <ModelSpec S>
constexpr std::size_t weight_bytes(const S& s, WeightFormat format, bool tied = true) noexcept {
  const std::size_t norms = (s.layers * (2 * s.hidden + (s.qk_norm ? 2 * s.head_dim : 0)) + s.hidden) * sizeof(float);
  const std::size_t layer = packed_bytes(format, qkv_width(s), s.hidden) + packed_bytes(format, s.hidden, q_width(s)) +
                            packed_bytes(format, gate_up_width(s), s.hidden) + packed_bytes(format, s.hidden, s.ffn);
  return norms + s.layers * layer + (tied ? 1 : 2) * packed_bytes(format, s.vocab, s.hidden);
}

POCKET_NAMESPACE_END

#endif
