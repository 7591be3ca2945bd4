// The `pocket` command: chat, generate, inspect, synthesize, bench.
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

void add_run_options(CLI::App& app, RunOptions& o, bool with_context = true) {
  app.add_option(
      "--model", o.model,
      "a GGUF file or a package directory (default: $POCKET_MODEL, or what third_party/bootstrap.sh fetched)");
  app.add_option("--threads", o.threads, "threads, at most 1024 (default: one per core)")->check(CLI::Range(1, 1024));
  app.add_option("--activations", o.activations, "a16 (16 bits) or a8 (8 bits: faster prompts, less exact)")
      ->check(CLI::IsMember({"a16", "a8"}))
      ->capture_default_str();
  app.add_option("--isa", o.isa, "instruction set (default: $POCKET_ISA, or the best that runs here)");
  if (with_context)
    app.add_option("--context", o.context,
                   "positions for prompt and answer together (default: 4096 or the model's limit)")
        ->check(CLI::Range(1, 1 << 24));
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

  CLI::App* quantize_app = app.add_subcommand("quantize", "a package from a Hugging Face directory or a GGUF file");
  quantize_app->add_option("source", quantize_options.source, "the directory or file")->required();
  quantize_app->add_option("--out", quantize_options.out, "directory of the package, made if missing")->required();
  quantize_app
      ->add_option("--format", quantize_options.format,
                   "of all matrices: w4_g64, w4_g32 or w8_g32; auto: 4 and 8 bit codes as they are, floats to w4_g64")
      ->check(CLI::IsMember({"auto", "w4_g64", "w4_g32", "w8_g32"}))
      ->capture_default_str();
  quantize_app
      ->add_option("--calibration", quantize_options.calibration,
                   "what says which weights count: a text file (1024 of its tokens), drawn (256 random tokens) or none")
      ->capture_default_str();
  quantize_app->add_option("--threads", quantize_options.threads, "default: one for each core")
      ->check(CLI::Range(1, 1024));
  quantize_app->add_flag("--force", quantize_options.force, "replace a package that is there");

  CLI::App* synthesize_app =
      app.add_subcommand("synthesize", "a package with seeded random weights, for speed and memory");
  synthesize_app->add_option("--spec", synthesize_options.spec, "mnn-pocket-0.3b or qwen3-0.6b")
      ->check(CLI::IsMember({"mnn-pocket-0.3b", "qwen3-0.6b"}))
      ->capture_default_str();
  synthesize_app->add_option("--out", synthesize_options.out, "directory of the package, made if missing")->required();
  synthesize_app->add_option("--seed", synthesize_options.seed, "of the weights")->capture_default_str();
  synthesize_app->add_flag("--force", synthesize_options.force, "replace a package that is there");

  CLI::App* bench_app = app.add_subcommand("bench", "speed, beside the memory bandwidth of this machine");
  add_run_options(*bench_app, options, false);
  bench_app->add_option("--prompt", bench_options.prompt, "tokens of the prefill")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  bench_app->add_option("--generate", bench_options.generate, "tokens decoded")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  bench_app->add_option("--depth", bench_options.depth, "tokens in the context before decoding starts")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  bench_app->add_option("--batch", bench_options.batch, "tokens of one prefill step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  bench_app->add_option("--repeat", bench_options.repeat, "runs after the warm-up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  bench_app->add_flag("--profile", bench_options.profile, "where a token's time goes");
  bench_app->add_flag("--json", json, "for scripts");

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
  if (synthesize_app->parsed()) return synthesize(synthesize_options);
  return bench(options, bench_options, json);
}

}  // namespace

int main(int argc, char** argv) { return run(argc, argv); }
