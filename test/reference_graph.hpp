// The transformer again, in float64 with Eigen, as plainly as its formulas allow: an oracle for the graph.
//
// All positions at once, full causal attention, no cache, no fusion, no tiles, no threads. It shares no arithmetic with
// the library: weights come from the packed bytes by a dequantisation of its own, written from the picture of the tile
// in pocket/quant/format.hpp, or as floats from whoever has them (DenseWeights). The one rounding is optional: K and V
// to float16, where the library's cache rounds them.
//
//   x: [tokens, hidden], logits: [tokens, vocab], all matrices row-major, weights as [outputs, inputs].
//   Per layer:  h = RMSNorm(x) g;  q, k, v = h Wq', h Wk', h Wv';  q, k: RMSNorm per head (where the model has it),
//   then rotary in the rotate-half form, angle = position * base^(-2i/head_dim);  x += attention Wo'; h = RMSNorm(x) g;
//   x += (silu(h Wg') * (h Wu')) Wd'.   At the end RMSNorm, then logits = h E'. Source: the Qwen3 and Llama model
//   descriptions.
//
// Memory: 8 bytes a weight. A large model is run layer by layer: embed(), then apply_layer() with plain_layer(.., l)
// for each l, then final_norm(). Inputs are trusted (it is a test's tool): tokens in range, shapes as in RuntimeSpec.
#ifndef POCKET_TEST_REFERENCE_GRAPH_HPP
#define POCKET_TEST_REFERENCE_GRAPH_HPP

#include <Eigen/Core>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "pocket/model/spec.hpp"
#include "pocket/model/weights.hpp"
#include "pocket/quant/format.hpp"

namespace test {

using Matrix64 = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector64 = Eigen::RowVectorXd;

struct PlainLayer {
  Vector64 attention_norm, q_norm, k_norm, ffn_norm;  // q_norm, k_norm: empty in models without them
  Matrix64 q, k, v, o, gate, up, down;
};

struct PlainShape {
  Eigen::Index heads = 0, kv_heads = 0, head_dim = 0;
  double epsilon = 0, rope_base = 0;
};

struct PlainModel {
  PlainShape shape;
  Matrix64 embedding, head;
  Vector64 output_norm;
  std::vector<PlainLayer> layers;
};

struct ReferenceOptions {
  bool kv_f16 = true;  // round K and V as the library's cache does
  // Of one layer, [tokens, kv_heads * head_dim]: keys and values to attend to instead of the graph's own, and where to
  // put its own, unrounded. With the library's own cache given, both graphs round alike.
  const Matrix64 *cached_k = nullptr, *cached_v = nullptr;
  Matrix64 *own_k = nullptr, *own_v = nullptr;
};

// ---- float16, exactly ----

inline double f16_value(unsigned bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31u), mantissa = static_cast<int>(bits & 1023u);
  double v = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) v = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  return (bits & 0x8000u) != 0 ? -v : v;
}

// The float16 nearest to v, ties to even, as a double.
inline double round_to_f16(double v) {
  if (v == 0 || !std::isfinite(v)) return v;
  const int exponent = std::ilogb(v) < -14 ? -14 : std::ilogb(v);
  const double step = std::ldexp(1.0, exponent - 10), rounded = std::nearbyint(v / step) * step;
  return std::fabs(rounded) > 65504.0 ? std::copysign(std::numeric_limits<double>::infinity(), v) : rounded;
}

// ---- the graph ----

inline Matrix64 rms_norm64(const Matrix64& x, const Vector64& gamma, double epsilon) {
  Matrix64 y = x;
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    const double mean_square = x.row(i).squaredNorm() / static_cast<double>(x.cols());
    y.row(i) = (x.row(i) / std::sqrt(mean_square + epsilon)).cwiseProduct(gamma);
  }
  return y;
}

// x: one head of all positions, [tokens, head_dim], normalised and rotated in place. Row p is position p.
inline void norm_and_rotate(Eigen::Ref<Matrix64> x, const Vector64& gamma, const PlainShape& s) {
  if (gamma.size() != 0) x = rms_norm64(x, gamma, s.epsilon);
  const Eigen::Index half = s.head_dim / 2;
  for (Eigen::Index p = 0; p < x.rows(); ++p)
    for (Eigen::Index i = 0; i < half; ++i) {
      const double frequency = std::pow(s.rope_base, -2.0 * static_cast<double>(i) / static_cast<double>(s.head_dim));
      const double angle = static_cast<double>(p) * frequency, c = std::cos(angle), n = std::sin(angle);
      const double first = x(p, i), second = x(p, half + i);
      x(p, i) = first * c - second * n;
      x(p, half + i) = second * c + first * n;
    }
}

