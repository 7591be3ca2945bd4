// pocket/files/hf_model.hpp against Transformers: two directories that it wrote (test/peer/hf_model.py), with the
// logits that it computes from them. What else such a directory may hold: hf_directory.cpp.
//
// Before quantisation: the float64 graph of pocket/validate over the file's values. Distances are relative to the
// norm of all logits.
//   float64: the same formulas, but for sums in another order (1e-13) and the norms' epsilon, which we keep in float32:
//     off by up to 6e-8 of itself, and 1e-5 of them beside a mean square of 1/80 makes 2e-11. Bound 1e-10. Measured:
//     2.1e-13 (epsilon 1e-6) and 3.8e-11 for the worst row.
//   float32: Transformers' rotary angles are float32 products with float32 frequencies: off by about 6e-8 of an angle
//     of up to 23, 1e-6. Everything else rounds by 3e-8, some ten times on the way. Bound 1e-5. Measured: 1.3e-6.
//   low (BF16, F16): every result is rounded. To BF16 that is e = 1.6e-3 of the value, root mean square (a step of
//     2^-7 over sqrt(12), for values of 1 to 2, 1.44 on average). q and k go through some seven
//     roundings each (norm, projection, norm, rotation), so that scores of deviation 2 are off by 2 sqrt(14) e = 7.5 e,
//     and with them the attention's output; the feed-forward branch adds sqrt(8) e. With each branch about half of the
//     square, sqrt((7.5^2 + 8) / 2) = 5.7 e, later layers passing it on and adding their own: 5.7 e sqrt(layers) =
//     1.6e-2 for the three layers in BF16, and in F16 (e/8) 1.6e-3 for the two. Measured: 1.8e-2 and 2.2e-3.
//     Bounds: about twice the expected, 4e-2 and 4e-3.
//
// After: our transformer against the graph over the dequantised weights, with the bounds of graph.cpp (1e-3 for A16,
// 8e-2 for A8, twice that for one row; derived there; measured: 3e-4 to 5.4e-4, 2.8e-2 to 3.8e-2). Hence its distance
// from Transformers is that of this graph, which shares nothing with our kernels, and at most as much more. The graph's
// own distance is the quantisation. A weight is off by a step over sqrt(12), and a product by as large a part of
// itself:
//   w8_g32: 2.3 deviations / 127 / sqrt(12) = 5e-3, as in graph.cpp's A8, and as there the logits are off by some five
//     times that. Bound 8e-2. Measured: 3.0e-2 and 3.6e-2.
//   w4_g64, w4_g32: a range of 4.8 (4.1) deviations in 15 steps, 9e-2 (8e-2), 18 (15) times as much as the 8 bits: 0.45
//     to 0.65 by min/max, of which the search leaves 0.9. Bound 0.7. Measured: 0.36 to 0.49. These weights are random:
//     nothing in them is redundant, as it is in a trained model.
#include "pocket/files/hf_model.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
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

constexpr double bound_f64 = 1e-10, bound_f32 = 1e-5, bound_bf16 = 4e-2, bound_f16 = 4e-3;
constexpr double bound_a16 = 1e-3, bound_a8 = 8e-2, bound_w8 = 8e-2, bound_w4 = 0.7;

template <class List>
auto& named(List& list, const std::string& name) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const auto& x) { return x.name == name; });
  if (at == list.end()) throw std::runtime_error("the source has no " + name);
  return *at;
}

constexpr ReferenceOptions unrounded{.kv_f16 = false, .activations = {}};

// ||a - b|| / ||b|| over all rows, and of the worst row. NaN counts as infinitely far.
struct Distance {
  double all = 0, worst_row = 0;
};
double ratio(double a, double b) { return std::isfinite(a / b) ? a / b : HUGE_VAL; }
Distance distance(const Matrix64& a, const Matrix64& b) {
  REQUIRE(a.rows() == b.rows());
  REQUIRE(a.cols() == b.cols());
  Distance d{ratio((a - b).norm(), b.norm()), 0};
  for (Eigen::Index i = 0; i < a.rows(); ++i)
    d.worst_row = (std::max)(d.worst_row, ratio((a.row(i) - b.row(i)).norm(), b.row(i).norm()));
  return d;
}

}  // namespace

