// A model's shape. Graph code writes spec.hidden and takes either kind: RuntimeSpec, filled from a file, or a struct of
// constants for a model known at compile time, whose memory plan is then a constant as well.
//
// What is not shape (the norms' epsilon, the base of the rotary embedding) comes with the weights, from the model's
// file.
#ifndef POCKET_MODEL_SPEC_HPP
#define POCKET_MODEL_SPEC_HPP

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../quant/format.hpp"

POCKET_NAMESPACE_BEGIN

// A shape that is known when the file is open.
struct RuntimeSpec {
  std::size_t layers = 0;
  std::size_t hidden = 0;
  std::size_t heads = 0;     // of queries
  std::size_t kv_heads = 0;  // each serves heads / kv_heads query heads
  std::size_t head_dim = 0;  // not always hidden / heads
  std::size_t ffn = 0;
  std::size_t vocab = 0;
  std::size_t positions = 0;  // the longest context the model was made for
  bool qk_norm = false;       // RMSNorm of each q and k head before the rotary embedding (Qwen3)
};

// MNN-Pocket-0.3B (arXiv 2611.12311).
struct MnnPocket03B {
  static constexpr std::size_t layers = 28, hidden = 896, heads = 14, kv_heads = 2, head_dim = 64, ffn = 2560,
                               vocab = 65536, positions = 40960;
  static constexpr bool qk_norm = true;
};

// Qwen3-0.6B: head_dim 128 with a hidden size of 1024 and 16 heads.
struct Qwen3_06B {
  static constexpr std::size_t layers = 28, hidden = 1024, heads = 16, kv_heads = 8, head_dim = 128, ffn = 3072,
                               vocab = 151936, positions = 40960;
  static constexpr bool qk_norm = true;
};

// What a model's shape consists of; RuntimeSpec says what each number is.
template <class S>
concept ModelSpec = requires(const S& s) {
  { s.layers } -> std::convertible_to<std::size_t>;
  { s.hidden } -> std::convertible_to<std::size_t>;
  { s.heads } -> std::convertible_to<std::size_t>;
  { s.kv_heads } -> std::convertible_to<std::size_t>;
  { s.head_dim } -> std::convertible_to<std::size_t>;
  { s.ffn } -> std::convertible_to<std::size_t>;
  { s.vocab } -> std::convertible_to<std::size_t>;
  { s.positions } -> std::convertible_to<std::size_t>;
  { s.qk_norm } -> std::convertible_to<bool>;
};
static_assert(ModelSpec<RuntimeSpec> && ModelSpec<MnnPocket03B>);

// Any spec as a RuntimeSpec.
template <ModelSpec S>
constexpr RuntimeSpec runtime_spec(const S& s) noexcept {
  return {s.layers, s.hidden, s.heads, s.kv_heads, s.head_dim, s.ffn, s.vocab, s.positions, s.qk_norm};
}

// Elements of one token's q, all heads together.
template <ModelSpec S>
constexpr std::size_t q_width(const S& s) noexcept {
  return s.heads * s.head_dim;
}
// Of its k; v has as many.
template <ModelSpec S>
constexpr std::size_t kv_width(const S& s) noexcept {
  return s.kv_heads * s.head_dim;
}
// Of q, k and v side by side.
template <ModelSpec S>
constexpr std::size_t qkv_width(const S& s) noexcept {
  return q_width(s) + 2 * kv_width(s);
}
// Rows of gate and up, interleaved in blocks of 16 rows: 16 of gate, the same 16 of up, and so on.
template <ModelSpec S>
constexpr std::size_t gate_up_width(const S& s) noexcept {
  return 2 * s.ffn;
}

// Refuses shapes that the graph cannot run, and absurd ones, naming the dimension. `where` is the file, for the
// message.
inline Expected<void> check_spec(const RuntimeSpec& s, std::string_view where) {
  struct Dimension {
    const char* name;
    std::size_t value, most, multiple;
  };
  const Dimension dimensions[] = {
      {"layer count", s.layers, 1024, 1},       {"hidden size", s.hidden, 65536, 16},
      {"head count", s.heads, 1024, 1},         {"KV head count", s.kv_heads, 1024, 1},
      {"head size", s.head_dim, 1024, 16},      {"feed-forward size", s.ffn, 1048576, 16},
      {"vocabulary size", s.vocab, 1 << 24, 1}, {"context length", s.positions, 1 << 24, 1},
  };
  for (const Dimension& d : dimensions)
    if (d.value == 0 || d.value > d.most || d.value % d.multiple != 0)
      return fail(Errc::unsupported, Text(where) + ": " + d.name + " " + number(d.value) + " (this version runs 1 to " +
                                         number(d.most) +
                                         (d.multiple > 1 ? ", in multiples of " + number(d.multiple) : Text("")) + ")");
  if (s.heads % s.kv_heads != 0)
    return fail(Errc::unsupported, Text(where) + ": head count " + number(s.heads) +
                                       " is not a multiple of the KV head count " + number(s.kv_heads));
  return {};
}

POCKET_NAMESPACE_END

#endif
