// Opening a model: the one unit of the command that reads files.
#include "common.hpp"

#include <cstdlib>
#include <filesystem>

#include "pocket/files/gguf.hpp"
#include "pocket/files/gguf_model.hpp"
#include "pocket/files/gguf_tokenizer.hpp"
#include "pocket/files/package.hpp"

namespace tools {

constexpr const char* fetched_model = "SmolLM2-135M-Instruct.Q4_1.gguf";

std::string find_model(const std::string& given) {
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

Expected<OpenModel> open_model(const std::string& path, Executor& executor, bool with_text) {
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

}  // namespace tools
