// pocket quantize: a package from a Hugging Face directory or a GGUF file.
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "common.hpp"
#include "pocket/files/calibration.hpp"
#include "pocket/files/gguf.hpp"
#include "pocket/files/gguf_model.hpp"
#include "pocket/files/gguf_tokenizer.hpp"
#include "pocket/files/hf_model.hpp"
#include "pocket/files/hf_tokenizer_writer.hpp"
#include "pocket/files/package.hpp"
#include "progress.hpp"

namespace tools {

inline std::optional<WeightFormat> wanted_format(const std::string& name) {
  for (const WeightFormat f : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32})
    if (name == name_of(f)) return f;
  return std::nullopt;  // "auto": the parser admits no other
}

// How many bytes of weights and norms the files hold.
inline std::size_t source_bytes(const ModelSource& source) {
  std::size_t bytes = 0;
  for (const SourceMatrix& m : source.matrices)
    for (const SourceTensor& t : m.parts) bytes += t.data.size();
  for (const SourceVector& v : source.vectors) bytes += v.tensor.data.size();
  return bytes;
}

// "w4_g64" or "w4_g32 and w8_g32"
inline std::string formats_of(const ModelSource& source) {
  std::string text;
  for (const WeightFormat f : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32})
    for (const SourceMatrix& m : source.matrices)
      if (m.format == f) {
        text.append(text.empty() ? "" : " and ").append(name_of(f));
        break;
      }
  return text;
}

// Windows of `window` tokens, evenly spaced over the text, `most` tokens in all.
inline std::vector<std::int32_t> spread(std::vector<std::int32_t> tokens, std::size_t window, std::size_t most) {
  const std::size_t windows = tokens.size() / window, wanted = most / window;
  if (windows <= wanted) return tokens;
  std::vector<std::int32_t> some;
  for (std::size_t i = 0; i < wanted; ++i) {
    const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(i * windows / wanted * window);
    some.insert(some.end(), from, from + static_cast<std::ptrdiff_t>(window));
  }
  return some;
}

// By the tokens of a text, by those that calibration.hpp draws, or not at all.
Expected<void> calibrate_for(ModelSource& source, const QuantizeOptions& o, Executor& executor) {
  constexpr std::size_t window = 256, most = 1024;
  const bool drawn = o.calibration == "drawn";
  if (o.calibration == "none" || (drawn && !takes_calibration(source))) return {};
  if (!takes_calibration(source))
    return fail(Errc::invalid_argument, o.source + ": --calibration has nothing to do: nothing is quantised to 4 bits");
  std::vector<std::int32_t> tokens;
  if (!drawn) {
    POCKET_TRY(text, read_file(o.calibration));
    POCKET_TRY(tokenizer, open_text(o.source));
    POCKET_TRY(all, tokenizer.encode(text));
    if (all.size() < window)
      return fail(Errc::invalid_argument, o.calibration + ": is " + std::to_string(all.size()) +
                                              " tokens long, at least " + std::to_string(window) + " are needed");
    tokens = spread(std::move(all), window, most);
  }
  const ProgressLine line("calibrating");
  return calibrate(source, executor, tokens, [&](std::size_t done, std::size_t total) {
    line.show(done, total);
    return !interrupted.load();
  });
}

template <class WriteText>
Expected<void> write(const ModelSource& source, const QuantizeOptions& o, Executor& executor, WriteText&& write_text) {
  std::error_code error;
  std::filesystem::create_directories(o.out, error);
  if (error) return fail(Errc::io, o.out + ": cannot create the directory: " + error.message());
  {
    const ProgressLine line("writing " + o.out);
    POCKET_CHECK(write_package(
        source, o.out, o.force, executor,
        [&](std::size_t done, std::size_t total) {
          line.show(done, total);
          return !interrupted.load();
        },
        write_text));
  }
  const double packed = static_cast<double>(weight_bytes(source));
  std::printf("%s: %s, %zu layers, %.1f MB in %s from %.1f MB%s\n", package_path(o.out).c_str(),
              source.architecture.c_str(), source.spec.layers, packed * 1e-6, formats_of(source).c_str(),
              static_cast<double>(source_bytes(source)) * 1e-6,
              source.exact() ? ", every code taken over exactly" : "");
  return {};
}

Expected<void> quantize_directory(const QuantizeOptions& o, Executor& executor) {
  POCKET_TRY(directory, HfDirectory::open(o.source));
  POCKET_TRY(source, hf_source(directory, wanted_format(o.format)));
  POCKET_CHECK(calibrate_for(source, o, executor));
  return write(source, o, executor, [&] { return copy_hf_text(o.source, o.out, o.force); });
}

Expected<void> quantize_gguf(const QuantizeOptions& o, Executor& executor) {
  POCKET_TRY(file, GgufFile::open(o.source));
  POCKET_TRY(source, gguf_source(file, wanted_format(o.format)));
  POCKET_CHECK(calibrate_for(source, o, executor));
  return write(source, o, executor, [&]() -> Expected<void> {
    if (!has_gguf_text(file)) return {};
    POCKET_TRY(tokenizer, tokenizer_data(file));
    std::string_view chat;
    if (constexpr std::string_view key = "tokenizer.chat_template"; file.has(key)) {
      POCKET_TRY(source_text, file.string_value(key));
      chat = source_text;
    }
    return write_hf_text(o.out, tokenizer, chat, o.force);
  });
}

int quantize(const QuantizeOptions& o) {
  std::error_code ignored;
  const bool is_directory = std::filesystem::is_directory(o.source, ignored);
  if (std::filesystem::exists(package_path(o.source), ignored))
    die({Errc::invalid_argument, o.source + ": is a package already"});
  if (const std::string path = package_path(o.out); !o.force && std::filesystem::exists(path, ignored))
    die({Errc::io, path + " exists already; --force replaces it"});
  catch_interrupt();
  auto pool = value_or_die(ThreadPool::create(o.threads));
  auto done = is_directory ? quantize_directory(o, *pool) : quantize_gguf(o, *pool);
  if (!done && done.error().code == Errc::cancelled) return 130;
  check_or_die(std::move(done));
  return 0;
}

}  // namespace tools
