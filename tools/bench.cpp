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

#include "bench/profiled_backend.hpp"
#include "bench/read_bandwidth.hpp"
#include "common.hpp"
#include "pocket/generate/sampler.hpp"

namespace tools {

namespace {

struct Spread {
  double median = 0, min = 0, max = 0;
};
Spread spread(std::vector<double> v) {
  if (v.empty()) return {};
  std::sort(v.begin(), v.end());
  const std::size_t n = v.size();
  return {n % 2 != 0 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2, v.front(), v.back()};
}
nlohmann::ordered_json to_json(const std::vector<double>& v) {
  const Spread s = spread(v);
  return {{"median", s.median}, {"min", s.min}, {"max", s.max}, {"runs", v}};
}

// One part of a token's time.
struct Part {
  std::string name;
  double bytes = 0;                          // of weights, keys and values that a decoded token reads
  std::vector<double> seconds, prompt = {};  // of a decoded token, of one of the prompt's; one a run
};

struct Measured {
  std::vector<double> prefill, decode;  // tokens/s, one a run
  std::vector<double> wall;             // GB/s of the loop whose median is the best, one a round
  std::vector<Part> parts;              // with --profile
  const char* isa = "";
  SessionShape shape;
  std::size_t peak_bytes = 0;
};

// Keys and values that a token reads, at the mean depth.
double kv_bytes(const LoadedModel& m, const BenchOptions& o) {
  const double per_position = static_cast<double>(KvCache::values(m.spec, 16) / 16 * sizeof(f16));
  return per_position * (static_cast<double>(o.depth) + static_cast<double>(o.generate) / 2);
}
// Every tile once; of the embedding apart from a tied head, one row.
double bytes_per_token(const LoadedModel& m, const BenchOptions& o) {
  return static_cast<double>(m.weight_bytes - (m.tied ? 0 : m.weights.embedding.bytes())) + kv_bytes(m, o);
}

std::vector<Part> empty_parts(const LoadedModel& m, const BenchOptions& o) {
  std::vector<Part> parts;
  for (const char* name : ::bench::operation_names) parts.push_back({name, 0, {}, {}});
  const auto bytes = [&](::bench::Operation operation) -> double& {
    return parts[static_cast<std::size_t>(operation)].bytes;
  };
  using enum ::bench::Operation;
  for (std::size_t l = 0; l < m.spec.layers; ++l) {
    const auto& layer = m.weights.layers[l];
    bytes(qkv) += static_cast<double>(layer.qkv.bytes());
    bytes(output) += static_cast<double>(layer.output.bytes());
    bytes(gate_up) += static_cast<double>(layer.gate_up.bytes());
    bytes(down) += static_cast<double>(layer.down.bytes());
  }
  bytes(attention) = kv_bytes(m, o);
  bytes(logits) = static_cast<double>(m.weights.head.bytes());
  parts.push_back({"between them", 0, {}, {}});
  parts.push_back({"sampler", static_cast<double>(m.spec.vocab * sizeof(float)), {}, {}});
  return parts;
}

std::size_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::size_t>(usage.ru_maxrss) * 1024;
}

template <class B>
Measured measure(const LoadedModel& m, ThreadPool& pool, const RunOptions& run, const BenchOptions& o, bool quiet) {
  SessionShape shape;
  shape.context = (std::max)(o.prompt, o.depth + o.generate);
  shape.batch = o.batch;
  shape.activations = activation_form(run.activations);
  CpuBackend::Options backend;
  backend.executor = &pool;
  backend.kernels = choose_kernels(run.isa);
  using Session = Transformer<RuntimeSpec, B>;
  auto session = value_or_die(Session::create(m.spec, m.weights, shape, backend));
  auto sampler = value_or_die(Sampler::create({}, m.spec.vocab));
  std::optional<::bench::ReadBandwidth> wall;  // after the warm-up, so that its buffer is not in the peak memory
  Measured result;
  result.parts = empty_parts(m, o);

  std::vector<std::int32_t> tokens(shape.context);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>((i * 2654435761u + 300) % m.spec.vocab);
  std::array<std::vector<double>, ::bench::ReadBandwidth::loops> reads;
  const auto forward = [&](std::size_t from, std::size_t count) {
    check_or_die(session.forward(std::span(tokens).subspan(from, count)));
  };
  const auto measure_wall = [&](int times) {
    for (int i = 0; i < times; ++i) {
      const auto round = wall->measure(pool);
      for (std::size_t l = 0; l < round.size(); ++l) reads[l].push_back(round[l]);
    }
  };
  const auto note_parts = [&](std::vector<double> Part::* of, double seconds, std::size_t count) {
    const auto per_token = [&](Part& part, double s) { (part.*of).push_back(s / static_cast<double>(count)); };
    if constexpr (requires { session.backend().take(); }) {
      const auto times = session.backend().take();
      for (std::size_t i = 0; i < times.size(); ++i) {
        per_token(result.parts[i], times[i]);
        seconds -= times[i];
      }
      per_token(result.parts[times.size()], seconds);
    }
  };
  const auto forget_parts = [&] {
    if constexpr (requires { session.backend().take(); }) session.backend().take();
  };
  for (int r = -1; r < o.repeat; ++r) {  // run -1 warms up
    if (!quiet)
      std::fprintf(stderr, "\r%s %d of %d ", r < 0 ? "warm-up" : "run", r < 0 ? 1 : r + 1, r < 0 ? 1 : o.repeat);
    if (r >= 0) measure_wall(1);
    if (o.prompt > 0) {
      check_or_die(session.rewind(0));
      forget_parts();
      const double start = ::bench::now();
      forward(0, o.prompt);
      const double seconds = ::bench::now() - start;
      if (r >= 0) {
        result.prefill.push_back(static_cast<double>(o.prompt) / seconds);
        note_parts(&Part::prompt, seconds, o.prompt);
      }
    }
    if (o.generate > 0) {
      // What the context holds up to the depth stays from run to run.
      if (session.position() < o.depth) forward(session.position(), o.depth - session.position());
      check_or_die(session.rewind(o.depth));
      if (r >= 0) measure_wall(1);
      const std::size_t count = r < 0 ? (std::min<std::size_t>)(8, o.generate) : o.generate;
      forget_parts();
      const double start = ::bench::now();
      for (std::size_t i = 0; i < count; ++i) forward(o.depth + i, 1);
      const double seconds = ::bench::now() - start;
      if (r >= 0) {
        result.decode.push_back(static_cast<double>(count) / seconds);
        note_parts(&Part::seconds, seconds, count);
        const double drawing = ::bench::now();
        value_or_die(sampler.sample(session.logits()));
        result.parts.back().seconds.push_back(::bench::now() - drawing);
      }
    }
    if (r < 0) {
      result.peak_bytes = peak_resident_bytes();
      wall = value_or_die(::bench::ReadBandwidth::create(m.weight_bytes));
    } else {
      measure_wall(1);
    }
  }
  constexpr int least_rounds = 15;
  measure_wall((std::max)(0, least_rounds - static_cast<int>(reads[0].size())));
  if (!quiet) std::fprintf(stderr, "\r                    \r");
  result.wall = *std::max_element(reads.begin(), reads.end(),
                                  [](const auto& a, const auto& b) { return spread(a).median < spread(b).median; });
  result.isa = session.backend().kernels().name;
  result.shape = session.shape();
  return result;
}

void print_json(const LoadedModel& m, const BenchOptions& o, const Measured& r, double open_ms, std::size_t planned) {
  nlohmann::ordered_json j;
  j["model"] = m.name;
  j["isa"] = r.isa;
  j["activations"] = name_of(r.shape.activations);
  j["threads"] = r.shape.threads;
  j["prompt"] = o.prompt;
  j["generate"] = o.generate;
  j["depth"] = o.depth;
  j["batch"] = r.shape.batch;
  j["repeat"] = o.repeat;
  if (!r.prefill.empty()) j["prefill"] = to_json(r.prefill);
  const Spread wall = spread(r.wall);
  if (!r.decode.empty()) {
    const double bytes = bytes_per_token(m, o);
    j["decode"] = to_json(r.decode);
    j["bytes_per_token"] = static_cast<std::uint64_t>(bytes);
    j["wall_share"] = spread(r.decode).median * bytes / (wall.median * 1e9);
  }
  j["read_gb_per_s"] = wall.median;
  j["read_gb_per_s_spread"] = to_json(r.wall);
  if (o.profile)
    for (const Part& p : r.parts)
      j["parts"].push_back({{"name", p.name},
                            {"bytes", static_cast<std::uint64_t>(p.bytes)},
                            {"seconds_per_token", to_json(p.seconds)},
                            {"seconds_per_prompt_token", to_json(p.prompt)}});
  j["context"] = r.shape.context;
  j["open_ms"] = open_ms;
  j["planned_bytes"] = planned;
  j["peak_resident_bytes"] = r.peak_bytes;
  std::printf("%s\n", j.dump(2).c_str());
}

// Where a token's time goes: of a decoded one, of one of the prompt's. A part's share of the wall: how fast a decoded
// token reads it, as a part of what the machine can.
void print_parts(const Measured& r) {
  const double wall = spread(r.wall).median * 1e9;
  const auto total_of = [&](std::vector<double> Part::* of) {
    double total = 0;
    for (std::size_t i = 0; i + 1 < r.parts.size(); ++i) total += spread(r.parts[i].*of).median;
    return total;
  };
  const double prompt = total_of(&Part::prompt), decoded = total_of(&Part::seconds);
  const auto column = [](const Part& p, std::vector<double> Part::* of, double total) {
    const double s = spread(p.*of).median;
    if (total > 0)
      std::printf(" %8.3f   %5.1f%%", s * 1e3, 100 * s / total);
    else
      std::printf("        -        -");
    return s;
  };
  std::printf(
      "  parts of a token           prompt, ms   of all   decoded, ms   of all    wall's ms   share of the wall\n");
  for (const Part& p : r.parts) {
    const bool apart = &p == &r.parts.back();  // the sampler: not in a token's time, its logits in the cache
    std::printf("    %-24s", p.name.c_str());
    if (apart)
      std::printf("                  ");
    else
      column(p, &Part::prompt, prompt);
    std::printf("     ");
    const double s = column(p, &Part::seconds, decoded);
    if (p.bytes > 0 && !apart && s > 0) std::printf("     %8.3f   %8.2f", p.bytes / wall * 1e3, p.bytes / wall / s);
    std::printf("%s\n", apart ? "   (after it)" : "");
  }
}

void print_text(const LoadedModel& m, const BenchOptions& o, const Measured& r, double open_ms, std::size_t planned) {
  std::printf("%s: %s, activations %s, %u thread%s, %d runs\n", m.name.c_str(), r.isa, name_of(r.shape.activations),
              r.shape.threads, r.shape.threads == 1 ? "" : "s", o.repeat);
  const auto row = [](const std::string& what, const Spread& s, const char* unit) {
    std::printf("  %-28s %9.1f %s   (%.1f to %.1f)\n", what.c_str(), s.median, unit, s.min, s.max);
  };
  if (!r.prefill.empty()) row("prefill of " + std::to_string(o.prompt), spread(r.prefill), "tokens/s");
  if (!r.decode.empty())
    row("decode of " + std::to_string(o.generate) + " at depth " + std::to_string(o.depth), spread(r.decode),
        "tokens/s");
  const Spread wall = spread(r.wall);
  row("wall: reads of the weights", wall, "GB/s");
  if (!r.decode.empty()) {
    const double bytes = bytes_per_token(m, o);
    std::printf("  %-28s %9.2f          (%.1f MB a token)\n", "decode's share of the wall",
                spread(r.decode).median * bytes / (wall.median * 1e9), bytes * 1e-6);
  }
  if (o.profile) print_parts(r);
  std::printf("  %-28s %9.1f ms\n", "opening the model", open_ms);
  std::printf("  %-28s %9.1f MB         (planned for context %zu: %.1f MB)\n", "peak resident memory",
              static_cast<double>(r.peak_bytes) * 1e-6, r.shape.context, static_cast<double>(planned) * 1e-6);
}

}  // namespace

int bench(const RunOptions& run, const BenchOptions& o, bool as_json) {
  const auto pool = value_or_die(ThreadPool::create(run.threads));
  const double start = ::bench::now();
  const LoadedModel m = value_or_die(open_weights(find_model(run.model), *pool));
  const double open_ms = (::bench::now() - start) * 1e3;
  const Measured r = o.profile ? measure<::bench::Profiled<CpuBackend>>(m, *pool, run, o, as_json)
                               : measure<CpuBackend>(m, *pool, run, o, as_json);
  const std::size_t planned = memory_plan<CpuBackend>(m.spec, r.shape, m.weight_bytes).total_bytes;
  (as_json ? print_json : print_text)(m, o, r, open_ms, planned);
  return 0;
}

}  // namespace tools
