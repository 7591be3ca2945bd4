// A model from a GGUF file, architectures `llama` and `qwen3`: shape from the metadata, tensors repacked into tiles.
//
//   Q4_1  w4_g64 where all neighbouring blocks share scale and minimum, else w4_g32: exact
//   Q4_0  the same with m = -8 d, exact in float16 short of overflow, which is refused
//   Q8_0  w8_g32: exact
//   F32, F16, BF16   quantised to w4_g64 (LoadedModel::quantized_here says so)
//
// In architecture `llama` the rows of q and k are stored for the interleaved rotary embedding: within each head, row
// 2i+h of the file is row h*d/2 + i of the rotate-half form, which the graph computes. `qwen3` is stored as it is.
//
// What the graph does not compute is refused, never skipped: a tensor that has no place in it (biases, experts, rotary
// factors), a rotary scaling, a sliding window. Errors name the file and the key or tensor.
#ifndef POCKET_FILES_GGUF_MODEL_HPP
#define POCKET_FILES_GGUF_MODEL_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/executor.hpp"
#include "../core/status.hpp"
#include "../core/types.hpp"
#include "../core/workspace.hpp"
#include "../model/spec.hpp"
#include "../model/weights.hpp"
#include "../quant/format.hpp"
#include "../quant/pack.hpp"
#include "gguf.hpp"
#include "loaded_model.hpp"
#include "reader.hpp"

POCKET_NAMESPACE_BEGIN

namespace detail {

// Where a row of a packed matrix comes from.
struct GgufRow {
  const GgufTensor* tensor;
  std::size_t row;
};

// A packed matrix made of rows of up to three tensors.
struct GgufMatrix {
  enum class Order { stacked, gate_up };
  std::vector<const GgufTensor*> parts;
  Order order = Order::stacked;
  std::size_t n = 0, k = 0;
  std::size_t rotary_rows = 0;  // the first so many rows are heads in the interleaved order, to be undone
  std::size_t head_dim = 0;
  WeightFormat format = WeightFormat::w4_g64;
  std::size_t offset = 0;  // bytes, in the model's memory
  PackedMatrix* out = nullptr;

  GgufRow source(std::size_t row) const noexcept {
    if (order == Order::gate_up) {
      const std::size_t block = row / tile_rows;
      return {parts[block % 2], block / 2 * tile_rows + row % tile_rows};
    }
    if (row < rotary_rows) {
      const std::size_t in_head = row % head_dim, half = head_dim / 2;
      row = row - in_head + 2 * (in_head % half) + in_head / half;
    }
    std::size_t part = 0;
    while (row >= parts[part]->dims[1]) row -= static_cast<std::size_t>(parts[part++]->dims[1]);
    return {parts[part], row};
  }
};

struct GgufVector {
  const GgufTensor* tensor;
  std::size_t offset;
  const float** out;
};

inline std::span<const std::byte> gguf_row_bytes(const GgufRow& r) noexcept {
  const std::size_t bytes = r.tensor->data.size() / static_cast<std::size_t>(r.tensor->dims[1]);
  return r.tensor->data.subspan(r.row * bytes, bytes);
}

inline float gguf_float(GgufType type, const std::byte* data, std::size_t i) noexcept {
  if (type == GgufType::F32) return load_unaligned<float>(data + 4 * i);
  if (type == GgufType::F16) return to_float(load_unaligned<f16>(data + 2 * i));
  return to_float(load_unaligned<bf16>(data + 2 * i));
}
inline bool gguf_is_float(GgufType type) noexcept {
  return type == GgufType::F32 || type == GgufType::F16 || type == GgufType::BF16;
}

// One block of 32 4-bit weights.
struct Q4Block {
  f16 scale, minimum;
  const std::byte* nibbles;
};
inline Q4Block q4_block(GgufType type, const std::byte* row, std::size_t i) noexcept {
  if (type == GgufType::Q4_1) {
    const std::byte* p = row + 20 * i;
    return {load_unaligned<f16>(p), load_unaligned<f16>(p + 2), p + 4};
  }
  const std::byte* p = row + 18 * i;
  const f16 d = load_unaligned<f16>(p);
  return {d, to_f16(-8.0f * to_float(d)), p + 2};
}

class GgufModelLoader {
 public:
  GgufModelLoader(const GgufFile& file, Executor& executor) : file_(file), executor_(executor) {}

