// pocket/generate: the sampler against softmax in doubles and full sorts, generation and chat over a small model that
// remembers its tokens and answers by a rule.
#include "pocket/generate/generate.hpp"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <new>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "count_new.hpp"
#include "pocket/backend/cpu.hpp"
#include "pocket/generate/sampler.hpp"
#include "pocket/generate/session.hpp"
#include "pocket/model/transformer.hpp"

using namespace pocket;
using Ids = std::vector<std::int32_t>;
using Floats = std::vector<float>;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

Sampler make(const SamplingOptions& options, std::size_t vocab) {
  auto s = Sampler::create(options, vocab);
  REQUIRE(s);
  return *s;
}

Floats normal_logits(std::size_t n, float spread, unsigned seed) {
  std::mt19937 g(seed);
  std::normal_distribution<float> d(0, spread);
  Floats v(n);
  for (float& x : v) x = d(g);
  return v;
}

// What the sampler is to draw from, by the definition: sort all, cut, normalise, cut again, normalise.
std::map<std::int32_t, double> reference(const Floats& logits, const SamplingOptions& o) {
  Ids order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int32_t i) { return static_cast<double>(logits[static_cast<std::size_t>(i)]); };
  std::sort(order.begin(), order.end(),
            [&](std::int32_t a, std::int32_t b) { return logit(a) > logit(b) || (logit(a) == logit(b) && a < b); });
  if (o.top_k > 0 && o.top_k < order.size()) order.resize(o.top_k);
  std::vector<double> p;
  for (const std::int32_t id : order)
    p.push_back(std::exp((logit(id) - logit(order[0])) / static_cast<double>(o.temperature)));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  std::map<std::int32_t, double> kept;
  double mass = 0;
  for (std::size_t i = 0; i < p.size() && (o.top_p >= 1 || mass < static_cast<double>(o.top_p) * total); ++i) {
    kept[order[i]] = p[i];
    mass += p[i];
  }
  for (auto& [id, weight] : kept) weight /= mass;
  return kept;
}

std::map<std::int32_t, int> draw(Sampler& sampler, const Floats& logits, int n) {
  std::vector<int> counts(logits.size(), 0);
  int failed = 0;  // an assertion a draw would take most of the time
  for (int i = 0; i < n; ++i) {
    const auto token = sampler.sample(logits);
    if (token && *token >= 0 && static_cast<std::size_t>(*token) < counts.size())
      ++counts[static_cast<std::size_t>(*token)];
    else
      ++failed;
  }
  REQUIRE(failed == 0);
  std::map<std::int32_t, int> drawn;
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) drawn[static_cast<std::int32_t>(i)] = counts[i];
  return drawn;
}

}  // namespace

TEST_CASE("arg_max takes the first of equals, and no NaN") {
  REQUIRE(arg_max(Floats{1, 3, 3, 2}) == 1);
  REQUIRE(arg_max(Floats{-0.0f, 0.0f}) == 0);
  REQUIRE(arg_max(Floats{-infinity, -infinity}) == 0);
  REQUIRE(arg_max(Floats{1, infinity, infinity}) == 1);
  REQUIRE(arg_max(Floats{-3, -2, -1}) == 2);
  REQUIRE(arg_max(Floats{}) == -1);
  for (std::size_t at = 0; at < 4; ++at) {
    Floats v{1, 2, 0, infinity};
    v[at] = nan_value;
    REQUIRE(arg_max(v) == -1);
  }
}

// Logits are looked at in blocks of 32: the first block, one in the middle, and what is left over.
TEST_CASE("the greatest logit and a NaN are found at every place") {
  constexpr std::size_t vocab = 100;
  Sampler best_of_three = make({.temperature = 1e-4f, .top_p = 1, .top_k = 3}, vocab);
  for (std::size_t at = 0; at < vocab; ++at) {
    CAPTURE(at);
    Floats v(vocab);
    for (std::size_t i = 0; i < vocab; ++i) v[i] = static_cast<float>(i * 37 % vocab);
    v[at] = 1000;
    REQUIRE(arg_max(v) == static_cast<std::int32_t>(at));
    const auto drawn = best_of_three.sample(v);
    REQUIRE(drawn);
    REQUIRE(*drawn == static_cast<std::int32_t>(at));
    v[at] = nan_value;
    REQUIRE(arg_max(v) == -1);
    REQUIRE_FALSE(best_of_three.sample(v));
  }
}

TEST_CASE("the generator gives its authors' numbers, and draws below n") {
  // SplitMix64 from the seed 1234567, then xoshiro256** from the state 1, 2, 3, 4: the published test vectors.
  Random seeded(1234567);
  Random same(std::array<std::uint64_t, 4>{6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                           4593380528125082431u});
  for (int i = 0; i < 10; ++i) REQUIRE(seeded.next() == same.next());
  Random r(std::array<std::uint64_t, 4>{1, 2, 3, 4});
  for (const std::uint64_t expected :
       {std::uint64_t{11520}, std::uint64_t{0}, std::uint64_t{1509978240}, std::uint64_t{1215971899390074240}})
    REQUIRE(r.next() == expected);
  for (int i = 0; i < 20; ++i) REQUIRE(r.below(1) == 0);
  for (const std::uint64_t n : {std::uint64_t{2}, std::uint64_t{3}, std::uint64_t{5}, std::uint64_t{8}}) {
    std::vector<int> counts(n, 0);
    for (int i = 0; i < 10000; ++i) ++counts.at(r.below(n));
    // Binomial: six standard deviations.
    const double mean = 10000.0 / static_cast<double>(n);
    for (const int c : counts) REQUIRE(std::abs(c - mean) < 6 * std::sqrt(mean));
  }
  const std::uint64_t large = (std::uint64_t{1} << 63) + 1;
  for (int i = 0; i < 100; ++i) REQUIRE(r.below(large) < large);
}

