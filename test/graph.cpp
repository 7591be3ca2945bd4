// The transformer against the float64 graph of pocket/validate: every instruction set, both activation forms, all
// weight formats, several shapes; and deliberate faults, which must be seen.
//
// What error is expected, relative to the norm, with every quantity of the order of its norm (the fixture sees to it):
//   A16: a group of 64 normal values has a maximum of about 2.6 deviations, so codes of step max/32639 are off by
//     e = 2.6 / (32639 * sqrt(12)) = 2.3e-5 in each projection. K and V are float16 in both graphs, but a value that
//     differs by e lands on another float16 (spacing u, about 7e-4 of the value) in e/u of the cases: sqrt(e * u)
//     = 1.3e-4, once through V and once through the scores, which is the largest part. Later layers pass it on (a
//     score's error is the sum of q's and k's) and add their own, in squares: 1.8e-4 * sqrt(layers), 2.5e-4 to 3.2e-4
//     here. Measured: 1.5e-4 to 3.8e-4, the most in 48 columns with three layers.
//   A8: the step is max/127: 2.6 / (127 * sqrt(12)) = 5.9e-3 a projection. A layer has two of them in a row in the
//     attention branch, where q, k and v all carry it, and three in the feed-forward branch: about sqrt(7) * 5.9e-3
//     diluted by what the other layers add, and the logits' own: 2e-2 to 3e-2. Measured: 1.9e-2 to 2.9e-2.
// Bounds: about three times that for all rows together, twice more for the worst single row.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model_fixture.hpp"
#include "pocket/backend/cpu.hpp"
#include "pocket/core/executor.hpp"
#include "pocket/model/transformer.hpp"
#include "reference.hpp"

using namespace pocket;
using namespace test;
using Session = Transformer<RuntimeSpec>;

namespace {

constexpr double bound_a16 = 1e-3, bound_a8 = 8e-2;

// Over any number of rows: ||y - r|| / ||r|| and max|y - r| / max|r|; and the first of them for the worst single row.
// NaN counts as infinitely wrong.
class Difference {
 public:
  void add(std::span<const float> y, const Matrix64& reference, std::size_t row) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double r = reference(static_cast<Eigen::Index>(row), static_cast<Eigen::Index>(i));
      double e = std::fabs(static_cast<double>(y[i]) - r);
      if (!std::isfinite(e)) e = HUGE_VAL;
      error += e * e;
      norm += r * r;
      largest_error_ = (std::max)(largest_error_, e);
      largest_ = (std::max)(largest_, std::fabs(r));
    }
    error_ += error;
    norm_ += norm;
    worst_row_ = (std::max)(worst_row_, std::sqrt(error / norm));
  }
  double relative() const { return std::sqrt(error_ / norm_); }
  double largest() const { return largest_error_ / largest_; }
  double worst_row() const { return worst_row_; }

 private:
  double error_ = 0, norm_ = 0, largest_error_ = 0, largest_ = 0, worst_row_ = 0;
};

// The last token's row after prompts of these lengths, and every position's row of the whole prompt.
Difference measure(Session& session, std::span<const std::int32_t> tokens, const Matrix64& reference) {
  Difference d;
  for (const std::size_t n : {1u, 2u, 17u, 64u}) {
    if (n >= tokens.size()) break;
    REQUIRE(session.rewind(0));
    REQUIRE(session.forward(tokens.first(n)));
    d.add(session.logits(), reference, n - 1);
  }
  REQUIRE(session.rewind(0));
  REQUIRE(session.forward(tokens, tokens.size()));
  for (std::size_t i = 0; i < tokens.size(); ++i) d.add(session.logits(i), reference, i);
  return d;
}

void check_against_reference(const std::string& name, const RuntimeSpec& spec, const ModelFormats& formats,
                             std::size_t length, std::uint64_t seed) {
  if (slow && spec.hidden > 100) length = 24;
  const RandomModel model(spec, formats, seed);
  const auto tokens = random_tokens(length, spec.vocab, seed + 1);
  const Matrix64 reference = reference_logits(reference_weights(spec, model.weights()), tokens);
  REQUIRE(reference.allFinite());
  const auto pool = value(ThreadPool::create(2));
  int cases = 0;
  for (const Kernels* kernels : runnable_kernels())
    for (const ActivationForm form : {ActivationForm::a16, ActivationForm::a8}) {
      const SessionShape shape{.context = length, .batch = 64, .logit_rows = length, .activations = form};
      auto session = value(Session::create(spec, model.weights(), shape, {pool.get(), kernels, {}}));
      const Difference d = measure(session, tokens, reference);
      std::printf("%-21s %-8s %-3s  relative %.2e  largest %.2e  worst row %.2e\n", name.c_str(), kernels->name,
                  name_of(form), d.relative(), d.largest(), d.worst_row());
      CAPTURE(name, kernels->name, name_of(form), d.relative(), d.largest(), d.worst_row());
      const double bound = form == ActivationForm::a16 ? bound_a16 : bound_a8;
      CHECK(d.relative() < bound);
      CHECK(d.largest() < bound);
      CHECK(d.worst_row() < 2 * bound);
      ++cases;
    }
  REQUIRE(cases >= 2);
}