  Expected<LoadedModel> load() {
    model_.name = file_.name();
    POCKET_CHECK(read_spec());
    POCKET_CHECK(gather());
    POCKET_CHECK(refuse_unknown_tensors());
    for (GgufMatrix& m : matrices_) POCKET_CHECK(choose_format(m));
    POCKET_CHECK(fill());
    if (auto fits = check_weights(model_.spec, model_.weights); !fits)
      return fail(fits.error().code, file_.name() + ": " + fits.error().message);
    return std::move(model_);
  }

 private:
  Error refuse(const std::string& what) const { return fail(Errc::unsupported, file_.name() + ": " + what); }

  std::string key(std::string_view suffix) const { return model_.architecture + "." + std::string(suffix); }

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
    model_.architecture = std::string(architecture);
    RuntimeSpec& s = model_.spec;
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
    POCKET_TRY(embedding, file_.require("token_embd.weight"));
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
    model_.weights.rms_epsilon = static_cast<float>(epsilon);
    model_.weights.rope_base = 10000;  // the architecture's default, for files that do not say
    if (file_.has(key("rope.freq_base"))) {
      POCKET_TRY(base, file_.float_value(key("rope.freq_base")));
      model_.weights.rope_base = base;
    }
    return {};
  }

  Expected<const GgufTensor*> tensor(const std::string& name, std::size_t n, std::size_t k) {
    POCKET_TRY(found, file_.require(name));
    const GgufTensor* t = found;
    if (t->dims != std::array<std::uint64_t, 4>{k, n, 1, 1})
      return fail(Errc::malformed, file_.name() + ": tensor '" + name + "' is " + std::to_string(t->dims[1]) + " x " +
                                       std::to_string(t->dims[0]) + ", the metadata asks for " + std::to_string(n) +
                                       " x " + std::to_string(k));
    ++used_;
    return t;
  }

  Expected<void> add(PackedMatrix& out, std::vector<std::pair<std::string, std::size_t>> names, std::size_t k,
                     GgufMatrix::Order order = GgufMatrix::Order::stacked, std::size_t rotary_rows = 0) {
    GgufMatrix m;
    m.k = k;
    m.order = order;
    m.rotary_rows = rotary_rows;
    m.head_dim = model_.spec.head_dim;
    m.out = &out;
    for (const auto& [name, n] : names) {
      POCKET_TRY(part, tensor(name, n, k));
      m.parts.push_back(part);
      m.n += n;
    }
    matrices_.push_back(std::move(m));
    return {};
  }
  Expected<void> add(const float*& out, const std::string& name, std::size_t n) {
    POCKET_TRY(found, tensor(name, 1, n));
    if (!gguf_is_float(found->type)) return refuse("tensor '" + name + "': a norm must be F32, F16 or BF16");
    vectors_.push_back({found, 0, &out});
    return {};
  }