TEST_CASE("integer softmax weights follow exp") {
  REQUIRE(softmax_weight(0) == std::uint64_t{1} << 39);
  REQUIRE(softmax_weight(0x1p32) == std::uint64_t{1} << 38);
  REQUIRE(softmax_weight(0x1p32 * 39) == 1);
  REQUIRE(softmax_weight(0x1p32 * 40) == 0);
  REQUIRE(softmax_weight(std::numeric_limits<double>::infinity()) == 0);
  std::mt19937_64 g(1);
  std::uniform_real_distribution<double> d(0, 41);
  std::uint64_t previous = softmax_weight(0);
  int checked = 0, wrong = 0, rising = 0;
  for (int i = 0; i < 200000; ++i, ++checked) {
    const bool in_order = i >= 100000;
    const double y = in_order ? (i - 100000) * 0.0004 : d(g);
    const std::uint64_t w = softmax_weight(y * 0x1p32);
    const double exact = std::exp2(39 - y);
    wrong += std::abs(static_cast<double>(w) - exact) > 1 + exact * 0x1p-29;
    if (in_order) rising += w > std::exchange(previous, w);
  }
  REQUIRE(checked == 200000);
  REQUIRE(wrong == 0);
  REQUIRE(rising == 0);
}

TEST_CASE("options out of range are refused by name") {
  const auto message = [](const SamplingOptions& o, std::size_t vocab = 10) {
    const auto s = Sampler::create(o, vocab);
    REQUIRE_FALSE(s);
    REQUIRE(s.error().code == Errc::invalid_argument);
    return s.error().message;
  };
  for (const float t : {-1.0f, -1e-30f, nan_value, infinity, -infinity})
    REQUIRE(message({.temperature = t}).find("temperature") == 0);
  for (const float p : {-0.1f, 1.5f, nan_value, infinity}) REQUIRE(message({.top_p = p}).find("top_p") == 0);
  REQUIRE(message({}, 0).find("vocab") == 0);
  REQUIRE(message({}, most_sampled_vocab + 1).find("vocab") == 0);
  Sampler s = make({}, 10);
  const auto wrong = s.sample(Floats(9));
  REQUIRE_FALSE(wrong);
  REQUIRE(wrong.error().message.find("9 values; 10") != std::string::npos);
}

TEST_CASE("draws have the reference's support and frequencies") {
  constexpr int draws = 10000;
  int cases = 0;
  for (const std::size_t vocab : {5u, 50u, 300u})
    for (const float spread : {0.5f, 3.0f})
      for (const float temperature : {0.3f, 1.5f})
        for (const std::size_t top_k : {0u, 2u, 20u, 1000u})
          for (const float top_p : {0.1f, 0.8f, 1.0f}) {
            const SamplingOptions o{temperature, top_p, top_k, 77};
            CAPTURE(vocab, spread, temperature, top_k, top_p);
            const Floats logits = normal_logits(vocab, spread, static_cast<unsigned>(vocab));
            const auto expected = reference(logits, o);
            Sampler sampler = make(o, vocab);
            const auto counts = draw(sampler, logits, draws);
            for (const auto& [id, n] : counts) REQUIRE(expected.count(id) == 1);
            // Pearson's chi-square; what is expected less than 10 times forms one cell.
            double chi = 0, rest_expected = 0, rest_seen = 0, cells = 0;
            const auto add = [&](double seen, double wanted) {
              chi += (seen - wanted) * (seen - wanted) / wanted;
              ++cells;
            };
            for (const auto& [id, p] : expected) {
              const double seen = counts.count(id) == 0 ? 0 : counts.at(id);
              if (p * draws >= 10) {
                add(seen, p * draws);
              } else {
                rest_seen += seen;
                rest_expected += p * draws;
              }
            }
            if (rest_expected >= 1) add(rest_seen, rest_expected);
            // Wilson and Hilferty: the cube root of chi/df is nearly normal. Five standard deviations: with fixed seeds
            // this is no matter of luck, and 144 cases of a right sampler stay below it but once in 10,000 tries.
            if (cells > 1) {
              const double df = cells - 1, v = 2 / (9 * df);
              REQUIRE(chi < df * std::pow(1 - v + 5 * std::sqrt(v), 3));
            }
            ++cases;
          }
  REQUIRE(cases == 144);
}

TEST_CASE("exactly the k best are kept, whatever their order") {
  constexpr std::size_t vocab = 8192;
  Floats falling(vocab), rising(vocab), coarse = normal_logits(vocab, 2, 5), fine = normal_logits(vocab, 2, 6);
  for (std::size_t i = 0; i < vocab; ++i) rising[i] = falling[vocab - 1 - i] = static_cast<float>(i);
  for (float& v : coarse) v = std::round(v);  // a thousand ties at some values
  for (const Floats& logits : {falling, rising, coarse, fine, Floats(vocab, 1.5f)})
    for (const std::size_t k : {2u, 3u, 20u, 64u}) {
      // At this temperature all k are equally likely: k * (1 - 1/k)^(40 k) is below 3e-16.
      const SamplingOptions o{1e30f, 1.0f, k, 3};
      const auto expected = reference(logits, o);
      Sampler sampler = make(o, vocab);
      const auto counts = draw(sampler, logits, static_cast<int>(40 * k));
      REQUIRE(counts.size() == k);
      for (const auto& [id, n] : counts) REQUIRE(expected.count(id) == 1);
    }
}

