// Generation over token ids: a prompt goes in, tokens come out one by one. Text is not needed here; session.hpp adds
// it.
//
//   auto result = generate(transformer, prompt, {.max_tokens = 100, .stop_ids = {2}},
//                          [](std::int32_t token) { std::printf("%d\n", token); return true; });
//
// State afterwards. The model's context holds what it held before, the prompt, and all tokens drawn but the last: that
// one, result.pending, has been drawn and not been read by the model. Begin the next prompt with it, and the model goes
// on exactly as though there had been no pause, at no cost; leave it out, and it never was in the context. It is the
// stop token, if one ended the generation, and else the last token that the callback saw.
//
// Cancelling. The flag is looked at between the steps of the prompt and around each token: once it is set, the step in
// progress ends and no further token comes. Before the first token nothing is pending, and the context holds the first
// result.prompt_tokens of the prompt, never all of them: go on with the rest.
//
// After an error the context is as it was before the call: a prompt longer than what is left of the context
// (context_full, before any work), options that are out of range, logits that are not numbers. Reaching the end of the
// context while generating is no error: the reason says so.
#ifndef POCKET_GENERATE_GENERATE_HPP
#define POCKET_GENERATE_GENERATE_HPP

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "sampler.hpp"

POCKET_NAMESPACE_BEGIN

// What generation asks of a model; Transformer is one. logits() has the vocabulary's size at any time, and forward()
// answers Errc::cancelled when it saw the flag, having kept whole steps only.
template <class T>
concept TokenModel = requires(T& model, const T& fixed, std::span<const std::int32_t> tokens, std::size_t n,
                              const std::atomic<bool>* cancel) {
  { model.forward(tokens, n, cancel) } -> std::same_as<Expected<void>>;
  { model.rewind(n) } -> std::same_as<Expected<void>>;
  { fixed.logits() } -> std::convertible_to<std::span<const float>>;
  { fixed.position() } -> std::convertible_to<std::size_t>;
  { fixed.context() } -> std::convertible_to<std::size_t>;
};

// How to draw, and when to end.
struct GenerateOptions {
  SamplingOptions sampling = {};
  std::size_t max_tokens = 512;             // 0: the prompt is read, and nothing drawn
  std::vector<std::int32_t> stop_ids = {};  // any of them ends the generation, and is not given to the callback
  const std::atomic<bool>* cancel = nullptr;
};

// Why a generation ended; none of these is an error.
enum class StopReason : unsigned char {
  stop_token,    // one of the stop ids was drawn
  max_tokens,    // as many as asked for
  context_full,  // the context has no room for the last token
  cancelled,     // options.cancel was seen
  callback,      // the callback returned false
};

// For people: "token limit".
constexpr std::string_view name_of(StopReason reason) noexcept {
  switch (reason) {
    case StopReason::stop_token: return "stop token";
    case StopReason::max_tokens: return "token limit";
    case StopReason::context_full: return "context full";
    case StopReason::cancelled: return "cancelled";
    case StopReason::callback: return "stopped by the caller";
  }
  return "unknown";
}

// How a generation went; the top of this header describes the state it left.
struct GenerateResult {
  std::size_t prompt_tokens = 0;  // read by the model
  std::size_t tokens = 0;         // given to the callback
  std::size_t steps = 0;  // passes after the prompt's, one token each: the decode speed is steps / decode_seconds
  StopReason reason = StopReason::max_tokens;
  std::int32_t stop_id = -1;  // the stop token, if the reason is that
  std::int32_t pending = -1;  // drawn, and not yet in the context; -1 if nothing was drawn
  double prefill_seconds = 0;
  double decode_seconds = 0;  // from the prompt's logits on, the callback's time included
};

// One call of generate(): the loop, apart from the checks of what comes in.
template <TokenModel T, class OnToken>
class GenerateLoop {
 public:
  GenerateLoop(T& model, Sampler& sampler, const GenerateOptions& options, OnToken& on_token) noexcept
      : model_(model), sampler_(sampler), options_(options), on_token_(on_token) {}

