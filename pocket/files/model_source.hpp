// A model's tensors where they lie in files, before anything is packed: what every loader gives, and what loading into
// memory (loaded_model.hpp) and writing a package (package.hpp) take. Nothing is read until a row is asked for.
//
//   element type       packed as          how
//   f32, f16, bf16     w4_g64             quantised (quant/quantize.hpp)
//   q4_1               w4_g64 or w4_g32   exact: g64 where all neighbouring blocks share scale and minimum
//   q4_0               the same           exact with m = -8 d, short of float16's overflow, which is refused
//   q8_0               w8_g32             exact
//
// A caller who asks for one format gets it: what is not in it already is quantised from its float values.
//
// Matrices come fused as the graph reads them (model/weights.hpp): q, k and v stacked; gate and up in blocks of 16
// rows. Some files store the rows of q and k for the interleaved rotary embedding: within each head, row 2i+h of the
// file is row h*d/2 + i of the rotate-half form, which the graph computes. SourceMatrix undoes it.
#ifndef POCKET_FILES_MODEL_SOURCE_HPP
#define POCKET_FILES_MODEL_SOURCE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../core/types.hpp"
#include "../model/spec.hpp"
#include "../model/weights.hpp"
#include "../quant/format.hpp"
#include "../quant/pack.hpp"
#include "reader.hpp"

POCKET_NAMESPACE_BEGIN

// q4_0, q4_1, q8_0: GGUF's blocks of 32 (gguf_types.hpp).
enum class ElementType : unsigned char { f32, f16, bf16, q4_0, q4_1, q8_0 };

// Floats, as opposed to codes with scales.
constexpr bool is_float(ElementType type) noexcept { return type <= ElementType::bf16; }

// One tensor, row-major. A vector has one row.
struct SourceTensor {
  std::string_view file, name;  // for messages
  ElementType type{};
  std::size_t rows = 0, cols = 0;
  std::span<const std::byte> data;  // of any alignment

  // Row r's bytes in the file.
  const std::byte* row(std::size_t r) const noexcept { return data.data() + r * (data.size() / rows); }
  // The values of row r: out[cols]. Exact but for the last addition of q4_1, which is rounded to float32.
  void read(std::size_t r, float* out) const noexcept;
  std::string place() const { return std::string(file) + ": tensor '" + std::string(name) + "'"; }
};

namespace detail {

// One block of 32 4-bit weights: w = scale * q + minimum. Byte j has weight j in its low nibble, weight j + 16 above.
struct Q4Block {
  f16 scale, minimum;
  const std::byte* nibbles;
  void codes(std::uint8_t* out) const noexcept {
    for (std::size_t j = 0; j < 16; ++j) {
      const auto byte = static_cast<std::uint8_t>(nibbles[j]);
      out[j] = byte & 15u;
      out[16 + j] = static_cast<std::uint8_t>(byte >> 4);
    }
  }
};
inline Q4Block q4_block(ElementType type, const std::byte* row, std::size_t i) noexcept {
  if (type == ElementType::q4_1) {
    const std::byte* p = row + 20 * i;
    return {load_unaligned<f16>(p), load_unaligned<f16>(p + 2), p + 4};
  }
  const std::byte* p = row + 18 * i;
  const f16 d = load_unaligned<f16>(p);
  return {d, to_f16(-8.0f * to_float(d)), p + 2};
}

}  // namespace detail

inline void SourceTensor::read(std::size_t r, float* out) const noexcept {
  const std::byte* p = row(r);
  switch (type) {
    case ElementType::f32: std::memcpy(out, p, cols * sizeof(float)); return;
    case ElementType::f16:
      for (std::size_t i = 0; i < cols; ++i) out[i] = to_float(load_unaligned<f16>(p + 2 * i));
      return;
    case ElementType::bf16:
      for (std::size_t i = 0; i < cols; ++i) out[i] = to_float(load_unaligned<bf16>(p + 2 * i));
      return;
    case ElementType::q8_0:
      for (std::size_t i = 0; i < cols; ++i)
        out[i] = to_float(load_unaligned<f16>(p + i / 32 * 34)) *
                 static_cast<float>(static_cast<std::int8_t>(p[i / 32 * 34 + 2 + i % 32]));
      return;
    case ElementType::q4_0:
    case ElementType::q4_1:
      for (std::size_t b = 0; b < cols / 32; ++b) {
        const detail::Q4Block q = detail::q4_block(type, p, b);
        std::uint8_t codes[32];
        q.codes(codes);
        const float scale = to_float(q.scale);
        for (std::size_t j = 0; j < 32; ++j)
          out[32 * b + j] = type == ElementType::q4_1 ? scale * static_cast<float>(codes[j]) + to_float(q.minimum)
                                                      : scale * static_cast<float>(static_cast<int>(codes[j]) - 8);
      }
      return;
  }
}

