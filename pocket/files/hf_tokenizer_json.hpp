// tokenizer.json, read but not yet understood: the vocabulary and the merges, which are all but a few kilobytes of it,
// as views of one block of text, and everything else as a small document. hf_tokenizer.hpp gives it its meaning.
//
//   {"version": "1.0", "added_tokens": [...], "normalizer": ..., "pre_tokenizer": ..., "post_processor": ...,
//    "decoder": ..., "model": {"type": "BPE", "vocab": {"TOKEN": ID, ...},
//                              "merges": ["LEFT RIGHT", ...] or [["LEFT", "RIGHT"], ...], ...}}
//
// nlohmann-json's SAX side: nesting costs no stack, and is bounded, as is the number of values in the document. Memory
// is bounded by the file's size: no string is longer than its own JSON. Errors: Errc::malformed, "FILE: FIELD: what
// was expected".
#ifndef POCKET_FILES_HF_TOKENIZER_JSON_HPP
#define POCKET_FILES_HF_TOKENIZER_JSON_HPP

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../text/tokenizer.hpp"
#include "reader.hpp"

POCKET_NAMESPACE_BEGIN

// Movable; the views stay valid, since a vector keeps its block when it is moved.
struct HfTokenizerJson {
  // An entry of model.vocab or of added_tokens.
  struct Token {
    std::string_view text;
    std::int32_t id;
  };
  std::vector<char> text;
  std::vector<Token> vocab;              // in the file's order
  std::vector<std::string_view> merges;  // "LEFT RIGHT"
  nlohmann::json rest;                   // in it, model.vocab and model.merges are `true` where the file has them
};

namespace detail {

class HfTokenizerEvents {
 public:
  HfTokenizerJson result;
  Error error;  // of the first event that was refused

  explicit HfTokenizerEvents(std::size_t bytes) { result.text.reserve(bytes); }

  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_float(double value, const std::string&) { return scalar(value); }
  bool number_integer(std::int64_t value) { return scalar(value); }
  bool binary(nlohmann::json::binary_t&) { return refuse("binary data"); }

  bool number_unsigned(std::uint64_t value) {
    if (place_ != Place::vocab) return scalar(value);
    if (value >= Tokenizer::most_tokens)
      return refuse("token " + in_quotes(key_) + ": id " + std::to_string(value) + ", expected one below " +
                    std::to_string(Tokenizer::most_tokens));
    result.vocab.push_back({keep(key_), static_cast<std::int32_t>(value)});
    return true;
  }

  bool string(std::string& value) {
    if (place_ == Place::merges) {
      result.merges.push_back(keep(value));
      return true;
    }
    if (place_ != Place::pair) return scalar(std::move(value));
    // Kept as the other form writes it, whose separator no token of such a pair may hold.
    if (value.empty() || value.find(' ') != std::string::npos)
      return refuse("entry " + std::to_string(result.merges.size()) + ": token " + in_quotes(value) +
                    ", expected one that is not empty and has no space");
    if (++pair_ > 2) return wrong_pair();
    const std::size_t at = pair_ == 1 ? result.text.size() : pair_begin_;
    if (pair_ == 2) result.text.push_back(' ');
    keep(value);
    pair_begin_ = at;
    return true;
  }

  bool key(std::string& text) {
    key_ = std::move(text);
    if (place_ != Place::document || !top().contains(key_)) return true;
    return refuse("field " + in_quotes(key_) + " occurs twice");
  }

  bool start_object(std::size_t) {
    if (place_ != Place::document) return unexpected();
    if (in_model() && key_ == "vocab") return enter(Place::vocab);
    return open(nlohmann::json::object());
  }
  bool start_array(std::size_t) {
    if (place_ == Place::merges) {
      place_ = Place::pair;
      pair_ = 0;
      return true;
    }
    if (place_ != Place::document) return unexpected();
    if (in_model() && key_ == "merges") return enter(Place::merges);
    return open(nlohmann::json::array());
  }
  bool end_object() { return close(); }
  bool end_array() {
    if (place_ != Place::pair) return close();
    if (pair_ != 2) return wrong_pair();
    result.merges.emplace_back(result.text.data() + pair_begin_, result.text.size() - pair_begin_);
    place_ = Place::merges;
    return true;
  }