TEST_CASE("top_p keeps the smallest set that reaches p") {
  const auto support = [](const Floats& logits, const SamplingOptions& o) {
    Sampler sampler = make(o, logits.size());
    std::set<std::int32_t> ids;
    for (const auto& [id, n] : draw(sampler, logits, 500)) ids.insert(id);
    return ids;
  };
  using Set = std::set<std::int32_t>;
  const Floats equal(4, 7.0f);
  // Powers of two: the boundaries are exact.
  REQUIRE(support(equal, {1, 0.25f, 0}) == Set{0});
  REQUIRE(support(equal, {1, 0.26f, 0}) == Set{0, 1});
  REQUIRE(support(equal, {1, 0.5f, 0}) == Set{0, 1});
  REQUIRE(support(equal, {1, 0.75f, 0}) == Set{0, 1, 2});
  REQUIRE(support(equal, {1, 0.76f, 0}) == Set{0, 1, 2, 3});
  REQUIRE(support(equal, {1, 1.0f, 0}) == Set{0, 1, 2, 3});
  REQUIRE(support(equal, {1, 0.0f, 0}) == Set{0});
  REQUIRE(support(equal, {1, 1e-30f, 0}) == Set{0});
  // After top-k: of the two that it keeps, one is half.
  REQUIRE(support(equal, {1, 0.5f, 2}) == Set{0});
  REQUIRE(support(equal, {1, 0.51f, 2}) == Set{0, 1});
  // After the temperature: 1/2, 1/4, 1/8, 1/8 at 1, flatter at 2.
  const float ln2 = 0.69314718f;
  const Floats halves{-3 * ln2, -1 * ln2, -3 * ln2, -2 * ln2};
  REQUIRE(support(halves, {1, 0.7f, 0}) == Set{1, 3});
  REQUIRE(support(halves, {2, 0.7f, 0}) == Set{0, 1, 3});
  REQUIRE(support(halves, {1, 0.8f, 0}) == Set{0, 1, 3});
}

TEST_CASE("top_p without top_k keeps the same set among many near equals") {
  int cases = 0;
  for (const float spread : {0.0f, 0.01f, 0.3f})
    for (const float top_p : {0.01f, 0.37f, 0.93f}) {
      CAPTURE(spread, top_p);
      Floats logits = normal_logits(500, spread, 8);
      for (float& v : logits) v = std::round(v * 8) / 8;  // ties, in id order
      const SamplingOptions o{1, top_p, 0, 4};
      const auto expected = reference(logits, o);
      Sampler sampler = make(o, logits.size());
      const auto counts = draw(sampler, logits, 20000);
      for (const auto& [id, n] : counts) REQUIRE(expected.count(id) == 1);
      if (spread < 0.1f) REQUIRE(counts.size() == expected.size());  // 500 * exp(-40): all come
      ++cases;
    }
  REQUIRE(cases == 9);
}

TEST_CASE("hostile logits give a token or an error, never an abort") {
  std::vector<SamplingOptions> all;
  for (const float temperature : {0.0f, 1e-45f, 1e-4f, 0.8f, 1e38f})
    for (const float top_p : {0.0f, 1e-30f, 0.8f, 1.0f})
      for (const std::size_t top_k : {0u, 1u, 3u, 8u, 1000u}) all.push_back({temperature, top_p, top_k, 9});
  REQUIRE(all.size() == 100);
  for (const SamplingOptions& o : all) {
    CAPTURE(o.temperature, o.top_p, o.top_k);
    Sampler s = make(o, 8);
    const auto must = [&](const Floats& logits) {
      const auto token = s.sample(logits);
      REQUIRE((token && *token >= 0 && *token < 8));
      return *token;
    };
    for (std::size_t at = 0; at < 8; ++at) {
      Floats v{1, 5, 2, 4, -infinity, 3, 0, 5};
      v[at] = nan_value;
      const auto token = s.sample(v);
      REQUIRE_FALSE(token);
      REQUIRE(token.error().message.find("logits hold NaN, first at token " + std::to_string(at)) == 0);
    }
    const auto none = s.sample(Floats(8, -infinity));
    REQUIRE_FALSE(none);
    REQUIRE(none.error().message.find("-infinity") != std::string::npos);
    const bool greedy = o.temperature == 0 || o.top_p == 0 || o.top_k == 1;
    for (int i = 0; i < 20; ++i) {
      for (const float level : {0.0f, -0.0f, 1e-40f, 3e38f, -3e38f})
        if (const auto token = must(Floats(8, level)); greedy) REQUIRE(token == 0);
      REQUIRE(must(Floats{0, infinity, 0, 0, -infinity, 0, infinity, 0}) == 1);
      REQUIRE(must(Floats{-infinity, -infinity, -2, -infinity, -infinity, -infinity, -infinity, -infinity}) == 2);
      if (const auto token = must(Floats{-3e38f, 0, 3e38f, -infinity, 1, 2, 3, 4}); o.temperature < 1e37f)
        REQUIRE(token == 2);
      if (const auto token = must(Floats{1, 1, 1.01f, 1, 1, 1, 1, 1}); o.temperature <= 1e-4f) REQUIRE(token == 2);
    }
  }
}

