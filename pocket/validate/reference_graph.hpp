// The transformer from its formulas, with Eigen: what the library's graph is validated against. All positions of any
// number of windows at once, full causal attention, no cache, no fusion, no tiles; written apart from
// model/transformer.hpp and the kernels, and slow: about the arithmetic of a prompt in float64.
//
//   Per layer:  h = RMSNorm(x) g;  q, k, v = h Wq', h Wk', h Wv';  q, k: RMSNorm per head (where the model has it),
//   then rotary in the rotate-half form, angle = position * base^(-2i/head_dim);  x += attention Wo'; h = RMSNorm(x) g;
//   x += (silu(h Wg') * (h Wu')) Wd'.   At the end RMSNorm, then logits = h E'. Source: the Qwen3 and Llama model
//   descriptions.
//
// One template, several arithmetics:
//   ReferenceGraph<Exact>         float64, nothing rounded
//   ReferenceGraph<Stored<bf16>>  float32 arithmetic, each operation's result rounded to BF16 where Hugging Face
//                                 Transformers rounds (attn_implementation="eager"): after the norm and after its
//                                 weights, after each product, score, scaling, softmax, and sum. Logits are left in
//                                 float32, where Transformers rounds them as well: 8 bits of a logit are too coarse
//                                 to compare distributions with.
//   ReferenceGraph<Stored<f16>>   the same with float16
// and ReferenceOptions, which put single roundings of the library into an otherwise exact graph.
#ifndef POCKET_VALIDATE_REFERENCE_GRAPH_HPP
#define POCKET_VALIDATE_REFERENCE_GRAPH_HPP

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/executor.hpp"
#include "../core/types.hpp"
#include "../model/spec.hpp"
#include "../quant/activations.hpp"
#include "reference_weights.hpp"

POCKET_NAMESPACE_BEGIN

template <class Scalar>
using DenseMatrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using DenseMatrix64 = DenseMatrix<double>;

// Float64, nothing rounded.
struct Exact {
  using Scalar = double;
  // Leaves m as it is.
  template <class M>
  static void store(M&&) noexcept {}
};

// Float32, results rounded to T: bf16 or f16.
template <class T>
struct Stored {
  using Scalar = float;
  // Rounds each value of m.
  template <class M>
  static void store(M&& m) {
    m = m.unaryExpr([](float v) {
           if constexpr (std::is_same_v<T, bf16>)
             return to_float(to_bf16(v));
           else
             return to_float(to_f16(v));
         }).eval();
  }
};

// Roundings of the library, one by one.
struct ReferenceOptions {
  bool kv_f16 = false;                        // keys and values to float16, as the cache holds them
  std::optional<ActivationForm> activations;  // inputs of all products, as quant/activations.hpp says
};

// The input x[tokens, k] of a product as A16 or A8 keep it: per token and group of 64, t * nearest(a / t).
inline void round_activations(DenseMatrix64& x, ActivationForm form) {
  const double range = form == ActivationForm::a16 ? 32639.0 : 127.0;
  for (Eigen::Index i = 0; i < x.rows(); ++i)
    for (Eigen::Index c = 0; c < x.cols(); c += 64) {
      auto group = x.row(i).segment(c, (std::min)(Eigen::Index{64}, x.cols() - c));
      const double most = group.cwiseAbs().maxCoeff();
      if (!(most >= 0x1p-110)) {
        if (most < 0x1p-110) group.setZero();
        continue;
      }
      const double t = most / range;
      group = group.unaryExpr([t](double a) { return t * std::nearbyint(a / t); }).eval();
    }
}

// x[.., k] -> RMSNorm over each row's k values, times gamma[k].
template <class P>
DenseMatrix<typename P::Scalar> rms_norm_rows(const DenseMatrix<typename P::Scalar>& x,
                                              const std::vector<double>& gamma, double epsilon) {
  using Scalar = typename P::Scalar;
  DenseMatrix<Scalar> y(x.rows(), x.cols());
  Eigen::Matrix<Scalar, 1, Eigen::Dynamic> g(x.cols());
  for (Eigen::Index i = 0; i < x.cols(); ++i) g(i) = static_cast<Scalar>(gamma[static_cast<std::size_t>(i)]);
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    const Scalar mean_square = x.row(i).squaredNorm() / static_cast<Scalar>(x.cols());
    y.row(i) = x.row(i) * (Scalar{1} / std::sqrt(mean_square + static_cast<Scalar>(epsilon)));
  }
  P::store(y);
  for (Eigen::Index i = 0; i < y.rows(); ++i) y.row(i).array() *= g.array();
  P::store(y);
  return y;
}

