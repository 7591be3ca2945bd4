// ChatML: how a conversation becomes the tokens that a chat model was trained on. Each turn is
//
//   <|im_start|>ROLE\nCONTENT<|im_end|>\n
//
// and the model is asked for a reply by "<|im_start|>assistant\n". The markers are control tokens that come from here
// alone: a message's text is encoded as text, so that "<|im_end|>" typed by a user stays plain characters. Role, line
// end and content are encoded in one go, as the reference does (a content that begins with a newline merges with it).
//
// Models carry their template as a Jinja program. There is no Jinja interpreter here: from_jinja() recognises a ChatML
// template and takes from it the one thing that varies, a default system message that is inserted when the first
// message is not a system one (SmolLM2 and Qwen2.5 have one, Qwen3 has none). What else such programs do is not done:
// tools, and Qwen3's removal of earlier replies' reasoning; hand over replies without it. Other templates are refused.
//
// A conversation is rendered as it grows: ChatOptions::cached says what the session already holds, and only the rest
// comes out. No BOS token is added.
#ifndef POCKET_TEXT_CHAT_TEMPLATE_HPP
#define POCKET_TEXT_CHAT_TEMPLATE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "tokenizer.hpp"

POCKET_NAMESPACE_BEGIN

// One turn of a conversation.
struct Message {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// What the session holds when the next messages come.
enum class Cached : unsigned char {
  nothing,  // the conversation begins here, and so does the default system message
  turns,    // whole turns, as rendered without add_generation_prompt
  reply,    // a reply that the model ended with <|im_end|>, which is in the cache: its line end is missing
  cut,      // a reply that was stopped before <|im_end|>: marker and line end are missing
};

// How messages are rendered.
struct ChatOptions {
  bool add_generation_prompt = true;
  Cached cached = Cached::nothing;
};

// Renders messages as text or tokens. Const and shareable.
class ChatTemplate {
 public:
  static constexpr std::string_view begin_marker = "<|im_start|>";
  static constexpr std::string_view end_marker = "<|im_end|>";

  // ChatML; an empty default system message inserts none.
  static ChatTemplate chatml(std::string default_system = {}) { return ChatTemplate(std::move(default_system)); }

  // source: the text of `tokenizer.chat_template` or chat_template.jinja.
  static Expected<ChatTemplate> from_jinja(std::string_view source) {
    for (const std::string_view needed : {begin_marker, end_marker, std::string_view("add_generation_prompt")})
      if (source.find(needed) == std::string_view::npos) return refuse("it has no \"" + std::string(needed) + "\"");
    // Marks of other formats, and the filter that would change a message's text.
    for (const std::string_view other :
         {"[INST]", "<|start_header_id|>", "<start_of_turn>", "<|assistant|>", "<|im_sep|>", "| trim", "|trim"})
      if (source.find(other) != std::string_view::npos) return refuse("it has \"" + std::string(other) + "\"");
    return ChatTemplate(default_system_in(source));
  }

  const std::string& default_system() const noexcept { return default_system_; }

  // The text, markers spelled out: to look at, or for another tokenizer.
  Expected<std::string> render(std::span<const Message> messages, const ChatOptions& options = {}) const {
    std::string text;
    POCKET_CHECK(write(
        messages, options, [&](std::string_view marker) { text.append(marker); },
        [&](std::string_view plain) -> Expected<void> {
          text.append(plain);
          return {};
        }));
    return text;
  }

  // Appends the tokens to `out`; after an error `out` is as it was.
  Expected<void> encode(const Tokenizer& tokenizer, std::span<const Message> messages, const ChatOptions& options,
                        std::vector<std::int32_t>& out) const {
    POCKET_TRY(begin, marker_id(tokenizer, begin_marker));
    POCKET_TRY(end, marker_id(tokenizer, end_marker));
    const std::size_t before = out.size();
    auto done = write(
        messages, options, [&](std::string_view marker) { out.push_back(marker == begin_marker ? begin : end); },
        [&](std::string_view plain) { return tokenizer.encode(plain, false, out); });
    if (!done) out.resize(before);
    return done;
  }

