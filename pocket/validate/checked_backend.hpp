// A backend around another that does each of the graph's operations again in float64, from the very inputs that the
// operation got, and measures how far the result lies within the bound that the library's arithmetic allows. A fault
// in one operation of one layer stands out by orders of magnitude, there and nowhere else.
//
//   auto session = Transformer<RuntimeSpec, CheckedBackend<CpuBackend>>::create(...);
//   session->forward(tokens); session->backend().findings();
//
// For backends whose buffers are host memory, with a KvCache. Slow: float64 products on the session's executor; meant
// for some tens of tokens.
//
// Bounds, per value, u = 2^-24. A share above 1 is a fault, or a non-finite value.
//   products   an activation's code is off by up to 0.51 of its step t = max|h| / range (0.5 by rounding, the rest by
//              float32 on the way to it), per group of 64: sum over groups of 0.51 max|h| ||w||_1 / range. The norm
//              before it adds (k/8 + 8) u relative (a float32 sum of squares in at least four lanes, halved by the
//              root). Sums in float32 over G groups of terms that are up to 4 max|w| each (s q and its minimum cancel
//              in part): (G + 8) u * 64 * 4 max|h| max|w| for each group. A residual sum adds 2 u of its result.
//   gated      |silu'| <= 1.1: 1.1 B_gate (|up| + B_up) + |silu(gate)| B_up + 8 u |result|
//   rotated    (d/8 + 16) u of the pair's length, for norm, angle and turn; of keys and values, float16's own rounding
//   is
//              taken off
//   attended   scores err by (d + 8) u sum|q k|, twice the largest of which is an exponential's relative error;
//              weights and sums add (positions + 64) u; all times sum p |v|
//   embedded   16 u of the row's largest weight
#ifndef POCKET_VALIDATE_CHECKED_BACKEND_HPP
#define POCKET_VALIDATE_CHECKED_BACKEND_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "../backend/backend.hpp"
#include "../config.hpp"
#include "../core/executor.hpp"
#include "../core/status.hpp"
#include "../model/kv_cache.hpp"
#include "../model/memory_plan.hpp"
#include "../model/spec.hpp"
#include "../model/weights.hpp"
#include "findings.hpp"
#include "reference_graph.hpp"
#include "reference_weights.hpp"

POCKET_NAMESPACE_BEGIN

// B with float64 beside it.
template <class B>
class CheckedBackend : public B {
 public:
  using Buffer = typename B::Buffer;

  // As B::create.
  static Expected<CheckedBackend> create(const RuntimeSpec& spec, const typename B::Weights& weights,
                                         const SessionShape& shape, const typename B::Options& options) {
    POCKET_TRY(b, B::create(spec, weights, shape, options));
    return CheckedBackend(std::move(b), spec, weights, shape, *options.executor);
  }

  const Findings& findings() const noexcept { return findings_; }
  // The residual after each layer's attention and after its feed-forward part, of the last step: [2 * layers][tokens,
  // hidden].
  const std::vector<DenseMatrix64>& residuals() const noexcept { return residuals_; }

  // ---- the graph's operations (see backend/backend.hpp), each B's and then the same in float64 ----

  // The residuals of the step before are forgotten.
  void begin(std::span<const std::int32_t> tokens, std::size_t position) {
    B::begin(tokens, position);
    tokens_ = tokens;
    position_ = position;
    layer_ = 0;
    after_attention_ = false;
    residuals_.clear();
  }

  // CheckedOperation::embed.
  void embed(const PackedMatrix& e, Buffer x) {
    B::embed(e, x);
    DenseMatrix64 want(index(m()), index(e.k));
    const ReferenceMatrix rows = reference_matrix(e);
    for (std::size_t i = 0; i < m(); ++i) rows.read(static_cast<std::size_t>(tokens_[i]), want.data() + i * e.k);
    const DenseMatrix64 bound = 16 * unit * want.cwiseAbs().rowwise().maxCoeff().replicate(1, want.cols());
    note(CheckedOperation::embed, 0, want, bound, copy(x, e.k));
  }

