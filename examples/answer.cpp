// The whole model in a program that keeps its threads, its memory and its way with errors: ask, and stream the answer.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "pocket/files/open.hpp"
#include "pocket/generate/session.hpp"
#include "pocket/pocket.hpp"

using namespace pocket;

struct Scheduler final : Executor {  // hand the bodies to threads of your own here; pocket::ThreadPool brings some
  unsigned concurrency() const noexcept override { return 1; }
  void parallel_for(std::size_t n, LoopBody body) noexcept override {
    for (std::size_t i = 0; i < n; ++i) body(i, 0);
  }
};

static Expected<void> answer(const char* path, const char* question) {
  Scheduler scheduler;
  POCKET_TRY(model, open_model(path, scheduler));  // a GGUF file, a Hugging Face directory or a package
  POCKET_TRY(tokenizer, open_tokenizer(path));
  POCKET_TRY(chat_template, open_chat_template(path));
  const SessionShape shape{.context = 1024};
  const std::size_t bytes = CpuBackend::memory_bytes(model.spec, shape);
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(64, bytes), &std::free);
  const CpuBackend::Options backend{.executor = &scheduler, .memory = {static_cast<std::byte*>(memory.get()), bytes}};
  POCKET_TRY(session, Transformer<RuntimeSpec>::create(model.spec, model.weights, shape, backend));
  POCKET_TRY(chat, ChatSession<Transformer<RuntimeSpec>>::create(session, tokenizer, chat_template));
  const auto print = [](std::string_view text) { return std::fwrite(text.data(), 1, text.size(), stdout) > 0; };
  POCKET_TRY(result, chat.say(question, {.sampling = {.temperature = 0}}, print));
  return std::printf("\n%zu tokens\n", result.tokens), Expected<void>();
}

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: answer MODEL QUESTION\n"), 2;
  const auto done = answer(argv[1], argv[2]);
  return done ? 0 : (std::fprintf(stderr, "%s\n", done.error().message.c_str()), 1);
}
