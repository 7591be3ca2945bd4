// A model written as a GGUF file, for llama.cpp to run the very same weights:
//
//   export_gguf("package", "model.gguf", executor);   // any kind of model that open.hpp opens
//
//   weights           exact                       q4_1                         f16, f32
//   w4_g64            Q4_1: a group is two blocks of 32 with one scale and     their values
//                     one minimum
//   w4_g32            Q4_1                                                     their values
//   w8_g32            Q8_0                        refused                      their values
//   Q4_0, Q4_1, Q8_0  as they are                 Q4_1, as load_gguf packs     their values
//                                                 them; 8 bits are refused
//   F32, F16, BF16    F16                         Q4_1, as open_model          their values
//                                                 quantises them
//
// Codes, scales and minima are taken over bit for bit; an offset o becomes part of the minimum, m - o*s, where that is
// a float16, and is refused where it is not. Values are those of dequantize_row and SourceTensor::read, for F16 rounded
// once. Norms are F32.
//
// The graph's fused matrices are taken apart, padding is left behind, and for architecture llama the rows of q and k
// are put in the interleaved order. The tokenizer and the chat template come along (gguf_tokenizer_writer.hpp); a model
// without a tokenizer has tokenizer.ggml.model "no_vocab", with which llama.cpp takes tokens alone.
//
// Nothing of the weights is held in memory but one megabyte (q4_1 of what is not packed: as open_model does). The same
// model gives the same bytes. Errors are those of the readers; Errc::unsupported, naming the tensor, for what the type
// cannot hold: 8 bits in q4_1, rows that are no multiple of 32 in blocks, values that are not finite or that float16
// rounds to infinity; Errc::cancelled; Errc::io and what output_file.hpp says. No file is left behind then.
#ifndef POCKET_FILES_GGUF_EXPORT_HPP
#define POCKET_FILES_GGUF_EXPORT_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/executor.hpp"
#include "../core/status.hpp"
#include "../core/types.hpp"
#include "../model/spec.hpp"
#include "../model/weights.hpp"
#include "../quant/format.hpp"
#include "../quant/pack.hpp"
#include "../text/tokenizer.hpp"
#include "gguf.hpp"
#include "gguf_model.hpp"
#include "gguf_tokenizer.hpp"
#include "gguf_tokenizer_writer.hpp"
#include "gguf_types.hpp"
#include "gguf_writer.hpp"
#include "hf_model.hpp"
#include "hf_tokenizer.hpp"
#include "loaded_model.hpp"
#include "model_source.hpp"
#include "open.hpp"
#include "package.hpp"

POCKET_NAMESPACE_BEGIN

// Of the matrices; the table above says what becomes of what.
enum class GgufExportType : unsigned char { exact, q4_1, f16, f32 };

// What a caller may want of export_gguf.
struct GgufExportOptions {
  GgufExportType type = GgufExportType::exact;
  bool overwrite = false;
  Progress progress;  // in bytes of tensors, as they are written
};

// The text that goes with a model. Views; without a tokenizer there is none.
struct GgufExportText {
  const TokenizerData* tokenizer = nullptr;
  std::string_view chat_template;  // Jinja; may be empty
};

// What was written.
struct GgufExported {
  std::string architecture, types;  // "qwen3"; "Q4_1, F32"
  std::uint64_t bytes = 0;          // of tensors
  bool text = false;                // with a tokenizer
};