TEST_CASE("a seed determines the tokens") {
  // Pinned: these are the same for both compilers, with and without fused arithmetic, on x86-64 and AArch64.
  const Floats logits = [] {
    Floats v(1000);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i * 7919 % 1000) / 128.0f;
    return v;
  }();
  const auto sequence = [&](const SamplingOptions& o) {
    Sampler s = make(o, logits.size());
    Ids ids;
    for (int i = 0; i < 12; ++i) ids.push_back(*s.sample(logits));
    return ids;
  };
  REQUIRE(sequence({.seed = 1}) == Ids{852, 889, 210, 247, 852, 963, 642, 247, 815, 210, 852, 531});
  REQUIRE(sequence({.temperature = 1.3f, .top_p = 0.9f, .top_k = 0, .seed = 2}) ==
          Ids{175, 311, 408, 373, 606, 186, 669, 667, 39, 840, 321, 915});
  REQUIRE(sequence({.temperature = 1, .top_p = 1, .top_k = 0, .seed = 3}) ==
          Ids{435, 852, 803, 420, 385, 224, 235, 235, 113, 347, 939, 25});
  REQUIRE(sequence({.seed = 1}) == sequence({.seed = 1}));
  REQUIRE(sequence({.seed = 1}) != sequence({.seed = 2}));

  Sampler s = make({}, logits.size());
  REQUIRE(s.sample(logits));
  Sampler copy = s;
  Floats broken = logits;
  broken[999] = nan_value;
  REQUIRE_FALSE(s.sample(broken));  // uses no random number
  for (int i = 0; i < 20; ++i) REQUIRE(*s.sample(logits) == *copy.sample(logits));
}

TEST_CASE("sampling allocates nothing") {
  const Floats logits = normal_logits(5000, 2, 1);
  for (const std::size_t top_k : {0u, 1u, 20u})
    for (const float top_p : {0.5f, 1.0f}) {
      Sampler s = make({1.0f, top_p, top_k, 1}, logits.size());
      REQUIRE(s.memory_bytes() <= logits.size() * 8);
      const std::size_t before = test::new_calls;
      for (int i = 0; i < 20; ++i)
        if (!s.sample(logits)) std::abort();
      REQUIRE(test::new_calls == before);
    }
}

namespace {

// A model without weights: it keeps its tokens, and a rule says what follows them. Same contract as Transformer.
class FakeModel {
 public:
  std::size_t vocab = 320, most = 64, batch = 4;
  Ids tokens;
  std::function<std::int32_t(const Ids&)> next = [](const Ids& t) { return (t.back() + 1) % 320; };
  std::function<void()> after_step = [] {};
  bool random_logits = false;  // from all tokens, for sampling; else 1 for next(tokens), 0 for the others
  bool flat = false;           // all 0, whatever the tokens
  bool broken = false;         // NaN

  FakeModel() : logits_(vocab, 0.0f) { tokens.reserve(most); }

  Expected<void> forward(std::span<const std::int32_t> in, std::size_t rows = 1,
                         const std::atomic<bool>* cancel = nullptr) {
    if (in.empty() || rows > 1) return fail(Errc::invalid_argument, "forward");
    if (in.size() > most - tokens.size()) return fail(Errc::context_full, "fake context");
    for (std::size_t done = 0; done < in.size(); done += batch) {
      if (cancel != nullptr && cancel->load()) return fail(Errc::cancelled, "fake cancel");
      const auto step = in.subspan(done, std::min(batch, in.size() - done));
      tokens.insert(tokens.end(), step.begin(), step.end());
      after_step();
    }
    set_logits();
    return {};
  }
  std::span<const float> logits() const { return logits_; }
  std::size_t position() const { return tokens.size(); }
  std::size_t context() const { return most; }
  Expected<void> rewind(std::size_t to) {
    if (to > tokens.size()) return fail(Errc::invalid_argument, "rewind");
    tokens.resize(to);
    std::fill(logits_.begin(), logits_.end(), nan_value);  // those of the past are not to be used again
    return {};
  }

