// pocket inspect: a model's shape, bytes, and what a session will take.
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "common.hpp"

namespace tools {

inline const char* megabytes(std::size_t bytes, char (&text)[32]) {
  std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(bytes) * 1e-6);
  return text;
}

// Bytes of all distinct matrices, by format.
inline std::map<std::string, std::size_t> bytes_by_format(const LoadedModel& m) {
  std::map<std::string, std::size_t> sum;
  const auto add = [&](const PackedMatrix& w) { sum[name_of(w.format)] += w.bytes(); };
  add(m.weights.embedding);
  if (!m.tied) add(m.weights.head);
  for (const auto& layer : m.weights.layers)
    for (const PackedMatrix* w : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) add(*w);
  return sum;
}

int inspect(const RunOptions& options, bool as_json) {
  const unsigned threads = options.threads;
  auto pool = value_or_die(ThreadPool::create(threads));
  const std::string path = find_model(options.model);
  const LoadedModel m = value_or_die(open_weights(path, *pool));
  const auto tokenizer = open_text(path);
  const auto chat = open_chat(path);
  const RuntimeSpec& s = m.spec;
  SessionShape shape;
  shape.context = options.context != 0 ? options.context : (std::min<std::size_t>)(4096, s.positions);
  if (shape.context > s.positions)
    die({Errc::invalid_argument,
         "--context " + std::to_string(shape.context) + ": the model takes at most " + std::to_string(s.positions)});
  shape.threads = pool->concurrency();
  shape.activations = activation_form(options.activations);
  shape = fitted(shape);
  const MemoryPlan plan = memory_plan<CpuBackend>(s, shape, m.weight_bytes);
  const Kernels* kernels = choose_kernels(options.isa);
  if (as_json) {
    nlohmann::ordered_json j;
    j["model"] = m.name;
    j["architecture"] = m.architecture;
    j["spec"] = {{"layers", s.layers},
                 {"hidden", s.hidden},
                 {"heads", s.heads},
                 {"kv_heads", s.kv_heads},
                 {"head_dim", s.head_dim},
                 {"ffn", s.ffn},
                 {"vocab", s.vocab},
                 {"positions", s.positions},
                 {"qk_norm", s.qk_norm},
                 {"tied", m.tied},
                 {"rms_epsilon", m.weights.rms_epsilon},
                 {"rope_base", m.weights.rope_base}};
    j["bytes_by_format"] = bytes_by_format(m);
    j["quantized_while_loading"] = m.quantized_here;
    j["tokenizer"] = tokenizer.has_value();
    j["chat_template"] = chat.has_value();
    j["isa"] = kernels->name;
    j["plan"] = {{"context", shape.context},          {"batch", shape.batch},
                 {"threads", shape.threads},          {"activations", name_of(shape.activations)},
                 {"weight_bytes", plan.weight_bytes}, {"mapped_bytes", m.mapped_bytes},
                 {"kv_bytes", plan.kv_bytes},         {"workspace_bytes", plan.workspace_bytes},
                 {"total_bytes", plan.total_bytes}};
    std::printf("%s\n", j.dump(2).c_str());
    return 0;
  }
  char text[32];
  std::printf("model          %s\n", m.name.c_str());
  std::printf("architecture   %s%s\n", m.architecture.c_str(), s.qk_norm ? ", q and k normalised" : "");
  std::printf("shape          %zu layers, hidden %zu, %zu query heads on %zu KV heads of %zu, feed-forward %zu\n",
              s.layers, s.hidden, s.heads, s.kv_heads, s.head_dim, s.ffn);
  std::printf("vocabulary     %zu, output %s; up to %zu positions\n", s.vocab,
              m.tied ? "tied to the embedding" : "of its own", s.positions);
  std::printf("constants      norm epsilon %g, rotary base %g\n", static_cast<double>(m.weights.rms_epsilon),
              m.weights.rope_base);
  std::printf("weights        ");
  for (const auto& [format, bytes] : bytes_by_format(m)) std::printf("%s %s  ", format.c_str(), megabytes(bytes, text));
  std::printf("(all with norms %s)\n", megabytes(m.weight_bytes, text));
  if (m.quantized_here) std::printf("               quantised while loading\n");
  std::printf("text           %s\n", tokenizer && chat ? "tokenizer and chat template"
                                     : tokenizer       ? "tokenizer"
                                                       : "none");
  if (!tokenizer || !chat)
    std::printf("               %s\n", (!tokenizer ? tokenizer.error() : chat.error()).message.c_str());
  std::printf("instructions   %s\n", kernels->name);
  std::printf("\nmemory of a session: context %zu, batch %zu, %u thread%s, activations %s\n", shape.context,
              shape.batch, shape.threads, shape.threads == 1 ? "" : "s", name_of(shape.activations));
  std::printf("  weights      %12s  %s\n", megabytes(plan.weight_bytes, text),
              m.mapped_bytes != 0 ? "mapped from the file, shared" : "repacked in private memory, shared by sessions");
  std::printf("  KV cache     %12s  float16\n", megabytes(plan.kv_bytes, text));
  std::printf("  workspace    %12s\n", megabytes(plan.workspace_bytes, text));
  std::printf("  total        %12s\n", megabytes(plan.total_bytes, text));
  return 0;
}

}  // namespace tools