namespace detail {

// m - o*s if that is a float16.
inline std::optional<f16> folded_minimum(f16 minimum, float offset, f16 scale) noexcept {
  if (offset == 0) return minimum;
  const double m = static_cast<double>(to_float(minimum));
  const double shift = static_cast<double>(offset) * static_cast<double>(to_float(scale));  // exact: 24 + 11 bits
  const f16 folded = to_f16(static_cast<float>(m - shift));
  if (m - static_cast<double>(to_float(folded)) == shift) return folded;  // a difference of float16 is exact
  return std::nullopt;
}

// Row `row` of w as blocks of Q4_1 or Q8_0: out[w.k / 32 blocks]; w.k is a multiple of 32. False if an offset does not
// fold.
inline bool write_blocks(const PackedMatrix& w, std::size_t row, std::byte* out) noexcept {
  return with_format(w.format, [&](auto format) {
    using F = decltype(format);
    const std::size_t r = row % tile_rows;
    const std::byte* tile = w.tiles + row / tile_rows * w.block_bytes();
    for (std::size_t k = 0; k < w.k; k += 32) {
      const std::byte* const t = tile + k / tile_cols * F::bytes;
      const std::size_t c = k % tile_cols, g = c / F::group;
      const f16 scale = load_f16(t + F::scales_offset(g) + 2 * r);
      std::memcpy(out, &scale, 2);
      out += 2;
      const auto code = [&](std::size_t j) {
        return static_cast<unsigned>(t[F::code_byte(r, c + j)]) >> F::code_shift(c + j) & (F::bits == 4 ? 15u : 255u);
      };
      if constexpr (F::bits == 8) {
        for (std::size_t j = 0; j < 32; ++j) *out++ = static_cast<std::byte>(code(j));
        continue;
      }
      const auto minimum = folded_minimum(load_f16(t + F::minima_offset(g) + 2 * r), w.offset, scale);
      if (!minimum) return false;
      std::memcpy(out, &*minimum, 2);
      out += 2;
      for (std::size_t j = 0; j < 16; ++j) *out++ = static_cast<std::byte>(code(j) | code(j + 16) << 4);
    }
    return true;
  });
}

// A matrix of the graph, packed or in files, as the exporter uses it. `part`: which of the tensors fused in it; `row`:
// of the fused matrix.
inline GgufType exact_type(const PackedMatrix* m, std::size_t) noexcept {
  return m->format == WeightFormat::w8_g32 ? GgufType::Q8_0 : GgufType::Q4_1;
}
inline void read_values(const PackedMatrix* m, std::size_t row, float* out) noexcept { dequantize_row(*m, row, out); }
inline bool take_blocks(const PackedMatrix* m, std::size_t row, std::span<std::byte> out) noexcept {
  return write_blocks(*m, row, out.data());
}
inline GgufType exact_type(const SourceMatrix* m, std::size_t part) noexcept {
  switch (m->parts[part].type) {
    case ElementType::q4_0: return GgufType::Q4_0;
    case ElementType::q4_1: return GgufType::Q4_1;
    case ElementType::q8_0: return GgufType::Q8_0;
    default: return GgufType::F16;
  }
}
inline void read_values(const SourceMatrix* m, std::size_t row, float* out) noexcept { m->read(row, out); }
inline bool take_blocks(const SourceMatrix* m, std::size_t row, std::span<std::byte> out) noexcept {
  const SourceMatrix::Row from = m->source(row);
  std::memcpy(out.data(), from.tensor->row(from.row), out.size());
  return true;
}
inline void read_norm(const float* v, std::span<float> out) noexcept { std::copy_n(v, out.size(), out.begin()); }
inline void read_norm(const SourceVector* v, std::span<float> out) noexcept { v->read(out.data()); }

// What an exporter needs to know of a model beside its weights.
struct GgufModelFacts {
  const std::string& name;
  const std::string& architecture;
  const RuntimeSpec& spec;
  bool tied;
};

// Matrix: const PackedMatrix* or const SourceMatrix*. Vector: const float* or const SourceVector*.
template <class Matrix, class Vector>
class GgufExporter {
 public:
  using Weights = ModelWeights<Matrix, Vector>;

  GgufExporter(const GgufModelFacts& facts, const Weights& weights, const GgufExportOptions& options)
      : facts_(facts), weights_(weights), options_(options) {}

  Expected<GgufExported> write(const GgufExportText& text, const std::string& path) {
    list_tensors();
    POCKET_CHECK(add_metadata(text));
    GgufExported done{facts_.architecture, {}, 0, text.tokenizer != nullptr};
    for (Tensor& t : tensors_) {
      POCKET_CHECK(declare(t));
      add_type(done.types, gguf_type_name(t.type));
      done.bytes += t.rows * row_bytes(t);
    }
    POCKET_CHECK(writer_.begin(path, options_.overwrite));
    ProgressMeter meter(options_.progress, static_cast<std::size_t>(done.bytes));
    for (const Tensor& t : tensors_) POCKET_CHECK(write_tensor(t, meter));
    POCKET_CHECK(writer_.finish());
    return done;
  }

