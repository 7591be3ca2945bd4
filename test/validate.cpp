// pocket/validate: the reference graph against what Transformers computed, the divergence against its definition, the
// kernels' bounds on every instruction set, and deliberate faults, which must be found where they are.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model_fixture.hpp"
#include "pocket/backend/cpu.hpp"
#include "pocket/model/transformer.hpp"
#include "pocket/validate/checked_backend.hpp"
#include "pocket/validate/divergence.hpp"
#include "pocket/validate/logits_file.hpp"
#include "pocket/validate/weight_loss.hpp"
#include "reference.hpp"

using namespace pocket;
using namespace test;

namespace {

double distance(const DenseMatrix64& a, const DenseMatrix64& b) { return (a - b).norm() / b.norm(); }

// Logits rounded as Transformers rounds them.
template <class P>
DenseMatrix64 stored_logits(const ReferenceWeights& weights, Executor& executor, std::span<const std::int32_t> tokens,
                            std::size_t length) {
  const ReferenceGraph<P> graph(weights, executor);
  auto logits = graph.logits(graph.hidden(tokens, length));
  P::store(logits);
  return logits.template cast<double>();
}

}  // namespace

// The same roundings in the same places: BF16's 8 bits hide what is left, the order of float32 sums, so that every
// logit has the same bits, but where a sum lies that close (2^-15 of a step) to the middle between two values; one such
// rounding that falls the other way moves what follows it by about 2^-9 / sqrt(hidden). Without the roundings in
// between the logits are 1.8e-2 away. F16 has three bits more to see the order of sums with.
TEST_CASE("the reference graph rounds where Transformers rounds") {
  const auto pool = value(ThreadPool::create(2));
  for (const char* const name : {"qwen3", "llama"}) {
    const HfReference model(name);
    const ReferenceWeights& weights = model.weights;
    const Golden golden = golden_of(name);
    const DenseMatrix64 &f64 = golden.f64, &low = golden.low;
    const std::size_t n = golden.tokens.size();
    const ReferenceGraph<Exact> exact(weights, *pool);
    const DenseMatrix64 ours = exact.logits(exact.hidden(golden.tokens, n));
    CHECK(distance(ours, f64) < 1e-10);
    const bool is_bf16 = name == std::string("qwen3");
    const DenseMatrix64 rounded = is_bf16 ? stored_logits<Stored<bf16>>(weights, *pool, golden.tokens, n)
                                          : stored_logits<Stored<f16>>(weights, *pool, golden.tokens, n);
    const auto equal = static_cast<std::size_t>((rounded.array() == low.array()).count());
    std::printf(
        "%s: float64 %.2g from Transformers'; %s: %zu of %zu logits equal, %.2g from Transformers', which are "
        "%.2g from float64\n",
        name, distance(ours, f64), is_bf16 ? "BF16" : "F16", equal, static_cast<std::size_t>(low.size()),
        distance(rounded, low), distance(low, f64));
    CHECK(distance(rounded, low) < distance(low, f64) / 2);
    if (is_bf16) CHECK(distance(rounded, low) < 0x1p-9 / std::sqrt(96.0) * 3);
    // Windows do not see each other, and a window's logits do not depend on the others.
    std::vector<std::int32_t> twice = golden.tokens;
    twice.insert(twice.end(), golden.tokens.begin(), golden.tokens.end());
    const DenseMatrix64 both = exact.logits(exact.hidden(twice, n));
    CHECK(distance(both.topRows(ours.rows()), ours) < 1e-13);
    CHECK(distance(both.bottomRows(ours.rows()), ours) < 1e-13);
    CHECK(distance(exact.logits(exact.hidden(twice, 2 * n)).bottomRows(ours.rows()), ours) > 1e-3);
  }
}

