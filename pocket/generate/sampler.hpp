// From logits to the next token: temperature, top-k, top-p and a draw, in the order of Hugging Face's Transformers.
//
//   auto sampler = Sampler::create({.temperature = 0.7f, .seed = 42}, vocab);
//   auto token = sampler->sample(logits);   // logits: vocab floats
//
// temperature  divides the logits; 0 is greedy: the best token, and no random number is used
// top_k        keeps the k best tokens; 0, or the vocabulary's size and more, keeps all
// top_p        of what is left keeps the smallest set of best tokens whose probability reaches p, at least one; 1 keeps
//              all, 0 the best alone (greedy)
// Of equal logits the lower id is the better one, so that each set is determined; exactly k tokens are kept.
//
// The same seed and logits give the same tokens on every platform. Nothing is left to the C++ library's distributions
// or its exp: the softmax is made of integers (softmax_weight), whose sums are exact in any order.
//
// Logits of -infinity are never drawn; the first of +infinity always is. Errors: logits that hold a NaN, or only
// -infinity, or that are not `vocab` many. Nothing is allocated after create(). A copy continues like its original.
#ifndef POCKET_GENERATE_SAMPLER_HPP
#define POCKET_GENERATE_SAMPLER_HPP

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"

POCKET_NAMESPACE_BEGIN

// The defaults are those of MNN-Pocket's model card.
struct SamplingOptions {
  float temperature = 0.8f;
  float top_p = 0.8f;
  std::size_t top_k = 20;
  std::uint64_t seed = 0;
};

namespace detail {

// The first place from `i` on whose logit is greater than `limit` or NaN; the number of logits if there is none. Most
// are not, so whole blocks are looked at, without a branch for each logit.
inline std::size_t next_above(std::span<const float> logits, std::size_t i, float limit) noexcept {
  constexpr std::size_t block = 32;
  for (; i + block <= logits.size(); i += block) {
    unsigned above = 0;
    for (std::size_t j = 0; j < block; ++j) above |= static_cast<unsigned>(!(logits[i + j] <= limit));
    if (above != 0) break;
  }
  while (i < logits.size() && logits[i] <= limit) ++i;
  return i;
}

}  // namespace detail

// The first of the greatest logits; -1 if there are none, or if one is NaN (no token may come of a broken model).
inline std::int32_t arg_max(std::span<const float> logits) noexcept {
  if (logits.empty() || std::isnan(logits[0])) return -1;
  std::size_t best = 0;
  for (std::size_t i = 1; (i = detail::next_above(logits, i, logits[best])) < logits.size(); ++i) {
    if (std::isnan(logits[i])) return -1;
    best = i;
  }
  return static_cast<std::int32_t>(best);
}

// xoshiro256** (Blackman and Vigna, "Scrambled linear pseudorandom number generators", 2018), its state filled from the
// seed by SplitMix64 (Steele, Lea and Flood, 2014), as its authors advise.
class Random {
 public:
  constexpr explicit Random(std::uint64_t seed) noexcept : state_{} {
    for (std::uint64_t& s : state_) {
      seed += 0x9e3779b97f4a7c15u;
      std::uint64_t z = seed;
      z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
      z = (z ^ z >> 27) * 0x94d049bb133111ebu;
      s = z ^ z >> 31;
    }
  }
  // Not all zero.
  constexpr explicit Random(const std::array<std::uint64_t, 4>& state) noexcept : state_(state) {}

  // 64 uniform bits.
  constexpr std::uint64_t next() noexcept {
    auto& [a, b, c, d] = state_;
    const std::uint64_t result = std::rotl(b * 5, 7) * 9;
    const std::uint64_t old_b = b;
    c ^= a;
    d ^= b;
    b ^= c;
    a ^= d;
    c ^= old_b << 17;
    d = std::rotl(d, 45);
    return result;
  }

  // Uniform in [0, n), n > 0. Exact: as many bits as n has, until they are below n; fewer than two tries on average.
  constexpr std::uint64_t below(std::uint64_t n) noexcept {
    std::uint64_t value = 0;
    do value = next() >> std::countl_zero(n);
    while (value >= n);
    return value;
  }

 private:
  std::array<std::uint64_t, 4> state_;
};

// 2^(i/16), and the coefficients of 2^(f/16) - 1 in f, (ln 2 / 16)^n / n! for n = 1..5 (the next term is 9e-12): both
// times 2^32.
inline constexpr std::array<std::uint64_t, 16> sixteenth_powers = [] {
  std::array<std::uint64_t, 16> powers{};
  double power = 1;
  for (std::uint64_t& p : powers) {
    p = static_cast<std::uint64_t>(power * 0x1p32 + 0.5);
    power *= 1.0442737824274138403;
  }
  return powers;
}();
inline constexpr std::array<std::uint64_t, 5> sixteenth_series = [] {
  std::array<std::uint64_t, 5> series{};
  double term = 1;
  for (std::size_t n = 0; n < series.size(); ++n) {
    term *= 0.69314718055994530942 / 16 / static_cast<double>(n + 1);
    series[n] = static_cast<std::uint64_t>(term * 0x1p32 + 0.5);
  }
  return series;
}();