  template <class Exception>
  bool parse_error(std::size_t position, const std::string&, const Exception&) {
    error = fail(Errc::malformed, "not valid JSON at byte " + std::to_string(position));
    return false;
  }

 private:
  enum class Place : unsigned char { document, vocab, merges, pair };
  static constexpr std::size_t most_depth = 32;
  static constexpr std::size_t most_values = std::size_t{1} << 20;  // ten thousands of added tokens

  nlohmann::json& top() { return *open_.back(); }
  bool in_model() const { return open_.size() == 2 && open_[1] == model_; }

  // The block was reserved for all of the file's text: it never moves, and the views into it stay.
  std::string_view keep(std::string_view text) {
    const std::size_t begin = result.text.size();
    result.text.insert(result.text.end(), text.begin(), text.end());
    return {result.text.data() + begin, text.size()};
  }

  bool scalar(nlohmann::json value) {
    return place_ == Place::document ? put(std::move(value)) != nullptr : unexpected();
  }

  // Null, after an error, where there are too many.
  nlohmann::json* put(nlohmann::json value) {
    if (++values_ > most_values) {
      refuse("more than " + std::to_string(most_values) + " values beside vocabulary and merges");
      return nullptr;
    }
    if (open_.empty()) return &(result.rest = std::move(value));
    if (!top().is_array()) return &(top()[key_] = std::move(value));
    top().push_back(std::move(value));
    return &top().back();
  }
  bool open(nlohmann::json container) {
    if (open_.size() == most_depth) return refuse("nested more than " + std::to_string(most_depth) + " deep");
    nlohmann::json* const at = put(std::move(container));
    if (at == nullptr) return false;
    if (open_.size() == 1 && key_ == "model") model_ = at;
    open_.push_back(at);  // it stays where it is: only the innermost container grows
    return true;
  }
  bool close() {
    if (place_ == Place::document) open_.pop_back();
    place_ = Place::document;
    return true;
  }
  bool enter(Place place) {
    if (put(true) == nullptr) return false;
    place_ = place;
    return true;
  }

  bool unexpected() {
    if (place_ == Place::vocab) return refuse("token " + in_quotes(key_) + ": expected an id, an integer not negative");
    return refuse("entry " + std::to_string(result.merges.size()) +
                  ": expected \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]");
  }
  bool wrong_pair() { return refuse("entry " + std::to_string(result.merges.size()) + ": expected two tokens"); }
  bool refuse(const std::string& what) {
    const char* const where = place_ == Place::document ? ""
                              : place_ == Place::vocab  ? "model.vocab: "
                                                        : "model.merges: ";
    error = fail(Errc::malformed, where + what);
    return false;
  }

  Place place_ = Place::document;
  std::vector<nlohmann::json*> open_;  // the containers around the next value, outermost first
  const nlohmann::json* model_ = nullptr;
  std::string key_;  // the last one
  std::size_t values_ = 0, pair_begin_ = 0;
  int pair_ = 0;  // tokens of the pair so far
};

}  // namespace detail

// `file` is the name for messages.
inline Expected<HfTokenizerJson> parse_hf_tokenizer_json(std::string_view text, const std::string& file) {
  // The parser would take a zero byte for the end, and believe a file that has anything behind it.
  if (text.find('\0') != std::string_view::npos) return fail(Errc::malformed, file + ": holds a zero byte");
  detail::HfTokenizerEvents events(text.size());
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events))
    return fail(events.error.code, file + ": " + events.error.message);
  if (!events.result.rest.is_object()) return fail(Errc::malformed, file + ": is not a JSON object");
  return std::move(events.result);
}

POCKET_NAMESPACE_END

#endif