 private:
  // A tensor of the file, and where its rows are in a matrix of the graph. matrix == nullptr: a norm.
  struct Tensor {
    std::string name;
    const Matrix* matrix;
    const Vector* norm;
    std::size_t rows, cols;
    std::size_t part = 0, first = 0;  // which of the fused tensors; its first row where they are stacked
    bool gate_up = false, rotary = false;
    GgufType type = GgufType::F32;
  };

  Error refuse(const Tensor& t, const std::string& what) const {
    return fail(Errc::unsupported, facts_.name + ": tensor '" + t.name + "': " + what);
  }

  void list_tensors() {
    const RuntimeSpec& s = facts_.spec;
    const std::size_t q = q_width(s), kv = kv_width(s);
    const bool rotary = facts_.architecture == "llama";
    const auto norm = [&](std::string name, const Vector& v, std::size_t n) {
      tensors_.push_back({std::move(name), nullptr, &v, 1, n});
    };
    tensors_.push_back({gguf_names.embedding, &weights_.embedding, nullptr, s.vocab, s.hidden});
    for (std::size_t l = 0; l < s.layers; ++l) {
      const std::string at = gguf_names.layers + std::to_string(l) + ".";
      const auto& layer = weights_.layers[l];
      norm(at + gguf_names.attention_norm, layer.attention_norm, s.hidden);
      tensors_.push_back({at + gguf_names.q, &layer.qkv, nullptr, q, s.hidden, 0, 0, false, rotary});
      tensors_.push_back({at + gguf_names.k, &layer.qkv, nullptr, kv, s.hidden, 1, q, false, rotary});
      tensors_.push_back({at + gguf_names.v, &layer.qkv, nullptr, kv, s.hidden, 2, q + kv});
      if (s.qk_norm) {
        norm(at + gguf_names.q_norm, layer.q_norm, s.head_dim);
        norm(at + gguf_names.k_norm, layer.k_norm, s.head_dim);
      }
      tensors_.push_back({at + gguf_names.output, &layer.output, nullptr, s.hidden, q});
      norm(at + gguf_names.ffn_norm, layer.ffn_norm, s.hidden);
      tensors_.push_back({at + gguf_names.gate, &layer.gate_up, nullptr, s.ffn, s.hidden, 0, 0, true});
      tensors_.push_back({at + gguf_names.up, &layer.gate_up, nullptr, s.ffn, s.hidden, 1, 0, true});
      tensors_.push_back({at + gguf_names.down, &layer.down, nullptr, s.hidden, s.ffn});
    }
    norm(gguf_names.output_norm, weights_.output_norm, s.hidden);
    if (!facts_.tied) tensors_.push_back({gguf_names.head, &weights_.head, nullptr, s.vocab, s.hidden});
  }

  // The row of the fused matrix that is row r of the tensor.
  std::size_t fused_row(const Tensor& t, std::size_t r) const noexcept {
    if (t.gate_up) return (r / tile_rows * 2 + t.part) * tile_rows + r % tile_rows;
    if (t.rotary) {
      const std::size_t in_head = r % facts_.spec.head_dim;
      r = r - in_head + in_head % 2 * (facts_.spec.head_dim / 2) + in_head / 2;
    }
    return t.first + r;
  }

  Expected<void> add_metadata(const GgufExportText& text) {
    const RuntimeSpec& s = facts_.spec;
    const auto base = static_cast<float>(weights_.rope_base);
    if (static_cast<double>(base) != weights_.rope_base)
      return fail(Errc::unsupported, facts_.name + ": rotary base " + number_text(weights_.rope_base) +
                                         " is no float32, which GGUF has for it");
    writer_.add_string("general.architecture", facts_.architecture);
    writer_.add_value("general.quantization_version", std::uint32_t{2});
    const std::string prefix = facts_.architecture + ".";
    const std::pair<const char*, std::size_t> sizes[] = {{"block_count", s.layers},
                                                         {"context_length", s.positions},
                                                         {"embedding_length", s.hidden},
                                                         {"feed_forward_length", s.ffn},
                                                         {"attention.head_count", s.heads},
                                                         {"attention.head_count_kv", s.kv_heads},
                                                         {"attention.key_length", s.head_dim},
                                                         {"attention.value_length", s.head_dim},
                                                         {"rope.dimension_count", s.head_dim},
                                                         {"vocab_size", s.vocab}};
    for (const auto& [key, value] : sizes) writer_.add_value(prefix + key, static_cast<std::uint32_t>(value));
    writer_.add_value(prefix + "attention.layer_norm_rms_epsilon", weights_.rms_epsilon);
    writer_.add_value(prefix + "rope.freq_base", base);
    if (text.tokenizer != nullptr) {
      if (auto added = add_gguf_text(writer_, *text.tokenizer, text.chat_template, s.vocab); !added)
        return fail(added.error().code, facts_.name + ": " + added.error().message);
      return {};
    }
    writer_.add_string("tokenizer.ggml.model", gguf_no_text);
    return {};
  }