inline constexpr std::size_t most_sampled_vocab = std::size_t{1} << 24;
inline constexpr std::size_t most_halvings = 39;

// A probability before normalisation: 2^39 * 2^-y, rounded down, for y = halvings / 2^32 >= 0. Relative error below
// 2^-29, and one unit; 0 for y > 39. 2^39 leaves room for the sum over 2^24 tokens in 64 bits.
// Integers, because exp differs between C libraries in its last bit, and compilers fuse multiplications and additions
// where the target can.
constexpr std::uint64_t softmax_weight(double halvings) noexcept {
  if (!(halvings <= 0x1p32 * most_halvings)) return 0;
  const auto y = static_cast<std::uint64_t>(halvings);
  const std::uint64_t whole = (y + 0xffffffffu) >> 32;
  const std::uint64_t rest = (whole << 32) - y;  // 2^-y = 2^-whole * 2^(rest / 2^32), rest < 2^32
  const std::uint64_t f = rest << 4 & 0xffffffffu;
  std::uint64_t sum = 0;
  for (std::size_t n = sixteenth_series.size(); n-- > 0;) sum = sixteenth_series[n] + (sum * f >> 32);
  const std::uint64_t power = sixteenth_powers[static_cast<std::size_t>(rest >> 28)];
  return (power + (power * (sum * f >> 32) >> 32)) << 7 >> whole;
}

// Options, a random generator and the memory that they need; one for each conversation.
class Sampler {
 public:
  // vocab: how many logits each call brings.
  static Expected<Sampler> create(const SamplingOptions& options, std::size_t vocab) {
    const float t = options.temperature, p = options.top_p;
    if (!(t >= 0) || std::isinf(t))
      return fail(Errc::invalid_argument,
                  "temperature: " + std::to_string(t) + "; 0 (greedy) or a finite number above it was expected");
    if (!(p >= 0 && p <= 1))
      return fail(Errc::invalid_argument, "top_p: " + std::to_string(p) + "; 0 to 1 was expected");
    if (vocab == 0 || vocab > most_sampled_vocab)
      return fail(Errc::invalid_argument, "vocab: " + std::to_string(vocab) + " logits; 1 to " +
                                              std::to_string(most_sampled_vocab) + " were expected");
    return Sampler(options, vocab);
  }

  // Errors leave the sampler as it was.
  Expected<std::int32_t> sample(std::span<const float> logits) {
    if (logits.size() != vocab_)
      return fail(Errc::invalid_argument, "logits: " + std::to_string(logits.size()) + " values; " +
                                              std::to_string(vocab_) + " (the vocabulary) were expected");
    const std::int32_t best = method_ == Method::top_k ? keep_top_k(logits) : arg_max(logits);
    if (best < 0) return nan_error(logits);
    const float top = logits[static_cast<std::size_t>(best)];
    if (top == -std::numeric_limits<float>::infinity())
      return fail(Errc::invalid_argument, "logits: all are -infinity; there is no token to choose");
    if (method_ == Method::greedy || std::isinf(top)) return best;
    if (method_ == Method::all) return draw_from_all(logits, top);
    return method_ == Method::top_k ? draw_from_top_k(top) : draw_from_top_p(logits, top);
  }

  std::size_t vocab() const noexcept { return vocab_; }  // how many logits each call brings
  // What it allocated.
  std::size_t memory_bytes() const noexcept { return candidates_.capacity() * sizeof(Candidate); }

 private:
  enum class Method : unsigned char { greedy, top_k, top_p, all };
  struct Candidate {
    float logit;
    std::int32_t id;
  };
  static bool better(const Candidate& a, const Candidate& b) noexcept {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
  }
  static bool worse(const Candidate& a, const Candidate& b) noexcept { return better(b, a); }

  Sampler(const SamplingOptions& options, std::size_t vocab)
      : random_(options.seed), vocab_(vocab), top_k_(options.top_k), top_p_(static_cast<double>(options.top_p)) {
    if (options.temperature == 0 || options.top_p == 0 || top_k_ == 1)
      method_ = Method::greedy;
    else if (top_k_ > 0 && top_k_ < vocab)
      method_ = Method::top_k;
    else
      method_ = options.top_p < 1 ? Method::top_p : Method::all;
    if (options.temperature > 0) scale_ = 0x1p32 * 1.44269504088896340736 / static_cast<double>(options.temperature);
    if (method_ == Method::top_k) candidates_.resize(top_k_);
    if (method_ == Method::top_p) candidates_.resize(vocab);
  }

  static Error nan_error(std::span<const float> logits) {
    const auto nan = std::find_if(logits.begin(), logits.end(), [](float v) { return std::isnan(v); });
    return fail(Errc::invalid_argument, "logits hold NaN, first at token " + std::to_string(nan - logits.begin()) +
                                            "; numbers were expected from the model");
  }

