// One path, any kind of model: a package directory (package.hpp), a Hugging Face directory (hf_model.hpp), a GGUF file
// (gguf_model.hpp). Weights and text are opened apart: a program that brings its own tokens needs no tokenizer.
//
//   auto model = pocket::open_model(path, executor);
//   auto tokenizer = pocket::open_tokenizer(path);
//   auto chat = pocket::open_chat_template(path);
//
// This header includes all of pocket/files and pocket/text; a program that knows its kind of file includes less.
// Errors: those of the readers, naming file and field; Errc::unsupported for what is none of the three.
#ifndef POCKET_FILES_OPEN_HPP
#define POCKET_FILES_OPEN_HPP

#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

#include "../config.hpp"
#include "../core/executor.hpp"
#include "../core/status.hpp"
#include "../text/chat_template.hpp"
#include "../text/tokenizer.hpp"
#include "calibration.hpp"
#include "gguf.hpp"
#include "gguf_model.hpp"
#include "gguf_tokenizer.hpp"
#include "hf_model.hpp"
#include "hf_tokenizer.hpp"
#include "loaded_model.hpp"
#include "mapped_file.hpp"
#include "package.hpp"

POCKET_NAMESPACE_BEGIN

// What a path holds.
enum class ModelKind : unsigned char { package, hugging_face, gguf };

// Looks at names alone; a file's content is checked when it is opened.
inline Expected<ModelKind> model_kind(const std::string& path) {
  struct stat about{};
  if (::stat(path.c_str(), &about) != 0) return io_error(path, "cannot open", errno);
  if (!S_ISDIR(about.st_mode)) {
    if (path.ends_with(".safetensors"))
      return fail(Errc::unsupported, path + ": is one file of a model; the directory that holds it was expected");
    return ModelKind::gguf;
  }
  if (::stat(package_path(path).c_str(), &about) == 0) return ModelKind::package;
  if (::stat((path + "/config.json").c_str(), &about) == 0) return ModelKind::hugging_face;
  return fail(Errc::unsupported, path + ": is no model: it has neither " + std::string(package_file) +
                                     " (a package) nor config.json (a Hugging Face directory)");
}

namespace detail {

inline Expected<LoadedModel> load_calibrated(ModelSource source, Executor& executor, const LoadOptions& options) {
  const auto nothing_yet = [&](std::size_t, std::size_t) {
    return !options.progress || options.progress(0, weight_bytes(source));
  };
  if (options.calibrate) POCKET_CHECK(calibrate(source, executor, {}, nothing_yet));
  return load_model(source, executor, options);
}

}  // namespace detail

// A package is mapped and ready at once; anything else is packed into memory on the executor's threads.
inline Expected<LoadedModel> open_model(const std::string& path, Executor& executor, const LoadOptions& options = {}) {
  POCKET_TRY(kind, model_kind(path));
  if (kind == ModelKind::package) return open_package(path);
  if (kind == ModelKind::hugging_face) {
    POCKET_TRY(directory, HfDirectory::open(path));
    POCKET_TRY(source, hf_source(directory, options.format));
    return detail::load_calibrated(std::move(source), executor, options);
  }
  POCKET_TRY(file, GgufFile::open(path));
  POCKET_TRY(source, gguf_source(file, options.format));
  return detail::load_calibrated(std::move(source), executor, options);
}

// Text to tokens and back, as the model was trained.
inline Expected<Tokenizer> open_tokenizer(const std::string& path) {
  POCKET_TRY(kind, model_kind(path));
  if (kind != ModelKind::gguf) return load_hf_tokenizer(path);
  POCKET_TRY(file, GgufFile::open(path));
  return load_tokenizer(file);
}

// How the model wants a conversation to be written.
inline Expected<ChatTemplate> open_chat_template(const std::string& path) {
  POCKET_TRY(kind, model_kind(path));
  if (kind != ModelKind::gguf) return load_hf_chat_template(path);
  POCKET_TRY(file, GgufFile::open(path));
  return load_chat_template(file);
}

POCKET_NAMESPACE_END

#endif