  // CheckedOperation::qkv.
  void norm_project(Buffer x, const float* g, const PackedMatrix& w, Buffer y) {
    const DenseMatrix64 h = normed(copy(x, w.k), g);
    B::norm_project(x, g, w, y);
    const Product p = multiply(h, w, true);
    note(CheckedOperation::qkv, layer_, p.want, p.bound, copy(y, w.n));
  }

  // CheckedOperation::rotate: q in the buffer, keys and values in the cache.
  void rope_append(Buffer qkv, std::size_t layer, const float* q_gamma, const float* k_gamma) {
    const std::size_t d = spec_.head_dim, width = qkv_width(spec_);
    DenseMatrix64 want = copy(qkv, width), bound(want.rows(), want.cols());
    B::rope_append(qkv, layer, q_gamma, k_gamma);
    DenseMatrix64 got = copy(qkv, width);
    const double scale = 1 / std::sqrt(static_cast<double>(d)), relative = static_cast<double>(d / 8 + 16) * unit;
    for (std::size_t head = 0; head < spec_.heads + 2 * spec_.kv_heads; ++head) {
      const bool is_q = head < spec_.heads, is_v = head >= spec_.heads + spec_.kv_heads;
      auto columns = want.middleCols(index(head * d), index(d));
      auto allowed = bound.middleCols(index(head * d), index(d));
      allowed.setZero();
      if (!is_v) {
        DenseMatrix64 one = columns;
        if (spec_.qk_norm) one = normed(one, is_q ? q_gamma : k_gamma);
        rotate_rows<Exact>(one, rope_base_, m(), position_);
        if (is_q) one *= scale;
        columns = one;
        const Eigen::Index half = index(d / 2);
        const DenseMatrix64 length =
            (one.leftCols(half).cwiseAbs2() + one.rightCols(half).cwiseAbs2()).cwiseSqrt() * relative;
        allowed.leftCols(half) = length;
        allowed.rightCols(half) = length;
      }
      if (is_q) continue;
      const std::size_t kv = (head - spec_.heads) % spec_.kv_heads;
      const DenseMatrix64 stored = cached(layer, kv, !is_v).bottomRows(index(m()));
      got.middleCols(index(head * d), index(d)) = stored.binaryExpr(columns, [](double f, double exact) {
        return f + std::clamp(exact - f, -half_step(f), half_step(f));  // the nearest value that rounds to f
      });
    }
    bound.array() += tiny;
    note(CheckedOperation::rotate, layer, want, bound, got);
  }

  // CheckedOperation::attention.
  void attend(Buffer qkv, std::size_t layer, Buffer y) {
    B::attend(qkv, layer, y);
    const std::size_t d = spec_.head_dim, group = spec_.heads / spec_.kv_heads;
    const DenseMatrix64 all_q = copy(qkv, qkv_width(spec_));
    DenseMatrix64 want(index(m()), index(q_width(spec_))), bound(index(m()), index(q_width(spec_)));
    for (std::size_t head = 0; head < spec_.heads; ++head) {
      const DenseMatrix64 k = cached(layer, head / group, true), v = cached(layer, head / group, false);
      // The library's q is scaled already; the formula scales again.
      const DenseMatrix64 q = all_q.middleCols(index(head * d), index(d)) * std::sqrt(static_cast<double>(d));
      want.middleCols(index(head * d), index(d)) = causal_attention<Exact>(q, k, v, position_ + 1);
      const DenseMatrix64 spread = causal_attention<Exact>(q, k, v.cwiseAbs(), position_ + 1);
      const DenseMatrix64 sizes = all_q.middleCols(index(head * d), index(d)).cwiseAbs() * k.cwiseAbs().transpose();
      for (std::size_t i = 0; i < m(); ++i) {
        const auto seen = position_ + i + 1;
        const double score = static_cast<double>(d + 8) * unit * sizes.row(index(i)).head(index(seen)).maxCoeff();
        const double relative = std::expm1(2 * score) + static_cast<double>(seen + 64) * unit;
        bound.row(index(i)).segment(index(head * d), index(d)) = spread.row(index(i)) * relative;
      }
    }
    bound.array() += tiny;
    note(CheckedOperation::attention, layer, want, bound, copy(y, q_width(spec_)));
    after_attention_ = true;
  }