// One layer: in a deep model a code that falls the other way soon moves all that follow, and two realisations of A8's
// rounding end up as far from each other as from the exact result.
TEST_CASE("the roundings that options add are those of the library") {
  constexpr RuntimeSpec spec{1, 128, 6, 3, 32, 160, 100, 4096, true};
  const RandomModel model(spec, ModelFormats::all(WeightFormat::w4_g64), 31);
  const ReferenceWeights weights = reference_weights(spec, model.weights());
  const auto tokens = random_tokens(40, spec.vocab, 32);
  const auto pool = value(ThreadPool::create(2));
  const auto logits = [&](ReferenceOptions options) {
    const ReferenceGraph<Exact> graph(weights, *pool, options);
    return DenseMatrix64(graph.logits(graph.hidden(tokens, tokens.size())));
  };
  const auto kernels = [&](ActivationForm form) {
    auto session = value(Transformer<RuntimeSpec>::create(
        spec, model.weights(), {.context = 40, .batch = 40, .logit_rows = 40, .activations = form},
        {pool.get(), nullptr, {}}));
    REQUIRE(session.forward(tokens, 40));
    return DenseMatrix64(Eigen::Map<const DenseMatrix<float>>(session.logits(0).data(), 40, 100).cast<double>());
  };
  const DenseMatrix64 exact = logits({}), kv = logits({true, {}});
  const DenseMatrix64 a16 = logits({true, ActivationForm::a16}), a8 = logits({true, ActivationForm::a8});
  std::printf("float16 keys and values %.2e; A16 %.2e, A8 %.2e on top of them; kernels from there %.2e, %.2e\n",
              distance(kv, exact), distance(a16, kv), distance(a8, kv), distance(kernels(ActivationForm::a16), a16),
              distance(kernels(ActivationForm::a8), a8));
  CHECK(distance(kv, exact) > 1e-5);
  CHECK(distance(a16, kv) > 1e-6);
  CHECK(distance(a8, kv) > 20 * distance(a16, kv));
  // What is left of A8 are float32 sums, and codes and float16 values that they tip over: far below A8 itself.
  CHECK(distance(kernels(ActivationForm::a16), a16) < 3e-4);
  CHECK(distance(kernels(ActivationForm::a8), a8) < distance(a8, kv) / 4);
}

// ---- divergence ----

namespace {

PositionDivergence compare(const std::vector<float>& reference, const std::vector<float>& model, std::int32_t next) {
  return compare_logits(std::span<const float>(reference), std::span<const float>(model), next);
}

}  // namespace

TEST_CASE("divergence: by its definition") {
  const std::vector<float> reference{0.0f, std::log(3.0f)}, flat{1.0f, 1.0f};
  const auto d = compare(reference, flat, 1);
  CHECK(d.kl == Approx(0.25 * std::log(0.5) + 0.75 * std::log(1.5)).epsilon(1e-7));
  CHECK(d.reference_nll == Approx(-std::log(0.75)).epsilon(1e-7));
  CHECK(d.model_nll == Approx(std::log(2.0)).epsilon(1e-12));
  CHECK(d.reference_top == 1);
  CHECK(d.model_top == 0);  // the first of equals
  CHECK(d.top5_shared == 2);
  CHECK(d.largest == Approx(1.0));
  CHECK(std::isnan(compare(reference, flat, -1).model_nll));
}

TEST_CASE("divergence: a spread of 40, against long double; of itself exactly 0") {
  Random random(41);
  for (int round = 0; round < 20; ++round) {
    std::vector<float> r(3000), m(r.size());
    for (std::size_t i = 0; i < r.size(); ++i) {
      r[i] = 40 * random.uniform() - 20;
      m[i] = r[i] + random.normal();
    }
    long double sum_r = 0, sum_m = 0, kl = 0;
    for (std::size_t i = 0; i < r.size(); ++i) {
      sum_r += std::exp(static_cast<long double>(r[i]));
      sum_m += std::exp(static_cast<long double>(m[i]));
    }
    for (std::size_t i = 0; i < r.size(); ++i) {
      const long double p = std::exp(static_cast<long double>(r[i])) / sum_r;
      kl += p * (static_cast<long double>(r[i]) - static_cast<long double>(m[i]) - std::log(sum_r) + std::log(sum_m));
    }
    CHECK(compare(r, m, 7).kl == Approx(static_cast<double>(kl)).epsilon(1e-12));
    const auto self = compare(r, r, 7);
    CHECK(self.kl == 0);
    CHECK(self.largest == 0);
    CHECK(self.top5_shared == 5);
    CHECK(self.reference_nll == self.model_nll);
    // The same distribution from logits that are all higher by 1: sums round, nothing else.
    for (std::size_t i = 0; i < r.size(); ++i) m[i] = r[i] + 1;
    CHECK(std::fabs(compare(r, m, 7).kl) < 1e-6);
  }
}

