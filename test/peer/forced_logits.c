/* Teacher-forced logits: what llama.cpp computes after each of given tokens, as a safetensors file.

   usage: forced_logits LIBRARY_DIR CPU_VARIANT MODEL.gguf OUT.safetensors < tokens

   Standard input has one window of token ids on each line, all of one length. Each starts from an empty cache; one
   thread, one token per decode call. OUT.safetensors:

     tokens  I32 [windows, length]
     logits  F32 [windows, length, vocabulary]    row i of a window: after its token i
     __metadata__  format "pocket-logits-1", engine "llama.cpp v0.4.0 CPU_VARIANT"

   README.md says how to get the library. */
#include "llama_cpp.h"

typedef struct {
  int32_t* ids;
  uint64_t windows, length;
} Tokens;

static Tokens read_tokens(void) {
  Tokens t = {NULL, 0, 0};
  uint64_t capacity = 0, n = 0, in_line = 0;
  for (int c = getchar();; c = getchar()) {
    if (c >= '0' && c <= '9') {
      ungetc(c, stdin);
      if (n == capacity) {
        capacity = capacity == 0 ? 1024 : 2 * capacity;
        t.ids = realloc(t.ids, capacity * sizeof *t.ids);
        if (t.ids == NULL) fail("out of memory");
      }
      if (scanf("%d", &t.ids[n]) != 1) fail("a token id is too large");
      ++n, ++in_line;
    } else if (c == '\n' || c == EOF) {
      if (in_line != 0) {
        if (t.windows != 0 && in_line != t.length) fail("the lines have different numbers of tokens");
        ++t.windows;
        t.length = in_line;
        in_line = 0;
      }
      if (c == EOF) break;
    } else if (c != ' ' && c != '\t' && c != '\r') {
      fail("expected token ids on standard input, one window a line");
    }
  }
  if (n == 0) fail("expected token ids on standard input, one window a line");
  return t;
}

static void put(const void* bytes, size_t size, FILE* out) {
  if (fwrite(bytes, 1, size, out) != size) fail("cannot write the output");
}

static void put_header(const Tokens* t, uint64_t vocab, const char* variant, FILE* out) {
  char text[4096];
  const unsigned long long n = t->windows * t->length, tokens_end = 4 * n, end = tokens_end + 4 * n * vocab;
  int size = snprintf(text, sizeof text,
                      "{\"__metadata__\":{\"format\":\"pocket-logits-1\",\"engine\":\"llama.cpp v0.4.0 %s\"},"
                      "\"tokens\":{\"dtype\":\"I32\",\"shape\":[%llu,%llu],\"data_offsets\":[0,%llu]},"
                      "\"logits\":{\"dtype\":\"F32\",\"shape\":[%llu,%llu,%llu],\"data_offsets\":[%llu,%llu]}}",
                      variant, (unsigned long long)t->windows, (unsigned long long)t->length, tokens_end,
                      (unsigned long long)t->windows, (unsigned long long)t->length, (unsigned long long)vocab,
                      tokens_end, end);
  if (size < 0 || size > (int)sizeof text - 8) fail("CPU_VARIANT is too long");
  while (size % 8 != 0) text[size++] = ' ';
  const uint64_t length = (uint64_t)size;
  put(&length, sizeof length, out);
  put(text, (size_t)size, out);
}

int main(int argc, char** argv) {
  if (argc != 5) fail("usage: forced_logits LIBRARY_DIR CPU_VARIANT MODEL.gguf OUT.safetensors < tokens");
  const Tokens t = read_tokens();
  open_library(argv[1], argv[2]);
  void* context;
  void* model = open_model(argv[3], (uint32_t)t.length, &context);
  const int32_t vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  for (uint64_t i = 0; i < t.windows * t.length; ++i) {
    if (t.ids[i] >= vocab) fail("a token id is beyond the vocabulary");
  }
  FILE* out = fopen(argv[4], "wb");
  if (out == NULL) fail("cannot create the output");
  put_header(&t, (uint64_t)vocab, argv[2], out);
  put(t.ids, t.windows * t.length * sizeof *t.ids, out);
  for (uint64_t w = 0; w < t.windows; ++w) {
    llama_memory_clear(llama_get_memory(context), 1);
    for (uint64_t i = 0; i < t.length; ++i) {
      step(context, t.ids[w * t.length + i]);
      const float* logits = llama_get_logits_ith(context, -1);
      if (logits == NULL) fail("no logits");
      put(logits, (size_t)vocab * sizeof *logits, out);
    }
    fprintf(stderr, "forced_logits: window %llu of %llu\n", (unsigned long long)w + 1, (unsigned long long)t.windows);
  }
  if (fclose(out) != 0) fail("cannot write the output");
  _Exit(0); /* the library's own teardown can hang */
}
