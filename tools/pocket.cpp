// The `pocket` command: chat, generate, inspect, quantize, export, validate, synthesize, bench.
// Exit codes: 0 done, 1 a file or the machine said no, 2 wrong usage, 130 interrupted.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "commands.hpp"

[[noreturn]] void tools::die(const pocket::Error& e) {
  std::fprintf(stderr, "pocket: %s\n", e.message.c_str());
  std::exit(e.code == pocket::Errc::invalid_argument ? 2 : 1);
}

namespace {

using namespace tools;

constexpr const char* talk_context = "positions for prompt and answer together (default: 4096 or the model's limit)";

void add_run_options(CLI::App& app, RunOptions& o, const char* context_help = talk_context) {
  app.add_option(
      "--model", o.model,
      "a GGUF file or a package directory (default: $POCKET_MODEL, or what third_party/bootstrap.sh fetched)");
  app.add_option("--threads", o.threads, "threads, at most 1024 (default: one per core)")->check(CLI::Range(1, 1024));
  app.add_option("--activations", o.activations, "a16 (16 bits) or a8 (8 bits: faster prompts, less exact)")
      ->check(CLI::IsMember({"a16", "a8"}))
      ->capture_default_str();
  app.add_option("--isa", o.isa, "instruction set (default: $POCKET_ISA, or the best that runs here)");
  if (context_help != nullptr) app.add_option("--context", o.context, context_help)->check(CLI::Range(1, 1 << 24));
}

void add_talk_options(CLI::App& app, TalkOptions& o) {
  pocket::SamplingOptions& s = o.generate.sampling;
  app.add_option("--system", o.system, "the system message (default: the model's own)");
  app.add_option("--max-tokens", o.generate.max_tokens, "longest answer, in tokens")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--temperature", s.temperature, "0 always takes the likeliest token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--top-p", s.top_p, "smallest set of tokens with this probability")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--top-k", s.top_k, "only the k likeliest tokens; 0: all")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  app.add_option("--seed", s.seed, "of the sampler: the same seed gives the same answer")->capture_default_str();
  app.add_flag("--quiet", o.quiet, "no figures after the answer");
}

CLI::App* add_quantize(CLI::App& app, QuantizeOptions& o) {
  CLI::App* command = app.add_subcommand("quantize", "a package from a Hugging Face directory or a GGUF file");
  command->add_option("source", o.source, "the directory or file")->required();
  command->add_option("--out", o.out, "directory of the package, made if missing")->required();
  command
      ->add_option("--format", o.format,
                   "of all matrices: w4_g64, w4_g32 or w8_g32; auto: 4 and 8 bit codes as they are, floats to w4_g64")
      ->check(CLI::IsMember({"auto", "w4_g64", "w4_g32", "w8_g32"}))
      ->capture_default_str();
  command
      ->add_option("--calibration", o.calibration,
                   "what says which weights count: a text file (1024 of its tokens), drawn (256 random tokens) or none")
      ->capture_default_str();
  command->add_option("--threads", o.threads, "default: one for each core")->check(CLI::Range(1, 1024));
  command->add_flag("--force", o.force, "replace a package that is there");
  return command;
}

CLI::App* add_validate(CLI::App& app, RunOptions& run, ValidateOptions& o, bool& json) {
  CLI::App* command =
      app.add_subcommand("validate", "a quantised model against a reference; its kernels against float64");
  add_run_options(*command, run, "tokens of a window; each starts with an empty context (default: 512)");
  command->add_option("--reference", o.reference,
                      "the model before it was quantised: a Hugging Face directory, a GGUF file or a package "
                      "(default: the model's own weights, which leaves the kernels to be checked)");
  command->add_option("--logits", o.logits,
                      "reference logits made elsewhere, a safetensors file (tools/reference_logits.py)");
  command
      ->add_option("--arithmetic", o.arithmetic,
                   "of the reference: bf16 or f16 (rounded where Transformers rounds), f64 (default: bf16 for floats, "
                   "f64 for codes)")
      ->check(CLI::IsMember({"bf16", "f16", "f64"}));
  command->add_option("--text", o.text, "a text file, UTF-8 (default: a built-in text in English and Chinese)");
  command->add_option("--tokens", o.tokens, "a file of token ids, apart by spaces or commas, in place of a text");
  command->add_option("--max-tokens", o.most_tokens, "how much of the text is used; 0: all")
      ->check(CLI::Range(0, 1 << 24))
      ->capture_default_str();
  command->add_option("--greedy", o.greedy, "tokens of greedy text side by side; 0: none")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->add_flag("--breakdown", o.breakdown, "what each rounding costs by itself: seven more passes over the text");
  command->add_option("--html", o.page, "a page with plots, one file");
  command->add_flag("--force", o.force, "replace the page if it is there");
  command->add_flag("--json", json, "for scripts");
  return command;
}