 private:
  void set_logits() {
    std::fill(logits_.begin(), logits_.end(), broken ? nan_value : 0.0f);
    if (random_logits) {
      std::uint32_t h = 1;
      for (const std::int32_t t : tokens) h = h * 31 + static_cast<std::uint32_t>(t);
      for (float& v : logits_) v = static_cast<float>((h = h * 1664525 + 1013904223) >> 24) / 64.0f;
    } else if (!broken && !flat) {
      logits_[static_cast<std::size_t>(next(tokens))] = 1.0f;
    }
  }
  Floats logits_;
};

const SamplingOptions greedy{.temperature = 0};
const auto go_on = [](std::int32_t) { return true; };

Ids with(const Ids& a, const Ids& b) {
  Ids all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

}  // namespace

static_assert(TokenModel<FakeModel> && TokenModel<Transformer<RuntimeSpec>>);

TEST_CASE("generation streams tokens up to the limit") {
  FakeModel m;
  Ids seen;
  const auto r = generate(m, Ids{10, 11, 12}, {.sampling = greedy, .max_tokens = 5}, [&](std::int32_t t) {
    seen.push_back(t);
    return true;
  });
  REQUIRE(r);
  REQUIRE(seen == Ids{13, 14, 15, 16, 17});
  REQUIRE(r->reason == StopReason::max_tokens);
  REQUIRE(r->prompt_tokens == 3);
  REQUIRE(r->tokens == 5);
  REQUIRE(r->steps == 4);
  REQUIRE(r->stop_id == -1);
  REQUIRE(r->pending == 17);
  REQUIRE(r->prefill_seconds >= 0);
  REQUIRE(r->decode_seconds >= 0);
  REQUIRE(m.tokens == Ids{10, 11, 12, 13, 14, 15, 16});

  const auto none = generate(m, Ids{20}, {.max_tokens = 0}, go_on);
  REQUIRE(none);
  REQUIRE(none->tokens == 0);
  REQUIRE(none->pending == -1);
  REQUIRE(none->reason == StopReason::max_tokens);
  REQUIRE(m.tokens.back() == 20);
}

TEST_CASE("each stop token ends generation, unseen and pending") {
  for (const std::int32_t stop : {15, 16}) {
    FakeModel m;
    Ids seen;
    const auto r = generate(m, Ids{10, 11, 12}, {.sampling = greedy, .stop_ids = {200, stop, 17}}, [&](std::int32_t t) {
      seen.push_back(t);
      return true;
    });
    REQUIRE(r);
    REQUIRE(r->reason == StopReason::stop_token);
    REQUIRE(r->stop_id == stop);
    REQUIRE(r->pending == stop);
    REQUIRE(r->tokens == seen.size());
    REQUIRE(seen.back() == stop - 1);
    REQUIRE(m.tokens.back() == stop - 1);
    REQUIRE(r->steps == seen.size());
  }
  FakeModel m;
  const auto at_once = generate(m, Ids{10}, {.sampling = greedy, .stop_ids = {11}}, go_on);
  REQUIRE(at_once);
  REQUIRE(at_once->tokens == 0);
  REQUIRE(at_once->stop_id == 11);
}

TEST_CASE("a pause leaves no trace: pending goes first into the next prompt") {
  const GenerateOptions base{.sampling = {.temperature = 1, .top_p = 0.9f, .top_k = 0, .seed = 5}, .max_tokens = 20};
  const Ids prompt{1, 2, 3, 4, 5, 6};
  const auto run = [&](std::size_t first, bool cancel_it) {
    FakeModel m;
    m.random_logits = true;
    auto sampler = Sampler::create(base.sampling, m.vocab);
    REQUIRE(sampler);
    Ids seen;
    std::atomic<bool> cancel{false};
    GenerateOptions o = base;
    o.cancel = &cancel;
    if (!cancel_it) o.max_tokens = first;
    const auto one = generate(m, prompt, *sampler, o, [&](std::int32_t t) {
      seen.push_back(t);
      if (cancel_it && seen.size() == first) cancel = true;
      return true;
    });
    REQUIRE(one);
    REQUIRE(one->tokens == first);
    cancel = false;
    o.max_tokens = 20 - first;
    if (o.max_tokens > 0)
      REQUIRE(generate(m, Ids{one->pending}, *sampler, o, [&](std::int32_t t) {
        seen.push_back(t);
        return true;
      }));
    return std::pair(seen, m.tokens);
  };
  const auto whole = run(20, false);
  REQUIRE(whole.first.size() == 20);
  REQUIRE(std::set<std::int32_t>(whole.first.begin(), whole.first.end()).size() > 10);
  for (std::size_t first = 1; first < 20; ++first) REQUIRE(run(first, false) == whole);
  for (std::size_t first = 1; first < 20; ++first) REQUIRE(run(first, true) == whole);
}

TEST_CASE("the callback stops generation after any token") {
  for (int stop_after = 1; stop_after < 6; ++stop_after) {
    FakeModel m;
    int calls = 0;
    const auto r = generate(m, Ids{10}, {.sampling = greedy}, [&](std::int32_t) { return ++calls < stop_after; });
    REQUIRE(r);
    REQUIRE(r->reason == StopReason::callback);
    REQUIRE(calls == stop_after);
    REQUIRE(r->pending == 10 + stop_after);
    REQUIRE(m.position() == static_cast<std::size_t>(stop_after));
  }
}

TEST_CASE("a cancelled prompt can be gone on with") {
  // The flag is set after each of the prompt's steps in turn (0: before the first); steps are of 4 tokens.
  Ids prompt(18);
  std::iota(prompt.begin(), prompt.end(), 30);
  for (std::size_t after = 0; after <= 5; ++after) {
    FakeModel m;
    std::atomic<bool> cancel{after == 0};
    std::size_t steps = 0;
    m.after_step = [&] {
      if (++steps == after) cancel = true;
    };
    const GenerateOptions o{.sampling = greedy, .max_tokens = 3, .cancel = &cancel};
    bool called = false;
    const auto r = generate(m, prompt, o, [&](std::int32_t) { return called = true; });
    REQUIRE(r);
    REQUIRE(r->reason == StopReason::cancelled);
    REQUIRE_FALSE(called);
    REQUIRE(r->tokens == 0);
    REQUIRE(r->pending == -1);
    REQUIRE(r->prompt_tokens == std::min<std::size_t>(after * 4, 17));
    REQUIRE(m.position() == r->prompt_tokens);
    cancel = false;
    Ids seen;
    REQUIRE(generate(m, std::span(prompt).subspan(r->prompt_tokens), o, [&](std::int32_t t) {
      seen.push_back(t);
      return true;
    }));
    REQUIRE(seen == Ids{48, 49, 50});
    REQUIRE(m.tokens == with(prompt, {48, 49}));
  }
}

TEST_CASE("no token comes after the flag is set while the model works") {
  FakeModel m;
  std::atomic<bool> cancel{false};
  std::size_t steps = 0, calls = 0;
  m.after_step = [&] {
    if (++steps == 4) cancel = true;
  };
  const auto r =
      generate(m, Ids{10}, {.sampling = greedy, .cancel = &cancel}, [&](std::int32_t) { return ++calls > 0; });
  REQUIRE(r);
  REQUIRE(r->reason == StopReason::cancelled);
  REQUIRE(calls == 3);
  REQUIRE(r->tokens == 3);
  REQUIRE(r->pending == 13);
  REQUIRE(m.tokens == Ids{10, 11, 12});
}

TEST_CASE("another thread cancels") {
  FakeModel m;
  m.most = 1'000'000;
  std::atomic<bool> cancel{false}, running{false};
  m.after_step = [] { std::this_thread::sleep_for(std::chrono::microseconds(50)); };
  std::thread other([&] {
    while (!running) std::this_thread::yield();
    cancel = true;
  });
  const auto r =
      generate(m, Ids{10}, {.sampling = greedy, .max_tokens = 100'000, .cancel = &cancel}, [&](std::int32_t) {
        running = true;
        return true;
      });
  other.join();
  REQUIRE(r);
  REQUIRE(r->reason == StopReason::cancelled);
  REQUIRE(r->tokens >= 1);
  REQUIRE(m.position() == r->tokens);  // one of the prompt, and all tokens but the last
}

TEST_CASE("the end of the context is a reason, a prompt beyond it an error") {
  for (const std::size_t length : {15u, 16u, 17u}) {
    FakeModel m;
    m.most = 16;
    Ids prompt(length, 40);
    Ids seen;
    const auto r = generate(m, prompt, {.sampling = greedy}, [&](std::int32_t t) {
      seen.push_back(t);
      return true;
    });
    if (length == 17) {
      REQUIRE_FALSE(r);
      REQUIRE(r.error().code == Errc::context_full);
      REQUIRE(r.error().message.find("17 tokens") != std::string::npos);
      REQUIRE(r.error().message.find("16 of the context's 16") != std::string::npos);
      REQUIRE(m.position() == 0);
      REQUIRE(generate(m, Ids{1}, {.sampling = greedy, .max_tokens = 2}, go_on));
    } else {
      REQUIRE(r);
      REQUIRE(r->reason == StopReason::context_full);
      REQUIRE(seen.size() == 17 - length);
      REQUIRE(m.position() == 16);
      const auto more = generate(m, Ids{r->pending}, {.sampling = greedy}, go_on);
      REQUIRE_FALSE(more);
      REQUIRE(more.error().code == Errc::context_full);
      REQUIRE(m.position() == 16);
    }
  }
}

TEST_CASE("errors leave the context as it was") {
  FakeModel m;
  REQUIRE(m.forward(Ids{1, 2, 3}));
  const auto before = m.tokens;
  const auto code = [&](const Expected<GenerateResult>& r, const char* what) {
    REQUIRE_FALSE(r);
    CAPTURE(r.error().message);
    REQUIRE(r.error().message.find(what) != std::string::npos);
    REQUIRE(m.tokens == before);
    return r.error().code;
  };
  REQUIRE(code(generate(m, Ids{}, {}, go_on), "prompt") == Errc::invalid_argument);
  REQUIRE(code(generate(m, Ids{4}, {.sampling = {.temperature = -1}}, go_on), "temperature") == Errc::invalid_argument);
  REQUIRE(code(generate(m, Ids{4}, {.stop_ids = {3, 320}}, go_on), "stop_ids[1]: 320") == Errc::invalid_argument);
  REQUIRE(code(generate(m, Ids{4}, {.stop_ids = {-1}}, go_on), "stop_ids[0]: -1") == Errc::invalid_argument);
  m.broken = true;
  REQUIRE(code(generate(m, Ids{4}, {}, go_on), "NaN") == Errc::invalid_argument);
  m.broken = false;
  int calls = 0;
  const auto late = generate(m, Ids{4}, {.sampling = greedy}, [&](std::int32_t) {
    m.broken = ++calls == 3;
    return true;
  });
  REQUIRE(code(late, "NaN") == Errc::invalid_argument);
  REQUIRE(calls == 3);
}

TEST_CASE("generation with the caller's sampler allocates nothing") {
  FakeModel m;
  m.random_logits = true;
  Sampler sampler = make({}, m.vocab);
  const Ids prompt{1, 2, 3};
  const GenerateOptions o{.max_tokens = 30, .stop_ids = {}};
  const std::size_t before = test::new_calls;
  const auto r = generate(m, prompt, sampler, o, go_on);
  const std::size_t after = test::new_calls;
  REQUIRE(r);
  REQUIRE(r->tokens == 30);
  REQUIRE(after == before);
}

namespace {

// Ids 0..255 are the bytes, then ChatML's markers and end of text.
constexpr std::int32_t begin_id = 256, end_id = 257, text_end_id = 258;
Tokenizer byte_tokenizer() {
  std::vector<std::string> spelled;
  for (int b = 0; b < 256; ++b) spelled.push_back(spell_byte(static_cast<unsigned char>(b)));
  for (const char* marker : {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}) spelled.emplace_back(marker);
  TokenizerData d;
  d.tokens.assign(spelled.begin(), spelled.end());
  d.types.assign(256, TokenType::normal);
  d.types.resize(259, TokenType::control);
  d.pre = "gpt-2";
  d.eos = text_end_id;
  auto t = Tokenizer::create(d);
  REQUIRE(t);
  return std::move(*t);
}

// Answers the n-th question of the conversation with the n-th reply, token by token.
struct ChatModel : FakeModel {
  explicit ChatModel(std::vector<Ids> all) : replies(std::move(all)) {
    most = 1000;
    batch = 16;
    next = [this](const Ids& t) {
      const std::string mark = "assistant\n";
      std::size_t count = 0, start = 0;
      for (std::size_t i = 0; i + mark.size() < t.size(); ++i)
        if (t[i] == begin_id && std::equal(mark.begin(), mark.end(), t.begin() + static_cast<std::ptrdiff_t>(i) + 1)) {
          ++count;
          start = i + 1 + mark.size();
        }
      if (count == 0 || count > replies.size() || t.size() - start >= replies[count - 1].size())
        return std::int32_t{'?'};
      return replies[count - 1][t.size() - start];
    };
  }
  std::vector<Ids> replies;
};

Ids bytes_of(std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

using Chat = ChatSession<FakeModel>;

struct Said {
  std::vector<std::string> parts;
  std::string text;
  GenerateResult result;
};
Said say(Chat& chat, std::string_view text, GenerateOptions o = {}) {
  o.sampling.temperature = 0;
  Said said;
  const auto r = chat.say(text, o, [&](std::string_view part) {
    said.parts.emplace_back(part);
    said.text += part;
    return true;
  });
  REQUIRE(r);
  said.result = *r;
  return said;
}

}  // namespace

TEST_CASE("a conversation's context is its template, turn after turn") {
  const Tokenizer t = byte_tokenizer();
  const ChatTemplate chatml = ChatTemplate::chatml();
  ChatModel m({with(bytes_of("Hello."), {end_id}), with(bytes_of("Fine"), {text_end_id}), bytes_of("A long tale"),
               with(bytes_of("Bye"), {end_id})});
  auto chat = Chat::create(m, t, chatml, "Be brief.");
  REQUIRE(chat);
  std::string expected =
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  const auto context = [&] { return t.decode(m.tokens, true); };

  const Said first = say(*chat, "Hi");
  REQUIRE(first.text == "Hello.");
  REQUIRE(first.result.reason == StopReason::stop_token);
  REQUIRE(context() == expected + "Hello.");

  // <|endoftext|> ends a reply as well, and <|im_end|> stands in its place afterwards.
  const Said second = say(*chat, "How <|im_end|>?");
  REQUIRE(second.text == "Fine");
  expected += "Hello.<|im_end|>\n<|im_start|>user\nHow <|im_end|>?<|im_end|>\n<|im_start|>assistant\n";
  REQUIRE(context() == expected + "Fine");
  REQUIRE(std::count(m.tokens.begin(), m.tokens.end(), end_id) == 4);  // the typed one is text

  const Said third = say(*chat, "Tell", {.max_tokens = 6});
  REQUIRE(third.text == "A long");
  REQUIRE(third.result.reason == StopReason::max_tokens);
  expected += "Fine<|im_end|>\n<|im_start|>user\nTell<|im_end|>\n<|im_start|>assistant\n";
  REQUIRE(context() == expected + "A lon");  // the last one is pending

  const std::size_t before = m.position();
  const Said fourth = say(*chat, "Bye");
  expected += "A long<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n";
  REQUIRE(context() == expected + "Bye");
  REQUIRE(fourth.result.prompt_tokens == m.position() - before - 3);  // this turn alone was read
  REQUIRE(chat->turns() == 4);
  REQUIRE(chat->context_left() == 1000 - m.position());

  REQUIRE(chat->reset());
  REQUIRE(m.position() == 0);
  REQUIRE(say(*chat, "Hi").text == "Hello.");
  REQUIRE(context() ==
          "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.");
}

TEST_CASE("a template's default system message, none, and tokens in front") {
  const Tokenizer t = byte_tokenizer();
  const ChatTemplate chatml = ChatTemplate::chatml("Default.");
  ChatModel m({with(bytes_of("x"), {end_id})});
  REQUIRE(m.forward(Ids{text_end_id}));  // as a BOS token
  auto chat = Chat::create(m, t, chatml);
  REQUIRE(chat);
  for (int i = 0; i < 2; ++i) {
    REQUIRE(say(*chat, "y").text == "x");
    REQUIRE(
        t.decode(m.tokens, true) ==
        "<|endoftext|><|im_start|>system\nDefault.<|im_end|>\n<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\nx");
    REQUIRE(chat->reset());
    REQUIRE(m.position() == 1);
  }
}

TEST_CASE("text is streamed in whole characters") {
  const Tokenizer t = byte_tokenizer();
  const ChatTemplate chatml = ChatTemplate::chatml();
  const std::string text = "a\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x98\x80!";
  ChatModel m(
      {with(bytes_of(text), {end_id}), with(bytes_of("b\xff\xe4\xbd"), {end_id}), bytes_of("c\xf0\x9f\x98\x80")});
  auto chat = Chat::create(m, t, chatml);
  REQUIRE(chat);
  const Said whole = say(*chat, "1");
  REQUIRE(whole.parts == std::vector<std::string>{"a", "\xc3\xa9", "\xe4\xbd\xa0", "\xf0\x9f\x98\x80", "!"});
  REQUIRE(whole.result.tokens == text.size());
  // Bytes that are no text, and a character that the reply's end cuts.
  REQUIRE(say(*chat, "2").parts == std::vector<std::string>{"b", "\xef\xbf\xbd", "\xef\xbf\xbd"});
  // Cut by the limit; nothing of it gets into the next reply.
  REQUIRE(say(*chat, "3", {.max_tokens = 3}).parts == std::vector<std::string>{"c", "\xef\xbf\xbd"});
  REQUIRE(say(*chat, "4", {.max_tokens = 2}).text == "??");
}

TEST_CASE("a turn that does not fit changes nothing") {
  const Tokenizer t = byte_tokenizer();
  const ChatTemplate chatml = ChatTemplate::chatml();
  ChatModel m({with(bytes_of("Hello"), {end_id}), with(bytes_of("Yes"), {end_id})});
  m.most = 100;
  auto chat = Chat::create(m, t, chatml);
  REQUIRE(chat);
  REQUIRE(say(*chat, "Hi").text == "Hello");
  const Ids before = m.tokens;
  const auto r = chat->say(std::string(80, 'x'), {}, [](std::string_view) { return true; });
  REQUIRE_FALSE(r);
  REQUIRE(r.error().code == Errc::context_full);
  REQUIRE(r.error().message.find(std::to_string(100 - before.size()) + " of the context's 100 are left") !=
          std::string::npos);
  REQUIRE(m.tokens == before);
  REQUIRE(chat->turns() == 1);
  REQUIRE(say(*chat, "?").text == "Yes");
  // The end of the context in the middle of a reply.
  m.most = m.position() + 40;
  m.next = [](const Ids&) { return std::int32_t{'z'}; };
  const Said last = say(*chat, "go");
  REQUIRE(last.result.reason == StopReason::context_full);
  REQUIRE(m.position() == m.most);
  REQUIRE_FALSE(chat->say("more", {}, [](std::string_view) { return true; }));
  REQUIRE(chat->reset());
  REQUIRE(say(*chat, "go", {.max_tokens = 2}).text == "zz");
}

TEST_CASE("a turn cancelled before its reply was never said, one cancelled later stays") {
  const Tokenizer t = byte_tokenizer();
  const ChatTemplate chatml = ChatTemplate::chatml();
  ChatModel m(
      {with(bytes_of("Hello"), {end_id}), with(bytes_of("Second reply"), {end_id}), with(bytes_of("Third"), {end_id})});
  auto chat = Chat::create(m, t, chatml);
  REQUIRE(chat);
  REQUIRE(say(*chat, "Hi").text == "Hello");
  const Ids before = m.tokens;

  std::atomic<bool> cancel{false};
  std::size_t steps = 0;
  m.after_step = [&] { cancel = ++steps == 2; };
  const Said never = say(*chat, "A question of more than sixteen tokens", {.cancel = &cancel});
  REQUIRE(never.result.reason == StopReason::cancelled);
  REQUIRE(never.text.empty());
  REQUIRE(m.tokens == before);
  REQUIRE(chat->turns() == 1);

  m.after_step = [] {};
  cancel = false;
  const auto later = chat->say("two", {.sampling = greedy, .cancel = &cancel},
                               [&](std::string_view part) { return cancel = part == "d", true; });
  REQUIRE(later);
  REQUIRE(later->reason == StopReason::cancelled);
  REQUIRE(later->tokens == 6);
  REQUIRE(chat->turns() == 2);
  cancel = false;
  const auto stopped = chat->say("three", {.sampling = greedy}, [](std::string_view part) { return part != "i"; });
  REQUIRE(stopped);
  REQUIRE(stopped->reason == StopReason::callback);
  REQUIRE(say(*chat, "four", {.max_tokens = 1}).text == "?");
  REQUIRE(t.decode(m.tokens, true) ==
          "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
          "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\nSecond<|im_end|>\n"
          "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\nThi<|im_end|>\n"
          "<|im_start|>user\nfour<|im_end|>\n<|im_start|>assistant\n");
}

TEST_CASE("a caller's own stop token is left out, and errors are typed") {
  const Tokenizer t = byte_tokenizer();
  const ChatTemplate chatml = ChatTemplate::chatml();
  ChatModel m({bytes_of("One\nTwo"), with(bytes_of("x"), {end_id})});
  auto chat = Chat::create(m, t, chatml);
  REQUIRE(chat);
  const Said line = say(*chat, "a", {.stop_ids = {'\n'}});
  REQUIRE(line.text == "One");
  REQUIRE(line.result.stop_id == '\n');
  REQUIRE(say(*chat, "b").text == "x");
  REQUIRE(t.decode(m.tokens, true).find("assistant\nOne<|im_end|>\n<|im_start|>user\nb") != std::string::npos);

  REQUIRE(m.rewind(5));
  const auto moved = chat->say("c", {}, [](std::string_view) { return true; });
  REQUIRE_FALSE(moved);
  REQUIRE(moved.error().message.find("holds 5 tokens") != std::string::npos);
  REQUIRE(chat->reset());
  REQUIRE(say(*chat, "c", {.stop_ids = {'\n'}}).text == "One");

  FakeModel tiny;
  tiny = m;
  TokenizerData d;
  std::vector<std::string> spelled;
  for (int b = 0; b < 256; ++b) spelled.push_back(spell_byte(static_cast<unsigned char>(b)));
  d.tokens.assign(spelled.begin(), spelled.end());
  d.pre = "gpt-2";
  const auto plain = Tokenizer::create(d);
  REQUIRE(plain);
  const auto none = Chat::create(tiny, *plain, chatml);
  REQUIRE_FALSE(none);
  REQUIRE(none.error().code == Errc::unsupported);
}

TEST_CASE("turns draw differently, conversations of one seed alike") {
  const Tokenizer t = byte_tokenizer();
  const ChatTemplate chatml = ChatTemplate::chatml();
  FakeModel m;
  m.most = 1000;
  m.flat = true;  // the draws alone make the difference
  auto chat = Chat::create(m, t, chatml);
  REQUIRE(chat);
  const auto turn = [&](std::uint64_t seed) {
    std::string text;
    REQUIRE(chat->say("x", {.sampling = {.temperature = 2, .top_p = 1, .top_k = 0, .seed = seed}, .max_tokens = 20},
                      [&](std::string_view part) {
                        text += part;
                        return true;
                      }));
    return text;
  };
  const std::string a = turn(1), b = turn(1);
  REQUIRE(a != b);
  REQUIRE(chat->reset());
  REQUIRE(turn(1) == a);
  REQUIRE(turn(1) == b);
  REQUIRE(chat->reset());
  REQUIRE(turn(2) != a);
}
