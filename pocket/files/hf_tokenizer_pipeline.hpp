// What the fields of tokenizer.json mean for a TokenizerData, and the expressions by which Hugging Face's files name a
// pre-tokenizer. hf_tokenizer.hpp says what is taken and what is refused.
#ifndef POCKET_FILES_HF_TOKENIZER_PIPELINE_HPP
#define POCKET_FILES_HF_TOKENIZER_PIPELINE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../text/tokenizer.hpp"
#include "hf_tokenizer_json.hpp"
#include "json_file.hpp"
#include "reader.hpp"

POCKET_NAMESPACE_BEGIN

// The expression of a Split, and the pre-tokenizer (pre_tokenizer.hpp) that gives the same pieces.
struct HfSplit {
  std::string_view pre, expression;
};
inline constexpr HfSplit hf_splits[] = {
    {"qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"llama-bpe",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"gpt-2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
};

namespace detail {

class HfTokenizerPipeline {
 public:
  // Appends to json.text; `file` is the name for messages. Both outlive this object.
  HfTokenizerPipeline(HfTokenizerJson& json, const std::string& file) : json_(json), file_(file) {}

  Expected<void> read(TokenizerData& data) {
    const Json& root = json_.rest;
    POCKET_CHECK(only(root, "",
                      {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                       "post_processor", "decoder", "model"}));
    if (const Json* version = find(root, "version"); version != nullptr && *version != "1.0")
      return unsupported("version", "expected \"1.0\"");
    const Json* const model = find(root, "model");
    if (model == nullptr || !model->is_object()) return malformed("model", "expected an object");
    data.rules = VocabularyRules::hugging_face;
    data.fields = {"model.vocab", "added_tokens", "model.merges",    "pre_tokenizer", "bos_token",
                   "eos_token",   "eot_token",    "model.unk_token", "pad_token"};
    POCKET_CHECK(read_model(*model, data));
    POCKET_CHECK(read_tokens(data));
    POCKET_CHECK(read_unknown(*model, data));
    POCKET_CHECK(read_normalizer(data));
    POCKET_CHECK(read_pre_tokenizer(data));
    POCKET_CHECK(read_post_processor(data));
    return read_decoder();
  }

 private:
  using Json = nlohmann::json;
  struct Added {
    std::string_view content;
    std::int32_t id;
    bool special, normalized;
  };
  struct Step {
    const Json* json;
    std::string path;  // "pre_tokenizer.pretokenizers[1]"
  };

  // A field that is null counts as absent.
  static const Json* find(const Json& object, std::string_view field) { return JsonFile::find_in(object, field); }
  static bool is_text(const Json* value, std::string_view text) { return value != nullptr && *value == text; }
  static bool is_type(const Json& object, std::string_view type) { return is_text(find(object, "type"), type); }

  Error malformed(const std::string& field, const std::string& what) const {
    return fail(Errc::malformed, file_ + ": " + field + ": " + what);
  }
  Error unsupported(const std::string& field, const std::string& what) const {
    return fail(Errc::unsupported, file_ + ": " + field + ": " + what);
  }
  static std::string join(const std::string& path, std::string_view field) {
    return path.empty() ? std::string(field) : path + "." + std::string(field);
  }

  // That the object has no field but these.
  Expected<void> only(const Json& object, const std::string& path,
                      std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : object.items())
      if (std::find(known.begin(), known.end(), key) == known.end())
        return unsupported(join(path, in_quotes(key)), "is not a field that Pocket knows");
    return {};
  }
  Expected<bool> flag(const Json& object, const std::string& path, std::string_view field,
                      std::optional<bool> if_absent = {}) const {
    const Json* const value = find(object, field);
    if (value == nullptr && if_absent) return *if_absent;
    if (value == nullptr || !value->is_boolean()) return malformed(join(path, field), "expected true or false");
    return value->get<bool>();
  }
  Expected<void> flag_is(bool expected, const Json& object, const std::string& path, std::string_view field,
                         std::optional<bool> if_absent = {}) const {
    POCKET_TRY(value, flag(object, path, field, if_absent));
    if (value == expected) return {};
    return unsupported(join(path, field), value ? "is true, expected false" : "is false, expected true");
  }

  // Null: no steps. A Sequence: its members. Anything else: one step.
  Expected<std::vector<Step>> steps(const std::string& field, std::string_view members) const {
    std::vector<Step> list;
    const Json* const value = find(json_.rest, field);
    if (value == nullptr) return list;
    if (!value->is_object()) return malformed(field, "expected null or an object");
    if (!is_type(*value, "Sequence")) {
      list.push_back({value, field});
      return list;
    }
    POCKET_CHECK(only(*value, field, {"type", members}));
    const Json* const all = find(*value, members);
    const std::string path = join(field, members);
    if (all == nullptr || !all->is_array()) return malformed(path, "expected an array");
    for (const Json& one : *all) {
      list.push_back({&one, path + "[" + std::to_string(list.size()) + "]"});
      if (!one.is_object()) return malformed(list.back().path, "expected an object");
    }
    return list;
  }

  Expected<void> read_model(const Json& model, TokenizerData& data) {
    POCKET_CHECK(only(model, "model",
                      {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                       "byte_fallback", "ignore_merges", "vocab", "merges"}));
    if (find(model, "type") != nullptr && !is_type(model, "BPE")) return unsupported("model.type", "expected \"BPE\"");
    // `true` stands for what was taken out of the document.
    if (!is_taken(model, "vocab")) return malformed("model.vocab", "expected an object of tokens and ids");
    if (!is_taken(model, "merges")) return malformed("model.merges", "expected an array of merges");
    if (find(model, "dropout") != nullptr) return unsupported("model.dropout", "expected null");
    for (const std::string_view affix : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json* value = find(model, affix); value != nullptr && *value != "")
        return unsupported(join("model", affix), "expected null or an empty string");
    POCKET_CHECK(flag_is(false, model, "model", "fuse_unk", false));
    POCKET_CHECK(flag_is(false, model, "model", "byte_fallback", false));
    POCKET_TRY(ignore_merges, flag(model, "model", "ignore_merges", false));
    data.ignore_merges = ignore_merges;
    data.merges = std::move(json_.merges);
    return {};
  }
  static bool is_taken(const Json& model, std::string_view field) {
    const Json* const value = find(model, field);
    return value != nullptr && *value == true;
  }

  Expected<void> read_tokens(TokenizerData& data) {
    POCKET_TRY(added, read_added());
    std::int32_t highest = -1;
    for (const auto& token : json_.vocab) highest = (std::max)(highest, token.id);
    for (const Added& token : added) highest = (std::max)(highest, token.id);
    const std::size_t count = static_cast<std::size_t>(highest + 1), given = json_.vocab.size() + added.size();
    // Published vocabularies have a few ids without a token. The bound keeps memory in proportion to the file.
    if (count > given * 4 + 1024)
      return malformed("model.vocab", "the highest id is " + std::to_string(highest) + ", but there are only " +
                                          std::to_string(given) + " tokens");
    data.tokens.assign(count, {});
    data.types.assign(count, TokenType::unused);
    for (const auto& token : json_.vocab) {
      const auto i = static_cast<std::size_t>(token.id);
      if (data.types[i] != TokenType::unused)
        return malformed("model.vocab", "tokens " + in_quotes(data.tokens[i]) + " and " + in_quotes(token.text) +
                                            " have the same id " + std::to_string(token.id));
      data.tokens[i] = token.text;
      data.types[i] = TokenType::normal;
    }
    for (std::size_t k = 0; k < added.size(); ++k) POCKET_CHECK(place(added[k], k, data));
    return {};
  }

  Expected<void> place(const Added& token, std::size_t k, TokenizerData& data) const {
    const auto i = static_cast<std::size_t>(token.id);
    const TokenType before = data.types[i];
    if (before != TokenType::unused && (before != TokenType::normal || data.tokens[i] != token.content))
      return malformed("added_tokens[" + std::to_string(k) + "]",
                       in_quotes(token.content) + " has the id of " + in_quotes(data.tokens[i]));
    data.tokens[i] = token.content;
    data.types[i] = token.special ? TokenType::control : TokenType::user_defined;
    if (token.normalized) data.normalized.push_back(token.id);
    return {};
  }

  Expected<std::vector<Added>> read_added() {
    std::vector<Added> added;
    const Json* const list = find(json_.rest, "added_tokens");
    if (list == nullptr) return added;
    if (!list->is_array()) return malformed("added_tokens", "expected an array");
    for (const Json& token : *list) {
      const std::string at = "added_tokens[" + std::to_string(added.size()) + "]";
      POCKET_TRY(one, read_added_token(token, at));
      added.push_back(one);
    }
    return added;
  }

  Expected<Added> read_added_token(const Json& token, const std::string& at) {
    if (!token.is_object()) return malformed(at, "expected an object");
    const Json* const content = find(token, "content");
    if (content == nullptr || !content->is_string() || *content == "")
      return malformed(at + ".content", "expected a string that is not empty");
    const std::string& text = *content->get_ptr<const std::string*>();
    const std::string path = at + " " + in_quotes(text);
    POCKET_CHECK(only(token, path, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    const Json* const id = find(token, "id");
    if (id == nullptr || !id->is_number_unsigned() || id->get<std::uint64_t>() >= Tokenizer::most_tokens)
      return malformed(join(path, "id"), "expected an id below " + std::to_string(Tokenizer::most_tokens));
    for (const std::string_view field : {"single_word", "lstrip", "rstrip"})
      POCKET_CHECK(flag_is(false, token, path, field));
    POCKET_TRY(special, flag(token, path, "special"));
    POCKET_TRY(normalized, flag(token, path, "normalized"));
    // The document goes; its text has room in the block, which was made for the whole file's.
    const std::size_t begin = json_.text.size();
    json_.text.insert(json_.text.end(), text.begin(), text.end());
    return Added{{json_.text.data() + begin, text.size()}, id->get<std::int32_t>(), special, normalized};
  }

  Expected<void> read_unknown(const Json& model, TokenizerData& data) const {
    const Json* const value = find(model, "unk_token");
    if (value == nullptr) return {};
    if (!value->is_string()) return malformed("model.unk_token", "expected null or a string");
    const std::string_view wanted = *value->get_ptr<const std::string*>();
    for (const auto& token : json_.vocab)
      if (token.text == wanted) data.unknown_byte = data.unknown = token.id;
    if (!data.unknown_byte) return malformed("model.unk_token", "expected a token of model.vocab");
    return {};
  }

  Expected<void> read_normalizer(TokenizerData& data) const {
    POCKET_TRY(list, steps("normalizer", "normalizers"));
    for (const Step& step : list) {
      if (!is_type(*step.json, "NFC")) return unsupported(step.path + ".type", "expected \"NFC\"");
      POCKET_CHECK(only(*step.json, step.path, {"type"}));
      data.normalizer = Normalizer::nfc;
    }
    return {};
  }

  Expected<void> read_pre_tokenizer(TokenizerData& data) const {
    POCKET_TRY(list, steps("pre_tokenizer", "pretokenizers"));
    if (list.empty() || list.size() > 2 || !is_type(*list.back().json, "ByteLevel"))
      return unsupported("pre_tokenizer", "expected ByteLevel, alone or after one Digits or Split");
    const bool split = list.size() == 2 && is_type(*list[0].json, "Split");
    if (list.size() == 2 && !split && !is_type(*list[0].json, "Digits"))
      return unsupported(list[0].path + ".type", "expected \"Digits\" or \"Split\"");
    POCKET_CHECK(read_byte_level(list.back(), !split));
    if (list.size() == 1) {
      data.pre = "gpt-2";
      return {};
    }
    if (split) return read_split(list[0], data);
    POCKET_CHECK(only(*list[0].json, list[0].path, {"type", "individual_digits"}));
    POCKET_CHECK(flag_is(true, *list[0].json, list[0].path, "individual_digits"));
    data.pre = "smollm";
    return {};
  }
  Expected<void> read_byte_level(const Step& step, bool use_regex) const {
    POCKET_CHECK(only(*step.json, step.path, {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    POCKET_CHECK(flag_is(false, *step.json, step.path, "add_prefix_space"));
    return flag_is(use_regex, *step.json, step.path, "use_regex", true);
  }
  Expected<void> read_split(const Step& step, TokenizerData& data) const {
    POCKET_CHECK(only(*step.json, step.path, {"type", "pattern", "behavior", "invert"}));
    if (!is_text(find(*step.json, "behavior"), "Isolated"))
      return unsupported(step.path + ".behavior", "expected \"Isolated\"");
    POCKET_CHECK(flag_is(false, *step.json, step.path, "invert"));
    const Json* const pattern = find(*step.json, "pattern");
    const Json* const expression = pattern == nullptr ? nullptr : find(*pattern, "Regex");
    for (const HfSplit& known : hf_splits)
      if (is_text(expression, known.expression)) data.pre = known.pre;
    if (!data.pre.empty()) return {};
    return unsupported(step.path + ".pattern",
                       "expected {\"Regex\": ...} with the expression of GPT-2, Qwen2 or Llama 3");
  }

  Expected<void> read_post_processor(TokenizerData& data) const {
    POCKET_TRY(list, steps("post_processor", "processors"));
    for (const Step& step : list) {
      if (is_type(*step.json, "ByteLevel")) continue;  // trims offsets, which nobody asks for here
      if (!is_type(*step.json, "TemplateProcessing"))
        return unsupported(step.path + ".type", "expected ByteLevel or TemplateProcessing");
      POCKET_CHECK(read_template(step, data));
    }
    return {};
  }

  // "single": the text alone, or one special token before it.
  Expected<void> read_template(const Step& step, TokenizerData& data) const {
    const Json* const single = find(*step.json, "single");
    const std::string path = step.path + ".single";
    if (single == nullptr || !single->is_array()) return malformed(path, "expected an array");
    const auto is_text_at = [&](std::size_t i) { return find((*single)[i], "Sequence") != nullptr; };
    if (single->size() == 1 && is_text_at(0)) return {};
    const Json* const first = single->size() == 2 && is_text_at(1) ? find((*single)[0], "SpecialToken") : nullptr;
    if (first == nullptr || data.add_bos)
      return unsupported(path, "expected the text alone, or after one special token");
    const Json* const name = find(*first, "id");
    const Json* const tokens = find(*step.json, "special_tokens");
    if (name == nullptr || !name->is_string() || tokens == nullptr)
      return malformed(step.path + ".special_tokens", "expected the token of 'single'");
    const Json* const token = find(*tokens, *name->get_ptr<const std::string*>());
    const Json* const ids = token == nullptr ? nullptr : find(*token, "ids");
    const bool one = ids != nullptr && ids->is_array() && ids->size() == 1 && (*ids)[0].is_number_unsigned();
    if (!one || (*ids)[0].get<std::uint64_t>() >= data.tokens.size())
      return malformed(step.path + ".special_tokens", "expected one id for the token of 'single'");
    data.bos = (*ids)[0].get<std::int32_t>();
    data.add_bos = true;
    return {};
  }

  Expected<void> read_decoder() const {
    POCKET_TRY(list, steps("decoder", "decoders"));
    for (const Step& step : list)
      if (!is_type(*step.json, "ByteLevel")) return unsupported(step.path + ".type", "expected \"ByteLevel\"");
    return {};
  }

  HfTokenizerJson& json_;
  const std::string& file_;
};

}  // namespace detail

POCKET_NAMESPACE_END

#endif