  // Every tensor of the graph, in the order in which decoding reads them.
  Expected<void> gather() {
    const RuntimeSpec& s = model_.spec;
    HostWeights& w = model_.weights;
    w.layers.resize(s.layers);
    POCKET_CHECK(add(w.embedding, {{"token_embd.weight", s.vocab}}, s.hidden));
    const std::size_t rotary = model_.architecture == "llama" ? q_width(s) + kv_width(s) : 0;
    for (std::size_t l = 0; l < s.layers; ++l) {
      const std::string at = "blk." + std::to_string(l) + ".";
      auto& layer = w.layers[l];
      POCKET_CHECK(add(layer.attention_norm, at + "attn_norm.weight", s.hidden));
      POCKET_CHECK(add(layer.qkv,
                       {{at + "attn_q.weight", q_width(s)},
                        {at + "attn_k.weight", kv_width(s)},
                        {at + "attn_v.weight", kv_width(s)}},
                       s.hidden, GgufMatrix::Order::stacked, rotary));
      if (s.qk_norm) {
        POCKET_CHECK(add(layer.q_norm, at + "attn_q_norm.weight", s.head_dim));
        POCKET_CHECK(add(layer.k_norm, at + "attn_k_norm.weight", s.head_dim));
      }
      POCKET_CHECK(add(layer.output, {{at + "attn_output.weight", s.hidden}}, q_width(s)));
      POCKET_CHECK(add(layer.ffn_norm, at + "ffn_norm.weight", s.hidden));
      POCKET_CHECK(add(layer.gate_up, {{at + "ffn_gate.weight", s.ffn}, {at + "ffn_up.weight", s.ffn}}, s.hidden,
                       GgufMatrix::Order::gate_up));
      POCKET_CHECK(add(layer.down, {{at + "ffn_down.weight", s.hidden}}, s.ffn));
    }
    POCKET_CHECK(add(w.output_norm, "output_norm.weight", s.hidden));
    model_.tied = file_.find("output.weight") == nullptr;
    if (!model_.tied) POCKET_CHECK(add(w.head, {{"output.weight", s.vocab}}, s.hidden));
    return {};
  }

  Expected<void> refuse_unknown_tensors() {
    if (used_ == file_.tensors().size()) return {};
    for (const GgufTensor& t : file_.tensors()) {
      bool known = false;
      for (const GgufMatrix& m : matrices_)
        for (const GgufTensor* p : m.parts) known = known || p == &t;
      for (const GgufVector& v : vectors_) known = known || v.tensor == &t;
      if (!known)
        return refuse("tensor '" + std::string(t.name.substr(0, 64)) + "' has no place in the " + model_.architecture +
                      " graph");
    }
    return {};
  }

  // The format that holds all parts exactly, or w4_g64 for floats.
  Expected<void> choose_format(GgufMatrix& m) {
    bool q4 = true, q8 = true, floats = true;
    for (const GgufTensor* p : m.parts) {
      q4 = q4 && (p->type == GgufType::Q4_1 || p->type == GgufType::Q4_0);
      q8 = q8 && p->type == GgufType::Q8_0;
      floats = floats && gguf_is_float(p->type);
    }
    if (!q4 && !q8 && !floats)
      return refuse("tensors '" + std::string(m.parts[0]->name) +
                    "' and those fused with it have element types that do not go together");
    if (q8) m.format = WeightFormat::w8_g32;
    if (q4) m.format = groups_merge(m) ? WeightFormat::w4_g64 : WeightFormat::w4_g32;
    model_.quantized_here = model_.quantized_here || floats;
    return {};
  }
  static bool groups_merge(const GgufMatrix& m) {
    if (m.k % 64 != 0) return false;
    for (std::size_t r = 0; r < m.n; ++r) {
      const GgufRow source = m.source(r);
      const std::byte* row = gguf_row_bytes(source).data();
      for (std::size_t b = 0; b < m.k / 32; b += 2) {
        const Q4Block x = q4_block(source.tensor->type, row, b), y = q4_block(source.tensor->type, row, b + 1);
        if (x.scale.bits != y.scale.bits || x.minimum.bits != y.minimum.bits) return false;
      }
    }
    return true;
  }

  Expected<void> fill() {
    Layout layout;
    for (GgufMatrix& m : matrices_) m.offset = layout.add<std::byte>(packed_bytes(m.format, m.n, m.k));
    for (GgufVector& v : vectors_) v.offset = layout.add<float>(static_cast<std::size_t>(v.tensor->dims[0]));
    POCKET_TRY(memory, Workspace::allocate(layout.bytes()));
    model_.memory = std::move(memory);
    model_.weight_bytes = layout.bytes();
    for (const GgufMatrix& m : matrices_) POCKET_CHECK(fill_matrix(m));
    for (const GgufVector& v : vectors_) {
      float* out = model_.memory.at<float>(v.offset);
      for (std::size_t i = 0; i < v.tensor->dims[0]; ++i) out[i] = gguf_float(v.tensor->type, v.tensor->data.data(), i);
      *v.out = out;
    }
    if (model_.tied) model_.weights.head = model_.weights.embedding;
    return {};
  }

