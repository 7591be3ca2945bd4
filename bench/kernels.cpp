// Micro-benchmarks of the kernels: every instruction set that runs here, over MNN-Pocket-0.3B's matrices, on one
// thread. See README.md for how to run them and what the figures mean.
#include "kernels/kernels.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "dot_peak.hpp"
#include "kernels/isa.hpp"
#include "pocket/core/executor.hpp"
#include "pocket/core/types.hpp"
#include "pocket/core/view.hpp"
#include "pocket/core/workspace.hpp"
#include "pocket/generate/sampler.hpp"
#include "pocket/quant/activations.hpp"
#include "pocket/quant/format.hpp"
#include "pocket/quant/pack.hpp"
#include "read_bandwidth.hpp"

namespace {

using namespace pocket;
using benchmark::Counter;
using benchmark::State;

struct Shape {
  const char* name;
  std::size_t n, k;
};
constexpr Shape shapes[] = {
    {"qkv", 1152, 896}, {"output", 896, 896}, {"gate_up", 5120, 896}, {"down", 896, 2560}, {"head", 65536, 896}};
constexpr std::size_t token_counts[] = {1, 2, 4, 8, 16, 64};
constexpr ActivationForm forms[] = {ActivationForm::a16, ActivationForm::a8};
constexpr std::size_t cold_bytes = std::size_t{256} << 20;  // more than the last-level cache of most machines

// The value, or the end of the program: there is nothing to measure without it.
template <class T>
T value(Expected<T>&& expected) {
  if (expected) return *std::move(expected);
  std::fprintf(stderr, "bench_kernels: %s\n", expected.error().message.c_str());
  std::exit(1);
}

std::vector<float> random_floats(std::size_t count) {
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> v(count);
  for (float& x : v) x = uniform(random);
  return v;
}

// Copies of one matrix in a row, at least one. Every row block holds the same numbers, but lies in memory of its own:
// a product's time does not depend on the numbers.
class Matrices {
 public:
  Matrices(const Shape& shape, WeightFormat format, std::size_t copies)
      : first_{nullptr, shape.n, shape.k, format, 0}, copies_(copies) {
    memory_ = value(Workspace::allocate(copies * first_.bytes()));
    first_.tiles = memory_.at<std::byte>(0);
    const std::size_t block = first_.block_bytes();
    const std::vector<float> rows = random_floats(tile_rows * shape.k);
    value(pack({rows.data(), tile_rows, shape.k, shape.k}, format, {memory_.at<std::byte>(0), block}));
    for (std::size_t at = block; at + block <= memory_.bytes(); at += block)
      std::memcpy(memory_.at<std::byte>(at), first_.tiles, block);
  }

  std::size_t copies() const { return copies_; }
  PackedMatrix matrix(std::size_t copy) const {
    PackedMatrix m = first_;
    m.tiles += copy * first_.bytes();
    return m;
  }

  // Those of the last call, where they fit: benchmarks come in the order of their matrices.
  static const Matrices& get(const Shape& shape, WeightFormat format, bool cold) {
    static std::vector<Matrices> kept;  // one or none
    const std::size_t copies = cold ? cold_bytes / packed_bytes(format, shape.n, shape.k) + 2 : 1;
    const bool fits = !kept.empty() && kept[0].first_.n == shape.n && kept[0].first_.k == shape.k &&
                      kept[0].first_.format == format && kept[0].copies_ >= copies;
    if (!fits) {
      kept.clear();
      kept.emplace_back(shape, format, copies);
    }
    return kept[0];
  }