// A packed matrix to be, made of the rows of one tensor or several.
struct SourceMatrix {
  // How the rows of the parts follow each other.
  enum class Order : unsigned char { stacked, gate_up };

  std::string name;  // in a package: "embedding", "layers.3.qkv"
  std::vector<SourceTensor> parts;
  std::size_t n = 0, k = 0;
  Order order = Order::stacked;
  std::size_t rotary_rows = 0;  // the first so many rows are heads in the interleaved order, to be undone
  std::size_t head_dim = 0;
  WeightFormat format = WeightFormat::w4_g64;  // that it is packed in
  bool exact = false;                          // packed without loss; else quantised from its values
  std::vector<float> importance;               // of errors in each of the k columns (quant/quantize.hpp); empty: alike

  // A row of one of the parts.
  struct Row {
    const SourceTensor* tensor;
    std::size_t row;
  };
  // Where row r of the packed matrix comes from.
  Row source(std::size_t r) const noexcept {
    if (order == Order::gate_up) {
      const std::size_t block = r / tile_rows;
      return {&parts[block % 2], block / 2 * tile_rows + r % tile_rows};
    }
    if (r < rotary_rows) {
      const std::size_t in_head = r % head_dim, half = head_dim / 2;
      r = r - in_head + 2 * (in_head % half) + in_head / half;
    }
    std::size_t part = 0;
    while (r >= parts[part].rows) r -= parts[part++].rows;
    return {&parts[part], r};
  }

  // The values of row r as the file has them: out[k].
  void read(std::size_t r, float* out) const noexcept {
    const Row from = source(r);
    from.tensor->read(from.row, out);
  }
  std::size_t bytes() const noexcept { return packed_bytes(format, n, k); }
  std::size_t row_blocks() const noexcept { return div_up(n, tile_rows); }

  // Row block b as tiles. `block` is of this matrix's format and k, floats[k] is scratch, out is packed_bytes(format,
  // 16, k) long. Errors name the tensor.
  Expected<void> pack(std::size_t b, RowBlock& block, float* floats, std::byte* out) const {
    block.clear();
    for (std::size_t r = 0; r < tile_rows && b * tile_rows + r < n; ++r) {
      const Row from = source(b * tile_rows + r);
      const SourceTensor& t = *from.tensor;
      if (exact) {
        POCKET_CHECK(take_codes(t, t.row(from.row), block, r));
        continue;
      }
      t.read(from.row, floats);
      if (auto done = quantize_rows({floats, 1, k, k}, block, r, importance.empty() ? nullptr : importance.data());
          !done)
        return fail(Errc::unsupported, t.place() + ": row " + std::to_string(from.row) + ": " + done.error().message);
    }
    pack_block(block, out);
    return {};
  }

 private:
  Expected<void> take_codes(const SourceTensor& t, const std::byte* row, RowBlock& block, std::size_t r) const {
    if (t.type == ElementType::q8_0) {
      for (std::size_t b = 0; b < k / 32; ++b) {
        block.scales(r)[b] = load_unaligned<f16>(row + 34 * b);
        std::memcpy(block.codes(r) + 32 * b, row + 34 * b + 2, 32);
      }
      return {};
    }
    const std::size_t per_group = format == WeightFormat::w4_g64 ? 2 : 1;
    for (std::size_t b = 0; b < k / 32; ++b) {
      const detail::Q4Block q = detail::q4_block(t.type, row, b);
      if (t.type == ElementType::q4_0 && (q.minimum.bits & 0x7fffu) == 0x7c00u && (q.scale.bits & 0x7fffu) < 0x7c00u)
        return fail(Errc::unsupported, t.place() + ": a Q4_0 scale of " + std::to_string(to_float(q.scale)) +
                                           ", above the 8188 that this version takes");
      block.scales(r)[b / per_group] = q.scale;
      block.minima(r)[b / per_group] = q.minimum;
      q.codes(block.codes(r) + 32 * b);
    }
    return {};
  }
};