TEST_CASE("divergence: masked tokens, infinities, NaN") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> masked{1, 2, -infinity}, open{1, 2, 0}, broken{1, std::nanf(""), 0}, none(3, -infinity);
  CHECK(compare(masked, masked, 0).kl == 0);
  CHECK(compare(masked, open, 0).kl > 0);
  CHECK(std::isfinite(compare(masked, open, 0).kl));
  CHECK(compare(open, masked, 0).kl == HUGE_VAL);  // a token that the model rules out
  CHECK(std::isnan(compare(open, broken, 0).kl));
  CHECK(std::isnan(compare(broken, open, 0).kl));
  CHECK(std::isnan(compare(none, none, 0).kl));
  const std::vector<PositionDivergence> all{compare(open, open, 0), compare(open, broken, 0)};
  const Divergence s = summarize(all, 3);
  CHECK(std::isnan(s.kl_mean));
  CHECK(std::isnan(s.kl_most));
  CHECK(s.kl_most_at == 1);
  CHECK(std::isnan(s.model_perplexity));
}

TEST_CASE("divergence: sums over a text") {
  std::vector<PositionDivergence> all;
  for (int i = 0; i < 2000; ++i) {
    PositionDivergence d;
    d.kl = i == 1234 ? 5.0 : i < 3 ? 1.0 : 0.001 * (i % 2);
    d.reference_nll = i % 10 == 9 ? std::nan("") : 1.0;
    d.model_nll = i % 10 == 9 ? std::nan("") : 1.5;
    d.squares = 4;
    d.reference_squares = 100;
    d.largest = i == 5 ? 3 : 1;
    d.model_top = i % 4 == 0;
    d.top5_shared = 4;
    all.push_back(d);
  }
  const Divergence s = summarize(all, 16);
  CHECK(s.kl_mean == Approx((5 + 3 + 0.001 * 998) / 2000).epsilon(1e-3));
  CHECK(s.kl_99_9 == 1.0);  // 1,998th of 2,000
  CHECK(s.kl_most == 5.0);
  CHECK(s.kl_most_at == 1234);
  CHECK(s.top1 == Approx(0.75));
  CHECK(s.top5 == Approx(0.8));
  CHECK(s.rms == Approx(0.5));
  CHECK(s.relative == Approx(0.2));
  CHECK(s.largest == 3);
  CHECK(s.predicted == 1800);
  CHECK(s.reference_perplexity == Approx(std::exp(1.0)));
  CHECK(s.perplexity_ratio == Approx(std::exp(0.5)));
  CHECK(s.ratio_error == Approx(0).margin(1e-12));
}

// ---- a file of logits ----

namespace {

struct LogitsFixture {
  std::filesystem::path directory = std::filesystem::temp_directory_path() / "pocket-test-logits";
  std::string path = (directory / "logits.safetensors").string();
  LogitsFixture() { std::filesystem::create_directories(directory); }
  ~LogitsFixture() { std::filesystem::remove_all(directory); }

