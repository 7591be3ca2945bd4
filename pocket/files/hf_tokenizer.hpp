// The tokenizer and the chat template of a Hugging Face directory, and of a package, which carries the same files:
//
//   tokenizer.json            type BPE with a ByteLevel pre-tokenizer; ids are those of the `tokenizers` library
//   tokenizer_config.json     optional: bos_token, eos_token, pad_token, unk_token, add_bos_token, chat_template
//   generation_config.json    optional: eos_token_id, one or several: all of them end a text
//   chat_template.jinja       optional: else the chat_template of tokenizer_config.json
//
// From tokenizer.json: model (vocab, merges, ignore_merges, unk_token), added_tokens, normalizer null or NFC,
// pre_tokenizer ByteLevel alone, after Digits, or after Split with the expression of GPT-2, Qwen2 or Llama 3,
// post_processor null, ByteLevel, or a TemplateProcessing that puts one token in front. Whatever would change the ids
// and is not done here is refused: dropout, byte_fallback, fuse_unk, affixes of words, added tokens with lstrip, rstrip
// or single_word, and every field that is not known. `truncation` and `padding` are settings for batches, and stay
// without effect, as in Transformers; so do the wishes for decoding (clean_up_tokenization_spaces).
//
// Ids that belong to no token become TokenType::unused. A pad_token or unk_token that the vocabulary lacks is no error:
// nothing here uses them. Errors name the file and the field: Errc::io, Errc::malformed, or Errc::unsupported.
#ifndef POCKET_FILES_HF_TOKENIZER_HPP
#define POCKET_FILES_HF_TOKENIZER_HPP

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../text/chat_template.hpp"
#include "../text/tokenizer.hpp"
#include "hf_tokenizer_json.hpp"
#include "hf_tokenizer_pipeline.hpp"
#include "json_file.hpp"
#include "mapped_file.hpp"
#include "reader.hpp"

POCKET_NAMESPACE_BEGIN

// Movable; the views of `data` point into `text`.
struct HfTokenizerData {
  TokenizerData data;
  std::vector<char> text;
};

namespace detail {

// The id of the token with this text, special ones first.
inline std::optional<std::int32_t> hf_token_id(const TokenizerData& data, std::string_view text) {
  std::optional<std::int32_t> id;
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    if (data.tokens[i] != text || data.types[i] == TokenType::unused) continue;
    id = static_cast<std::int32_t>(i);
    if (data.types[i] != TokenType::normal) break;
  }
  return id;
}

// tokenizer_config.json's "X_token": a string, or an object with its content. Null where there is none.
inline Expected<const std::string*> hf_token_text(const JsonFile& config, std::string_view field) {
  const nlohmann::json* value = config.find(field);
  if (value != nullptr && value->is_object()) value = JsonFile::find_in(*value, "content");
  if (value == nullptr) return static_cast<const std::string*>(nullptr);
  if (!value->is_string()) return config.wrong(field, "a token's text");
  return value->get_ptr<const std::string*>();
}

// Transformers adds what is listed here and is not in tokenizer.json; the same list twice changes nothing.
inline Expected<void> check_added_tokens_decoder(const JsonFile& config, const TokenizerData& data) {
  const nlohmann::json* const list = config.find("added_tokens_decoder");
  if (list == nullptr) return {};
  if (!list->is_object()) return config.wrong("added_tokens_decoder", "an object");
  for (const auto& [id, token] : list->items()) {
    const nlohmann::json* const content = JsonFile::find_in(token, "content");
    if (content == nullptr || !content->is_string())
      return config.wrong("added_tokens_decoder." + id, "an object with a string 'content'");
    const auto known = hf_token_id(data, *content->get_ptr<const std::string*>());
    if (!known || std::to_string(*known) != id || data.types[static_cast<std::size_t>(*known)] == TokenType::normal)
      return config.wrong("added_tokens_decoder." + id, "a token that tokenizer.json has among its added_tokens");
  }
  return {};
}

inline Expected<void> read_tokenizer_config(const JsonFile& config, TokenizerData& data) {
  const struct {
    std::string_view field;
    std::optional<std::int32_t>& to;
    bool needed;
  } tokens[] = {{"bos_token", data.bos, true},
                {"eos_token", data.eos, true},
                {"pad_token", data.padding, false},
                {"unk_token", data.unknown, false}};
  for (const auto& [field, to, needed] : tokens) {
    POCKET_TRY(text, hf_token_text(config, field));
    if (text == nullptr) continue;
    const auto id = hf_token_id(data, *text);
    if (!id && needed) return config.wrong(field, "a token of tokenizer.json, found " + in_quotes(*text));
    // What tokenizer.json puts in front is what comes in front.
    if (id && !(field == "bos_token" && data.add_bos)) to = id;
  }
  POCKET_TRY(add_bos, config.boolean("add_bos_token", data.add_bos));
  if (add_bos && !data.bos) return config.wrong("bos_token", "a token, as add_bos_token is true");
  data.add_bos = add_bos;
  for (const std::string_view field : {"add_eos_token", "add_prefix_space"}) {
    POCKET_TRY(wanted, config.boolean(field, false));
    if (wanted) return fail(Errc::unsupported, config.name() + ": " + in_quotes(field) + ": is true, expected false");
  }
  return check_added_tokens_decoder(config, data);
}

