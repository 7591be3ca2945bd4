// A model's weights for the reference graph (reference_graph.hpp): plain matrices in float64, read row by row, so that
// a model of any size is validated without a float copy of it. From files, as they have them, or from packed tiles.
//
// The tiles are read by a dequantisation of its own, written from the picture in quant/format.hpp; float16 is decoded
// by its definition. Nothing here shares code with what it is to check.
#ifndef POCKET_VALIDATE_REFERENCE_WEIGHTS_HPP
#define POCKET_VALIDATE_REFERENCE_WEIGHTS_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../files/model_source.hpp"
#include "../model/spec.hpp"
#include "../model/weights.hpp"
#include "../quant/format.hpp"

POCKET_NAMESPACE_BEGIN

// A matrix [n, k]: read(row, out) writes the k values of a row. May be called from several threads at once.
struct ReferenceMatrix {
  std::size_t n = 0, k = 0;
  std::function<void(std::size_t row, double* out)> read;
};

// One layer's. q_norm and k_norm are empty in models without them.
struct ReferenceLayer {
  std::vector<double> attention_norm, q_norm, k_norm, ffn_norm;
  ReferenceMatrix q, k, v, output, gate, up, down;
};

// A whole model's. Valid as long as the files or tiles that it was made from.
struct ReferenceWeights {
  RuntimeSpec spec;
  double rms_epsilon = 0, rope_base = 0;
  ReferenceMatrix embedding, head;
  std::vector<double> output_norm;
  std::vector<ReferenceLayer> layers;
};

// The matrices of a layer, in the order of the graph; the names are those of reports.
enum class Projection : std::uint8_t { q, k, v, output, gate, up, down };
inline constexpr std::size_t projections = 7;
// "q" .. "down"
constexpr const char* name_of(Projection p) noexcept {
  constexpr const char* names[projections] = {"q", "k", "v", "output", "gate", "up", "down"};
  return names[static_cast<std::size_t>(p)];
}
// The matrix of that name.
inline const ReferenceMatrix& matrix_of(const ReferenceLayer& l, Projection p) noexcept {
  const ReferenceMatrix* const all[projections] = {&l.q, &l.k, &l.v, &l.output, &l.gate, &l.up, &l.down};
  return *all[static_cast<std::size_t>(p)];
}

// The float16 of these bits.
inline double f16_value(unsigned bits) noexcept {
  const int exponent = static_cast<int>(bits >> 10 & 31u), mantissa = static_cast<int>(bits & 1023u);
  double v = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31)
    v = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  return (bits & 0x8000u) != 0 ? -v : v;
}

// The float16 nearest to v, ties to even, as a double.
inline double round_to_f16(double v) noexcept {
  if (v == 0 || !std::isfinite(v)) return v;
  const int exponent = std::ilogb(v) < -14 ? -14 : std::ilogb(v);
  const double step = std::ldexp(1.0, exponent - 10), rounded = std::nearbyint(v / step) * step;
  return std::fabs(rounded) > 65504.0 ? std::copysign(std::numeric_limits<double>::infinity(), v) : rounded;
}

// One group of a row of tiles, decoded: w = scale * (code - zero) + minimum.
struct ReferenceGroup {
  double scale = 0, minimum = 0, zero = 0;
  int low = 0, high = 15;           // the least and the greatest code that the format has
  std::size_t first = 0, size = 0;  // columns [first, first + size) of the row
  int codes[64] = {};
  // The weight that a code stands for.
  double value(int code) const noexcept { return scale * (static_cast<double>(code) - zero) + minimum; }
};

// Calls use(const ReferenceGroup&) for every group of row `row`, in order. Byte positions are those of the picture in
// quant/format.hpp, as literals.
template <class Use>
void for_each_group(const PackedMatrix& w, std::size_t row, Use&& use) {
  const std::size_t r = row % 16, half = r / 8, tiles = (w.k + 63) / 64;
  const bool w8 = w.format == WeightFormat::w8_g32, g64 = w.format == WeightFormat::w4_g64;
  const std::size_t size = w8 ? 1088 : g64 ? 576 : 640, group = g64 ? 64 : 32;
  for (std::size_t t = 0; t < tiles; ++t) {
    const std::byte* const tile = w.tiles + (row / 16 * tiles + t) * size;
    const auto byte = [tile](std::size_t at) { return static_cast<unsigned>(tile[at]); };
    const auto f16_at = [&byte](std::size_t at) { return f16_value(byte(at) | byte(at + 1) << 8); };
    for (std::size_t c0 = 0; c0 < 64 && 64 * t + c0 < w.k; c0 += group) {
      ReferenceGroup g;
      g.first = 64 * t + c0;
      g.size = w.k - g.first < group ? w.k - g.first : group;
      const std::size_t scales = w8 ? c0 / 32 * 32 : g64 ? 0 : c0 / 32 * 64;
      g.scale = f16_at(scales + 2 * r);
      if (w8) {
        g.low = -128;
        g.high = 127;
      } else {
        g.minimum = f16_at(scales + 32 + 2 * r);
        g.zero = static_cast<double>(w.offset);
      }
      for (std::size_t i = 0; i < g.size; ++i) {
        const std::size_t c = c0 + i;
        if (w8) {
          const int code = static_cast<int>(byte(64 + (half * 8 + c / 8) * 64 + 8 * (r % 8) + c % 8));
          g.codes[i] = code - (code >= 128 ? 256 : 0);
        } else {
          const unsigned both = byte((g64 ? 64u : 128u) + (half * 4 + c / 16) * 64 + 8 * (r % 8) + c % 8);
          g.codes[i] = static_cast<int>(c % 16 < 8 ? both & 15u : both >> 4);
        }
      }
      use(g);
    }
  }
}

