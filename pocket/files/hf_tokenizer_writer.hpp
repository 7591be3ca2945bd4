// Text for a package: the tokenizer files of a Hugging Face directory (hf_tokenizer.hpp), made from what a GGUF file
// says, or copied from another directory.
//
// What is written loads in the `tokenizers` library, and gives the ids that Pocket gives for the GGUF file, with one
// exception: where the vocabulary lacks a byte, Hugging Face lets the bytes on either side of it meet and merge, and
// llama.cpp does not (VocabularyRules). The bytes written depend on the data alone. Every file appears whole or not at
// all; one that has no counterpart is removed when overwriting is allowed, so that a directory never mixes two models.
//
// Errors: Errc::unsupported for a vocabulary that tokenizer.json cannot express (a token that is not UTF-8, two tokens
// with one text); those of reading it back, which is done before anything is written; Errc::io, Errc::invalid_argument.
#ifndef POCKET_FILES_HF_TOKENIZER_WRITER_HPP
#define POCKET_FILES_HF_TOKENIZER_WRITER_HPP

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../text/tokenizer.hpp"
#include "../text/utf8.hpp"
#include "hf_tokenizer.hpp"
#include "hf_tokenizer_pipeline.hpp"
#include "mapped_file.hpp"
#include "output_file.hpp"
#include "reader.hpp"

POCKET_NAMESPACE_BEGIN

namespace detail {

// A JSON string; `text` is UTF-8.
inline void append_json_string(std::string& out, std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  out.push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out.append("\\u00").append(1, digits[byte >> 4]).append(1, digits[byte & 15]);
      continue;
    }
    if (c == '"' || c == '\\') out.push_back('\\');
    out.push_back(c);
  }
  out.push_back('"');
}

class HfTokenizerText {
 public:
  explicit HfTokenizerText(const TokenizerData& data) : data_(data) {}

  Expected<std::string> tokenizer_json() const {
    POCKET_CHECK(check_expressible());
    POCKET_TRY(pre_tokenizer, pre_tokenizer_json());
    std::string out =
        "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [";
    append_added_tokens(out);
    out += "],\n  \"normalizer\": ";
    out += data_.normalizer == Normalizer::nfc ? R"({"type": "NFC"})" : "null";
    out += ",\n  \"pre_tokenizer\": " + pre_tokenizer + ",\n  \"post_processor\": " + post_processor_json();
    out += ",\n  \"decoder\": " + byte_level("false") + ",\n  \"model\": {\n    \"type\": \"BPE\",\n";
    out += "    \"dropout\": null,\n    \"unk_token\": " + token_json(data_.unknown_byte) + ",\n";
    out += "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n";
    out += "    \"byte_fallback\": false,\n    \"ignore_merges\": " + truth(data_.ignore_merges) + ",\n";
    append_vocab(out);
    append_merges(out);
    return out += "  }\n}\n";
  }

  std::string tokenizer_config_json() const {
    return "{\n  \"add_bos_token\": " + truth(data_.add_bos && data_.bos) +
           ",\n  \"add_prefix_space\": false,\n  \"bos_token\": " + token_json(data_.bos) +
           ",\n  \"clean_up_tokenization_spaces\": false,\n  \"eos_token\": " + token_json(data_.eos) +
           ",\n  \"pad_token\": " + token_json(data_.padding) +
           ",\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"unk_token\": " + token_json(data_.unknown) +
           "\n}\n";
  }

  // eos_token_id: everything that ends a text.
  std::string generation_config_json() const {
    std::vector<std::int32_t> ends;
    const auto add = [&](std::optional<std::int32_t> id) {
      if (id && std::find(ends.begin(), ends.end(), *id) == ends.end()) ends.push_back(*id);
    };
    add(data_.eos);
    add(data_.eot);
    for (const std::int32_t id : data_.stop_ids) add(id);
    std::string list;
    for (const std::int32_t id : ends) list += (list.empty() ? "" : ", ") + std::to_string(id);
    std::string out = "{";
    const auto field = [&](const char* name, const std::string& value) {
      if (value.empty()) return;
      out.append(out.size() > 1 ? ",\n  \"" : "\n  \"").append(name).append("\": ").append(value);
    };
    field("bos_token_id", data_.bos ? std::to_string(*data_.bos) : "");
    field("eos_token_id", ends.size() > 1 ? "[" + list + "]" : list);
    field("pad_token_id", data_.padding ? std::to_string(*data_.padding) : "");
    return out += "\n}\n";
  }