  // Reads the prompt and draws until a reason to stop; after an error the model's context is as before.
  Expected<GenerateResult> run(std::span<const std::int32_t> prompt) {
    const std::size_t before = model_.position();
    auto done = prefill(prompt);
    if (done && *done) done = decode();
    if (!done) {
      POCKET_CHECK(model_.rewind(before));
      return std::move(done).error();
    }
    result_.prompt_tokens = (std::min)(prompt.size(), model_.position() - before);
    return result_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  bool end(StopReason reason) noexcept {
    result_.reason = reason;
    return false;
  }

  // false: the generation ends here.
  Expected<bool> prefill(std::span<const std::int32_t> prompt) {
    const auto start = Clock::now();
    auto going = read(prompt);
    result_.prefill_seconds = seconds_since(start);
    if (going && *going && options_.max_tokens == 0) return end(StopReason::max_tokens);
    return going;
  }

  Expected<bool> decode() {
    const auto start = Clock::now();
    Expected<bool> going = draw();
    while (going && *going) {
      going = read({&result_.pending, 1});
      if (!going || !*going) break;
      ++result_.steps;
      going = draw();
    }
    result_.decode_seconds = seconds_since(start);
    return going;
  }

  // Gives the model its next tokens. If the cancel flag was set meanwhile, the last of them is taken back: its logits
  // will not be used, and with it taken back every way of being cancelled leaves the same kind of state.
  Expected<bool> read(std::span<const std::int32_t> tokens) {
    if (auto done = model_.forward(tokens, 1, options_.cancel); !done) {
      if (done.error().code == Errc::cancelled) return end(StopReason::cancelled);
      return std::move(done).error();
    }
    if (options_.cancel == nullptr || !options_.cancel->load(std::memory_order_relaxed)) return true;
    POCKET_CHECK(model_.rewind(model_.position() - 1));
    return end(StopReason::cancelled);
  }

  Expected<bool> draw() {
    POCKET_TRY(token, sampler_.sample(model_.logits()));
    result_.pending = token;
    if (std::find(options_.stop_ids.begin(), options_.stop_ids.end(), token) != options_.stop_ids.end()) {
      result_.stop_id = token;
      return end(StopReason::stop_token);
    }
    ++result_.tokens;
    if (!on_token_(token)) return end(StopReason::callback);
    if (result_.tokens >= options_.max_tokens) return end(StopReason::max_tokens);
    if (model_.position() >= model_.context()) return end(StopReason::context_full);
    return true;
  }

  T& model_;
  Sampler& sampler_;
  const GenerateOptions& options_;
  OnToken& on_token_;
  GenerateResult result_;
};

// With the caller's sampler, which goes on from call to call; options.sampling is not looked at. Allocates nothing, but
// for errors. on_token: bool(std::int32_t), false to stop after this token.
template <TokenModel T, std::predicate<std::int32_t> OnToken>
Expected<GenerateResult> generate(T& model, std::span<const std::int32_t> prompt, Sampler& sampler,
                                  const GenerateOptions& options, OnToken&& on_token) {
  const std::size_t vocab = std::span<const float>(model.logits()).size();
  for (std::size_t i = 0; i < options.stop_ids.size(); ++i)
    if (const std::int32_t id = options.stop_ids[i]; id < 0 || static_cast<std::size_t>(id) >= vocab)
      return fail(Errc::invalid_argument, "stop_ids[" + std::to_string(i) + "]: " + std::to_string(id) +
                                              "; a token of the vocabulary of " + std::to_string(vocab) +
                                              " was expected");
  if (prompt.empty())
    return fail(Errc::invalid_argument, "prompt: no tokens; to go on after a pause, give the pending one");
  if (const std::size_t left = model.context() - model.position(); prompt.size() > left)
    return fail(Errc::context_full, "prompt: " + std::to_string(prompt.size()) +
                                        " tokens do not fit: " + std::to_string(left) + " of the context's " +
                                        std::to_string(model.context()) + " are left");
  return GenerateLoop<T, std::remove_reference_t<OnToken>>(model, sampler, options, on_token).run(prompt);
}

// With a sampler of its own, made from options.sampling for this call.
template <TokenModel T, std::predicate<std::int32_t> OnToken>
Expected<GenerateResult> generate(T& model, std::span<const std::int32_t> prompt, const GenerateOptions& options,
                                  OnToken&& on_token) {
  POCKET_TRY(sampler, Sampler::create(options.sampling, std::span<const float>(model.logits()).size()));
  return generate(model, prompt, sampler, options, on_token);
}

POCKET_NAMESPACE_END

#endif