  // CheckedOperation::output after attention, else down.
  void project_add(Buffer y, const PackedMatrix& w, Buffer x) {
    const DenseMatrix64 h = copy(y, w.k), before = copy(x, w.n);
    B::project_add(y, w, x);
    Product p = multiply(h, w, false);
    p.want += before;
    p.bound += 2 * unit * (p.want.cwiseAbs() + before.cwiseAbs());
    const bool attention = std::exchange(after_attention_, false);
    residuals_.push_back(copy(x, w.n));
    note(attention ? CheckedOperation::output : CheckedOperation::down, layer_, p.want, p.bound, residuals_.back());
    layer_ += attention ? 0 : 1;
  }

  // CheckedOperation::gate_up.
  void norm_gate(Buffer x, const float* g, const PackedMatrix& w, Buffer y) {
    const DenseMatrix64 h = normed(copy(x, w.k), g);
    B::norm_gate(x, g, w, y);
    const Product p = multiply(h, w, true);
    DenseMatrix64 want(index(m()), index(spec_.ffn)), bound(index(m()), index(spec_.ffn));
    for (Eigen::Index i = 0; i < want.rows(); ++i)
      for (Eigen::Index j = 0; j < want.cols(); ++j) {
        const Eigen::Index at = j / 16 * 32 + j % 16;  // blocks of 16 rows of gate and of up in turn
        const double gate = p.want(i, at), up = p.want(i, at + 16), silu = gate / (1 + std::exp(-gate));
        want(i, j) = silu * up;
        bound(i, j) = 1.1 * p.bound(i, at) * (std::fabs(up) + p.bound(i, at + 16)) +
                      std::fabs(silu) * p.bound(i, at + 16) + 8 * unit * std::fabs(silu * up) + tiny;
      }
    note(CheckedOperation::gate_up, layer_, want, bound, copy(y, spec_.ffn));
  }

  // CheckedOperation::logits.
  void norm_logits(Buffer x, std::size_t first, std::size_t count, const float* g, const PackedMatrix& w,
                   std::size_t row) {
    const DenseMatrix64 h = normed(copy(x + first * w.k, w.k, count), g);
    B::norm_logits(x, first, count, g, w, row);
    const Product p = multiply(h, w, true);
    note(CheckedOperation::logits, spec_.layers - 1, p.want, p.bound, copy(B::logits(row).data(), w.n, count));
  }

 private:
  static constexpr double unit = 0x1p-24, tiny = 0x1p-120;

  CheckedBackend(B&& b, const RuntimeSpec& spec, const typename B::Weights& weights, const SessionShape& shape,
                 Executor& executor)
      : B(std::move(b)),
        spec_(spec),
        epsilon_(static_cast<double>(weights.rms_epsilon)),
        rope_base_(weights.rope_base),
        range_(shape.activations == ActivationForm::a16 ? 32639.0 : 127.0),
        executor_(&executor),
        findings_(spec.layers) {}

  struct Product {
    DenseMatrix64 want, bound;
  };

  // Half the distance from a float16 to the next.
  static double half_step(double f) noexcept {
    return f == 0 || !std::isfinite(f) ? 0x1p-25 : std::ldexp(1.0, (std::max)(std::ilogb(f), -14) - 11);
  }

  std::size_t m() const noexcept { return tokens_.size(); }
  static Eigen::Index index(std::size_t i) noexcept { return static_cast<Eigen::Index>(i); }

  DenseMatrix64 copy(const float* x, std::size_t width, std::size_t rows) const {
    return Eigen::Map<const DenseMatrix<float>>(x, index(rows), index(width)).template cast<double>();
  }
  DenseMatrix64 copy(const float* x, std::size_t width) const { return copy(x, width, m()); }