 private:
  static std::string truth(bool value) { return value ? "true" : "false"; }
  static std::string byte_level(const std::string& use_regex) {
    return R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": )" + use_regex + "}";
  }
  std::string_view text(std::int32_t id) const {
    const auto i = static_cast<std::size_t>(id);
    return i < data_.tokens.size() ? data_.tokens[i] : std::string_view();
  }
  std::string token_json(std::optional<std::int32_t> id) const {
    if (!id || text(*id).empty()) return "null";
    std::string out;
    append_json_string(out, text(*id));
    return out;
  }
  TokenType type(std::size_t i) const { return data_.types.empty() ? TokenType::normal : data_.types[i]; }

  Expected<void> check_expressible() const {
    const auto refuse = [](std::string_view field, const std::string& what) {
      return fail(Errc::unsupported, std::string(field) + ": " + what + ", which tokenizer.json cannot express");
    };
    std::vector<std::string_view> texts;
    for (std::size_t i = 0; i < data_.tokens.size(); ++i) {
      const std::string_view token = data_.tokens[i];
      if (utf8_valid_prefix(token) != token.size())
        return refuse(data_.fields.tokens, "token " + std::to_string(i) + " is not UTF-8");
      if (!token.empty()) texts.push_back(token);
    }
    NameIndex names;
    if (const auto twice = names.build(texts.size(), [&](std::size_t i) { return texts[i]; }))
      return refuse(data_.fields.tokens, in_quotes(*twice) + " occurs twice");
    for (const std::string_view merge : data_.merges)
      if (utf8_valid_prefix(merge) != merge.size() || std::count(merge.begin(), merge.end(), ' ') != 1)
        return refuse(data_.fields.merges, in_quotes(merge) + " is not two tokens of UTF-8");
    if (const auto twice = names.build(data_.merges.size(), [&](std::size_t i) { return data_.merges[i]; }))
      return refuse(data_.fields.merges, in_quotes(*twice) + " occurs twice");
    return {};
  }

  Expected<std::string> pre_tokenizer_json() const {
    if (data_.pre == "gpt-2" || data_.pre == "default") return byte_level("true");
    const std::string head = R"({"type": "Sequence", "pretokenizers": [)";
    if (data_.pre == "smollm")
      return head + R"({"type": "Digits", "individual_digits": true}, )" + byte_level("true") + "]}";
    for (const HfSplit& split : hf_splits) {
      if (split.pre != data_.pre) continue;
      std::string expression;
      append_json_string(expression, split.expression);
      return head + R"({"type": "Split", "pattern": {"Regex": )" + expression +
             R"(}, "behavior": "Isolated", "invert": false}, )" + byte_level("false") + "]}";
    }
    return fail(Errc::unsupported, std::string(data_.fields.pre) +
                                       ": no pre-tokenizer of tokenizer.json is known for " + in_quotes(data_.pre));
  }

  std::string post_processor_json() const {
    if (!data_.add_bos || !data_.bos) return byte_level("false");
    const std::string bos = token_json(data_.bos), special = R"({"SpecialToken": {"id": )" + bos + R"(, "type_id": )";
    const std::string single = special + R"(0}}, {"Sequence": {"id": "A", "type_id": 0}})";
    return R"({"type": "TemplateProcessing", "single": [)" + single + R"(], "pair": [)" + single + ", " + special +
           R"(1}}, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": {)" + bos + R"(: {"id": )" + bos +
           R"(, "ids": [)" + std::to_string(*data_.bos) + R"(], "tokens": [)" + bos + "]}}}";
  }

  void append_added_tokens(std::string& out) const {
    std::vector<bool> normalized(data_.tokens.size(), false);
    for (const std::int32_t id : data_.normalized) normalized[static_cast<std::size_t>(id)] = true;
    const char* separator = "\n";
    for (std::size_t i = 0; i < data_.tokens.size(); ++i) {
      const bool special = type(i) == TokenType::control || type(i) == TokenType::unknown;
      if (data_.tokens[i].empty() || (!special && type(i) != TokenType::user_defined)) continue;
      out.append(std::exchange(separator, ",\n")).append("    {\"id\": ").append(std::to_string(i));
      append_json_string(out.append(", \"content\": "), data_.tokens[i]);
      out.append(R"(, "single_word": false, "lstrip": false, "rstrip": false, "normalized": )");
      out.append(truth(normalized[i])).append(", \"special\": ").append(truth(special)).append("}");
    }
  }

  // Special tokens as well: an added token takes the id that the vocabulary gives its text.
  void append_vocab(std::string& out) const {
    out.append("    \"vocab\": {");
    const char* separator = "\n      ";
    for (std::size_t i = 0; i < data_.tokens.size(); ++i) {
      if (data_.tokens[i].empty()) continue;
      append_json_string(out.append(std::exchange(separator, ",\n      ")), data_.tokens[i]);
      out.append(": ").append(std::to_string(i));
    }
    out.append("\n    },\n");
  }
  void append_merges(std::string& out) const {
    out.append("    \"merges\": [");
    const char* separator = "\n      ";
    for (const std::string_view merge : data_.merges)
      append_json_string(out.append(std::exchange(separator, ",\n      ")), merge);
    out.append("\n    ]\n");
  }

  const TokenizerData& data_;
};

inline constexpr std::string_view hf_text_files[] = {"tokenizer.json", "tokenizer_config.json",
                                                     "generation_config.json", "chat_template.jinja"};

// Files of one directory that come together: all are written before the first takes its place.
class HfTextFiles {
 public:
  HfTextFiles(const std::string& directory, bool overwrite) : directory_(directory), overwrite_(overwrite) {}

