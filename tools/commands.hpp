// The commands of `pocket` and their options. Each command is a unit of its own, so that they compile side by side.
#ifndef POCKET_TOOLS_COMMANDS_HPP
#define POCKET_TOOLS_COMMANDS_HPP

#include <cstddef>
#include <cstdint>
#include <string>

#include "pocket/core/status.hpp"
#include "pocket/generate/generate.hpp"

namespace tools {

// Of every command that runs a model. Empty and 0 mean the default.
struct RunOptions {
  std::string model, isa, activations = "a16";
  unsigned threads = 0;
  std::size_t context = 0;
};

struct TalkOptions {
  pocket::GenerateOptions generate;
  std::string system, prompt;
  bool has_system = false, raw = false, quiet = false;
};

struct BenchOptions {
  std::size_t prompt = 512, generate = 128, depth = 0, batch = 128;
  int repeat = 5;
  bool profile = false;
};

struct SynthesizeOptions {
  std::string spec = "mnn-pocket-0.3b", out;
  std::uint64_t seed = 1;
  bool force = false;
};

struct QuantizeOptions {
  std::string source, out, format = "auto", calibration = "drawn";
  unsigned threads = 0;
  bool force = false;
};

struct ValidateOptions {
  std::string reference, logits;  // at most one; none: the model's own weights
  std::string arithmetic;         // of the reference graph: bf16, f16, f64; empty: bf16 for floats, else f64
  std::string text, tokens, page;
  std::size_t most_tokens = 2048, greedy = 32;
  bool breakdown = false, force = false;
};

struct ExportOptions {
  std::string model, gguf, type = "auto";
  unsigned threads = 0;
  bool force = false;
};

// Each returns the program's exit code; what goes wrong ends the program (die).
int chat(const RunOptions&, TalkOptions);
int generate(const RunOptions&, TalkOptions);
int inspect(const RunOptions&, bool as_json);
int bench(const RunOptions&, const BenchOptions&, bool as_json);
int synthesize(const SynthesizeOptions&);
int quantize(const QuantizeOptions&);
int validate(const RunOptions&, const ValidateOptions&, bool as_json);
int export_model(const ExportOptions&);

// Prints the message and exits: 2 for a wrong argument, else 1.
[[noreturn]] void die(const pocket::Error& e);

}  // namespace tools

#endif
