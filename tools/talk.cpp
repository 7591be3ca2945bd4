// pocket generate: one question, one streamed answer. pocket chat: a conversation.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "common.hpp"
#include "pocket/generate/generate.hpp"
#include "pocket/generate/session.hpp"

namespace tools {

// A model that is ready to answer.
struct Speaker {
  std::unique_ptr<ThreadPool> pool;
  LoadedModel model;
  std::optional<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;
  std::optional<Transformer<RuntimeSpec>> session;
};

inline std::unique_ptr<Speaker> make_speaker(const RunOptions& run, bool needs_template) {
  auto s = std::make_unique<Speaker>();
  s->pool = value_or_die(ThreadPool::create(run.threads));
  const std::string path = find_model(run.model);
  s->tokenizer = value_or_die(open_text(path));
  if (needs_template) {
    auto chat = open_chat(path);
    if (!chat) die({chat.error().code, chat.error().message + "; `pocket generate --raw` continues plain text"});
    s->chat_template = *std::move(chat);
  }
  s->model = value_or_die(open_weights(path, *s->pool));
  SessionShape shape;
  shape.context = run.context != 0 ? run.context : (std::min<std::size_t>)(4096, s->model.spec.positions);
  shape.activations = activation_form(run.activations);
  CpuBackend::Options backend;
  backend.executor = s->pool.get();
  backend.kernels = choose_kernels(run.isa);
  s->session = value_or_die(Transformer<RuntimeSpec>::create(s->model.spec, s->model.weights, shape, backend));
  return s;
}

inline bool put_text(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  return true;
}

inline void report(const GenerateResult& r, bool quiet) {
  if (r.reason == StopReason::context_full || r.reason == StopReason::max_tokens)
    std::fprintf(stderr, "[stopped: %.*s]\n", static_cast<int>(name_of(r.reason).size()), name_of(r.reason).data());
  if (quiet) return;
  std::fprintf(stderr, "[%zu prompt tokens at %.0f/s, %zu answer tokens at %.1f/s]\n", r.prompt_tokens,
               static_cast<double>(r.prompt_tokens) / (std::max)(r.prefill_seconds, 1e-9), r.tokens,
               static_cast<double>(r.steps) / (std::max)(r.decode_seconds, 1e-9));
}

inline std::string read_all_of_stdin() {
  std::string text;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) text.append(buffer, n);
  return text;
}

int generate(const RunOptions& run, TalkOptions o) {
  if (o.prompt == "-") o.prompt = read_all_of_stdin();
  if (o.prompt.empty()) die({Errc::invalid_argument, "the prompt is empty"});
  catch_interrupt();
  o.generate.cancel = &interrupted;
  auto speaker = make_speaker(run, !o.raw);
  auto& session = *speaker->session;
  const Tokenizer& tokenizer = *speaker->tokenizer;
  Expected<GenerateResult> result = GenerateResult{};
  if (o.raw) {
    std::vector<std::int32_t> ids;
    if (tokenizer.add_bos() && tokenizer.bos()) ids.push_back(*tokenizer.bos());
    check_or_die(tokenizer.encode(o.prompt, false, ids));
    for (const auto& id : {tokenizer.eos(), tokenizer.eot()})
      if (id) o.generate.stop_ids.push_back(*id);
    o.generate.stop_ids.insert(o.generate.stop_ids.end(), tokenizer.stop_ids().begin(), tokenizer.stop_ids().end());
    Utf8Stream stream(Utf8Mode::replace);
    std::string text;
    result = pocket::generate(session, ids, o.generate, [&](std::int32_t token) {
      text.clear();
      stream.push(tokenizer.token_bytes(token), text);
      return put_text(text);
    });
  } else {
    auto chat = value_or_die(ChatSession<Transformer<RuntimeSpec>>::create(
        session, tokenizer, *speaker->chat_template, o.has_system ? std::optional(o.system) : std::nullopt));
    result = chat.say(o.prompt, o.generate, put_text);
  }
  if (!result) die(result.error());
  std::printf("\n");
  report(*result, o.quiet);
  return interrupted ? 130 : 0;
}

// One line from the terminal; false at its end or after Ctrl-C.
inline bool read_line(std::string& line) {
  line.clear();
  for (char c; true;) {
    const ssize_t n = ::read(STDIN_FILENO, &c, 1);
    if (n < 0 && errno == EINTR) return false;
    if (n <= 0) return !line.empty();
    if (c == '\n') return true;
    line += c;
  }
}

int chat(const RunOptions& run, TalkOptions o) {
  catch_interrupt();
  o.generate.cancel = &interrupted;
  auto speaker = make_speaker(run, true);
  auto chat = value_or_die(
      ChatSession<Transformer<RuntimeSpec>>::create(*speaker->session, *speaker->tokenizer, *speaker->chat_template,
                                                    o.has_system ? std::optional(o.system) : std::nullopt));
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal)
    std::fprintf(stderr, "%s, %s. /reset forgets the conversation, /quit or Ctrl-D ends it, Ctrl-C stops an answer.\n",
                 speaker->model.name.c_str(), speaker->session->backend().kernels().name);
  std::string line;
  while (true) {
    if (terminal) std::fprintf(stderr, "> ");
    if (!read_line(line)) {
      if (interrupted.exchange(false) && terminal) {
        std::fprintf(stderr, "\n");
        continue;
      }
      break;
    }
    if (line.empty()) continue;
    if (line == "/quit") break;
    if (line == "/reset") {
      check_or_die(chat.reset());
      continue;
    }
    const auto result = chat.say(line, o.generate, put_text);
    std::printf("\n");
    std::fflush(stdout);
    interrupted = false;
    if (!result) {
      if (result.error().code != Errc::context_full || !terminal) die(result.error());
      std::fprintf(stderr, "pocket: %s; /reset makes room\n", result.error().message.c_str());
      continue;
    }
    report(*result, o.quiet);
  }
  return 0;
}

}  // namespace tools
