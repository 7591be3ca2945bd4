// Opening a model: the one unit of the command that reads files.
#include "common.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "pocket/files/open.hpp"
#include "progress.hpp"

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
       "no model: third_party/bootstrap.sh fetches one (SmolLM2-135M-Instruct), --model takes a GGUF file, a "
       "Hugging Face directory or a package, and `pocket synthesize` makes a package with random weights"});
}

Expected<LoadedModel> open_weights(const std::string& path, Executor& executor) {
  const ProgressLine line("loading " + path);
  LoadOptions options;
  options.progress = [&line](std::size_t done, std::size_t total) {
    line.show(done, total);
    return true;
  };
  return open_model(path, executor, options);
}
Expected<std::string> read_file(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  std::string text;
  char buffer[65536];
  for (std::size_t n; file != nullptr && (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, n);
  const bool failed = file == nullptr || std::ferror(file) != 0;  // a directory opens, and does not read
  const int reason = errno;
  if (file != nullptr) std::fclose(file);
  if (failed) return fail(Errc::io, path + ": cannot be read: " + std::strerror(reason));
  return text;
}
Expected<Tokenizer> open_text(const std::string& path) { return open_tokenizer(path); }
Expected<ChatTemplate> open_chat(const std::string& path) { return open_chat_template(path); }

}  // namespace tools
