// pocket bench: llama-bench's protocol (a warm-up, then runs; prefill from an empty cache, decode at a given depth; no
// sampler in the timing) beside the wall, which is measured in the same process, in turn with the engine.
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/read_bandwidth.hpp"
#include "common.hpp"

namespace tools {

struct Spread {
  double median, min, max;
};
inline Spread spread(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const std::size_t n = v.size();
  return {n % 2 != 0 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, v.front(), v.back()};
}

int bench(const RunOptions& run, const BenchOptions& o, bool as_json) {
  auto pool = value_or_die(ThreadPool::create(run.threads));
  const LoadedModel m = value_or_die(open_weights(find_model(run.model), *pool));
  SessionShape shape;
  shape.context = (std::max)(o.prompt, o.depth + o.generate);
  shape.batch = o.batch;
  shape.activations = activation_form(run.activations);
  CpuBackend::Options backend;
  backend.executor = pool.get();
  backend.kernels = choose_kernels(run.isa);
  auto session = value_or_die(Transformer<RuntimeSpec>::create(m.spec, m.weights, shape, backend));
  std::optional<::bench::ReadBandwidth> wall;  // after the warm-up, so that its buffer is not in the peak memory
  long peak_kilobytes = 0;

  std::vector<std::int32_t> tokens(shape.context);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>((i * 2654435761u + 300) % m.spec.vocab);
  std::vector<double> prefill, decode;
  std::array<std::vector<double>, ::bench::ReadBandwidth::loops> reads;
  const auto forward = [&](std::size_t from, std::size_t count) {
    check_or_die(session.forward(std::span(tokens).subspan(from, count)));
  };
  const auto measure_wall = [&](int times) {
    for (int i = 0; i < times; ++i) {
      const auto round = wall->measure(*pool);
      for (std::size_t l = 0; l < round.size(); ++l) reads[l].push_back(round[l]);
    }
  };
  for (int r = -1; r < o.repeat; ++r) {  // run -1 warms up
    if (!as_json)
      std::fprintf(stderr, "\r%s %d of %d ", r < 0 ? "warm-up" : "run", r < 0 ? 1 : r + 1, r < 0 ? 1 : o.repeat);
    if (r >= 0) measure_wall(1);
    check_or_die(session.rewind(0));
    if (o.prompt > 0) {
      const double start = ::bench::now();
      forward(0, o.prompt);
      if (r >= 0) prefill.push_back(static_cast<double>(o.prompt) / (::bench::now() - start));
    }
    if (o.generate > 0) {
      if (o.prompt >= o.depth) {
        check_or_die(session.rewind(o.prompt > 0 ? o.depth : 0));
      } else {
        forward(o.prompt, o.depth - o.prompt);
      }
      if (r >= 0) measure_wall(1);
      const std::size_t count = r < 0 ? (std::min<std::size_t>)(8, o.generate) : o.generate;
      const double start = ::bench::now();
      for (std::size_t i = 0; i < count; ++i) forward(o.depth + i, 1);
      if (r >= 0) decode.push_back(static_cast<double>(count) / (::bench::now() - start));
    }
    if (r < 0) {
      rusage usage{};
      getrusage(RUSAGE_SELF, &usage);
      peak_kilobytes = usage.ru_maxrss;
      wall = value_or_die(::bench::ReadBandwidth::create(m.weight_bytes));
    } else {
      measure_wall(1);
    }
  }
  constexpr int least_rounds = 15;
  measure_wall((std::max)(0, least_rounds - static_cast<int>(reads[0].size())));
  if (!as_json) std::fprintf(stderr, "\r                    \r");
  const std::size_t peak = static_cast<std::size_t>(peak_kilobytes) * 1024;
  const std::size_t planned = memory_plan<CpuBackend>(m.spec, session.shape(), m.weight_bytes).total_bytes;

  // Every tile once; of the embedding apart from a tied head, one row. Keys and values at the mean depth.
  std::size_t weights = m.weight_bytes;
  if (!m.tied) weights -= m.weights.embedding.bytes();
  const std::size_t kv_per_position = KvCache::values(m.spec, 16) / 16 * sizeof(f16);
  const double bytes =
      static_cast<double>(weights) +
      static_cast<double>(kv_per_position) * (static_cast<double>(o.depth) + static_cast<double>(o.generate) / 2);
  // The wall is the loop whose median is the best.
  Spread w{};
  for (const auto& loop : reads)
    if (const Spread one = spread(loop); one.median > w.median) w = one;
  const char* isa = session.backend().kernels().name;
  const auto to_json = [](const Spread& s) {
    return nlohmann::ordered_json{{"median", s.median}, {"min", s.min}, {"max", s.max}};
  };
  nlohmann::ordered_json j;
  j["model"] = m.name;
  j["isa"] = isa;
  j["activations"] = name_of(shape.activations);
  j["threads"] = pool->concurrency();
  j["prompt"] = o.prompt;
  j["generate"] = o.generate;
  j["depth"] = o.depth;
  j["batch"] = session.shape().batch;
  j["repeat"] = o.repeat;
  if (!prefill.empty()) j["prefill"] = to_json(spread(prefill));
  if (!decode.empty()) {
    const Spread d = spread(decode);
    j["decode"] = to_json(d);
    j["bytes_per_token"] = static_cast<std::uint64_t>(bytes);
    j["wall_share"] = d.median * bytes / (w.median * 1e9);
  }
  j["read_gb_per_s"] = w.median;
  j["read_gb_per_s_spread"] = to_json(w);
  j["context"] = session.context();
  j["planned_bytes"] = planned;
  j["peak_resident_bytes"] = peak;
  if (as_json) {
    std::printf("%s\n", j.dump(2).c_str());
    return 0;
  }
  std::printf("%s: %s, activations %s, %u thread%s, %d runs\n", m.name.c_str(), isa, name_of(shape.activations),
              pool->concurrency(), pool->concurrency() == 1 ? "" : "s", o.repeat);
  const auto row = [](const char* what, const Spread& s, const char* unit) {
    std::printf("  %-28s %9.1f %s   (%.1f to %.1f)\n", what, s.median, unit, s.min, s.max);
  };
  if (!prefill.empty()) row(("prefill of " + std::to_string(o.prompt)).c_str(), spread(prefill), "tokens/s");
  if (!decode.empty())
    row(("decode of " + std::to_string(o.generate) + " at depth " + std::to_string(o.depth)).c_str(), spread(decode),
        "tokens/s");
  row("wall: reads of the weights", w, "GB/s");
  if (!decode.empty())
    std::printf("  %-28s %9.2f          (%.1f MB a token)\n", "decode's share of the wall",
                j["wall_share"].get<double>(), bytes * 1e-6);
  std::printf("  %-28s %9.1f MB         (planned for context %zu: %.1f MB)\n", "peak resident memory",
              static_cast<double>(peak) * 1e-6, session.context(), static_cast<double>(planned) * 1e-6);
  return 0;
}

}  // namespace tools
