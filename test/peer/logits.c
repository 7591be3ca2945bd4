/* Golden logits: what llama.cpp computes for a fixed set of prompts, as JSON on standard output.

   usage: logits LIBRARY_DIR CPU_VARIANT MODEL.gguf MODEL_SHA256 MODEL_F32.gguf < prompts.txt > smollm2_logits.json

   Per prompt (ChatML with SmolLM2's default system message): 100 tokens by greedy choice, end tokens included and
   passed, from MODEL; at each of the 100 positions the five largest logits, from MODEL ("top") and, forced along the
   same tokens, from MODEL_F32 ("top_f32": the same weights dequantised, so that activations stay in float32). One
   thread, an empty cache for each prompt, one token per decode call throughout. Ties go to the smaller id. */
#include "llama_cpp.h"

enum { kNew = 100, kTop = 5, kContext = 1024, kMaxPrompts = 64, kMaxText = 1 << 16 };

typedef struct {
  int32_t id;
  float logit;
} Entry;

typedef struct {
  char* user;
  char* text;
  int n_prompt;
  int32_t prompt[kContext];
  int32_t ids[kNew];
  Entry top[2][kNew][kTop];
} Case;

static Case cases[kMaxPrompts];
static int n_cases;

/* Prompts are separated by a line "---". */
static void read_prompts(void) {
  static char input[kMaxText];
  size_t n = fread(input, 1, sizeof input - 1, stdin);
  if (n == 0 || n == sizeof input - 1) fail("expected the prompts on standard input, below 64 KiB");
  while (n > 0 && input[n - 1] == '\n') input[--n] = 0;
  const char* format =
      "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
      "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n";
  for (char* at = input; at != NULL;) {
    if (n_cases == kMaxPrompts) fail("too many prompts");
    char* end = strstr(at, "\n---\n");
    if (end != NULL) *end = 0;
    Case* c = &cases[n_cases++];
    c->user = at;
    c->text = malloc(strlen(format) + strlen(at) + 1);
    if (c->text == NULL) fail("out of memory");
    sprintf(c->text, format, at);
    at = end != NULL ? end + 5 : NULL;
  }
}

static void find_top(const float* logits, int n, Entry* top) {
  for (int i = 0; i < kTop; ++i) top[i] = (Entry){-1, 0};
  for (int id = 0; id < n; ++id) {
    int place = kTop;
    while (place > 0 && (top[place - 1].id < 0 || logits[id] > top[place - 1].logit)) --place;
    if (place == kTop) continue;
    memmove(top + place + 1, top + place, (size_t)(kTop - 1 - place) * sizeof *top);
    top[place] = (Entry){id, logits[id]};
  }
}

/* which = 0 chooses the tokens; which = 1 follows those of 0. */
static void run(void* context, int n_vocab, Case* c, int which) {
  llama_memory_clear(llama_get_memory(context), 1);
  for (int i = 0; i < c->n_prompt; ++i) step(context, c->prompt[i]);
  for (int i = 0; i < kNew; ++i) {
    const float* logits = llama_get_logits_ith(context, -1);
    if (logits == NULL) fail("no logits");
    find_top(logits, n_vocab, c->top[which][i]);
    if (which == 0) c->ids[i] = c->top[0][i][0].id;
    if (i + 1 < kNew) step(context, c->ids[i]);
  }
}

static void run_all(const char* path, int which) {
  void* context;
  void* model = open_model(path, kContext, &context);
  const void* vocab = llama_model_get_vocab(model);
  for (int i = 0; i < n_cases; ++i) {
    Case* c = &cases[i];
    if (which == 0) {
      c->n_prompt = llama_tokenize(vocab, c->text, (int32_t)strlen(c->text), c->prompt, kContext - kNew, 0, 1);
      if (c->n_prompt <= 0) fail("a prompt does not fit the context");
    }
    run(context, llama_vocab_n_tokens(vocab), c, which);
    fprintf(stderr, "logits: %s, prompt %d of %d\n", which == 0 ? "as published" : "as float32", i + 1, n_cases);
  }
  llama_free(context);
  llama_model_free(model);
}

static void print_string(const char* text) {
  putchar('"');
  for (const unsigned char* p = (const unsigned char*)text; *p != 0; ++p) {
    if (*p == '"' || *p == '\\') {
      printf("\\%c", *p);
    } else if (*p == '\n') {
      fputs("\\n", stdout);
    } else if (*p < 0x20) {
      printf("\\u%04x", *p);
    } else {
      putchar(*p);
    }
  }
  putchar('"');
}

static void print_ids(const int32_t* ids, int n) {
  for (int i = 0; i < n; ++i) printf("%s%d", i == 0 ? "[" : ",", ids[i]);
  putchar(']');
}

static void print_top(Entry top[kNew][kTop]) {
  for (int i = 0; i < kNew; ++i) {
    for (int j = 0; j < kTop; ++j) {
      printf("%s[%d,%.4f]", j != 0 ? "," : i == 0 ? "[[" : ",[", top[i][j].id, (double)top[i][j].logit);
    }
    putchar(']');
  }
  putchar(']');
}

static void print_case(const Case* c, int last) {
  fputs("{\"user\":", stdout);
  print_string(c->user);
  fputs(",\n\"text\":", stdout);
  print_string(c->text);
  fputs(",\n\"prompt_ids\":", stdout);
  print_ids(c->prompt, c->n_prompt);
  fputs(",\n\"ids\":", stdout);
  print_ids(c->ids, kNew);
  fputs(",\n\"top\":", stdout);
  print_top((Entry(*)[kTop])c->top[0]);
  fputs(",\n\"top_f32\":", stdout);
  print_top((Entry(*)[kTop])c->top[1]);
  puts(last ? "}" : "},");
}

int main(int argc, char** argv) {
  if (argc != 6) fail("usage: logits LIBRARY_DIR CPU_VARIANT MODEL.gguf MODEL_SHA256 MODEL_F32.gguf < prompts.txt");
  open_library(argv[1], argv[2]);
  read_prompts();
  run_all(argv[3], 0);
  run_all(argv[5], 1);
  printf("{\"engine\":\"llama.cpp v0.4.0 (node-llama-cpp 3.21.1)\",\n\"cpu_variant\":\"%s\",\n\"threads\":1,\n",
         argv[2]);
  printf("\"model_sha256\":");
  print_string(argv[4]);
  puts(",\n\"top_from\":\"the file as published: weights in blocks, activations rounded to 8 bits in groups of 32\",");
  puts("\"top_f32_from\":\"the same weights dequantised to float32, activations in float32; q, K, V in fp16\",");
  puts("\"prompts\":[");
  for (int i = 0; i < n_cases; ++i) print_case(&cases[i], i + 1 == n_cases);
  puts("]}");
  fflush(stdout);
  _Exit(0); /* the library's own teardown can hang */
}