// One query head: softmax over the positions up to its own of q k' / sqrt(head_dim), times v.
inline Matrix64 causal_attention(const Matrix64& q, const Matrix64& k, const Matrix64& v) {
  Matrix64 p = (q * k.transpose()) / std::sqrt(static_cast<double>(q.cols()));
  for (Eigen::Index i = 0; i < p.rows(); ++i) {
    const double top = p.row(i).head(i + 1).maxCoeff();
    double sum = 0;
    for (Eigen::Index j = 0; j < p.cols(); ++j) {
      p(i, j) = j <= i ? std::exp(p(i, j) - top) : 0.0;
      sum += p(i, j);
    }
    p.row(i) /= sum;
  }
  return p * v;
}

inline Matrix64 attention_block(const Matrix64& h, const PlainLayer& layer, const PlainShape& s,
                                const ReferenceOptions& options) {
  Matrix64 q = h * layer.q.transpose(), k = h * layer.k.transpose(), v = h * layer.v.transpose();
  const Eigen::Index d = s.head_dim;
  for (Eigen::Index i = 0; i < s.heads; ++i) norm_and_rotate(q.middleCols(i * d, d), layer.q_norm, s);
  for (Eigen::Index i = 0; i < s.kv_heads; ++i) norm_and_rotate(k.middleCols(i * d, d), layer.k_norm, s);
  if (options.own_k != nullptr) *options.own_k = k;
  if (options.own_v != nullptr) *options.own_v = v;
  if (options.cached_k != nullptr && options.cached_v != nullptr) {
    k = *options.cached_k;
    v = *options.cached_v;
  } else if (options.kv_f16) {
    k = k.unaryExpr([](double x) { return round_to_f16(x); });
    v = v.unaryExpr([](double x) { return round_to_f16(x); });
  }
  Matrix64 attended(h.rows(), s.heads * d);
  for (Eigen::Index i = 0; i < s.heads; ++i) {
    const Eigen::Index kv = i / (s.heads / s.kv_heads);
    attended.middleCols(i * d, d) =
        causal_attention(q.middleCols(i * d, d), k.middleCols(kv * d, d), v.middleCols(kv * d, d));
  }
  return attended * layer.o.transpose();
}

inline Matrix64 feed_forward_block(const Matrix64& h, const PlainLayer& layer) {
  Matrix64 gate = h * layer.gate.transpose();
  gate = gate.unaryExpr([](double x) { return x / (1.0 + std::exp(-x)); });
  const Matrix64 up = h * layer.up.transpose();
  return gate.cwiseProduct(up) * layer.down.transpose();
}

inline Matrix64 embed(const Matrix64& embedding, std::span<const std::int32_t> tokens) {
  Matrix64 x(static_cast<Eigen::Index>(tokens.size()), embedding.cols());
  for (std::size_t i = 0; i < tokens.size(); ++i) x.row(static_cast<Eigen::Index>(i)) = embedding.row(tokens[i]);
  return x;
}

inline void apply_layer(const PlainLayer& layer, const PlainShape& s, const ReferenceOptions& options, Matrix64& x) {
  x += attention_block(rms_norm64(x, layer.attention_norm, s.epsilon), layer, s, options);
  x += feed_forward_block(rms_norm64(x, layer.ffn_norm, s.epsilon), layer);
}

// Logits of every position.
inline Matrix64 reference_logits(const PlainModel& model, std::span<const std::int32_t> tokens,
                                 const ReferenceOptions& options = {}) {
  Matrix64 x = embed(model.embedding, tokens);
  for (const PlainLayer& layer : model.layers) apply_layer(layer, model.shape, options, x);
  return rms_norm64(x, model.output_norm, model.shape.epsilon) * model.head.transpose();
}

// ---- plain matrices from packed or dense ones ----

// Float weights before any quantisation, with the rows in the packed matrices' order. read(r, out) writes the k values
// of row r.
struct DenseMatrix {
  std::size_t n = 0, k = 0;
  std::function<void(std::size_t, float*)> read;
};
using DenseWeights = pocket::ModelWeights<DenseMatrix, std::vector<float>>;

// One weight, s * (q - o) + m. Byte positions are those of the picture in format.hpp, as literals.
inline double packed_weight(const pocket::PackedMatrix& w, std::size_t n, std::size_t k) {
  const std::size_t r = n % 16, c = k % 64, half = r / 8, tile = n / 16 * ((w.k + 63) / 64) + k / 64;
  const auto byte = [&](std::size_t tile_size, std::size_t at) {
    return static_cast<unsigned>(w.tiles[tile * tile_size + at]);
  };
  const auto f16_at = [&](std::size_t tile_size, std::size_t at) {
    return f16_value(byte(tile_size, at) | byte(tile_size, at + 1) << 8);
  };
  if (w.format == pocket::WeightFormat::w8_g32) {
    const unsigned code = byte(1088, 64 + (half * 8 + c / 8) * 64 + 8 * (r % 8) + c % 8);
    return f16_at(1088, c / 32 * 32 + 2 * r) * (static_cast<double>(code) - (code >= 128 ? 256.0 : 0.0));
  }
  const bool g64 = w.format == pocket::WeightFormat::w4_g64;
  const std::size_t size = g64 ? 576 : 640, pair = g64 ? 0 : c / 32 * 64, codes = g64 ? 64 : 128;
  const unsigned both = byte(size, codes + (half * 4 + c / 16) * 64 + 8 * (r % 8) + c % 8);
  const unsigned code = c % 16 < 8 ? both & 15u : both >> 4;
  return f16_at(size, pair + 2 * r) * (static_cast<double>(code) - static_cast<double>(w.offset)) +
         f16_at(size, pair + 32 + 2 * r);
}