  DenseMatrix64 normed(const DenseMatrix64& x, const float* gamma) const {
    return rms_norm_rows<Exact>(x, std::vector<double>(gamma, gamma + x.cols()), epsilon_);
  }

  // The cache of one KV head up to the step's last token: [positions, head_dim].
  DenseMatrix64 cached(std::size_t layer, std::size_t head, bool keys) const {
    const KvCache& cache = B::cache();
    const std::size_t d = spec_.head_dim;
    DenseMatrix64 out(index(position_ + m()), index(d));
    for (std::size_t p = 0; p < position_ + m(); ++p)
      for (std::size_t i = 0; i < d; ++i) {
        const f16 v = keys ? cache.keys(layer, head)[(p / key_block * d + i) * key_block + p % key_block]
                           : cache.values(layer, head)[p * d + i];
        out(index(p), index(i)) = f16_value(v.bits);
      }
    return out;
  }

  // h w' and its bound.
  Product multiply(const DenseMatrix64& h, const PackedMatrix& w, bool after_norm) const {
    const std::size_t groups = div_up(w.k, std::size_t{64});
    const double norm_error = after_norm ? static_cast<double>(w.k / 8 + 8) * unit : 0;
    const double sums = static_cast<double>(groups + 8) * unit * 64 * 4;
    DenseMatrix64 most(h.rows(), index(groups));  // max|h| of each group
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t first = 64 * g, size = (std::min)(std::size_t{64}, w.k - first);
      most.col(index(g)) = h.middleCols(index(first), index(size)).cwiseAbs().rowwise().maxCoeff();
    }
    Product p{DenseMatrix64(h.rows(), index(w.n)), DenseMatrix64(h.rows(), index(w.n))};
    constexpr std::size_t step = 128;
    const ReferenceMatrix rows = reference_matrix(w);
    executor_->parallel_for(div_up(w.n, step), [&](std::size_t task, unsigned) {
      const std::size_t first = task * step, count = (std::min)(step, w.n - first);
      DenseMatrix64 part(index(count), index(w.k)), weight(index(count), index(groups));
      for (std::size_t r = 0; r < count; ++r) {
        rows.read(first + r, part.data() + r * w.k);
        for (std::size_t g = 0; g < groups; ++g) {
          const std::size_t c = 64 * g, size = (std::min)(std::size_t{64}, w.k - c);
          const auto group = part.row(index(r)).segment(index(c), index(size)).cwiseAbs();
          weight(index(r), index(g)) = (0.51 / range_ + norm_error) * group.sum() + sums * group.maxCoeff();
        }
      }
      p.want.middleCols(index(first), index(count)).noalias() = h * part.transpose();
      p.bound.middleCols(index(first), index(count)).noalias() = most * weight.transpose();
    });
    p.bound.array() += tiny;
    return p;
  }

  void note(CheckedOperation o, std::size_t layer, const DenseMatrix64& want, const DenseMatrix64& bound,
            const DenseMatrix64& got) {
    Finding& f = findings_[layer][static_cast<std::size_t>(o)];
    for (Eigen::Index i = 0; i < want.size(); ++i) {
      const double off = std::fabs(got.data()[i] - want.data()[i]);
      f.error += off * off;
      f.norm += want.data()[i] * want.data()[i];
      if (off == 0) continue;
      const double share = off / bound.data()[i];
      f.share = std::isfinite(share) ? (std::max)(f.share, share) : std::numeric_limits<double>::infinity();
    }
  }

  RuntimeSpec spec_;
  double epsilon_, rope_base_, range_;
  Executor* executor_;
  Findings findings_;
  std::vector<DenseMatrix64> residuals_;
  std::span<const std::int32_t> tokens_;
  std::size_t position_ = 0, layer_ = 0;
  bool after_attention_ = false;
};

POCKET_NAMESPACE_END

#endif