  Expected<void> add(std::string_view name, std::string_view text) {
    POCKET_TRY(file, OutputFile::create(directory_ + "/" + std::string(name), overwrite_));
    POCKET_CHECK(file.write(std::as_bytes(std::span(text.data(), text.size()))));
    files_.push_back(std::move(file));
    return {};
  }
  void leave_out(std::string_view name) { left_out_.push_back(directory_ + "/" + std::string(name)); }

  Expected<void> commit() {
    for (OutputFile& file : files_) POCKET_CHECK(file.commit());
    for (const std::string& path : left_out_)
      if (overwrite_ && std::remove(path.c_str()) != 0 && errno != ENOENT)
        return io_error(path, "cannot remove", errno);
    return {};
  }

 private:
  std::string directory_;
  bool overwrite_;
  std::vector<OutputFile> files_;
  std::vector<std::string> left_out_;
};

}  // namespace detail

// directory exists. chat_template: the Jinja text, or empty for none.
inline Expected<void> write_hf_text(const std::string& directory, const TokenizerData& data,
                                    std::string_view chat_template, bool overwrite) {
  POCKET_TRY(made, Tokenizer::create(data));  // that the ids in it are ids
  static_cast<void>(made);
  const detail::HfTokenizerText text(data);
  POCKET_TRY(tokenizer, text.tokenizer_json());
  const std::string config = text.tokenizer_config_json(), generation = text.generation_config_json();
  POCKET_TRY(read, parse_hf_tokenizer(tokenizer, config, generation, directory));
  if (auto again = Tokenizer::create(read.data); !again) return std::move(again).error();
  detail::HfTextFiles files(directory, overwrite);
  POCKET_CHECK(files.add(detail::hf_text_files[0], tokenizer));
  POCKET_CHECK(files.add(detail::hf_text_files[1], config));
  POCKET_CHECK(files.add(detail::hf_text_files[2], generation));
  if (chat_template.empty())
    files.leave_out(detail::hf_text_files[3]);
  else
    POCKET_CHECK(files.add(detail::hf_text_files[3], chat_template));
  return files.commit();
}

// Byte for byte, once they have been read without an error. A directory without a tokenizer.json has no text: nothing
// is copied. A chat template that Pocket does not know is copied all the same: the model can be used without a chat.
inline Expected<void> copy_hf_text(const std::string& from, const std::string& to, bool overwrite) {
  POCKET_TRY(there, detail::open_if_there(from + "/tokenizer.json"));
  if (!there) return {};
  POCKET_TRY(tokenizer, load_hf_tokenizer(from));
  static_cast<void>(tokenizer);
  POCKET_TRY(chat, read_hf_chat_template(from));
  static_cast<void>(chat);
  detail::HfTextFiles files(to, overwrite);
  for (const std::string_view name : detail::hf_text_files) {
    POCKET_TRY(file, detail::open_if_there(from + "/" + std::string(name)));
    if (file)
      POCKET_CHECK(files.add(name, detail::text_of(*file)));
    else
      files.leave_out(name);
  }
  return files.commit();
}

POCKET_NAMESPACE_END

#endif