TEST_CASE("before quantisation: the file's values in the float64 graph give Transformers' logits") {
  for (const char* const name : {"qwen3", "llama"}) {
    const Golden golden = golden_of(name);
    REQUIRE(golden.tokens.size() == 24);
    const Matrix64 logits = reference_logits(HfReference(name).weights, golden.tokens, unrounded);
    // Logits that nearly agree for any model would prove nothing.
    REQUIRE(golden.f64.norm() > std::sqrt(static_cast<double>(golden.f64.size())));
    const Distance f64 = distance(logits, golden.f64), f32 = distance(golden.f32, logits),
                   low = distance(golden.low, logits);
    std::printf(
        "%s, from the float64 graph: Transformers in float64 %.2g, worst row %.2g; float32 %.2g, %.2g; %s "
        "%.2g, %.2g\n",
        name, f64.all, f64.worst_row, f32.all, f32.worst_row, name == std::string("qwen3") ? "BF16" : "F16", low.all,
        low.worst_row);
    CAPTURE(name, f64.worst_row, f32.all, low.all);
    const double bound_low = name == std::string("qwen3") ? bound_bf16 : bound_f16;
    CHECK(f64.worst_row < bound_f64);
    CHECK(f32.all < bound_f32);
    CHECK(f32.worst_row < 2 * bound_f32);
    CHECK(low.all < bound_low);
    CHECK(low.worst_row < 2 * bound_low);
  }
}

namespace {

struct Fault {
  const char* name;
  bool llama;  // possible there too
  std::function<void(ReferenceWeights&, ReferenceLayer&)> make;
};
const Fault faults[] = {
    {"rows of q and k exchanged", true,
     [](ReferenceWeights&, ReferenceLayer& l) {
       const ReferenceMatrix q = l.q, k = l.k;
       l.k.read = q.read;
       l.q.read = [q, k](std::size_t r, double* out) { (r < k.n ? k : q).read(r, out); };
     }},
    {"k and v exchanged", true, [](ReferenceWeights&, ReferenceLayer& l) { std::swap(l.k, l.v); }},
    {"no q and k norms", false,
     [](ReferenceWeights&, ReferenceLayer& l) {
       l.q_norm.clear();
       l.k_norm.clear();
     }},
    {"q and k norm exchanged", false, [](ReferenceWeights&, ReferenceLayer& l) { l.q_norm.swap(l.k_norm); }},
    {"interleaved rotary embedding", true,
     [](ReferenceWeights& w, ReferenceLayer& l) { interleave_rotary(l, w.spec.head_dim); }},
    {"another rotary base", true, [](ReferenceWeights& w, ReferenceLayer&) { w.rope_base = 5e5; }},
    {"gate and up exchanged", true, [](ReferenceWeights&, ReferenceLayer& l) { std::swap(l.gate, l.up); }},
    {"the norms of a layer exchanged", true,
     [](ReferenceWeights&, ReferenceLayer& l) { l.attention_norm.swap(l.ffn_norm); }},
    {"the output norm is a layer's", true, [](ReferenceWeights& w, ReferenceLayer& l) { w.output_norm = l.ffn_norm; }},
};

}  // namespace

TEST_CASE("before quantisation: what a loader could get wrong is far outside the bounds") {
  for (const char* const name : {"qwen3", "llama"}) {
    const Golden golden = golden_of(name);
    const HfReference right(name);
    const auto see = [&](const char* fault, const ReferenceWeights& wrong, double bound) {
      const double error = distance(reference_logits(wrong, golden.tokens, unrounded), golden.f64).all;
      std::printf("%-6s %-32s %.2e\n", name, fault, error);
      CAPTURE(name, fault, error);
      CHECK(error > bound);
    };
    for (const Fault& fault : faults) {
      if (!fault.llama && right.weights.layers[0].q_norm.empty()) continue;
      ReferenceWeights wrong = right.weights;
      for (ReferenceLayer& layer : wrong.layers) fault.make(wrong, layer);
      see(fault.name, wrong, 2 * bound_bf16);
    }
    ReferenceWeights wrong = right.weights;
    wrong.rms_epsilon = wrong.rms_epsilon > 5e-6 ? 1e-6 : 1e-5;
    see("another epsilon", wrong, 1e6 * bound_f64);
    wrong = right.weights;
    wrong.head = permuted(wrong.head, [](std::size_t r) { return r == 7 ? 8u : r == 8 ? 7u : r; });
    see("two rows of the head exchanged", wrong, bound_bf16);
  }
}