 private:
  PackedMatrix first_;
  std::size_t copies_;
  Workspace memory_;
};

// Tokens as floats, and room for what `prepare` makes of them.
struct Tokens {
  Tokens(std::size_t m, std::size_t k, ActivationForm form)
      : x(random_floats(m * k)), a{nullptr, nullptr, m, k, form}, codes(a.code_bytes()), scales(a.scale_count()) {
    a.codes = codes.data();
    a.scales = scales.data();
  }
  std::vector<float> x;
  Activations a;
  std::vector<std::int8_t> codes;
  std::vector<GroupScale> scales;
};

void matmul(State& state, const Kernels& kernels, const Shape& shape, WeightFormat format, ActivationForm form,
            std::size_t m, bool cold) {
  const Matrices& matrices = Matrices::get(shape, format, cold);
  const std::size_t copies = cold ? matrices.copies() : 1;
  Tokens tokens(m, shape.k, form);
  kernels.prepare(tokens.x.data(), shape.k, tokens.a);
  std::vector<float> y(m * shape.n);
  std::size_t copy = 0;
  for ([[maybe_unused]] auto _ : state) {
    const PackedMatrix w = matrices.matrix(copy);
    kernels.matmul({w, tokens.a, y.data(), shape.n, false}, 0, w.row_blocks());
    benchmark::ClobberMemory();
    if (++copy == copies) copy = 0;
  }
  const auto rate = [](double per_call) { return Counter(per_call * 1e-9, Counter::kIsIterationInvariantRate); };
  const double weights = static_cast<double>(shape.n) * static_cast<double>(shape.k);
  state.counters["GB"] = rate(static_cast<double>(matrices.matrix(0).bytes()));
  state.counters["Gweights"] = rate(weights);
  state.counters["GMAC"] = rate(weights * static_cast<double>(m));
}

void prepare(State& state, const Kernels& kernels, std::size_t k, ActivationForm form, std::size_t m) {
  Tokens tokens(m, k, form);
  for ([[maybe_unused]] auto _ : state) {
    kernels.prepare(tokens.x.data(), k, tokens.a);
    benchmark::ClobberMemory();
  }
  state.counters["Gvalues"] = Counter(static_cast<double>(m * k) * 1e-9, Counter::kIsIterationInvariantRate);
}

void attention(State& state, const Kernels& kernels) {
  constexpr std::size_t heads = 7, d = 64, count = attention_chunk;
  const std::vector<float> q = random_floats(heads * d), numbers = random_floats(count * d);
  std::vector<f16> cache(count * d);
  std::transform(numbers.begin(), numbers.end(), cache.begin(), [](float v) { return to_f16(v); });
  const std::vector<f16> k = cache, v = cache;
  std::vector<float> scores(heads * attention_chunk), out(heads * d), max(heads), sum(heads);
  for ([[maybe_unused]] auto _ : state) {
    kernels.attention(
        {q.data(), k.data(), v.data(), k.data(), count, heads, d, scores.data(), out.data(), max.data(), sum.data()});
    benchmark::ClobberMemory();
  }
  const auto rate = [](std::size_t per_call) {
    return Counter(static_cast<double>(per_call) * 1e-9, Counter::kIsIterationInvariantRate);
  };
  state.counters["GB"] = rate(2 * count * d * sizeof(f16));
  state.counters["GMAC"] = rate(2 * heads * count * d);
}

void gate(State& state, const Kernels& kernels, std::size_t m) {
  const std::vector<float> both = random_floats(m * 2 * tile_rows);
  std::vector<float> y(m * tile_rows);
  for ([[maybe_unused]] auto _ : state) {
    kernels.gate(both.data(), m, y.data(), tile_rows);
    benchmark::ClobberMemory();
  }
  state.counters["Gvalues"] = Counter(static_cast<double>(y.size()) * 1e-9, Counter::kIsIterationInvariantRate);
}

// Sampling with the default options, and greedily.
void sample(State& state, const SamplingOptions& options) {
  constexpr std::size_t vocab = 65536;
  const std::vector<float> logits = random_floats(vocab);
  Sampler sampler = value(Sampler::create(options, vocab));
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(value(sampler.sample(logits)));
  state.counters["GB"] = Counter(vocab * sizeof(float) * 1e-9, Counter::kIsIterationInvariantRate);
}

void peak(State& state, const Kernels& kernels) {
  constexpr std::size_t steps = 100000;
  double each = 0;
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(each = bench::dot_peak(kernels.isa, steps));
  state.counters["GMAC"] = Counter(each * steps * 1e-9, Counter::kIsIterationInvariantRate);
}

// The best of several read loops, each by its median: see read_bandwidth.hpp.
void wall(State& state) {
  SerialExecutor serial;
  auto reads = value(bench::ReadBandwidth::create(cold_bytes));
  std::array<std::vector<double>, bench::ReadBandwidth::loops> rounds;
  for ([[maybe_unused]] auto _ : state) {
    const auto one = reads.measure(serial);
    for (std::size_t i = 0; i < one.size(); ++i) rounds[i].push_back(one[i]);
  }
  double best = 0;
  for (auto& loop : rounds) {
    std::nth_element(loop.begin(), loop.begin() + static_cast<std::ptrdiff_t>(loop.size() / 2), loop.end());
    best = (std::max)(best, loop[loop.size() / 2]);
  }
  state.counters["GB"] = best;
}

std::vector<const Kernels*> runnable() {
  std::vector<const Kernels*> all;
  for (const IsaEntry& entry : isa_list()) {
    if (entry.runs_here())
      all.push_back(entry.kernels);
    else
      std::fprintf(stderr, "skipped: instruction set %s, which this CPU does not have\n", entry.kernels->name);
  }
  return all;
}

void add_matmuls(const std::vector<const Kernels*>& all, const Shape& shape, WeightFormat format) {
  for (const Kernels* kernels : all)
    for (const ActivationForm form : forms)
      for (const std::size_t m : token_counts)
        for (const bool cold : {false, true}) {
          const std::string name = std::string("matmul/") + kernels->name + "/" + name_of(format) + "/" +
                                   name_of(form) + "/" + shape.name + "/m:" + std::to_string(m) +
                                   (cold ? "/cold" : "/warm");
          benchmark::RegisterBenchmark(name.c_str(),
                                       [=](State& state) { matmul(state, *kernels, shape, format, form, m, cold); });
        }
}

void add_others(const Kernels& kernels) {
  for (const ActivationForm form : forms)
    for (const std::size_t k : {std::size_t{896}, std::size_t{2560}})
      for (const std::size_t m : {std::size_t{1}, std::size_t{16}}) {
        const std::string name = std::string("prepare/") + kernels.name + "/" + name_of(form) +
                                 "/k:" + std::to_string(k) + "/m:" + std::to_string(m);
        benchmark::RegisterBenchmark(name.c_str(),
                                     [=, &kernels](State& state) { prepare(state, kernels, k, form, m); });
      }
  for (const std::size_t m : {std::size_t{1}, std::size_t{16}, std::size_t{160}}) {
    const std::string name = std::string("gate/") + kernels.name + "/m:" + std::to_string(m);
    benchmark::RegisterBenchmark(name.c_str(), [&kernels, m](State& state) { gate(state, kernels, m); });
  }
  if (bench::dot_peak(kernels.isa, 1) > 0)
    benchmark::RegisterBenchmark((std::string("peak/") + kernels.name).c_str(),
                                 [&kernels](State& state) { peak(state, kernels); });
  const std::string name = std::string("attention/") + kernels.name + "/heads:7/head_dim:64/positions:256";
  benchmark::RegisterBenchmark(name.c_str(), [&kernels](State& state) { attention(state, kernels); });
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const std::vector<const Kernels*> all = runnable();
  if (all.empty()) {
    std::fprintf(stderr, "bench_kernels: this program holds no kernels that this CPU can run\n");
    return 1;
  }
  for (const Shape& shape : shapes) add_matmuls(all, shape, WeightFormat::w4_g64);
  for (const WeightFormat format : {WeightFormat::w4_g32, WeightFormat::w8_g32}) add_matmuls(all, shapes[2], format);
  for (const Kernels* kernels : all) add_others(*kernels);
  benchmark::RegisterBenchmark("sample/default", [](State& state) { sample(state, {}); });
  benchmark::RegisterBenchmark("sample/greedy", [](State& state) { sample(state, {.temperature = 0}); });
  benchmark::RegisterBenchmark("wall", wall);
  const std::size_t run = benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return run > 0 ? 0 : 1;  // a filter that matches nothing is a mistake
}
