// A model from a GGUF file, architectures `llama` and `qwen3`: shape from the metadata, tensors as model_source.hpp
// packs them. In `llama` files the rows of q and k are stored for the interleaved rotary embedding, in `qwen3` they are
// not.
//
// What the graph does not compute is refused, never skipped: a tensor that has no place in it (biases, experts, rotary
// factors), a rotary scaling, a sliding window. Errors name the file and the key or tensor. Source: the GGUF
// specification (docs/gguf.md of the ggml project).
#ifndef POCKET_FILES_GGUF_MODEL_HPP
#define POCKET_FILES_GGUF_MODEL_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/executor.hpp"
#include "../core/status.hpp"
#include "../model/spec.hpp"
#include "gguf.hpp"
#include "loaded_model.hpp"
#include "model_source.hpp"

POCKET_NAMESPACE_BEGIN

namespace detail {

inline constexpr TensorNames gguf_names{.embedding = "token_embd.weight",
                                        .output_norm = "output_norm.weight",
                                        .head = "output.weight",
                                        .layers = "blk.",
                                        .attention_norm = "attn_norm.weight",
                                        .q = "attn_q.weight",
                                        .k = "attn_k.weight",
                                        .v = "attn_v.weight",
                                        .q_norm = "attn_q_norm.weight",
                                        .k_norm = "attn_k_norm.weight",
                                        .output = "attn_output.weight",
                                        .ffn_norm = "ffn_norm.weight",
                                        .gate = "ffn_gate.weight",
                                        .up = "ffn_up.weight",
                                        .down = "ffn_down.weight"};

inline std::optional<ElementType> element_type(GgufType type) noexcept {
  switch (type) {
    case GgufType::F32: return ElementType::f32;
    case GgufType::F16: return ElementType::f16;
    case GgufType::BF16: return ElementType::bf16;
    case GgufType::Q4_0: return ElementType::q4_0;
    case GgufType::Q4_1: return ElementType::q4_1;
    case GgufType::Q8_0: return ElementType::q8_0;
  }
  return std::nullopt;
}

class GgufSourceReader {
 public:
  explicit GgufSourceReader(const GgufFile& file) : file_(file) {}

  Expected<ModelSource> read(std::optional<WeightFormat> format) {
    source_.name = file_.name();
    POCKET_CHECK(read_spec());
    source_.tied = file_.find(gguf_names.head) == nullptr;
    const std::size_t rotary_rows =
        source_.architecture == "llama" ? q_width(source_.spec) + kv_width(source_.spec) : 0;
    SourceGatherer gatherer(source_, gguf_names, rotary_rows, format,
                            [this](const std::string& name) { return tensor(name); });
    POCKET_CHECK(gatherer.gather());
    const auto used = gatherer.used();
    for (const GgufTensor& t : file_.tensors())
      if (!std::binary_search(used.begin(), used.end(), t.name))
        return refuse("tensor '" + std::string(t.name.substr(0, 64)) + "' has no place in the " + source_.architecture +
                      " graph");
    return std::move(source_);
  }

 private:
  Error refuse(const std::string& what) const { return fail(Errc::unsupported, file_.name() + ": " + what); }

  std::string key(std::string_view suffix) const { return source_.architecture + "." + std::string(suffix); }

  Expected<std::size_t> size(std::string_view suffix) {
    POCKET_TRY(value, file_.unsigned_value(key(suffix)));
    return static_cast<std::size_t>(value);
  }
  // A key that must have this value if it is there at all.
  Expected<void> only(std::string_view suffix, std::uint64_t value) {
    if (!file_.has(key(suffix))) return {};
    POCKET_TRY(found, file_.unsigned_value(key(suffix)));
    if (found == value) return {};
    return refuse(key(suffix) + " is " + std::to_string(found) + "; this version runs " + std::to_string(value) +
                  " only");
  }

  Expected<void> read_spec() {
    POCKET_TRY(architecture, file_.string_value("general.architecture"));
    if (architecture != "llama" && architecture != "qwen3")
      return refuse("general.architecture is '" + std::string(architecture.substr(0, 64)) +
                    "'; this version runs llama and qwen3");
    source_.architecture = std::string(architecture);
    RuntimeSpec& s = source_.spec;
    POCKET_TRY(layers, size("block_count"));
    POCKET_TRY(hidden, size("embedding_length"));
    POCKET_TRY(ffn, size("feed_forward_length"));
    POCKET_TRY(heads, size("attention.head_count"));
    POCKET_TRY(positions, size("context_length"));
    s.layers = layers;
    s.hidden = hidden;
    s.ffn = ffn;
    s.heads = heads;
    s.kv_heads = heads;
    s.positions = positions;
    s.qk_norm = architecture == "qwen3";
    if (file_.has(key("attention.head_count_kv"))) {
      POCKET_TRY(kv_heads, size("attention.head_count_kv"));
      s.kv_heads = kv_heads;
    }
    if (file_.has(key("attention.key_length"))) {
      POCKET_TRY(head_dim, size("attention.key_length"));
      s.head_dim = head_dim;
    } else if (heads != 0 && hidden % heads == 0) {
      s.head_dim = hidden / heads;
    }
    POCKET_TRY(embedding, file_.require(gguf_names.embedding));
    s.vocab = static_cast<std::size_t>(embedding->dims[1]);
    POCKET_CHECK(check_spec(s, file_.name()));
    POCKET_CHECK(only("attention.value_length", s.head_dim));
    POCKET_CHECK(only("rope.dimension_count", s.head_dim));
    POCKET_CHECK(only("expert_count", 0));
    POCKET_CHECK(only("attention.sliding_window", 0));
    if (file_.has(key("rope.scaling.type"))) {
      POCKET_TRY(scaling, file_.string_value(key("rope.scaling.type")));
      if (scaling != "none")
        return refuse(key("rope.scaling.type") + " is '" + std::string(scaling.substr(0, 64)) +
                      "'; this version runs none");
    }
    POCKET_TRY(epsilon, file_.float_value(key("attention.layer_norm_rms_epsilon")));
    source_.rms_epsilon = static_cast<float>(epsilon);
    source_.rope_base = 10000;  // the architecture's default, for files that do not say
    if (file_.has(key("rope.freq_base"))) {
      POCKET_TRY(base, file_.float_value(key("rope.freq_base")));
      source_.rope_base = base;
    }
    return {};
  }

  Expected<SourceTensor> tensor(const std::string& name) const {
    POCKET_TRY(found, file_.require(name));
    const GgufTensor& t = *found;
    const auto type = element_type(t.type);
    if (!type || t.dims[2] != 1 || t.dims[3] != 1)
      return fail(Errc::malformed, file_.name() + ": tensor '" + name + "': is " + gguf_type_name(t.type) + " of " +
                                       std::to_string(t.n_dims) + " dimensions, expected a matrix or vector");
    return SourceTensor{
        file_.name(), t.name, *type, static_cast<std::size_t>(t.dims[1]), static_cast<std::size_t>(t.dims[0]), t.data};
  }

  const GgufFile& file_;
  ModelSource source_;
};

}  // namespace detail

// The file outlives the source.
inline Expected<ModelSource> gguf_source(const GgufFile& file, std::optional<WeightFormat> format = std::nullopt) {
  return detail::GgufSourceReader(file).read(format);
}

// Repacks on the executor's threads. The file may be closed afterwards.
inline Expected<LoadedModel> load_gguf(const GgufFile& file, Executor& executor, const LoadOptions& options = {}) {
  POCKET_TRY(source, gguf_source(file, options.format));
  return load_model(source, executor, options);
}

POCKET_NAMESPACE_END

#endif