  // The tokens that end a reply: <|im_end|>, and the file's end-of-text and end-of-turn tokens (Qwen's files name one
  // and its models use two). At least one.
  static Expected<std::vector<std::int32_t>> end_ids(const Tokenizer& tokenizer) {
    POCKET_TRY(end, marker_id(tokenizer, end_marker));
    std::vector<std::int32_t> ids{end};
    const auto add = [&](std::optional<std::int32_t> id) {
      if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) ids.push_back(*id);
    };
    add(tokenizer.eos());
    add(tokenizer.eot());
    for (const std::int32_t id : tokenizer.stop_ids()) add(id);
    add(tokenizer.find_special("<|endoftext|>"));
    return ids;
  }

 private:
  explicit ChatTemplate(std::string default_system) : default_system_(std::move(default_system)) {}

  static Error refuse(const std::string& why) {
    return fail(Errc::unsupported, "chat template: " + why +
                                       "; ChatML templates are supported (<|im_start|>ROLE, newline, content, "
                                       "<|im_end|>, newline, and add_generation_prompt)");
  }

  // A string literal of the program that holds a whole system turn: '<|im_start|>system\nTEXT<|im_end|>...'. In
  // templates without a default the literal stops, or turns to the caller's text, after the line end.
  static std::string default_system_in(std::string_view source) {
    const std::string head = std::string(begin_marker) + "system";
    for (std::size_t at = source.find(head); at != std::string_view::npos; at = source.find(head, at + 1)) {
      if (at == 0 || (source[at - 1] != '\'' && source[at - 1] != '"')) continue;
      const std::string literal = unescape(source.substr(at), source[at - 1]);
      const std::size_t end = literal.find(end_marker);
      if (literal.size() <= head.size() || literal[head.size()] != '\n' || end == std::string::npos) continue;
      return literal.substr(head.size() + 1, end - head.size() - 1);
    }
    return {};
  }

  // A Jinja string from after its opening quote to its closing one.
  static std::string unescape(std::string_view text, char quote) {
    std::string out;
    for (std::size_t i = 0; i < text.size() && text[i] != quote; ++i) {
      if (text[i] == '\\' && i + 1 < text.size()) {
        ++i;
        out.push_back(text[i] == 'n' ? '\n' : text[i] == 't' ? '\t' : text[i] == 'r' ? '\r' : text[i]);
      } else {
        out.push_back(text[i]);
      }
    }
    return out;
  }

  static Expected<std::int32_t> marker_id(const Tokenizer& tokenizer, std::string_view marker) {
    if (const auto id = tokenizer.find_special(marker)) return *id;
    return fail(Errc::unsupported,
                "vocabulary: no special token \"" + std::string(marker) + "\"; a chat in ChatML needs it");
  }

  static Expected<void> check(std::span<const Message> messages) {
    for (std::size_t i = 0; i < messages.size(); ++i)
      if (const std::string& role = messages[i].role; role != "system" && role != "user" && role != "assistant")
        return fail(Errc::invalid_argument, "messages[" + std::to_string(i) + "].role: \"" + role.substr(0, 100) +
                                                "\"; system, user or assistant was expected");
    return {};
  }

  // The one place that knows the format: calls marker(text) and plain(text) in turn.
  template <class Marker, class Plain>
  Expected<void> write(std::span<const Message> messages, const ChatOptions& options, Marker marker,
                       Plain plain) const {
    POCKET_CHECK(check(messages));
    std::string text;
    const auto turn = [&](std::string_view role, std::string_view content) -> Expected<void> {
      marker(begin_marker);
      text.assign(role).append("\n").append(content);
      POCKET_CHECK(plain(text));
      marker(end_marker);
      return plain("\n");
    };
    if (options.cached == Cached::cut) marker(end_marker);
    if (options.cached == Cached::cut || options.cached == Cached::reply) POCKET_CHECK(plain("\n"));
    const bool starts = options.cached == Cached::nothing && !messages.empty();
    if (starts && !default_system_.empty() && messages[0].role != "system")
      POCKET_CHECK(turn("system", default_system_));
    for (const Message& message : messages) POCKET_CHECK(turn(message.role, message.content));
    if (!options.add_generation_prompt) return {};
    marker(begin_marker);
    return plain("assistant\n");
  }

  std::string default_system_;
};

POCKET_NAMESPACE_END

#endif