  // logits [windows, length, vocab] = 0, 1, 2, ..; returns what opening says.
  Expected<LogitsFile> write(Dtype dtype, std::vector<std::uint64_t> logits, std::vector<std::uint64_t> tokens,
                             const std::vector<std::int32_t>& ids, const char* name = "logits") {
    SafetensorsWriter writer;
    REQUIRE(writer.add_metadata("engine", "a test"));
    REQUIRE(writer.add_tensor("tokens", Dtype::I32, std::move(tokens)));
    REQUIRE(writer.add_tensor(name, dtype, logits));
    REQUIRE(writer.begin(path, true));
    if (!ids.empty()) REQUIRE(writer.append("tokens", std::as_bytes(std::span(ids))));
    std::size_t count = 1;
    for (const auto n : logits) count *= static_cast<std::size_t>(n);
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
    const auto bytes = std::as_bytes(std::span(values)).first(count * (dtype == Dtype::F32 ? 4 : 2));
    if (count > 0) REQUIRE(writer.append(name, bytes));
    REQUIRE(writer.finish());
    return LogitsFile::open(path);
  }
};

}  // namespace

TEST_CASE("a file of reference logits: read, or refused by name") {
  LogitsFixture f;
  const auto file = value(f.write(Dtype::F32, {2, 3, 5}, {2, 3}, {0, 1, 2, 3, 4, 0}));
  CHECK(file.windows() == 2);
  CHECK(file.length() == 3);
  CHECK(file.vocab() == 5);
  CHECK(file.engine() == "a test");
  CHECK(file.tokens()[4] == 4);
  float row[5];
  file.read(4, row);
  CHECK(row[0] == 20);
  CHECK(row[4] == 24);
  const auto refused = [&](const Expected<LogitsFile>& e, const char* text) {
    REQUIRE(!e);
    CAPTURE(e.error().message);
    CHECK(e.error().message.find(text) != std::string::npos);
    CHECK(e.error().message.find("logits.safetensors") != std::string::npos);
  };
  refused(f.write(Dtype::BF16, {2, 3, 5}, {2, 3}, {0, 1, 2, 3, 4, 0}), "expected F32 [windows, length, vocab]");
  refused(f.write(Dtype::F32, {6, 5}, {2, 3}, {0, 1, 2, 3, 4, 0}), "2 dimensions");
  refused(f.write(Dtype::F32, {2, 3, 5}, {3, 2}, {0, 1, 2, 3, 4, 0}), "'tokens'");
  refused(f.write(Dtype::F32, {2, 3, 5}, {2, 3}, {0, 1, 2, 3, 5, 0}), "vocabulary of 5");
  refused(f.write(Dtype::F32, {2, 3, 5}, {2, 3}, {0, 1, 2, 3, -1, 0}), "-1");
  refused(f.write(Dtype::F32, {0, 3, 5}, {0, 3}, {}), "empty");
  refused(f.write(Dtype::F32, {2, 3, 5}, {2, 3}, {0, 1, 2, 3, 4, 0}, "logit"), "missing");
}

// ---- weights ----

namespace {

struct QuantisedMatrix {
  QuantisedMatrix(std::size_t n, std::size_t k, WeightFormat format, std::uint64_t seed)
      : values(n * k), memory(value(Workspace::allocate(packed_bytes(format, n, k)))) {
    Random random(seed);
    for (float& v : values) v = random.normal();
    packed = value(pack({values.data(), n, k, k}, format, {memory.at<std::byte>(0), memory.bytes()}));
    reference = {n, k, [this, k](std::size_t row, double* out) {
                   for (std::size_t i = 0; i < k; ++i) out[i] = static_cast<double>(values[row * k + i]);
                 }};
  }
  QuantisedMatrix(const QuantisedMatrix&) = delete;
  QuantisedMatrix& operator=(const QuantisedMatrix&) = delete;
  WeightLoss loss() const {
    SerialExecutor serial;
    return weight_loss(reference, packed, [](std::size_t r) { return r; }, serial);
  }
  std::vector<float> values;
  Workspace memory;
  PackedMatrix packed;
  ReferenceMatrix reference;
};

}  // namespace