// A norm's weights.
struct SourceVector {
  std::string name;  // in a package
  SourceTensor tensor;
  std::size_t size() const noexcept { return tensor.cols; }
  void read(float* out) const noexcept { tensor.read(0, out); }  // out[size()]
};

// Valid as long as the file that it was made from.
struct ModelSource {
  std::string name;          // the file or directory
  std::string architecture;  // "qwen3" or "llama"
  RuntimeSpec spec;
  float rms_epsilon = 0;
  double rope_base = 0;
  bool tied = true;  // the head is the embedding
  // In the order of for_each_tensor, each list for itself.
  std::vector<SourceMatrix> matrices;
  std::vector<SourceVector> vectors;

  // Is every code taken over as it is, with nothing quantised while packing?
  bool exact() const noexcept {  // nothing is quantised while packing
    for (const SourceMatrix& m : matrices)
      if (!m.exact) return false;
    return true;
  }
};

// How a kind of file names the graph's tensors; those of a layer follow "<layers>N.".
struct TensorNames {
  const char *embedding, *output_norm, *head, *layers;
  const char *attention_norm, *q, *k, *v, *q_norm, *k_norm, *output, *ffn_norm, *gate, *up, *down;
};

// Called with what is done and what there is to do, in bytes of packed weights, from the thread that made the call;
// false cancels (Errc::cancelled). Empty: not called.
using Progress = std::function<bool(std::size_t done, std::size_t total)>;

namespace detail {

// Fills the lists of a ModelSource whose spec is set. find(name) returns Expected<SourceTensor>.
template <class Find>
class SourceGatherer {
 public:
  SourceGatherer(ModelSource& source, const TensorNames& names, std::size_t rotary_rows,
                 std::optional<WeightFormat> format, Find find)
      : source_(source), names_(names), rotary_rows_(rotary_rows), format_(format), find_(std::move(find)) {}

  Expected<void> gather() {
    const RuntimeSpec& s = source_.spec;
    if (auto constants = check_constants(source_.rms_epsilon, source_.rope_base); !constants)
      return fail(constants.error().code, source_.name + ": " + constants.error().message);
    POCKET_CHECK(matrix("embedding", {{names_.embedding, s.vocab}}, s.hidden));
    for (std::size_t l = 0; l < s.layers; ++l) POCKET_CHECK(layer(std::to_string(l)));
    POCKET_CHECK(vector("output_norm", names_.output_norm, s.hidden));
    if (!source_.tied) POCKET_CHECK(matrix("head", {{names_.head, s.vocab}}, s.hidden));
    return {};
  }