// x[tokens, head_dim], turned in place; row i is at position first + i % length.
template <class P>
void rotate_rows(Eigen::Ref<DenseMatrix<typename P::Scalar>> x, double base, std::size_t length,
                 std::size_t first = 0) {
  using Scalar = typename P::Scalar;
  using Row = DenseMatrix<Scalar>;
  const Eigen::Index d = x.cols(), half = d / 2;
  std::vector<double> frequency(static_cast<std::size_t>(half));
  for (std::size_t i = 0; i < frequency.size(); ++i)
    frequency[i] = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(d));
  Row cosine(1, half), sine(1, half), straight(1, d), crossed(1, d);
  for (Eigen::Index p = 0; p < x.rows(); ++p) {
    const double position = static_cast<double>(first + static_cast<std::size_t>(p) % length);
    for (Eigen::Index i = 0; i < half; ++i) {
      const double angle = position * frequency[static_cast<std::size_t>(i)];
      cosine(0, i) = static_cast<Scalar>(std::cos(angle));
      sine(0, i) = static_cast<Scalar>(std::sin(angle));
    }
    P::store(cosine);
    P::store(sine);
    for (Eigen::Index i = 0; i < half; ++i) {
      straight(0, i) = x(p, i) * cosine(0, i);
      straight(0, half + i) = x(p, half + i) * cosine(0, i);
      crossed(0, i) = -x(p, half + i) * sine(0, i);
      crossed(0, half + i) = x(p, i) * sine(0, i);
    }
    P::store(straight);
    P::store(crossed);
    straight += crossed;
    P::store(straight);
    x.row(p) = straight;
  }
}

// One query head q[tokens, d] of consecutive positions, the first of which sees keys [0, seen); softmax(q k' / sqrt(d))
// v over k, v [positions, d].
template <class P>
DenseMatrix<typename P::Scalar> causal_attention(const DenseMatrix<typename P::Scalar>& q,
                                                 const DenseMatrix<typename P::Scalar>& k,
                                                 const DenseMatrix<typename P::Scalar>& v, std::size_t seen = 1) {
  using Scalar = typename P::Scalar;
  constexpr Eigen::Index rows = 128;  // of the score matrix that exist at once
  DenseMatrix<Scalar> out(q.rows(), v.cols());
  for (Eigen::Index first = 0; first < q.rows(); first += rows) {
    const Eigen::Index count = (std::min)(rows, q.rows() - first);
    const auto first_seen = static_cast<Eigen::Index>(seen) + first, most = first_seen + count - 1;
    DenseMatrix<Scalar> p = q.middleRows(first, count) * k.topRows(most).transpose();
    P::store(p);
    p *= Scalar{1} / std::sqrt(static_cast<Scalar>(q.cols()));
    P::store(p);
    for (Eigen::Index i = 0; i < count; ++i) {
      const Eigen::Index sees = first_seen + i;
      auto row = p.row(i);
      const Scalar top = row.head(sees).maxCoeff();
      row.head(sees) = (row.head(sees).array() - top).exp().eval();
      row.tail(most - sees).setZero();
      row /= row.head(sees).sum();
    }
    P::store(p);
    out.middleRows(first, count).noalias() = p * v.topRows(most);
  }
  P::store(out);
  return out;
}

// The graph over weights and threads of the caller's, which outlive it. Tokens are in range, shapes have been checked.
template <class P>
class ReferenceGraph {
 public:
  using Scalar = typename P::Scalar;
  using Matrix = DenseMatrix<Scalar>;

  ReferenceGraph(const ReferenceWeights& weights, Executor& executor, ReferenceOptions options = {})
      : weights_(&weights), executor_(&executor), options_(options) {}

  // Called, where set, on the thread that made the call:
  std::function<void(std::size_t layer, Projection, const Matrix& input, const Matrix& output)> on_project;
  std::function<void(std::size_t layer, Matrix& k, Matrix& v)> on_cache;  // [tokens, kv_width], may be changed
  std::function<void(std::size_t layer, bool after_ffn, const Matrix& x)> on_residual;  // [tokens, hidden]
  std::function<bool(std::size_t done, std::size_t layers)> progress;  // false: hidden() returns an empty matrix

  // The final norm's output [tokens, hidden] for windows of `length` tokens, each with an empty context:
  // tokens.size() is a multiple of length.
  Matrix hidden(std::span<const std::int32_t> tokens, std::size_t length) const {
    Matrix x = embed(tokens);
    for (std::size_t l = 0; l < weights_->layers.size(); ++l) {
      if (progress && !progress(l, weights_->layers.size())) return {};
      apply_layer(l, length, x);
    }
    return rms_norm_rows<P>(x, weights_->output_norm, weights_->rms_epsilon);
  }

  // Rows of hidden() -> logits [rows, vocab], float64 sums or float32.
  Matrix logits(const Matrix& hidden) const { return product(hidden, weights_->head); }