TEST_CASE("weights: a whole matrix has no code that another would beat; one nibble, one scale are found") {
  for (const WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32}) {
    QuantisedMatrix m(77, 150, format, 51);
    const WeightLoss whole = m.loss();
    CAPTURE(name_of(format), whole.relative, whole.steps);
    CHECK(whole.not_nearest == 0);
    CHECK(whole.weights == 77 * 150);
    // A step of half the range of 64 (or 32) normal values over 15 levels; over 127, one sixteenth of that and less.
    CHECK(whole.relative > (format == WeightFormat::w8_g32 ? 1e-3 : 3e-2));
    CHECK(whole.relative < (format == WeightFormat::w8_g32 ? 1e-2 : 0.15));
    std::byte* const tiles = m.memory.at<std::byte>(0);
    const bool w8 = format == WeightFormat::w8_g32;
    // Row 3, column 5 of the first tile, by the picture in format.hpp.
    const std::size_t codes = format == WeightFormat::w4_g64 ? 64 : w8 ? 64 : 128, at = codes + 8 * 3 + 5;
    const std::byte bit = w8 ? std::byte{64} : std::byte{8};
    tiles[at] ^= bit;
    const WeightLoss nibble = m.loss();
    CHECK(nibble.not_nearest == 1);
    CHECK(nibble.row == 3);
    CHECK(nibble.column == 5);
    CHECK(nibble.steps > 7);
    tiles[at] ^= bit;
    REQUIRE(m.loss().not_nearest == 0);
    // The scale of row 3, first group, 1 % up.
    f16 scale;
    std::memcpy(&scale, tiles + 2 * 3, 2);
    const f16 kept = scale;
    scale = to_f16(1.01f * to_float(scale));
    std::memcpy(tiles + 2 * 3, &scale, 2);
    const WeightLoss scaled = m.loss();
    CHECK(scaled.not_nearest >= 1);
    CHECK(scaled.not_nearest <= 64);
    std::memcpy(tiles + 2 * 3, &kept, 2);
  }
}

TEST_CASE("weights: the parts of the fused matrices are where the graph has them") {
  constexpr RuntimeSpec spec{1, 64, 4, 2, 16, 48, 64, 64, true};
  const RandomModel model(spec, ModelFormats::all(WeightFormat::w4_g32), 52);
  const ReferenceWeights weights = reference_weights(spec, model.weights());
  SerialExecutor serial;
  for (std::size_t i = 0; i < projections; ++i) {
    const auto p = static_cast<Projection>(i);
    const WeightLoss loss = weight_loss(
        matrix_of(weights.layers[0], p), packed_matrix(model.weights().layers[0], p),
        [&](std::size_t row) { return packed_row(spec, p, row); }, serial);
    CAPTURE(name_of(p));
    CHECK(loss.relative == 0);
    const auto other = static_cast<Projection>((i + 1) % projections);
    if (matrix_of(weights.layers[0], p).k != matrix_of(weights.layers[0], other).k) continue;
    const WeightLoss wrong = weight_loss(
        matrix_of(weights.layers[0], p), packed_matrix(model.weights().layers[0], other),
        [&](std::size_t row) { return packed_row(spec, other, row % matrix_of(weights.layers[0], other).n); }, serial);
    CHECK(wrong.relative > 0.5);
  }
}

// ---- the kernels ----

namespace {

constexpr RuntimeSpec small{3, 128, 6, 3, 32, 160, 100, 4096, true};
constexpr RuntimeSpec odd{2, 48, 3, 1, 16, 80, 77, 4096, false};
constexpr RuntimeSpec pocket_like{2, 896, 14, 2, 64, 448, 300, 4096, true};

// A prompt, then one token more.
template <class B>
Findings check(const RuntimeSpec& spec, const RandomModel& model, const Kernels* kernels, ActivationForm form) {
  const auto pool = value(ThreadPool::create(2));
  const auto tokens = random_tokens(20, spec.vocab, 61);
  auto session = value(Transformer<RuntimeSpec, CheckedBackend<B>>::create(
      spec, model.weights(), {.context = 20, .batch = 20, .logit_rows = 19, .activations = form},
      {pool.get(), kernels, {}}));
  REQUIRE(session.forward(std::span(tokens).first(19), 19));
  REQUIRE(session.forward(std::span(tokens).last(1)));
  return session.backend().findings();
}

double share(const Findings& f, CheckedOperation o) {
  double most = 0;
  for (const auto& layer : f) most = std::fmax(most, layer[static_cast<std::size_t>(o)].share);
  return most;
}

}  // namespace