  // The difference and the product round once each, the same everywhere: there is no sum to fuse.
  double halvings(float logit, float top) const noexcept {
    return (static_cast<double>(top) - static_cast<double>(logit)) * scale_;
  }
  std::uint64_t weight(float logit, float top) const noexcept { return softmax_weight(halvings(logit, top)); }
  std::uint64_t reaching_top_p(std::uint64_t total) const noexcept {
    return top_p_ < 1 ? static_cast<std::uint64_t>(std::ceil(top_p_ * static_cast<double>(total))) : total;
  }

  // Fills candidates_ with the k best, in no order; returns the best, -1 on a NaN. One pass with a heap of k, the worst
  // on top: a random order of n logits enters it k * ln(n / k) times, some 160 of 65,536.
  std::int32_t keep_top_k(std::span<const float> logits) noexcept {
    const auto begin = candidates_.begin(), end = candidates_.end();
    for (std::size_t i = 0; i < top_k_; ++i) {
      if (std::isnan(logits[i])) return -1;
      candidates_[i] = {logits[i], static_cast<std::int32_t>(i)};
    }
    std::make_heap(begin, end, better);
    float lowest = candidates_.front().logit;
    for (std::size_t i = top_k_; (i = detail::next_above(logits, i, lowest)) < logits.size(); ++i) {
      if (std::isnan(logits[i])) return -1;
      std::pop_heap(begin, end, better);
      candidates_.back() = {logits[i], static_cast<std::int32_t>(i)};
      std::push_heap(begin, end, better);
      lowest = candidates_.front().logit;
    }
    return std::min_element(begin, end, better)->id;
  }

  std::int32_t draw_from_top_k(float top) noexcept {
    std::uint64_t total = 0;
    for (const Candidate& c : candidates_) total += weight(c.logit, top);
    return draw_best(top_k_, top_k_, 0, reaching_top_p(total), top);
  }

  // Without top-k most of the vocabulary is possible, and often some thousand tokens are kept: too many to sort at each
  // step. The weight in each sixteenth of a halving tells which one top_p ends in; what is better is kept unsorted.
  std::int32_t draw_from_top_p(std::span<const float> logits, float top) noexcept {
    std::array<std::uint64_t, most_halvings * 16 + 1> weights{};
    const auto sixteenth = [](double halvings) { return static_cast<std::size_t>(halvings * 0x1p-28); };
    std::uint64_t total = 0;
    for (const float v : logits) {
      const double y = halvings(v, top);
      const std::uint64_t w = softmax_weight(y);
      if (w == 0) continue;
      weights[sixteenth(y)] += w;
      total += w;
    }
    const std::uint64_t enough = reaching_top_p(total);
    std::uint64_t better_weight = 0;
    std::size_t last = 0;
    while (better_weight + weights[last] < enough) better_weight += weights[last++];
    std::size_t open = 0, sure = candidates_.size();
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double y = halvings(logits[i], top);
      if (!(y < 0x1p28 * static_cast<double>(last + 1))) continue;
      candidates_[sixteenth(y) < last ? --sure : open++] = {logits[i], static_cast<std::int32_t>(i)};
    }
    return draw_best(open, sure, better_weight, enough, top);
  }

  // Draws from candidates_[sure..end), which together have sure_weight, and the best of candidates_[0..open) that are
  // needed for the weight to be enough. Those come off a heap: no more is sorted than is kept.
  std::int32_t draw_best(std::size_t open, std::size_t sure, std::uint64_t sure_weight, std::uint64_t enough,
                         float top) noexcept {
    const auto at = [this](std::size_t i) { return candidates_.begin() + static_cast<std::ptrdiff_t>(i); };
    std::make_heap(at(0), at(open), worse);
    std::uint64_t kept = sure_weight;
    for (std::size_t left = open; kept < enough; --left) {
      std::pop_heap(at(0), at(left), worse);
      kept += weight(candidates_[left - 1].logit, top);
    }
    std::uint64_t drawn = random_.below(kept);
    for (std::size_t i = candidates_.size(); i > sure; --i) {
      const std::uint64_t w = weight(candidates_[i - 1].logit, top);
      if (drawn < w) return candidates_[i - 1].id;
      drawn -= w;
    }
    std::size_t i = open;  // the best stands last
    for (std::uint64_t w; drawn >= (w = weight(candidates_[i - 1].logit, top)); --i) drawn -= w;
    return candidates_[i - 1].id;
  }

  std::int32_t draw_from_all(std::span<const float> logits, float top) noexcept {
    std::uint64_t total = 0;
    for (const float v : logits) total += weight(v, top);
    std::uint64_t drawn = random_.below(total);
    std::size_t i = 0;
    for (std::uint64_t w; drawn >= (w = weight(logits[i], top)); ++i) drawn -= w;
    return static_cast<std::int32_t>(i);
  }

  Random random_;
  std::size_t vocab_, top_k_;
  double top_p_;
  double scale_ = 0;  // a logit in halvings of the probability, times 2^32: 10^55 at most
  Method method_ = Method::greedy;
  std::vector<Candidate> candidates_;
};

POCKET_NAMESPACE_END

#endif
