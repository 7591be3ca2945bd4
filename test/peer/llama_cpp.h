/* llama.cpp's library, which comes without headers (README.md): what the programs here call of it, and how they open a
   model. Parameter structs pass as opaque blobs, which the System V x86-64 convention allows because anything above 16
   bytes travels in memory. Only n_ctx, the first field, is written. */
#ifndef POCKET_TEST_PEER_LLAMA_CPP_H
#define POCKET_TEST_PEER_LLAMA_CPP_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  char bytes[1024];
} Params;
typedef struct {
  int32_t n_tokens;
  void* fields[6];
} Batch;

Params llama_model_default_params(void);
Params llama_context_default_params(void);
void* llama_model_load_from_file(const char* path, Params params);
void* llama_init_from_model(void* model, Params params);
void llama_free(void* context);
void llama_model_free(void* model);
const void* llama_model_get_vocab(const void* model);
int32_t llama_vocab_n_tokens(const void* vocab);
int32_t llama_tokenize(const void* vocab, const char* text, int32_t text_bytes, int32_t* tokens, int32_t n_max,
                       _Bool add_special, _Bool parse_special);
Batch llama_batch_get_one(int32_t* tokens, int32_t n_tokens);
int32_t llama_decode(void* context, Batch batch);
void llama_set_n_threads(void* context, int32_t n_threads, int32_t n_threads_batch);
void* llama_get_memory(void* context);
void llama_memory_clear(void* memory, _Bool data);
float* llama_get_logits_ith(void* context, int32_t i);
void llama_backend_init(void);
void* ggml_backend_load(const char* path);
void llama_log_set(void (*log)(int, const char*, void*), void* user);

static void fail(const char* what) {
  fprintf(stderr, "llama.cpp: %s\n", what);
  exit(1);
}

static void quiet(int level, const char* text, void* user) {
  (void)level, (void)user;
  if (getenv("PEER_LOG") != NULL) fputs(text, stderr);
}

/* variant: of the processor, for example haswell. */
static void open_library(const char* directory, const char* variant) {
  llama_log_set(quiet, NULL);
  char library[4096];
  if (snprintf(library, sizeof library, "%s/libggml-cpu-%s.so", directory, variant) >= (int)sizeof library) {
    fail("LIBRARY_DIR is too long");
  }
  if (ggml_backend_load(library) == NULL) fail("cannot load that CPU variant");
  llama_backend_init();
}

/* One thread, n_ctx positions. */
static void* open_model(const char* path, uint32_t n_ctx, void** context) {
  void* model = llama_model_load_from_file(path, llama_model_default_params());
  if (model == NULL) fail("cannot load the model (PEER_LOG=1 shows why)");
  Params params = llama_context_default_params();
  memcpy(params.bytes, &n_ctx, sizeof n_ctx);
  *context = llama_init_from_model(model, params);
  if (*context == NULL) fail("cannot create a context (PEER_LOG=1 shows why)");
  llama_set_n_threads(*context, 1, 1);
  return model;
}

static void step(void* context, int32_t token) {
  if (llama_decode(context, llama_batch_get_one(&token, 1)) != 0) fail("llama_decode failed");
}

#endif