// A bound that nothing comes near would find nothing: rounding to 8 bits uses a tenth of it at least.
TEST_CASE("every operation of every instruction set stays within its bound, and the bounds are not loose") {
  for (const RuntimeSpec& spec : {small, odd, pocket_like})
    for (const WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32}) {
      if (sanitized && spec.hidden > 200) continue;
      const RandomModel model(spec, ModelFormats::all(format), 62);
      for (const Kernels* kernels : runnable_kernels())
        for (const ActivationForm form : {ActivationForm::a16, ActivationForm::a8}) {
          const Findings findings = check<CpuBackend>(spec, model, kernels, form);
          CAPTURE(kernels->name, name_of(format), name_of(form), spec.hidden);
          for (std::size_t o = 0; o < checked_operations; ++o) {
            CAPTURE(name_of(static_cast<CheckedOperation>(o)), share(findings, static_cast<CheckedOperation>(o)));
            CHECK(share(findings, static_cast<CheckedOperation>(o)) <= 1);
          }
          for (const auto o : {CheckedOperation::qkv, CheckedOperation::output, CheckedOperation::down})
            CHECK(share(findings, o) > (form == ActivationForm::a16 ? 0.02 : 0.05));
          CHECK(share(findings, CheckedOperation::rotate) > 0.01);
          CHECK(share(findings, CheckedOperation::attention) > 0.001);
        }
    }
}

namespace {

enum class Wrong { interleaved, no_q_norm, kv_head, nibble, scale, not_a_number };
constexpr std::size_t wrong_layer = 1;

// The CPU backend with one operation of one layer wrong.
template <Wrong wrong>
class Faulty : public CpuBackend {
 public:
  static Expected<Faulty> create(const RuntimeSpec& spec, const Weights& weights, const SessionShape& shape,
                                 const Options& options) {
    POCKET_TRY(b, CpuBackend::create(spec, weights, shape, options));
    return Faulty(std::move(b), spec);
  }
  void begin(std::span<const std::int32_t> tokens, std::size_t position) {
    CpuBackend::begin(tokens, position);
    m_ = tokens.size();
    adds_ = 0;
  }
  void rope_append(float* qkv, std::size_t l, const float* qg, const float* kg) {
    const std::size_t d = spec_.head_dim, width = qkv_width(spec_);
    std::vector<float> lengths;
    for (std::size_t i = 0; i < m_; ++i)
      for (std::size_t h = 0; h < spec_.heads + spec_.kv_heads; ++h) {
        float* const head = qkv + i * width + h * d;
        double squares = 0;
        for (std::size_t j = 0; j < d; ++j) squares += static_cast<double>(head[j]) * static_cast<double>(head[j]);
        lengths.push_back(static_cast<float>(std::sqrt(squares / static_cast<double>(d))));
        if (wrong != Wrong::interleaved || l != wrong_layer) continue;
        const std::vector<float> copy(head, head + d);
        for (std::size_t j = 0; j < d; ++j) head[j % 2 * (d / 2) + j / 2] = copy[j];
      }
    CpuBackend::rope_append(qkv, l, qg, kg);
    if (wrong != Wrong::no_q_norm || l != wrong_layer) return;
    for (std::size_t i = 0; i < m_; ++i)
      for (std::size_t h = 0; h < spec_.heads; ++h)
        for (std::size_t j = 0; j < d; ++j)
          qkv[i * width + h * d + j] *= lengths[i * (spec_.heads + spec_.kv_heads) + h];
  }
  void attend(float* qkv, std::size_t l, float* y) {
    CpuBackend::attend(qkv, l, y);
    if (wrong != Wrong::kv_head || l != wrong_layer) return;
    // As if each group of query heads had read the next KV head: the groups' queries moved, the results moved back.
    const std::size_t group = q_width(spec_) / spec_.kv_heads, width = qkv_width(spec_), all = q_width(spec_);
    std::vector<float> moved(qkv, qkv + m_ * width);
    for (std::size_t i = 0; i < m_; ++i)
      for (std::size_t j = 0; j < all; ++j) moved[i * width + (j + group) % all] = qkv[i * width + j];
    std::vector<float> result(m_ * all);
    CpuBackend::attend(moved.data(), l, result.data());
    for (std::size_t i = 0; i < m_; ++i)
      for (std::size_t j = 0; j < all; ++j) y[i * all + j] = result[i * all + (j + group) % all];
  }
  void project_add(float* y, const PackedMatrix& w, float* x) {
    CpuBackend::project_add(y, w, x);
    if (adds_++ != 2 * wrong_layer + 1) return;  // the layer's second: down
    for (std::size_t i = 0; i < m_; ++i) {
      float& out = x[i * w.n + 17];
      if (wrong == Wrong::nibble) out += 8 * step(w, 17) * y[i * w.k + 70];
      if (wrong == Wrong::scale)
        for (std::size_t k = 0; k < 64; ++k) out += 0.01f * static_cast<float>(k % 16) * step(w, 17) * y[i * w.k + k];
      if (wrong == Wrong::not_a_number && i == 3) out = std::nanf("");
    }
  }