  Expected<void> fill_matrix(const GgufMatrix& m) {
    std::byte* out = model_.memory.at<std::byte>(m.offset);
    *m.out = {out, m.n, m.k, m.format, 0};
    const PackedMatrix& packed = *m.out;
    std::vector<Expected<void>> results(executor_.concurrency());
    constexpr std::size_t step = 64;  // row blocks that share one buffer
    executor_.parallel_for(div_up(packed.row_blocks(), step), [&](std::size_t task, unsigned worker) {
      RowBlock block(m.format, m.k);
      std::vector<float> floats(m.k);
      for (std::size_t b = task * step; b < packed.row_blocks() && b < (task + 1) * step; ++b) {
        block.clear();
        for (std::size_t r = 0; r < tile_rows && b * tile_rows + r < m.n; ++r)
          if (auto done = fill_row(m.source(b * tile_rows + r), m, block, r, floats); !done)
            results[worker] = std::move(done);
        pack_block(block, out + b * packed.block_bytes());
      }
    });
    for (auto& r : results) POCKET_CHECK(std::move(r));
    return {};
  }

  Expected<void> fill_row(const GgufRow& source, const GgufMatrix& m, RowBlock& block, std::size_t r,
                          std::vector<float>& floats) {
    const GgufType type = source.tensor->type;
    const std::byte* row = gguf_row_bytes(source).data();
    if (gguf_is_float(type)) {
      for (std::size_t i = 0; i < m.k; ++i) floats[i] = gguf_float(type, row, i);
      if (auto done = quantize_rows({floats.data(), 1, m.k, m.k}, block, r); !done)
        return fail(Errc::unsupported,
                    file_.name() + ": tensor '" + std::string(source.tensor->name) + "': " + done.error().message);
      return {};
    }
    if (type == GgufType::Q8_0) {
      for (std::size_t b = 0; b < m.k / 32; ++b) {
        block.scales(r)[b] = load_unaligned<f16>(row + 34 * b);
        std::memcpy(block.codes(r) + 32 * b, row + 34 * b + 2, 32);
      }
      return {};
    }
    const std::size_t per_group = m.format == WeightFormat::w4_g64 ? 2 : 1;
    for (std::size_t b = 0; b < m.k / 32; ++b) {
      const Q4Block q = q4_block(type, row, b);
      if (type == GgufType::Q4_0 && (q.minimum.bits & 0x7fffu) == 0x7c00u && (q.scale.bits & 0x7fffu) < 0x7c00u)
        return fail(Errc::unsupported, file_.name() + ": tensor '" + std::string(source.tensor->name) +
                                           "': a Q4_0 scale of " + std::to_string(to_float(q.scale)) +
                                           ", above the 8188 that this version takes");
      block.scales(r)[b / per_group] = q.scale;
      block.minima(r)[b / per_group] = q.minimum;
      std::uint8_t* codes = block.codes(r) + 32 * b;
      for (std::size_t j = 0; j < 16; ++j) {
        codes[j] = static_cast<std::uint8_t>(q.nibbles[j]) & 15u;
        codes[16 + j] = static_cast<std::uint8_t>(static_cast<std::uint8_t>(q.nibbles[j]) >> 4);
      }
    }
    return {};
  }

  const GgufFile& file_;
  Executor& executor_;
  LoadedModel model_;
  std::vector<GgufMatrix> matrices_;
  std::vector<GgufVector> vectors_;
  std::size_t used_ = 0;  // tensors that have a place in the graph
};

}  // namespace detail

// Repacks on the executor's threads. The file may be closed afterwards.
inline Expected<LoadedModel> load_gguf(const GgufFile& file, Executor& executor) {
  return detail::GgufModelLoader(file, executor).load();
}

POCKET_NAMESPACE_END

#endif
