// Text for a GGUF file: the metadata that gguf_tokenizer.hpp reads, from what a tokenizer's own files say.
//
// What is written gives the ids of the original when Pocket reads it, with the exceptions below, and so it does in
// llama.cpp but for what gguf_tokenizer.hpp says of NFC. GGUF's arrays have one token for each row of the embedding:
// ids without a token, and rows beyond the tokenizer's, are written as "[PAD<id>]" of type unused.
//
// Exceptions: added tokens that are looked for after normalisation are looked for before it; where the vocabulary lacks
// a byte, its neighbours stay apart (VocabularyRules::gguf). Of generation_config.json's end tokens the first is
// written; the others have no key, and llama.cpp knows the usual ones by their text.
//
// Errors: Errc::unsupported, naming the field: a normaliser or ignore_merges that GGUF does not link with the
// pre-tokenizer, a token in place of missing bytes, more tokens than the embedding has rows, a merge or a token listed
// twice.
#ifndef POCKET_FILES_GGUF_TOKENIZER_WRITER_HPP
#define POCKET_FILES_GGUF_TOKENIZER_WRITER_HPP

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../text/tokenizer.hpp"
#include "gguf_writer.hpp"
#include "reader.hpp"

POCKET_NAMESPACE_BEGIN

namespace detail {

inline Expected<void> check_gguf_can_say(const TokenizerData& data) {
  const auto refuse = [](std::string_view field, const std::string& what) {
    return fail(Errc::unsupported, std::string(field) + ": " + what + ", which GGUF's metadata cannot express");
  };
  if ((data.normalizer == Normalizer::nfc) != (data.pre == "qwen2"))
    return refuse("normalizer", std::string(data.normalizer == Normalizer::nfc ? "NFC" : "none") +
                                    " with the pre-tokenizer " + in_quotes(data.pre));
  if (data.ignore_merges != (data.pre == "llama-bpe"))
    return refuse("ignore_merges", std::string(data.ignore_merges ? "true" : "false") + " with the pre-tokenizer " +
                                       in_quotes(data.pre));
  POCKET_TRY(tokenizer, Tokenizer::create(data));
  for (unsigned b = 0; b < 256 && data.unknown_byte; ++b)
    if (!tokenizer.has_byte(static_cast<unsigned char>(b)))
      return refuse(data.fields.unknown, "a token that stands for bytes that have none");
  NameIndex names;
  if (const auto twice = names.build(data.merges.size(), [&](std::size_t i) { return data.merges[i]; }))
    return refuse(data.fields.merges, in_quotes(*twice) + " occurs twice");
  return {};
}

}  // namespace detail

// rows: of the embedding. chat_template: the Jinja text, or empty for none. The views need to live until this returns.
inline Expected<void> add_gguf_text(GgufWriter& writer, const TokenizerData& data, std::string_view chat_template,
                                    std::size_t rows) {
  POCKET_CHECK(detail::check_gguf_can_say(data));
  if (data.tokens.size() > rows)
    return fail(Errc::unsupported, std::string(data.fields.tokens) + ": " + std::to_string(data.tokens.size()) +
                                       " tokens, but the embedding has " + std::to_string(rows) + " rows");
  std::vector<std::string_view> tokens(data.tokens);
  std::vector<std::int32_t> types(rows, static_cast<std::int32_t>(TokenType::normal));
  std::list<std::string> made;
  tokens.resize(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    if (i < data.types.size()) types[i] = static_cast<std::int32_t>(data.types[i]);
    if (!tokens[i].empty()) continue;
    tokens[i] = made.emplace_back("[PAD" + std::to_string(i) + "]");
    types[i] = static_cast<std::int32_t>(TokenType::unused);
  }
  NameIndex names;
  if (const auto twice = names.build(rows, [&](std::size_t i) { return tokens[i]; }))
    return fail(Errc::unsupported, std::string(data.fields.tokens) + ": " + in_quotes(*twice) + " occurs twice");
  writer.add_string("tokenizer.ggml.model", "gpt2");
  writer.add_string("tokenizer.ggml.pre", data.pre);
  writer.add_array("tokenizer.ggml.tokens", std::span<const std::string_view>(tokens));
  writer.add_array("tokenizer.ggml.token_type", std::span<const std::int32_t>(types));
  writer.add_array("tokenizer.ggml.merges", std::span<const std::string_view>(data.merges));
  const std::pair<const char*, std::optional<std::int32_t>> ids[] = {{"tokenizer.ggml.bos_token_id", data.bos},
                                                                     {"tokenizer.ggml.eos_token_id", data.eos},
                                                                     {"tokenizer.ggml.eot_token_id", data.eot},
                                                                     {"tokenizer.ggml.unknown_token_id", data.unknown},
                                                                     {"tokenizer.ggml.padding_token_id", data.padding}};
  for (const auto& [key, id] : ids)
    if (id) writer.add_value(key, static_cast<std::uint32_t>(*id));
  writer.add_value("tokenizer.ggml.add_bos_token", data.add_bos && data.bos.has_value());
  if (!chat_template.empty()) writer.add_string("tokenizer.chat_template", chat_template);
  return {};
}

POCKET_NAMESPACE_END

#endif