 private:
  Faulty(CpuBackend&& b, const RuntimeSpec& spec) : CpuBackend(std::move(b)), spec_(spec) {}
  // The scale of a row's first group.
  static float step(const PackedMatrix& w, std::size_t row) {
    double scale = 0;
    for_each_group(w, row, [&](const ReferenceGroup& g) { scale = g.first == 0 ? g.scale : scale; });
    return static_cast<float>(scale);
  }
  RuntimeSpec spec_;
  std::size_t m_ = 0, adds_ = 0;
};

template <Wrong wrong>
void see(const char* name, CheckedOperation where, const RandomModel& model) {
  const Findings findings = check<Faulty<wrong>>(small, model, nullptr, ActivationForm::a16);
  std::printf("%-28s %.3g times its bound\n", name, findings[wrong_layer][static_cast<std::size_t>(where)].share);
  for (std::size_t l = 0; l < findings.size(); ++l)
    for (std::size_t o = 0; o < checked_operations; ++o) {
      CAPTURE(name, l, name_of(static_cast<CheckedOperation>(o)), findings[l][o].share);
      const bool here = l == wrong_layer && o == static_cast<std::size_t>(where);
      if (wrong == Wrong::not_a_number && (l > wrong_layer || (here && l == wrong_layer))) continue;
      CHECK((findings[l][o].share > 1) == here);
    }
  CHECK(findings[wrong_layer][static_cast<std::size_t>(where)].share > 10);
}

}  // namespace

TEST_CASE("a fault in one operation of one layer is found there and nowhere else") {
  const RandomModel model(small, ModelFormats::all(WeightFormat::w4_g64), 63);
  see<Wrong::interleaved>("interleaved rotary embedding", CheckedOperation::rotate, model);
  see<Wrong::no_q_norm>("no q norm", CheckedOperation::rotate, model);
  see<Wrong::kv_head>("KV head off by one", CheckedOperation::attention, model);
  see<Wrong::nibble>("one nibble", CheckedOperation::down, model);
  see<Wrong::scale>("one scale, 1 %", CheckedOperation::down, model);
  see<Wrong::not_a_number>("NaN", CheckedOperation::down, model);
}