// Shapes: layers, hidden, heads, KV heads, head_dim, ffn, vocab, positions, qk_norm. Fewer layers, narrower
// feed-forward and a smaller vocabulary than the real models.
constexpr RuntimeSpec pocket_like{2, 896, 14, 2, 64, 448, 300, 4096, true};
constexpr RuntimeSpec head_128{1, 1024, 16, 8, 128, 384, 200, 4096, true};
constexpr RuntimeSpec llama_like{2, 576, 9, 3, 64, 384, 200, 4096, false};
constexpr RuntimeSpec odd{3, 48, 3, 1, 16, 80, 77, 4096, true};

}  // namespace

TEST_CASE("the oracle's float16 is that of the format") {
  for (unsigned b = 0; b < 0x7c00u; ++b) {
    REQUIRE(f16_value(b) == static_cast<double>(to_float(f16{static_cast<std::uint16_t>(b)})));
    REQUIRE(round_to_f16(f16_value(b)) == f16_value(b));
    const double middle = b + 1 < 0x7c00u ? (f16_value(b) + f16_value(b + 1)) / 2 : 65520.0;
    REQUIRE(round_to_f16(middle * (1 + 1e-9)) == f16_value(b + 1));
    REQUIRE(round_to_f16(middle * (1 - 1e-9)) == f16_value(b));
    REQUIRE(round_to_f16(-middle) == -f16_value(b % 2 == 0 ? b : b + 1));
  }
}

TEST_CASE("the oracle's dequantisation agrees with the library's to float32's rounding") {
  for (const auto& f : {ModelFormats::all(WeightFormat::w4_g64), ModelFormats::all(WeightFormat::w4_g64, 8),
                        ModelFormats::all(WeightFormat::w4_g32, 8), ModelFormats::all(WeightFormat::w8_g32)}) {
    const RandomModel model(odd, f, 3);
    const PackedMatrix& w = model.weights().layers[1].down;
    const Matrix64 plain = rows_of(reference_matrix(w));
    std::vector<float> row(w.k);
    for (std::size_t n = 0; n < w.n; ++n) {
      dequantize_row(w, n, row.data());
      for (std::size_t k = 0; k < w.k; ++k)
        REQUIRE(static_cast<double>(row[k]) ==
                Approx(plain(static_cast<Eigen::Index>(n), static_cast<Eigen::Index>(k))).margin(1e-6).epsilon(0));
    }
  }
}

TEST_CASE("logits: the shape of MNN-Pocket-0.3B, group 64") {
  check_against_reference("pocket w4_g64", pocket_like, ModelFormats::all(WeightFormat::w4_g64), 300, 11);
}

TEST_CASE("logits: head_dim 128 with 16/8 heads, group 32 with offset 8") {
  check_against_reference("head_128 w4_g32 o=8", head_128, ModelFormats::all(WeightFormat::w4_g32, 8), 270, 12);
}

TEST_CASE("logits: a llama-like shape without q and k norms, mixed formats") {
  const MatrixFormat g32{WeightFormat::w4_g32, 0}, g32_8{WeightFormat::w4_g32, 8}, w8{WeightFormat::w8_g32, 0};
  check_against_reference("llama mixed", llama_like, {w8, g32, g32_8, g32, w8}, 300, 13);
}

TEST_CASE("logits: a tiny odd shape, every format") {
  check_against_reference("odd w4_g64", odd, ModelFormats::all(WeightFormat::w4_g64), 300, 14);
  check_against_reference("odd w4_g64 o=8", odd, ModelFormats::all(WeightFormat::w4_g64, 8), 300, 15);
  check_against_reference("odd w4_g32", odd, ModelFormats::all(WeightFormat::w4_g32), 300, 16);
  check_against_reference("odd w4_g32 o=8", odd, ModelFormats::all(WeightFormat::w4_g32, 8), 300, 17);
  check_against_reference("odd w8_g32", odd, ModelFormats::all(WeightFormat::w8_g32), 300, 18);
}

