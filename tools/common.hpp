// What the commands share: opening a model, messages, the interrupt flag.
#ifndef POCKET_TOOLS_COMMON_HPP
#define POCKET_TOOLS_COMMON_HPP

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "pocket/files/gguf.hpp"
#include "pocket/files/gguf_model.hpp"
#include "pocket/files/gguf_tokenizer.hpp"
#include "pocket/files/loaded_model.hpp"
#include "pocket/files/package.hpp"
#include "pocket/model/transformer.hpp"
#include "pocket/pocket.hpp"
#include "pocket/text/chat_template.hpp"
#include "pocket/text/tokenizer.hpp"

namespace tools {

using namespace pocket;

// A failed operation ends the command with exit code 1, a wrong argument with 2.
[[noreturn]] inline void die(const Error& e) {
  std::fprintf(stderr, "pocket: %s\n", e.message.c_str());
  std::exit(e.code == Errc::invalid_argument ? 2 : 1);
}
template <class T>
T value_or_die(Expected<T> e) {
  if (!e) die(e.error());
  return *std::move(e);
}
inline void check_or_die(Expected<void> e) {
  if (!e) die(e.error());
}

// Set by Ctrl-C; a second Ctrl-C before the first was seen ends the program.
inline std::atomic<bool> interrupted{false};
inline void catch_interrupt() {
  struct sigaction action{};
  action.sa_handler = [](int) {
    if (interrupted.exchange(true)) _exit(130);
  };
  sigaction(SIGINT, &action, nullptr);  // no SA_RESTART: waiting for a line ends too
}

inline constexpr const char* fetched_model = "SmolLM2-135M-Instruct.Q4_1.gguf";

// --model, or $POCKET_MODEL, or what the bootstrap script fetched: in models/ beside the build directory of this
// program, or of the current directory.
inline std::string find_model(const std::string& given) {
  if (!given.empty()) return given;
  if (const char* env = std::getenv("POCKET_MODEL"); env != nullptr && *env != '\0') return env;
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  for (const auto& root : {program.parent_path().parent_path().parent_path(), std::filesystem::current_path(ignored)}) {
    const auto path = root / "models" / fetched_model;
    if (std::filesystem::is_regular_file(path, ignored)) return path.string();
  }
  die({Errc::io,
       "no model: third_party/bootstrap.sh fetches one (SmolLM2-135M-Instruct), --model takes a GGUF file or a "
       "package directory, and `pocket synthesize` makes a package with random weights"});
}

// A model with what its file says about text; tokenizer and template are absent where the file has none.
struct OpenModel {
  LoadedModel model;
  std::optional<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  std::string why_no_text;  // a sentence, where one of them is absent
};

inline Expected<OpenModel> open_model(const std::string& path, Executor& executor, bool with_text) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    POCKET_TRY(package, open_package(path));
    return OpenModel{std::move(package), {}, {}, path + ": this package has no tokenizer"};
  }
  POCKET_TRY(file, GgufFile::open(path));
  POCKET_TRY(model, load_gguf(file, executor));
  OpenModel out{std::move(model), {}, {}, {}};
  if (!with_text) return out;
  auto tokenizer = load_tokenizer(file);
  auto chat = load_chat_template(file);
  if (!tokenizer) out.why_no_text = tokenizer.error().message;
  if (tokenizer && !chat) out.why_no_text = chat.error().message;
  if (tokenizer) out.tokenizer = *std::move(tokenizer);
  if (chat) out.chat_template = *std::move(chat);
  return out;
}

// Options of every command that runs a model.
struct RunOptions {
  std::string model, isa, activations = "a16";
  unsigned threads = 0;
  std::size_t context = 0;
};

inline ActivationForm activation_form(const std::string& name) {
  return name == "a8" ? ActivationForm::a8 : ActivationForm::a16;  // the parser admits no other
}

inline const Kernels* choose_kernels(const std::string& isa) {
  const char* env = std::getenv("POCKET_ISA");
  const std::string name = !isa.empty() ? isa : env != nullptr ? env : "";
  return name.empty() ? value_or_die(best_kernels()) : value_or_die(kernels_by_name(name));
}

}  // namespace tools

#endif
