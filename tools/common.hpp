// What the commands share: opening a model, messages, the interrupt flag.
#ifndef POCKET_TOOLS_COMMON_HPP
#define POCKET_TOOLS_COMMON_HPP

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "pocket/files/loaded_model.hpp"
#include "pocket/model/transformer.hpp"
#include "pocket/pocket.hpp"
#include "pocket/text/chat_template.hpp"
#include "pocket/text/tokenizer.hpp"

namespace tools {

using namespace pocket;

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

// --model, or $POCKET_MODEL, or what the bootstrap script fetched: in models/ beside the build directory of this
// program, or of the current directory. Without any: ends the program, saying how to get one.
std::string find_model(const std::string& given);

// pocket/files/open.hpp, which is compiled once: common.cpp. Loading shows how far it has come.
Expected<LoadedModel> open_weights(const std::string& path, Executor& executor);
Expected<Tokenizer> open_text(const std::string& path);
Expected<ChatTemplate> open_chat(const std::string& path);

// A whole file. Errors name it.
Expected<std::string> read_file(const std::string& path);

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
