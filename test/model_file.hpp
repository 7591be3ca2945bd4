// The real model that some tests need: $POCKET_TEST_MODEL, or what third_party/bootstrap.sh fetched.
#ifndef POCKET_TEST_MODEL_FILE_HPP
#define POCKET_TEST_MODEL_FILE_HPP

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

namespace test {

inline std::optional<std::string> model_file() {
  const char* given = std::getenv("POCKET_TEST_MODEL");
  const std::string path =
      given != nullptr && *given != '\0' ? given : POCKET_SOURCE_DIR "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (std::ifstream(path).good()) return path;
  std::printf("skipped: no model at %s\n", path.c_str());
  return std::nullopt;
}

}  // namespace test

#endif