namespace detail {

// Rows [first, first + n) of another matrix.
inline ReferenceMatrix rows_of(ReferenceMatrix all, std::size_t first, std::size_t n) {
  const std::size_t k = all.k;
  return {n, k, [read = std::move(all.read), first](std::size_t row, double* out) { read(first + row, out); }};
}
// Gate (part 0) or up (part 1) of the fused matrix: blocks of 16 rows in turn.
inline ReferenceMatrix gate_or_up(ReferenceMatrix fused, std::size_t part) {
  const std::size_t n = fused.n / 2, k = fused.k;
  return {n, k, [read = std::move(fused.read), part](std::size_t row, double* out) {
            read(row / 16 * 32 + 16 * part + row % 16, out);
          }};
}
// The fused matrices of one layer, apart.
inline void split_layer(const RuntimeSpec& s, const ReferenceMatrix& qkv, const ReferenceMatrix& gate_up,
                        ReferenceLayer& layer) {
  layer.q = rows_of(qkv, 0, q_width(s));
  layer.k = rows_of(qkv, q_width(s), kv_width(s));
  layer.v = rows_of(qkv, q_width(s) + kv_width(s), kv_width(s));
  layer.gate = gate_or_up(gate_up, 0);
  layer.up = gate_or_up(gate_up, 1);
}

}  // namespace detail

// The weights that the tiles stand for, exactly. The tiles outlive the result.
inline ReferenceMatrix reference_matrix(const PackedMatrix& w) {
  return {w.n, w.k, [w](std::size_t row, double* out) {
            for_each_group(w, row, [out](const ReferenceGroup& g) {
              for (std::size_t i = 0; i < g.size; ++i) out[g.first + i] = g.value(g.codes[i]);
            });
          }};
}
// A file's values, exactly but for the last addition of Q4_1, which is rounded to float32. The source outlives the
// result.
inline ReferenceMatrix reference_matrix(const SourceMatrix& m) {
  return {m.n, m.k, [&m](std::size_t row, double* out) {
            std::vector<float> values(m.k);
            m.read(row, values.data());
            for (std::size_t i = 0; i < m.k; ++i) out[i] = static_cast<double>(values[i]);
          }};
}

// What packed weights stand for. They outlive the result, and have been checked against the spec.
inline ReferenceWeights reference_weights(const RuntimeSpec& s, const HostWeights& w) {
  const auto vector = [](const float* v, std::size_t n) { return std::vector<double>(v, v + n); };
  ReferenceWeights r{s,
                     static_cast<double>(w.rms_epsilon),
                     w.rope_base,
                     reference_matrix(w.embedding),
                     reference_matrix(w.head),
                     vector(w.output_norm, s.hidden),
                     std::vector<ReferenceLayer>(s.layers)};
  for (std::size_t l = 0; l < s.layers; ++l) {
    const auto& from = w.layers[l];
    ReferenceLayer& to = r.layers[l];
    to.attention_norm = vector(from.attention_norm, s.hidden);
    to.ffn_norm = vector(from.ffn_norm, s.hidden);
    if (s.qk_norm) {
      to.q_norm = vector(from.q_norm, s.head_dim);
      to.k_norm = vector(from.k_norm, s.head_dim);
    }
    to.output = reference_matrix(from.output);
    to.down = reference_matrix(from.down);
    detail::split_layer(s, reference_matrix(from.qkv), reference_matrix(from.gate_up), to);
  }
  return r;
}

// A file's own weights, before anything is quantised. The source outlives the result.
inline ReferenceWeights reference_weights(const ModelSource& source) {
  const RuntimeSpec& s = source.spec;
  auto from_matrix = source.matrices.begin();
  auto from_vector = source.vectors.begin();
  const auto matrix = [&] { return reference_matrix(*from_matrix++); };
  const auto vector = [&] {
    std::vector<float> values(from_vector->size());
    (from_vector++)->read(values.data());
    return std::vector<double>(values.begin(), values.end());
  };
  ReferenceWeights r;
  r.spec = s;
  r.rms_epsilon = static_cast<double>(source.rms_epsilon);
  r.rope_base = source.rope_base;
  r.embedding = matrix();
  r.layers.resize(s.layers);
  for (ReferenceLayer& layer : r.layers) {  // the order is SourceGatherer's
    layer.attention_norm = vector();
    const ReferenceMatrix qkv = matrix();
    if (s.qk_norm) {
      layer.q_norm = vector();
      layer.k_norm = vector();
    }
    layer.output = matrix();
    layer.ffn_norm = vector();
    const ReferenceMatrix gate_up = matrix();
    layer.down = matrix();
    detail::split_layer(s, qkv, gate_up, layer);
  }
  r.output_norm = vector();
  r.head = source.tied ? r.embedding : matrix();
  return r;
}

POCKET_NAMESPACE_END

#endif
