// Reference logits that somebody else computed, in a safetensors file:
//
//   tokens  I32 [windows, length]           each window starts with an empty context
//   logits  F32 [windows, length, vocab]    row i of a window: the logits after its token i
//   metadata "engine": who made it, for reports (optional)
//
// F32 and nothing coarser: a logit of 20 in BF16 is off by up to 0.06, which is more divergence than 4-bit weights
// cause. tools/reference_logits.py writes such a file from Hugging Face Transformers.
#ifndef POCKET_VALIDATE_LOGITS_FILE_HPP
#define POCKET_VALIDATE_LOGITS_FILE_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../files/safetensors.hpp"

POCKET_NAMESPACE_BEGIN

// Mapped; logits are read row by row.
class LogitsFile {
 public:
  // Errors name the file and the tensor: missing, another type or shape, a token outside the vocabulary.
  static Expected<LogitsFile> open(const std::string& path) {
    LogitsFile f;
    POCKET_TRY(file, SafetensorsFile::open(path));
    f.file_ = std::move(file);
    POCKET_TRY(logits, tensor(f.file_, "logits", Dtype::F32, 3, "F32 [windows, length, vocab]"));
    POCKET_TRY(tokens, tensor(f.file_, "tokens", Dtype::I32, 2, "I32 [windows, length]"));
    f.logits_ = logits->data;
    f.windows_ = static_cast<std::size_t>(logits->shape[0]);
    f.length_ = static_cast<std::size_t>(logits->shape[1]);
    f.vocab_ = static_cast<std::size_t>(logits->shape[2]);
    if (f.windows_ == 0 || f.length_ == 0 || f.vocab_ == 0)
      return fail(Errc::malformed, path + ": tensor 'logits': is empty");
    if (tokens->shape[0] != logits->shape[0] || tokens->shape[1] != logits->shape[1])
      return fail(Errc::malformed, path +
                                       ": tensor 'tokens': its shape is not that of 'logits' without the last "
                                       "dimension");
    f.tokens_.resize(f.windows_ * f.length_);
    std::memcpy(f.tokens_.data(), tokens->data.data(), tokens->data.size());
    for (const std::int32_t t : f.tokens_)
      if (t < 0 || static_cast<std::size_t>(t) >= f.vocab_)
        return fail(Errc::malformed, path + ": tensor 'tokens': " + std::to_string(t) +
                                         " is outside the vocabulary of " + std::to_string(f.vocab_) +
                                         " that 'logits' has");
    f.engine_ = f.file_.metadata_value("engine").value_or("");
    return f;
  }

  const std::string& name() const noexcept { return file_.name(); }
  const std::string& engine() const noexcept { return engine_; }  // empty where the file does not say
  std::size_t windows() const noexcept { return windows_; }
  std::size_t length() const noexcept { return length_; }  // tokens of a window
  std::size_t vocab() const noexcept { return vocab_; }
  std::span<const std::int32_t> tokens() const noexcept { return tokens_; }  // [windows * length]
  // The logits after token i of all, 0 <= i < windows * length: out[vocab].
  void read(std::size_t i, float* out) const noexcept {
    std::memcpy(out, logits_.data() + i * vocab_ * sizeof(float), vocab_ * sizeof(float));
  }

 private:
  static Expected<const SafetensorsTensor*> tensor(const SafetensorsFile& file, const char* name, Dtype dtype,
                                                   std::size_t rank, const char* wanted) {
    POCKET_TRY(t, file.require(name));
    if (t->dtype != dtype || t->shape.size() != rank)
      return fail(Errc::unsupported, file.name() + ": tensor '" + name + "': is " + t->dtype_name + " of " +
                                         std::to_string(t->shape.size()) + " dimensions, expected " + wanted);
    return t;
  }

  SafetensorsFile file_;
  std::span<const std::byte> logits_;
  std::size_t windows_ = 0, length_ = 0, vocab_ = 0;
  std::vector<std::int32_t> tokens_;
  std::string engine_;
};

POCKET_NAMESPACE_END

#endif
