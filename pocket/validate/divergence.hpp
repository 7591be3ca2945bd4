// How far a model's next-token distribution is from a reference's, position by position, and over a text. All sums in
// float64, in the order of the vocabulary: the divergence of a model from itself is exactly 0.
//
//   KL(reference || model) = sum over the vocabulary of p (log p - log q), in nats
//   perplexity = exp(mean over the text of -log p(next token))
#ifndef POCKET_VALIDATE_DIVERGENCE_HPP
#define POCKET_VALIDATE_DIVERGENCE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "../config.hpp"

POCKET_NAMESPACE_BEGIN

// Of one position.
struct PositionDivergence {
  double kl = 0;                                  // nats; NaN if either side's logits are not finite
  double reference_nll = 0;                       // -log p(next token), nats; NaN where no next token is known
  double model_nll = 0;                           // the same of the model
  double squares = 0;                             // sum over the vocabulary of (model - reference)^2
  double reference_squares = 0;                   // sum of the reference's logits, squared, their mean taken off
  double largest = 0;                             // max |model - reference|
  std::int32_t reference_top = 0, model_top = 0;  // the likeliest tokens; the first of equals
  std::uint32_t top5_shared = 0;  // how many of the reference's five likeliest are among the model's five
};

namespace detail {

// log of the sum of exp(x), and the index of the greatest.
template <class T>
struct LogSum {
  double value = 0;
  std::int32_t top = 0;
  explicit LogSum(std::span<const T> x) {
    double most = -std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < x.size(); ++i)
      if (const auto v = static_cast<double>(x[i]); v > most) {
        most = v;
        top = static_cast<std::int32_t>(i);
      }
    double sum = 0;
    for (const T v : x) sum += std::exp(static_cast<double>(v) - most);
    value = most + std::log(sum);
  }
};

// The five greatest, ties by lower index first; fewer where there are fewer.
template <class T>
std::size_t top5(std::span<const T> x, std::int32_t (&out)[5]) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto of = [&](std::int32_t token) { return x[static_cast<std::size_t>(token)]; };
    if (n == 5 && !(x[i] > of(out[4]))) continue;
    std::size_t at = n < 5 ? n++ : 4;
    for (; at > 0 && x[i] > of(out[at - 1]); --at) out[at] = out[at - 1];
    out[at] = static_cast<std::int32_t>(i);
  }
  return n;
}

}  // namespace detail

// One position's logits, equally many, at least one. next: the token that follows in the text, or -1.
template <class R, class M>
PositionDivergence compare_logits(std::span<const R> reference, std::span<const M> model, std::int32_t next) {
  const detail::LogSum<R> p(reference);
  const detail::LogSum<M> q(model);
  PositionDivergence d;
  d.reference_top = p.top;
  d.model_top = q.top;
  double mean = 0;
  for (const R v : reference) mean += static_cast<double>(v);
  mean /= static_cast<double>(reference.size());
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double r = static_cast<double>(reference[i]), m = static_cast<double>(model[i]);
    const double log_p = r - p.value, log_q = m - q.value;
    if (const double share = std::exp(log_p); share != 0) d.kl += share * (log_p - log_q);  // NaN is not 0
    d.squares += (m - r) * (m - r);
    d.reference_squares += (r - mean) * (r - mean);
    d.largest = (std::max)(d.largest, std::fabs(m - r));
  }
  const double unknown = std::numeric_limits<double>::quiet_NaN();
  d.reference_nll = next < 0 ? unknown : p.value - static_cast<double>(reference[static_cast<std::size_t>(next)]);
  d.model_nll = next < 0 ? unknown : q.value - static_cast<double>(model[static_cast<std::size_t>(next)]);
  std::int32_t five_r[5], five_m[5];
  const std::size_t n = detail::top5(reference, five_r);
  detail::top5(model, five_m);
  for (std::size_t i = 0; i < n; ++i)
    d.top5_shared += static_cast<std::uint32_t>(std::find(five_m, five_m + n, five_r[i]) != five_m + n);
  return d;
}

// Over a text.
struct Divergence {
  std::size_t positions = 0, vocab = 0;
  double kl_mean = 0, kl_error = 0;  // the mean, and its standard error, positions taken as independent
  double kl_99_9 = 0, kl_most = 0;   // 99.9th percentile (nearest rank), and the largest
  std::size_t kl_most_at = 0;        // index of that position
  double top1 = 0, top5 = 0;         // share of positions with the same likeliest token; of the reference's five
                                     // likeliest, the share among the model's five
  double rms = 0, relative = 0;      // of the logits' difference: root mean square; the same divided by the standard
                                     // deviation of the reference's logits
  double largest = 0;                // max |difference| of a logit
  std::size_t predicted = 0;         // positions whose next token is known
  double reference_perplexity = 0, model_perplexity = 0;
  double perplexity_ratio = 0, ratio_error = 0;  // model / reference; the standard error of its logarithm
};

// Positions that are not finite make what they enter NaN.
inline Divergence summarize(std::span<const PositionDivergence> all, std::size_t vocab) {
  Divergence s;
  s.positions = all.size();
  s.vocab = vocab;
  if (all.empty()) return s;
  const auto n = static_cast<double>(all.size());
  std::vector<double> kl;
  std::size_t top1 = 0, top5 = 0;
  double squares = 0, reference_squares = 0, nll_r = 0, nll_m = 0, ratio_squares = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const PositionDivergence& d = all[i];
    kl.push_back(d.kl);
    s.kl_mean += d.kl / n;
    if (!(d.kl <= all[s.kl_most_at].kl)) s.kl_most_at = i;
    top1 += d.reference_top == d.model_top;
    top5 += d.top5_shared;
    squares += d.squares;
    reference_squares += d.reference_squares;
    if (!(d.largest <= s.largest)) s.largest = d.largest;
    if (std::isnan(d.reference_nll) && std::isfinite(d.kl)) continue;
    ++s.predicted;
    nll_r += d.reference_nll;
    nll_m += d.model_nll;
  }
  s.top1 = static_cast<double>(top1) / n;
  s.top5 = static_cast<double>(top5) / n / static_cast<double>((std::min)(vocab, std::size_t{5}));
  std::sort(kl.begin(), kl.end(), [](double a, double b) { return a < b || (!(a != a) && b != b); });  // NaN last
  s.kl_99_9 = kl[static_cast<std::size_t>(std::ceil(0.999 * n)) - 1];
  s.kl_most = all[s.kl_most_at].kl;
  double variance = 0;
  for (const double v : kl) variance += (v - s.kl_mean) * (v - s.kl_mean);
  s.kl_error = all.size() < 2 ? 0 : std::sqrt(variance / (n - 1) / n);
  s.rms = std::sqrt(squares / (n * static_cast<double>(vocab)));
  s.relative = reference_squares > 0 ? std::sqrt(squares / reference_squares) : squares > 0 ? HUGE_VAL : 0;
  if (s.predicted == 0) return s;
  const auto m = static_cast<double>(s.predicted);
  s.reference_perplexity = std::exp(nll_r / m);
  s.model_perplexity = std::exp(nll_m / m);
  const double mean_log = (nll_m - nll_r) / m;
  s.perplexity_ratio = std::exp(mean_log);
  for (const PositionDivergence& d : all)
    if (!std::isnan(d.reference_nll)) {
      const double off = d.model_nll - d.reference_nll - mean_log;
      ratio_squares += off * off;
    }
  s.ratio_error = s.predicted < 2 ? 0 : std::sqrt(ratio_squares / (m - 1) / m);
  return s;
}

POCKET_NAMESPACE_END

#endif