// All that it lists end a text; the first is the one that eos() gives.
inline Expected<void> read_generation_config(const JsonFile& config, TokenizerData& data) {
  const nlohmann::json* const value = config.find("eos_token_id");
  if (value == nullptr) return {};
  std::vector<std::int32_t> ids;
  const auto add = [&](const nlohmann::json& id) {
    const bool good = id.is_number_unsigned() && id.get<std::uint64_t>() < data.tokens.size();
    if (good) ids.push_back(id.get<std::int32_t>());
    return good;
  };
  const bool good = value->is_array() ? std::all_of(value->begin(), value->end(), add) : add(*value);
  if (!good || ids.empty())
    return config.wrong("eos_token_id", "an id below " + std::to_string(data.tokens.size()) + ", or a list of such");
  data.eos = ids.front();
  data.stop_ids.assign(ids.begin() + 1, ids.end());
  return {};
}

// Nothing where no file has that name.
inline Expected<std::optional<MappedFile>> open_if_there(const std::string& path) {
  struct stat about{};
  if (path.find('\0') == std::string::npos && ::stat(path.c_str(), &about) != 0 && errno == ENOENT)
    return std::optional<MappedFile>();
  POCKET_TRY(file, MappedFile::open(path));
  return std::optional<MappedFile>(std::move(file));
}

inline std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace detail

// The three files' texts; of the optional ones an empty text means that there is none. `directory` is for messages.
inline Expected<HfTokenizerData> parse_hf_tokenizer(std::string_view tokenizer_json,
                                                    std::string_view tokenizer_config_json,
                                                    std::string_view generation_config_json,
                                                    const std::string& directory) {
  const std::string file = directory + "/tokenizer.json";
  POCKET_TRY(json, parse_hf_tokenizer_json(tokenizer_json, file));
  HfTokenizerData result;
  POCKET_CHECK(detail::HfTokenizerPipeline(json, file).read(result.data));
  if (!tokenizer_config_json.empty()) {
    POCKET_TRY(config, JsonFile::parse(tokenizer_config_json, directory + "/tokenizer_config.json"));
    POCKET_CHECK(detail::read_tokenizer_config(config, result.data));
  }
  if (!generation_config_json.empty()) {
    POCKET_TRY(config, JsonFile::parse(generation_config_json, directory + "/generation_config.json"));
    POCKET_CHECK(detail::read_generation_config(config, result.data));
  }
  result.text = std::move(json.text);
  return result;
}

// What the files say, before a tokenizer is made of it.
inline Expected<HfTokenizerData> read_hf_tokenizer(const std::string& directory) {
  POCKET_TRY(tokenizer, MappedFile::open(directory + "/tokenizer.json"));
  POCKET_TRY(config, detail::open_if_there(directory + "/tokenizer_config.json"));
  POCKET_TRY(generation, detail::open_if_there(directory + "/generation_config.json"));
  return parse_hf_tokenizer(detail::text_of(tokenizer), config ? detail::text_of(*config) : std::string_view(),
                            generation ? detail::text_of(*generation) : std::string_view(), directory);
}

// The tokenizer of this directory; nothing of the files is needed afterwards.
inline Expected<Tokenizer> load_hf_tokenizer(const std::string& directory) {
  POCKET_TRY(read, read_hf_tokenizer(directory));
  auto tokenizer = Tokenizer::create(read.data);
  if (!tokenizer) return fail(tokenizer.error().code, directory + "/tokenizer.json: " + tokenizer.error().message);
  return tokenizer;
}

// The Jinja text: of chat_template.jinja, else of tokenizer_config.json (of several the one named "default"). Nothing
// where the directory has neither.
inline Expected<std::optional<std::string>> read_hf_chat_template(const std::string& directory) {
  POCKET_TRY(jinja, detail::open_if_there(directory + "/chat_template.jinja"));
  if (jinja) return std::optional<std::string>(detail::text_of(*jinja));
  POCKET_TRY(file, detail::open_if_there(directory + "/tokenizer_config.json"));
  if (!file) return std::optional<std::string>();
  POCKET_TRY(config, JsonFile::parse(detail::text_of(*file), file->path()));
  const nlohmann::json* value = config.find("chat_template");
  if (value == nullptr) return std::optional<std::string>();
  if (value->is_array()) {
    const auto is_default = [](const nlohmann::json& one) {
      const nlohmann::json* const name = JsonFile::find_in(one, "name");
      return name != nullptr && *name == "default";
    };
    const auto it = std::find_if(value->begin(), value->end(), is_default);
    value = it == value->end() ? nullptr : JsonFile::find_in(*it, "template");
  }
  if (value == nullptr || !value->is_string())
    return config.wrong("chat_template", "a string, or a list of {name, template} with one named 'default'");
  return std::optional<std::string>(*value->get_ptr<const std::string*>());
}

// The chat template of this directory, if it is one that chat_template.hpp knows.
inline Expected<ChatTemplate> load_hf_chat_template(const std::string& directory) {
  POCKET_TRY(source, read_hf_chat_template(directory));
  if (!source)
    return fail(Errc::unsupported, directory +
                                       ": has no chat template: expected chat_template.jinja, or chat_template in "
                                       "tokenizer_config.json");
  auto chat = ChatTemplate::from_jinja(*source);
  if (!chat) return fail(chat.error().code, directory + ": " + chat.error().message);
  return chat;
}

POCKET_NAMESPACE_END

#endif
