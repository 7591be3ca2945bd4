// Splits text into the pieces that byte-pair encoding may not merge across, by the model's regular expression.
//
// The expressions are those of the models' own tokenizer.json, by the names that GGUF's `tokenizer.ggml.pre` uses:
//   gpt-2, default   contractions, " ?letters", " ?digits", " ?other", white space (its last character goes with what
//                    follows). A file that says "default" does not know better.
//   smollm           each digit alone first, then GPT-2's expression on the stretches between. Written as one: white
//                    space gives up its last character only before something that is neither space nor digit.
//   qwen2            Qwen2, Qwen2.5, Qwen3: contractions in either case, each digit alone, letters with one leading
//                    other character, symbols with the line ends after them, white space up to its last line end.
//   llama-bpe        Llama 3: as qwen2, with digits by up to three.
// White space is spelled out as Unicode's White_Space: PCRE2's own \s has U+180E as well, which the reference
// tokenizers do not. Contractions in either case take in U+017F (a long s), as Hugging Face's do and llama.cpp's do
// not.
//
// Any bytes are accepted. A run of bytes that is not UTF-8 is a piece of its own, and the text on either side of it is
// split as though the text began or ended there. Words in ASCII, most of most texts, are found without PCRE2. PCRE2
// keeps its backtracking on the heap: stack use does not depend on the input, and time is linear in it.
#ifndef POCKET_TEXT_PRE_TOKENIZER_HPP
#define POCKET_TEXT_PRE_TOKENIZER_HPP

#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "../config.hpp"
#include "../core/status.hpp"
#include "utf8.hpp"

POCKET_NAMESPACE_BEGIN

// One compiled expression; const and shareable.
class PreTokenizer {
 public:
  // field: what the file calls it, for messages.
  static Expected<PreTokenizer> create(std::string_view name, std::string_view field = "tokenizer.ggml.pre") {
    const std::string pattern = pattern_of(name);
    if (pattern.empty())
      return fail(Errc::unsupported, std::string(field) + ": \"" + std::string(name.substr(0, 100)) +
                                         "\" is not a pre-tokenizer that Pocket has; it has gpt-2, default, smollm, "
                                         "qwen2, llama-bpe");
    int error = 0;
    std::size_t where = 0;
    PreTokenizer p;
    p.code_.reset(pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(pattern.data()), pattern.size(),
                                  PCRE2_UTF | PCRE2_ANCHORED | PCRE2_NO_START_OPTIMIZE, &error, &where, nullptr));
    p.limits_.reset(pcre2_match_context_create_8(nullptr));
    if (!p.code_ || !p.limits_)
      return fail(Errc::unsupported, "the pre-tokenizer \"" + std::string(name) + "\" does not compile: PCRE2 error " +
                                         std::to_string(error) + " at " + std::to_string(where));
    // The default of 10 million steps is less than one long run of spaces can take; the work is linear all the same.
    pcre2_set_match_limit_8(p.limits_.get(), 0xffffffffu);
    return p;
  }

  // Calls piece(std::string_view) for each piece in order; joined, they are `text`.
  template <class F>
  Expected<void> split(std::string_view text, F&& piece) const {
    const Released<pcre2_match_data_8, pcre2_match_data_free_8> match(pcre2_match_data_create_8(1, nullptr));
    if (!match) return fail(Errc::out_of_memory, "text: no memory for PCRE2's match data");
    while (!text.empty()) {
      const std::size_t good = utf8_valid_prefix(text);
      POCKET_CHECK(split_valid(text.substr(0, good), match.get(), piece));
      text.remove_prefix(good);
      const std::size_t bad = invalid_prefix(text);
      if (bad > 0) piece(text.substr(0, bad));
      text.remove_prefix(bad);
    }
    return {};
  }

 private:
  template <auto release>
  struct Release {
    template <class T>
    void operator()(T* object) const noexcept {
      release(object);
    }
  };
  template <class T, auto release>
  using Released = std::unique_ptr<T, Release<release>>;

  PreTokenizer() = default;

  static std::string pattern_of(std::string_view name) {
    const std::string space =
        R"(\t-\r\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
    const std::string contractions = R"('s|'t|'re|'ve|'m|'ll|'d)";
    const std::string other = "[^" + space + R"(\p{L}\p{N}]+)";
    if (name == "gpt-2" || name == "default")
      return contractions + R"(| ?\p{L}+| ?\p{N}+| ?)" + other + "|[" + space + "]+(?![^" + space + "])|[" + space +
             "]+";
    if (name == "smollm")
      return contractions + R"(| ?\p{L}+|\p{N}| ?)" + other + "|[" + space + "]+(?![^" + space + R"(\p{N}])|[)" +
             space + "]+";
    if (name == "qwen2" || name == "llama-bpe")
      return "(?i:" + contractions + R"()|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})" + (name == "qwen2" ? "" : "{1,3}") + "| ?" +
             other + "[\\r\\n]*|[" + space + "]*[\\r\\n]+|[" + space + "]+(?![^" + space + "])|[" + space + "]+";
    return {};
  }

  template <class F>
  Expected<void> split_valid(std::string_view text, pcre2_match_data_8* match, F& piece) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR8>(text.data());
    for (std::size_t at = 0; at < text.size();) {
      if (const std::size_t word = ascii_word(text.substr(at)); word > 0) {
        piece(text.substr(at, word));
        at += word;
        continue;
      }
      // The text is known to be UTF-8: checked at each call, it would cost the square of its length.
      const int rc = pcre2_match_8(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, match, limits_.get());
      const std::size_t end = rc > 0 ? pcre2_get_ovector_pointer_8(match)[1] : at;
      // Every character belongs to one of the alternatives, so that only a lack of memory can end here.
      if (end <= at)
        return fail(Errc::out_of_memory, "text: PCRE2 stopped with error " + std::to_string(rc) + " at byte " +
                                             std::to_string(at) + " of " + std::to_string(text.size()));
      piece(text.substr(at, end - at));
      at = end;
    }
    return {};
  }

  // The length of a piece that all the expressions agree on: letters of ASCII after at most one space, ended by another
  // ASCII character or by the text. 0 where this does not tell.
  static std::size_t ascii_word(std::string_view text) noexcept {
    const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
    const std::size_t begin = text.front() == ' ' ? 1 : 0;
    std::size_t end = begin;
    while (end < text.size() && is_letter(text[end])) ++end;
    const bool closed = end == text.size() || static_cast<unsigned char>(text[end]) < 0x80;
    return end > begin && closed ? end : 0;
  }

  static std::size_t invalid_prefix(std::string_view text) noexcept {
    std::size_t i = 0;
    while (i < text.size()) {
      const Utf8Front front = utf8_front(text.substr(i));
      if (front.kind == Utf8Kind::whole) break;
      i += front.bytes;
    }
    return i;
  }

  Released<pcre2_code_8, pcre2_code_free_8> code_;
  Released<pcre2_match_context_8, pcre2_match_context_free_8> limits_;
};

POCKET_NAMESPACE_END

#endif
