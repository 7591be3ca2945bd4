// The whole model: open a GGUF file, ask a question, stream the answer.
#include <cstdio>

#include "pocket/files/gguf_model.hpp"
#include "pocket/files/gguf_tokenizer.hpp"
#include "pocket/generate/session.hpp"
#include "pocket/pocket.hpp"

using namespace pocket;

static Expected<void> answer(const char* path, const char* question) {
  POCKET_TRY(pool, ThreadPool::create());
  POCKET_TRY(file, GgufFile::open(path));
  POCKET_TRY(model, load_gguf(file, *pool));
  POCKET_TRY(tokenizer, load_tokenizer(file));
  POCKET_TRY(chat_template, load_chat_template(file));
  CpuBackend::Options backend;
  backend.executor = pool.get();
  POCKET_TRY(session, Transformer<RuntimeSpec>::create(model.spec, model.weights, {.context = 1024}, backend));
  POCKET_TRY(chat, ChatSession<Transformer<RuntimeSpec>>::create(session, tokenizer, chat_template));
  GenerateOptions options;
  options.sampling.temperature = 0;
  POCKET_TRY(result, chat.say(question, options, [](std::string_view text) {
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  }));
  std::printf("\n%zu tokens\n", result.tokens);
  return {};
}

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: answer MODEL.gguf QUESTION\n"), 2;
  const auto done = answer(argv[1], argv[2]);
  if (!done) std::fprintf(stderr, "%s\n", done.error().message.c_str());
  return done ? 0 : 1;
}