CLI::App* add_export(CLI::App& app, ExportOptions& o) {
  CLI::App* command = app.add_subcommand("export", "a GGUF file from a model of any kind, for llama.cpp");
  command->add_option("model", o.model, "a package, a Hugging Face directory or a GGUF file")->required();
  command->add_option("--gguf", o.gguf, "the file to write")->required();
  command
      ->add_option("--type", o.type,
                   "of all matrices: q4_1, f16 or f32; auto: 4 and 8 bit codes exactly, floats as f16")
      ->check(CLI::IsMember({"auto", "q4_1", "f16", "f32"}))
      ->capture_default_str();
  command->add_option("--threads", o.threads, "that quantise floats for q4_1 (default: one for each core)")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--force", o.force, "replace a file that is there");
  return command;
}

CLI::App* add_synthesize(CLI::App& app, SynthesizeOptions& o) {
  CLI::App* command = app.add_subcommand("synthesize", "a package with seeded random weights, for speed and memory");
  command->add_option("--spec", o.spec, "mnn-pocket-0.3b or qwen3-0.6b")
      ->check(CLI::IsMember({"mnn-pocket-0.3b", "qwen3-0.6b"}))
      ->capture_default_str();
  command->add_option("--out", o.out, "directory of the package, made if missing")->required();
  command->add_option("--seed", o.seed, "of the weights")->capture_default_str();
  command->add_flag("--force", o.force, "replace a package that is there");
  return command;
}

CLI::App* add_bench(CLI::App& app, RunOptions& run, BenchOptions& o, bool& json) {
  CLI::App* command = app.add_subcommand("bench", "speed, beside the memory bandwidth of this machine");
  add_run_options(*command, run, nullptr);
  command->add_option("--prompt", o.prompt, "tokens of the prefill")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--generate", o.generate, "tokens decoded")->check(CLI::Range(0, 1 << 20))->capture_default_str();
  command->add_option("--depth", o.depth, "tokens in the context before decoding starts")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--batch", o.batch, "tokens of one prefill step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command->add_option("--repeat", o.repeat, "runs after the warm-up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag("--profile", o.profile, "where a token's time goes");
  command->add_flag("--json", json, "for scripts");
  return command;
}

int run(int argc, char** argv) {
  CLI::App app{"Pocket " POCKET_VERSION ": language models in 4-bit weights and 16-bit activations", "pocket"};
  app.set_version_flag("--version", POCKET_VERSION);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  RunOptions options;
  TalkOptions talk;
  BenchOptions bench_options;
  SynthesizeOptions synthesize_options;
  QuantizeOptions quantize_options;
  ValidateOptions validate_options;
  ExportOptions export_options;
  bool json = false;

  CLI::App* chat_app = app.add_subcommand("chat", "a conversation; reads lines from standard input");
  add_run_options(*chat_app, options);
  add_talk_options(*chat_app, talk);

  CLI::App* generate_app = app.add_subcommand("generate", "one question, one streamed answer");
  generate_app->add_option("prompt", talk.prompt, "the question; - reads standard input")->required();
  generate_app->add_flag("--raw", talk.raw, "no chat template: continue the text as it is");
  add_run_options(*generate_app, options);
  add_talk_options(*generate_app, talk);

  CLI::App* inspect_app = app.add_subcommand("inspect", "a model's shape, bytes, and memory plan");
  add_run_options(*inspect_app, options);
  inspect_app->add_flag("--json", json, "for scripts");

  CLI::App* quantize_app = add_quantize(app, quantize_options);
  CLI::App* validate_app = add_validate(app, options, validate_options, json);
  CLI::App* export_app = add_export(app, export_options);
  CLI::App* synthesize_app = add_synthesize(app, synthesize_options);
  CLI::App* bench_app = add_bench(app, options, bench_options, json);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  talk.has_system = chat_app->count("--system") + generate_app->count("--system") > 0;
  if (bench_app->parsed() && bench_options.prompt + bench_options.generate == 0)
    die({pocket::Errc::invalid_argument, "--prompt 0 --generate 0: there is nothing to measure"});

  if (chat_app->parsed()) return chat(options, talk);
  if (generate_app->parsed()) return generate(options, talk);
  if (inspect_app->parsed()) return inspect(options, json);
  if (quantize_app->parsed()) return quantize(quantize_options);
  if (validate_app->parsed()) return validate(options, validate_options, json);
  if (export_app->parsed()) return export_model(export_options);
  if (synthesize_app->parsed()) return synthesize(synthesize_options);
  return bench(options, bench_options, json);
}

}  // namespace

int main(int argc, char** argv) { return run(argc, argv); }
