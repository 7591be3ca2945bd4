// A conversation: text in, text out, over a model, its tokenizer and its chat template.
//
//   auto chat = ChatSession<Transformer<RuntimeSpec>>::create(transformer, tokenizer, chat_template, "Be brief.");
//   chat->say("Hello", {}, [](std::string_view text) { std::fwrite(...); return true; });
//   chat->say("And then?", {}, ...);      // the model reads this turn alone: all before is in its context
//
// Text comes as it is generated, in whole UTF-8 characters: one that several tokens make up comes with its last token,
// and bytes that are no UTF-8 as U+FFFD. Control tokens have no text. A user's text is never read as control tokens.
//
// What ends a reply: the template's end tokens (ChatTemplate::end_ids) and options.stop_ids, or one of generate.hpp's
// other reasons. The next turn then continues the template's text exactly: <|im_end|> goes into the context with it, as
// the model drew it or, after a reply that was cut short, from the template; any other stop token is left out.
//
// Errors leave the conversation as it was before the call, and usable: among them a turn longer than what is left of
// the context (context_full; the message has both numbers). A turn that was cancelled before the reply's first token
// counts as never said; one cancelled later, or stopped by on_text, stays with the part of the reply that came. In both
// cases on_text is not called again: the beginning of a character that is not whole yet is dropped.
#ifndef POCKET_GENERATE_SESSION_HPP
#define POCKET_GENERATE_SESSION_HPP

#include <concepts>
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
#include "../text/chat_template.hpp"
#include "../text/tokenizer.hpp"
#include "../text/utf8_stream.hpp"
#include "generate.hpp"

POCKET_NAMESPACE_BEGIN

// One conversation over one model session, as in the lines at the top of this header.
template <TokenModel T>
class ChatSession {
 public:
  // The model, the tokenizer and the template outlive the session; the model is used by nobody else meanwhile. What its
  // context holds now (a BOS token, which ChatML does not add) stays in front of the conversation. Without a system
  // message the template's default one is used, if it has one. Errors: a vocabulary without ChatML's markers, or with
  // more tokens than the model.
  static Expected<ChatSession> create(T& model, const Tokenizer& tokenizer, const ChatTemplate& chat,
                                      std::optional<std::string> system = std::nullopt) {
    const std::size_t vocab = std::span<const float>(model.logits()).size();
    if (tokenizer.vocab_size() > vocab)
      return fail(Errc::invalid_argument, "tokenizer: " + std::to_string(tokenizer.vocab_size()) +
                                              " tokens; at most the model's " + std::to_string(vocab) +
                                              " were expected");
    POCKET_TRY(end_ids, ChatTemplate::end_ids(tokenizer));
    return ChatSession(model, tokenizer, chat, std::move(system), std::move(end_ids));
  }

  // Says something and streams the reply. options.stop_ids are added to the template's own. Turn n of the conversation,
  // from 0, draws with sampling.seed + n. on_text: bool(std::string_view), never empty; false to stop.
  template <std::predicate<std::string_view> OnText>
  Expected<GenerateResult> say(std::string_view user_text, const GenerateOptions& options, OnText&& on_text) {
    if (model_->position() != position_)
      return fail(Errc::invalid_argument, "the model's context holds " + std::to_string(model_->position()) +
                                              " tokens; the conversation left it with " + std::to_string(position_) +
                                              ", and no other user was expected (reset() begins anew)");
    POCKET_CHECK(render(user_text));
    GenerateOptions turn = options;
    turn.sampling.seed += turns_;
    turn.stop_ids.insert(turn.stop_ids.end(), end_ids_.begin(), end_ids_.end());
    Utf8Stream stream(Utf8Mode::replace);
    const auto put = [&] {
      const bool more = text_.empty() || on_text(std::string_view(text_));
      text_.clear();
      return more;
    };
    text_.clear();
    POCKET_TRY(result, generate(*model_, prompt_, turn, [&](std::int32_t token) {
                 stream.push(tokenizer_->token_bytes(token), text_);
                 return put();
               }));
    POCKET_CHECK(settle(result));
    if (result.reason != StopReason::cancelled && result.reason != StopReason::callback) {
      stream.flush(text_);
      put();
    }
    return result;
  }

  // Forgets the conversation; the system message stays for the next one.
  Expected<void> reset() {
    POCKET_CHECK(model_->rewind(start_));
    position_ = start_;
    turns_ = 0;
    pending_ = -1;
    cached_ = Cached::nothing;
    return {};
  }

  std::size_t turns() const noexcept { return turns_; }  // said and answered so far
  // Tokens that the context still has room for.
  std::size_t context_left() const noexcept { return model_->context() - model_->position(); }

 private:
  ChatSession(T& model, const Tokenizer& tokenizer, const ChatTemplate& chat, std::optional<std::string>&& system,
              std::vector<std::int32_t>&& end_ids)
      : model_(&model),
        tokenizer_(&tokenizer),
        chat_(&chat),
        system_(std::move(system)),
        end_ids_(std::move(end_ids)),
        start_(model.position()),
        position_(start_) {}

  // prompt_: all that the model has to read before it replies.
  Expected<void> render(std::string_view user_text) {
    std::vector<Message> messages;
    if (cached_ == Cached::nothing && system_) messages.push_back({"system", *system_});
    messages.push_back({"user", std::string(user_text)});
    prompt_.clear();
    if (pending_ >= 0) prompt_.push_back(pending_);
    return chat_->encode(*tokenizer_, messages, {.add_generation_prompt = true, .cached = cached_}, prompt_);
  }

  // Notes how the reply ended, for the next turn to follow on.
  Expected<void> settle(const GenerateResult& result) {
    if (result.reason == StopReason::cancelled && result.tokens == 0) return model_->rewind(position_);
    position_ = model_->position();
    ++turns_;
    const bool whole = result.reason == StopReason::stop_token && result.stop_id == end_ids_.front();
    cached_ = whole ? Cached::reply : Cached::cut;
    pending_ = result.reason == StopReason::stop_token && !whole ? -1 : result.pending;
    return {};
  }

  T* model_;
  const Tokenizer* tokenizer_;
  const ChatTemplate* chat_;
  std::optional<std::string> system_;
  std::vector<std::int32_t> end_ids_;  // <|im_end|> first
  std::size_t start_, position_;       // tokens in the context: before the conversation, and now
  std::size_t turns_ = 0;
  std::int32_t pending_ = -1;  // the last token drawn, which the next prompt begins with
  Cached cached_ = Cached::nothing;
  std::vector<std::int32_t> prompt_;
  std::string text_;  // whole characters on their way to on_text
};

POCKET_NAMESPACE_END

#endif
