// The tokenizer and the chat template that a GGUF file carries in its metadata.
//
// Keys: tokenizer.ggml.model ("gpt2": byte-level BPE, the only kind that Pocket has), .pre, .tokens, .token_type,
// .merges, .{bos,eos,eot,unknown,padding}_token_id, .add_bos_token, and tokenizer.chat_template. Without .pre the
// pre-tokenizer is "default"; without .token_type all tokens are normal; the ids and add_bos_token are optional.
//
// What the format does not say follows from .pre: "qwen2" text is brought into NFC, as Qwen's own tokenizers do
// (llama.cpp does not: a letter and its accent as two characters give other tokens there); "llama-bpe" takes a piece
// that is a token as it is, and begins with BOS unless add_bos_token says otherwise, as llama.cpp does.
// Errors name the file and the key. Source: the GGUF specification (docs/gguf.md of the ggml project).
#ifndef POCKET_FILES_GGUF_TOKENIZER_HPP
#define POCKET_FILES_GGUF_TOKENIZER_HPP

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../text/chat_template.hpp"
#include "../text/tokenizer.hpp"
#include "gguf.hpp"

POCKET_NAMESPACE_BEGIN

// tokenizer.ggml.model of a file that says it has no tokenizer.
inline constexpr std::string_view gguf_no_text = "no_vocab";

// Does the file have a tokenizer, of whatever kind?
inline bool has_gguf_text(const GgufFile& file) {
  const auto model = file.string_value("tokenizer.ggml.model");
  return file.has("tokenizer.ggml.model") && !(model && *model == gguf_no_text);
}

// A token id of the metadata; empty where the file has no such key.
inline Expected<std::optional<std::int32_t>> gguf_token_id(const GgufFile& file, std::string_view key) {
  if (!file.has(key)) return std::optional<std::int32_t>{};
  POCKET_TRY(value, file.unsigned_value(key));
  if (value >= Tokenizer::most_tokens)
    return fail(Errc::malformed, file.name() + ": metadata '" + std::string(key) + "': is " + std::to_string(value) +
                                     ", expected an id below " + std::to_string(Tokenizer::most_tokens));
  return std::optional<std::int32_t>(static_cast<std::int32_t>(value));
}

// Token types by id; left empty where the file does not say.
inline Expected<void> gguf_token_types(const GgufFile& file, std::vector<TokenType>& types) {
  constexpr std::string_view key = "tokenizer.ggml.token_type";
  if (!file.has(key)) return {};
  POCKET_TRY(values, file.integer_array(key));
  types.reserve(values.size());
  for (const std::int64_t value : values) {
    if (value < 0 || value > static_cast<std::int64_t>(TokenType::byte))
      return fail(Errc::malformed, file.name() + ": metadata '" + std::string(key) + "': token " +
                                       std::to_string(types.size()) + " has type " + std::to_string(value) +
                                       ", expected 0 to 6");
    types.push_back(static_cast<TokenType>(value));
  }
  return {};
}

// The views point into the file's bytes.
inline Expected<TokenizerData> tokenizer_data(const GgufFile& file) {
  POCKET_TRY(model, file.string_value("tokenizer.ggml.model"));
  if (model != "gpt2")
    return fail(Errc::unsupported, file.name() + ": metadata 'tokenizer.ggml.model': is '" +
                                       std::string(model.substr(0, 100)) + "', expected 'gpt2' (byte-level BPE)");
  TokenizerData data;
  data.pre = "default";
  if (constexpr std::string_view key = "tokenizer.ggml.pre"; file.has(key)) {
    POCKET_TRY(pre, file.string_value(key));
    data.pre = pre;
  }
  if (data.pre == "qwen2") data.normalizer = Normalizer::nfc;
  data.ignore_merges = data.add_bos = data.pre == "llama-bpe";
  POCKET_TRY(tokens, file.string_array("tokenizer.ggml.tokens"));
  POCKET_TRY(merges, file.string_array("tokenizer.ggml.merges"));
  data.tokens = std::move(tokens);
  data.merges = std::move(merges);
  POCKET_CHECK(gguf_token_types(file, data.types));
  const std::pair<std::string_view, std::optional<std::int32_t>*> ids[] = {
      {"tokenizer.ggml.bos_token_id", &data.bos},
      {"tokenizer.ggml.eos_token_id", &data.eos},
      {"tokenizer.ggml.eot_token_id", &data.eot},
      {"tokenizer.ggml.unknown_token_id", &data.unknown},
      {"tokenizer.ggml.padding_token_id", &data.padding}};
  for (const auto& [key, to] : ids) {
    POCKET_TRY(id, gguf_token_id(file, key));
    *to = id;
  }
  if (constexpr std::string_view key = "tokenizer.ggml.add_bos_token"; file.has(key)) {
    POCKET_TRY(add_bos, file.bool_value(key));
    data.add_bos = add_bos;
  }
  return data;
}

// The file may be closed afterwards: the tokenizer holds its own copy of what it needs.
inline Expected<Tokenizer> load_tokenizer(const GgufFile& file) {
  POCKET_TRY(data, tokenizer_data(file));
  auto tokenizer = Tokenizer::create(data);
  if (!tokenizer) return fail(tokenizer.error().code, file.name() + ": " + tokenizer.error().message);
  return tokenizer;
}

// The template of tokenizer.chat_template, if it is one that chat_template.hpp knows.
inline Expected<ChatTemplate> load_chat_template(const GgufFile& file) {
  POCKET_TRY(source, file.string_value("tokenizer.chat_template"));
  auto chat = ChatTemplate::from_jinja(source);
  if (!chat) return fail(chat.error().code, file.name() + ": " + chat.error().message);
  return chat;
}

POCKET_NAMESPACE_END

#endif