  // The file's tensors that have a place in the graph, sorted.
  std::vector<std::string_view> used() const {
    std::vector<std::string_view> names;
    for (const SourceMatrix& m : source_.matrices)
      for (const SourceTensor& t : m.parts) names.push_back(t.name);
    for (const SourceVector& v : source_.vectors) names.push_back(v.tensor.name);
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  using Parts = std::vector<std::pair<std::string, std::size_t>>;  // name, rows

  Expected<void> layer(const std::string& number) {
    const RuntimeSpec& s = source_.spec;
    const std::string in = names_.layers + number + ".", to = "layers." + number + ".";
    POCKET_CHECK(vector(to + "attention_norm", in + names_.attention_norm, s.hidden));
    POCKET_CHECK(matrix(to + "qkv",
                        {{in + names_.q, q_width(s)}, {in + names_.k, kv_width(s)}, {in + names_.v, kv_width(s)}},
                        s.hidden, SourceMatrix::Order::stacked, rotary_rows_));
    if (s.qk_norm) {
      POCKET_CHECK(vector(to + "q_norm", in + names_.q_norm, s.head_dim));
      POCKET_CHECK(vector(to + "k_norm", in + names_.k_norm, s.head_dim));
    }
    POCKET_CHECK(matrix(to + "output", {{in + names_.output, s.hidden}}, q_width(s)));
    POCKET_CHECK(vector(to + "ffn_norm", in + names_.ffn_norm, s.hidden));
    POCKET_CHECK(matrix(to + "gate_up", {{in + names_.gate, s.ffn}, {in + names_.up, s.ffn}}, s.hidden,
                        SourceMatrix::Order::gate_up));
    return matrix(to + "down", {{in + names_.down, s.hidden}}, s.ffn);
  }

  Expected<SourceTensor> tensor(const std::string& name, std::size_t rows, std::size_t cols) {
    POCKET_TRY(t, find_(name));
    if (t.rows != rows || t.cols != cols)
      return fail(Errc::malformed, t.place() + ": is " + std::to_string(t.rows) + " x " + std::to_string(t.cols) +
                                       ", the model's shape asks for " + std::to_string(rows) + " x " +
                                       std::to_string(cols));
    return t;
  }

  Expected<void> vector(std::string to, const std::string& name, std::size_t n) {
    POCKET_TRY(t, tensor(name, 1, n));
    if (!is_float(t.type)) return fail(Errc::unsupported, t.place() + ": a norm must be F32, F16 or BF16");
    std::vector<float> values(n);
    t.read(0, values.data());
    for (const float v : values)
      if (!(__builtin_fabsf(v) <= (std::numeric_limits<float>::max)()))
        return fail(Errc::malformed, t.place() + ": holds a value that is not finite");
    source_.vectors.push_back({std::move(to), t});
    return {};
  }

  Expected<void> matrix(std::string to, const Parts& parts, std::size_t k,
                        SourceMatrix::Order order = SourceMatrix::Order::stacked, std::size_t rotary_rows = 0) {
    SourceMatrix m;
    m.name = std::move(to);
    m.k = k;
    m.order = order;
    m.rotary_rows = rotary_rows;
    m.head_dim = source_.spec.head_dim;
    for (const auto& [name, rows] : parts) {
      POCKET_TRY(part, tensor(name, rows, k));
      m.parts.push_back(part);
      m.n += rows;
    }
    POCKET_CHECK(choose_format(m));
    source_.matrices.push_back(std::move(m));
    return {};
  }

  // The caller's format, or the one that holds all parts exactly, or w4_g64 for floats.
  Expected<void> choose_format(SourceMatrix& m) const {
    bool q4 = true, q8 = true, floats = true;
    for (const SourceTensor& t : m.parts) {
      q4 = q4 && (t.type == ElementType::q4_0 || t.type == ElementType::q4_1);
      q8 = q8 && t.type == ElementType::q8_0;
      floats = floats && is_float(t.type);
    }
    if (!q4 && !q8 && !floats && !format_)
      return fail(Errc::unsupported, m.parts[0].place() +
                                         ": it and the tensors fused with it have element types that do not go "
                                         "together without loss; ask for a format to have all of them quantised");
    m.exact = q4 || q8;
    if (q8) m.format = WeightFormat::w8_g32;
    if (q4) m.format = groups_merge(m) ? WeightFormat::w4_g64 : WeightFormat::w4_g32;
    if (!format_ || *format_ == m.format) return {};
    m.exact = q4 && *format_ == WeightFormat::w4_g32;  // two groups of 32 with one scale are exact too
    m.format = *format_;
    return {};
  }
  static bool groups_merge(const SourceMatrix& m) noexcept {
    if (m.k % 64 != 0) return false;
    for (const SourceTensor& t : m.parts)
      for (std::size_t r = 0; r < t.rows; ++r)
        for (std::size_t b = 0; b < m.k / 32; b += 2) {
          const Q4Block x = q4_block(t.type, t.row(r), b), y = q4_block(t.type, t.row(r), b + 1);
          if (x.scale.bits != y.scale.bits || x.minimum.bits != y.minimum.bits) return false;
        }
    return true;
  }

  ModelSource& source_;
  const TensorNames& names_;
  std::size_t rotary_rows_;
  std::optional<WeightFormat> format_;
  Find find_;
};

}  // namespace detail

POCKET_NAMESPACE_END

#endif