// Every group, from the file's values alone. In 4 bits the sum of squared errors is at most min/max's, where each is at
// most half a step: the group's range over 15 (in 8 bits its largest magnitude over 127, and each weight for itself),
// where the minimum was rounded down and the step up to float16 (2^-10 at most, 2^-24 near zero).
TEST_CASE("after quantisation: every group is within half a step of the file's, norms are the file's") {
  for (const char* const name : {"qwen3", "llama"})
    for (const WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32}) {
      const auto directory = value(HfDirectory::open(hf_fixture(name)));
      const auto source = value(hf_source(directory, format));
      SerialExecutor serial;
      LoadedModel model = value(load_model(source, serial));
      REQUIRE(model.quantized_here);
      const Eigen::Index group = format == WeightFormat::w4_g64 ? 64 : 32;
      std::size_t matrices = 0, vectors = 0, outside = 0;
      const auto matrix = [&](const std::string& tensor, PackedMatrix& w, std::size_t, std::size_t) -> Expected<void> {
        REQUIRE(w.format == format);
        const Matrix64 want = rows_of(reference_matrix(named(source.matrices, tensor)));
        const Matrix64 got = rows_of(reference_matrix(w));
        REQUIRE(got.cols() == want.cols());
        for (Eigen::Index k = 0; k < want.cols(); k += group)
          for (Eigen::Index r = 0; r < want.rows(); ++r) {
            const Vector64 v = want.row(r).segment(k, (std::min)(group, want.cols() - k));
            const double low = v.minCoeff(), up = 1 + std::ldexp(1.0, -10), tiny = std::ldexp(1.0, -24);
            const double step =
                format == WeightFormat::w8_g32
                    ? v.cwiseAbs().maxCoeff() / 127 * up + tiny
                    : (v.maxCoeff() - low + std::fabs(low) * std::ldexp(1.0, -10) + tiny) / 15 * up + tiny;
            // The code is chosen in float32: 15 (127) steps times 2^-23.
            const Vector64 error = got.row(r).segment(k, v.size()) - v;
            const double size = format == WeightFormat::w8_g32
                                    ? error.cwiseAbs().maxCoeff()
                                    : error.norm() / std::sqrt(static_cast<double>(v.size()));
            outside += size > step * (0.5 + 2e-5);
          }
        ++matrices;
        return {};
      };
      const auto vector = [&](const std::string& tensor, const float*& v, std::size_t n) -> Expected<void> {
        std::vector<float> want(n);
        named(source.vectors, tensor).read(want.data());
        REQUIRE(std::memcmp(v, want.data(), n * sizeof(float)) == 0);
        ++vectors;
        return {};
      };
      REQUIRE(pocket::detail::for_each_tensor(model.spec, model.weights, model.tied, matrix, vector));
      CAPTURE(name, name_of(format));
      CHECK(outside == 0);  // groups
      REQUIRE(matrices == source.matrices.size());
      REQUIRE(vectors == source.vectors.size());
    }
}

namespace {

// All positions of one forward pass.
Matrix64 session_logits(const LoadedModel& model, std::span<const std::int32_t> tokens, const Kernels* kernels,
                        ActivationForm form) {
  const auto pool = value(ThreadPool::create(2));
  const SessionShape shape{
      .context = tokens.size(), .batch = 16, .logit_rows = tokens.size(), .activations = form};  // two steps
  auto session = value(Session::create(model.spec, model.weights, shape, {pool.get(), kernels, {}}));
  REQUIRE(session.forward(tokens, tokens.size()));
  Matrix64 logits(static_cast<Eigen::Index>(tokens.size()), static_cast<Eigen::Index>(model.spec.vocab));
  for (std::size_t i = 0; i < tokens.size(); ++i)
    for (std::size_t t = 0; t < model.spec.vocab; ++t)
      logits(static_cast<Eigen::Index>(i), static_cast<Eigen::Index>(t)) = static_cast<double>(session.logits(i)[t]);
  return logits;
}

}  // namespace

TEST_CASE("after quantisation: our logits are within the bound of Transformers'") {
  for (const char* const name : {"qwen3", "llama"})
    for (const WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32}) {
      const Golden golden = golden_of(name);
      const auto pool = value(ThreadPool::create(2));
      const LoadedModel model =
          value(load_hf(hf_fixture(name), *pool, {.format = format, .memory = {}, .progress = {}}));
      const Matrix64 graph = reference_logits(reference_weights(model.spec, model.weights), golden.tokens);
      const Distance quantised = distance(graph, golden.f64);
      std::printf("%s, %s: the graph over dequantised weights is %.2g from Transformers, worst row %.2g\n", name,
                  name_of(format), quantised.all, quantised.worst_row);
      const double bound_w = format == WeightFormat::w8_g32 ? bound_w8 : bound_w4;
      CAPTURE(name, name_of(format), quantised.all, quantised.worst_row);
      CHECK(quantised.all < bound_w);
      CHECK(quantised.worst_row < 2 * bound_w);
      for (const Kernels* kernels : runnable_kernels())
        for (const ActivationForm form : {ActivationForm::a16, ActivationForm::a8}) {
          const Matrix64 ours = session_logits(model, golden.tokens, kernels, form);
          const Distance d = distance(ours, graph), peer = distance(ours, golden.f64);
          std::printf("  %-8s %-3s: %.2g from that graph, worst row %.2g; %.3g from Transformers\n", kernels->name,
                      name_of(form), d.all, d.worst_row, peer.all);
          CAPTURE(kernels->name, name_of(form), d.all, d.worst_row, peer.all);
          const double bound = form == ActivationForm::a16 ? bound_a16 : bound_a8;
          CHECK(d.all < bound);
          CHECK(d.worst_row < 2 * bound);
          CHECK((ours - golden.f64).norm() <= (graph - golden.f64).norm() + bound * graph.norm());
          CHECK(peer.all < bound_w + bound * (1 + bound_w));
        }
    }
}