  Expected<void> declare(Tensor& t) {
    if (t.matrix == nullptr) return writer_.add_tensor(t.name, t.type, std::array{std::uint64_t{t.cols}});
    t.type = exact_type(*t.matrix, t.part);
    if (options_.type == GgufExportType::q4_1 && t.type != GgufType::Q4_1)
      return refuse(t, "is " + gguf_type_name(t.type) + ", of which Q4_1 would lose something");
    if (options_.type == GgufExportType::f16) t.type = GgufType::F16;
    if (options_.type == GgufExportType::f32) t.type = GgufType::F32;
    if (const std::uint32_t block = gguf_type_info(t.type)->block; t.cols % block != 0)
      return refuse(t, "rows of " + std::to_string(t.cols) + " are no multiple of the " + std::to_string(block) +
                           " that a block of " + gguf_type_name(t.type) + " holds; F16 and F32 take them");
    return writer_.add_tensor(t.name, t.type, std::array{std::uint64_t{t.cols}, std::uint64_t{t.rows}});
  }
  static void add_type(std::string& types, const std::string& name) {
    if (types.find(name) == std::string::npos) types.append(types.empty() ? "" : ", ").append(name);
  }

  static std::size_t row_bytes(const Tensor& t) noexcept {
    const GgufTypeInfo& info = *gguf_type_info(t.type);
    return t.cols / info.block * info.block_bytes;
  }

  Expected<void> write_tensor(const Tensor& t, ProgressMeter& meter) {
    const std::size_t size = row_bytes(t), at_once = (std::max)(std::size_t{1}, (std::size_t{1} << 20) / size);
    std::vector<std::byte> buffer;
    std::vector<float> floats(t.cols);
    for (std::size_t r = 0, end; r < t.rows; r = end) {
      end = (std::min)(t.rows, r + at_once);
      buffer.resize((end - r) * size);
      for (std::size_t i = r; i < end; ++i)
        POCKET_CHECK(write_row(t, i, floats, std::span(buffer).subspan((i - r) * size, size)));
      POCKET_CHECK(writer_.append(t.name, buffer));
      POCKET_CHECK(meter.add(buffer.size()));
    }
    return {};
  }

  Expected<void> write_row(const Tensor& t, std::size_t r, std::span<float> floats, std::span<std::byte> out) const {
    if (t.matrix == nullptr) {
      read_norm(*t.norm, floats);
    } else if (t.type != GgufType::F32 && t.type != GgufType::F16) {
      if (take_blocks(*t.matrix, fused_row(t, r), out)) return {};
      return refuse(t, "row " + std::to_string(r) + " has a minimum that is no float16 once the offset is part of it");
    } else {
      read_values(*t.matrix, fused_row(t, r), floats.data());
    }
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const f16 half = to_f16(floats[i]);
      const bool fits = t.type == GgufType::F16 ? (half.bits & 0x7c00u) != 0x7c00u
                                                : __builtin_fabsf(floats[i]) <= (std::numeric_limits<float>::max)();
      if (!fits)
        return refuse(t, "row " + std::to_string(r) + " holds " + number_text(floats[i]) + ", which " +
                             gguf_type_name(t.type) + " does not");
      if (t.type == GgufType::F16)
        std::memcpy(out.data() + 2 * i, &half, 2);
      else
        std::memcpy(out.data() + 4 * i, &floats[i], 4);
    }
    return {};
  }

  const GgufModelFacts& facts_;
  const Weights& weights_;
  const GgufExportOptions& options_;
  GgufWriter writer_;
  std::vector<Tensor> tensors_;
};

}  // namespace detail