namespace {

ReferenceMatrix heads_moved_by_one(const ReferenceMatrix& m, std::size_t head_dim) {
  return permuted(m, [n = m.n, head_dim](std::size_t r) { return (r + head_dim) % n; });
}

struct Fault {
  const char* name;
  std::function<void(ReferenceLayer&, ReferenceWeights&)> make;
};

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = {
      {"interleaved rotary embedding",
       [](ReferenceLayer& l, ReferenceWeights& w) { interleave_rotary(l, w.spec.head_dim); }},
      {"no q norm", [](ReferenceLayer& l, ReferenceWeights&) { l.q_norm.clear(); }},
      {"no k norm", [](ReferenceLayer& l, ReferenceWeights&) { l.k_norm.clear(); }},
      {"q norm without its weights",
       [](ReferenceLayer& l, ReferenceWeights&) { l.q_norm.assign(l.q_norm.size(), 1.0); }},
      {"KV head off by one",
       [](ReferenceLayer& l, ReferenceWeights& w) {
         l.k = heads_moved_by_one(l.k, w.spec.head_dim);
         l.v = heads_moved_by_one(l.v, w.spec.head_dim);
       }},
      {"query heads in another order",
       [](ReferenceLayer& l, ReferenceWeights& w) { l.q = heads_moved_by_one(l.q, w.spec.head_dim); }},
      {"gate and up exchanged", [](ReferenceLayer& l, ReferenceWeights&) { std::swap(l.gate, l.up); }},
      {"the two norms of a layer exchanged",
       [](ReferenceLayer& l, ReferenceWeights&) { l.attention_norm.swap(l.ffn_norm); }},
      {"another rotary base", [](ReferenceLayer&, ReferenceWeights& w) { w.rope_base = 1e4; }},
      {"another epsilon", [](ReferenceLayer&, ReferenceWeights& w) { w.rms_epsilon = 1e-2; }},
      {"no scaling of scores",
       [](ReferenceLayer& l, ReferenceWeights& w) {
         for (double& g : l.q_norm) g *= std::sqrt(static_cast<double>(w.spec.head_dim));
       }},
  };
  return all;
}

constexpr RuntimeSpec faulty_spec{3, 128, 6, 3, 32, 160, 100, 4096, true};

}  // namespace

TEST_CASE("faults in the graph are far above the bound") {
  const RandomModel model(faulty_spec, ModelFormats::all(WeightFormat::w4_g64), 21);
  const auto tokens = random_tokens(40, faulty_spec.vocab, 22);
  SerialExecutor serial;
  const SessionShape shape{.context = 40, .batch = 40, .logit_rows = 40};
  auto session = value(Session::create(faulty_spec, model.weights(), shape, {&serial, nullptr, {}}));
  const ReferenceWeights right = reference_weights(faulty_spec, model.weights());
  const double correct = measure(session, tokens, reference_logits(right, tokens)).relative();
  std::printf("%-40s %.2e\n", "no fault", correct);
  CHECK(correct < bound_a16);
  for (const Fault& fault : faults()) {
    ReferenceWeights wrong = right;
    for (ReferenceLayer& layer : wrong.layers) fault.make(layer, wrong);
    const double error = measure(session, tokens, reference_logits(wrong, tokens)).relative();
    std::printf("%-40s %.2e\n", fault.name, error);
    CAPTURE(fault.name, error);
    CHECK(error > 10 * bound_a16);
  }
}

TEST_CASE("one wrong nibble, one exchanged token are seen") {
  const RandomModel model(faulty_spec, ModelFormats::all(WeightFormat::w4_g64), 23);
  auto tokens = random_tokens(40, faulty_spec.vocab, 24);
  SerialExecutor serial;
  const SessionShape shape{.context = 40, .batch = 40, .logit_rows = 40};
  auto session = value(Session::create(faulty_spec, model.weights(), shape, {&serial, nullptr, {}}));
  const Matrix64 reference = reference_logits(reference_weights(faulty_spec, model.weights()), tokens);
  REQUIRE(measure(session, tokens, reference).relative() < bound_a16);

  auto* tiles = const_cast<std::byte*>(model.weights().layers[0].down.tiles);
  tiles[64] ^= std::byte{8};  // the fixture's own memory: row 0, column 0, half of the code's range
  const double nibble = measure(session, tokens, reference).relative();
  std::printf("%-40s %.2e\n", "one nibble", nibble);
  CHECK(nibble > 3 * bound_a16);
  tiles[64] ^= std::byte{8};
  CHECK(measure(session, tokens, reference).relative() < bound_a16);

  std::swap(tokens[3], tokens[4]);
  REQUIRE(session.rewind(0));
  REQUIRE(session.forward(tokens));
  Difference exchanged;
  exchanged.add(session.logits(), reference, 39);
  CHECK(exchanged.relative() > 3 * bound_a16);
}