// `count` rows of w from `first` on.
inline Matrix64 plain_rows(const DenseMatrix& w, std::size_t first, std::size_t count) {
  Matrix64 m(static_cast<Eigen::Index>(count), static_cast<Eigen::Index>(w.k));
  Eigen::RowVectorXf row(static_cast<Eigen::Index>(w.k));
  for (std::size_t n = 0; n < count; ++n) {
    w.read(first + n, row.data());
    m.row(static_cast<Eigen::Index>(n)) = row.cast<double>();
  }
  return m;
}

inline Matrix64 plain_rows(const pocket::PackedMatrix& w, std::size_t first, std::size_t count) {
  Matrix64 m(static_cast<Eigen::Index>(count), static_cast<Eigen::Index>(w.k));
  for (std::size_t n = 0; n < count; ++n)
    for (std::size_t k = 0; k < w.k; ++k)
      m(static_cast<Eigen::Index>(n), static_cast<Eigen::Index>(k)) = packed_weight(w, first + n, k);
  return m;
}

inline Vector64 plain_vector(const float* v, std::size_t n) {
  Vector64 out(static_cast<Eigen::Index>(n));
  for (std::size_t i = 0; i < n; ++i) out(static_cast<Eigen::Index>(i)) = static_cast<double>(v[i]);
  return out;
}

inline Vector64 plain_vector(const std::vector<float>& v, std::size_t) { return plain_vector(v.data(), v.size()); }

// Gate (part 0) or up (part 1) of the fused matrix: blocks of 16 rows in turn.
template <class M>
Matrix64 plain_gate_or_up(const M& fused, std::size_t ffn, std::size_t part) {
  Matrix64 m(static_cast<Eigen::Index>(ffn), static_cast<Eigen::Index>(fused.k));
  for (std::size_t row = 0; row < ffn; row += 16)
    m.middleRows(static_cast<Eigen::Index>(row), 16) = plain_rows(fused, 2 * row + 16 * part, 16);
  return m;
}

template <class M, class V>
PlainLayer plain_layer(const pocket::RuntimeSpec& s, const pocket::ModelWeights<M, V>& weights, std::size_t l) {
  const auto& w = weights.layers[l];
  const std::size_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  PlainLayer p;
  p.attention_norm = plain_vector(w.attention_norm, s.hidden);
  p.ffn_norm = plain_vector(w.ffn_norm, s.hidden);
  if (s.qk_norm) {
    p.q_norm = plain_vector(w.q_norm, s.head_dim);
    p.k_norm = plain_vector(w.k_norm, s.head_dim);
  }
  p.q = plain_rows(w.qkv, 0, q);
  p.k = plain_rows(w.qkv, q, kv);
  p.v = plain_rows(w.qkv, q + kv, kv);
  p.o = plain_rows(w.output, 0, s.hidden);
  p.gate = plain_gate_or_up(w.gate_up, s.ffn, 0);
  p.up = plain_gate_or_up(w.gate_up, s.ffn, 1);
  p.down = plain_rows(w.down, 0, s.hidden);
  return p;
}

template <class M, class V>
PlainShape plain_shape(const pocket::RuntimeSpec& s, const pocket::ModelWeights<M, V>& w) {
  return {static_cast<Eigen::Index>(s.heads), static_cast<Eigen::Index>(s.kv_heads),
          static_cast<Eigen::Index>(s.head_dim), static_cast<double>(w.rms_epsilon), w.rope_base};
}

// HostWeights or DenseWeights.
template <class M, class V>
PlainModel plain_model(const pocket::RuntimeSpec& s, const pocket::ModelWeights<M, V>& w) {
  PlainModel m{plain_shape(s, w),
               plain_rows(w.embedding, 0, s.vocab),
               plain_rows(w.head, 0, s.vocab),
               plain_vector(w.output_norm, s.hidden),
               {}};
  for (std::size_t l = 0; l < s.layers; ++l) m.layers.push_back(plain_layer(s, w, l));
  return m;
}

}  // namespace test

#endif