// What a loader has packed, or a package.
inline Expected<GgufExported> export_gguf(const LoadedModel& model, const GgufExportText& text, const std::string& path,
                                          const GgufExportOptions& options = {}) {
  ModelWeights<const PackedMatrix*, const float*> weights;
  weights.rms_epsilon = model.weights.rms_epsilon;
  weights.rope_base = model.weights.rope_base;
  weights.embedding = &model.weights.embedding;
  weights.head = &model.weights.head;
  weights.output_norm = model.weights.output_norm;
  for (const auto& l : model.weights.layers)
    weights.layers.push_back(
        {l.attention_norm, l.q_norm, l.k_norm, l.ffn_norm, &l.qkv, &l.output, &l.gate_up, &l.down});
  const detail::GgufModelFacts facts{model.name, model.architecture, model.spec, model.tied};
  return detail::GgufExporter(facts, weights, options).write(text, path);
}

// Files, as they are.
inline Expected<GgufExported> export_gguf(const ModelSource& source, const GgufExportText& text,
                                          const std::string& path, const GgufExportOptions& options = {}) {
  ModelWeights<const SourceMatrix*, const SourceVector*> weights;
  weights.rms_epsilon = source.rms_epsilon;
  weights.rope_base = source.rope_base;
  weights.layers.resize(source.spec.layers);
  auto from_matrix = source.matrices.begin();
  auto from_vector = source.vectors.begin();
  const auto matrix = [&](const std::string&, const SourceMatrix*& to, std::size_t, std::size_t) -> Expected<void> {
    to = &*from_matrix++;
    return {};
  };
  const auto vector = [&](const std::string&, const SourceVector*& to, std::size_t) -> Expected<void> {
    to = &*from_vector++;
    return {};
  };
  POCKET_CHECK(detail::for_each_tensor(source.spec, weights, source.tied, matrix, vector));
  const detail::GgufModelFacts facts{source.name, source.architecture, source.spec, source.tied};
  return detail::GgufExporter(facts, weights, options).write(text, path);
}

namespace detail {

// Weights with whatever text has been read.
inline Expected<GgufExported> export_weights(ModelKind kind, const GgufFile* file, const std::string& model,
                                             const GgufExportText& text, const std::string& path, Executor& executor,
                                             const GgufExportOptions& options) {
  if (kind == ModelKind::package || options.type == GgufExportType::q4_1) {
    POCKET_TRY(loaded, open_model(model, executor));
    return export_gguf(loaded, text, path, options);
  }
  if (kind == ModelKind::gguf) {
    POCKET_TRY(source, gguf_source(*file));
    return export_gguf(source, text, path, options);
  }
  POCKET_TRY(directory, HfDirectory::open(model));
  POCKET_TRY(source, hf_source(directory));
  return export_gguf(source, text, path, options);
}

}  // namespace detail

// A package, a Hugging Face directory or a GGUF file, with its text. The executor packs where q4_1 asks for it.
inline Expected<GgufExported> export_gguf(const std::string& model, const std::string& path, Executor& executor,
                                          const GgufExportOptions& options = {}) {
  POCKET_TRY(kind, model_kind(model));
  if (kind == ModelKind::gguf) {
    POCKET_TRY(file, GgufFile::open(model));
    if (!has_gguf_text(file)) return detail::export_weights(kind, &file, model, {}, path, executor, options);
    POCKET_TRY(tokenizer, tokenizer_data(file));
    std::string_view chat;
    if (constexpr std::string_view key = "tokenizer.chat_template"; file.has(key)) {
      POCKET_TRY(jinja, file.string_value(key));
      chat = jinja;
    }
    return detail::export_weights(kind, &file, model, {&tokenizer, chat}, path, executor, options);
  }
  POCKET_TRY(there, detail::open_if_there(model + "/tokenizer.json"));
  if (!there) return detail::export_weights(kind, nullptr, model, {}, path, executor, options);
  POCKET_TRY(read, read_hf_tokenizer(model));
  POCKET_TRY(jinja, read_hf_chat_template(model));
  const std::string chat = jinja.value_or("");
  return detail::export_weights(kind, nullptr, model, {&read.data, chat}, path, executor, options);
}

POCKET_NAMESPACE_END

#endif