  // The tokens' rows of the embedding: [tokens, hidden].
  Matrix embed(std::span<const std::int32_t> tokens) const {
    Matrix x(static_cast<Eigen::Index>(tokens.size()), static_cast<Eigen::Index>(weights_->embedding.k));
    std::vector<double> row(weights_->embedding.k);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      weights_->embedding.read(static_cast<std::size_t>(tokens[i]), row.data());
      for (std::size_t c = 0; c < row.size(); ++c) x(index(i), index(c)) = static_cast<Scalar>(row[c]);
    }
    P::store(x);
    return x;
  }

  // One layer on x [tokens, hidden].
  void apply_layer(std::size_t l, std::size_t length, Matrix& x) const {
    const ReferenceLayer& layer = weights_->layers[l];
    const double epsilon = weights_->rms_epsilon;
    Matrix h = rms_norm_rows<P>(x, layer.attention_norm, epsilon);
    Matrix q = project(l, Projection::q, h), k = project(l, Projection::k, h);
    Matrix v = project(l, Projection::v, h);
    norm_and_rotate(q, layer.q_norm, length);
    norm_and_rotate(k, layer.k_norm, length);
    if (on_cache) on_cache(l, k, v);
    if (options_.kv_f16)
      for (Matrix* m : {&k, &v})
        *m = m->unaryExpr([](Scalar a) { return static_cast<Scalar>(round_to_f16(static_cast<double>(a))); }).eval();
    x += project(l, Projection::output, attention(q, k, v, length));
    P::store(x);
    if (on_residual) on_residual(l, false, x);
    h = rms_norm_rows<P>(x, layer.ffn_norm, epsilon);
    Matrix gate = project(l, Projection::gate, h);
    gate = gate.unaryExpr([](Scalar g) { return g / (Scalar{1} + std::exp(-g)); }).eval();
    P::store(gate);
    gate.array() *= project(l, Projection::up, h).array();
    P::store(gate);
    x += project(l, Projection::down, gate);
    P::store(x);
    if (on_residual) on_residual(l, true, x);
  }

  // h [tokens, k] w', in float64 or float32, not rounded further.
  Matrix product(const Matrix& h, const ReferenceMatrix& w) const {
    const Matrix* input = &h;
    Matrix rounded;
    if (options_.activations) {
      DenseMatrix64 wide = h.template cast<double>();
      round_activations(wide, *options_.activations);
      rounded = wide.template cast<Scalar>();
      input = &rounded;
    }
    constexpr std::size_t step = 128;  // rows of w at a time
    Matrix y(h.rows(), index(w.n));
    executor_->parallel_for(div_up(w.n, step), [&](std::size_t task, unsigned) {
      const std::size_t first = task * step, count = (std::min)(step, w.n - first);
      Matrix rows(index(count), index(w.k));
      std::vector<double> row(w.k);
      for (std::size_t r = 0; r < count; ++r) {
        w.read(first + r, row.data());
        for (std::size_t c = 0; c < w.k; ++c) rows(index(r), index(c)) = static_cast<Scalar>(row[c]);
      }
      y.middleCols(index(first), index(count)).noalias() = *input * rows.transpose();
    });
    return y;
  }

 private:
  static Eigen::Index index(std::size_t i) noexcept { return static_cast<Eigen::Index>(i); }

  Matrix project(std::size_t l, Projection p, const Matrix& h) const {
    Matrix y = product(h, matrix_of(weights_->layers[l], p));
    P::store(y);
    if (on_project) on_project(l, p, h, y);
    return y;
  }

  // All heads of x [tokens, heads * head_dim].
  void norm_and_rotate(Matrix& x, const std::vector<double>& gamma, std::size_t length) const {
    const std::size_t d = weights_->spec.head_dim;
    executor_->parallel_for(static_cast<std::size_t>(x.cols()) / d, [&](std::size_t head, unsigned) {
      Matrix one = x.middleCols(index(head * d), index(d));
      if (!gamma.empty()) one = rms_norm_rows<P>(one, gamma, weights_->rms_epsilon);
      rotate_rows<P>(one, weights_->rope_base, length);
      x.middleCols(index(head * d), index(d)) = one;
    });
  }

  Matrix attention(const Matrix& q, const Matrix& k, const Matrix& v, std::size_t length) const {
    const RuntimeSpec& s = weights_->spec;
    const std::size_t d = s.head_dim, windows = static_cast<std::size_t>(q.rows()) / length;
    Matrix out(q.rows(), q.cols());
    executor_->parallel_for(windows * s.heads, [&](std::size_t task, unsigned) {
      const std::size_t row = task / s.heads * length, head = task % s.heads, kv = head / (s.heads / s.kv_heads);
      const auto part = [&](const Matrix& m, std::size_t h) -> Matrix {
        return m.block(index(row), index(h * d), index(length), index(d));
      };
      out.block(index(row), index(head * d), index(length), index(d)) =
          causal_attention<P>(part(q, head), part(k, kv), part(v, kv));
    });
    return out;
  }

  const ReferenceWeights* weights_;
  Executor* executor_;
  ReferenceOptions options_;
};

POCKET_NAMESPACE_END

#endif
