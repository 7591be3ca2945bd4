// What a program does with the library, small: a product, a chunk of attention, a session of a tiny model, each
// checked. Compiled several times, with other target flags and -DUNIT=baseline or haswell, and linked together by
// ../isa.sh. It uses no template of the standard library itself, so that whatever the linker merges comes from the
// library.
#include <stdio.h>

#include "pocket/pocket.hpp"

// A namespace for each unit, so that a disassembly tells their functions apart.
namespace UNIT {
int run(const char* isa);

namespace {

using namespace pocket;

constexpr std::size_t most_tokens = 5;
const RuntimeSpec spec{.layers = 2,
                       .hidden = 64,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 16,
                       .ffn = 96,
                       .vocab = 100,
                       .positions = 512,
                       .qk_norm = true};

struct Random {
  std::uint32_t state = 1;
  float next() {  // -1..1
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
  }
};

int wrong(const char* what, double is, double should) {
  printf("WRONG: %s: %g, expected %g\n", what, is, should);
  return 1;
}

double magnitude(double v) { return v < 0 ? -v : v; }

// y = w * a for a matrix with incomplete tiles, against the sum of the dequantised weights in double.
int check_product(const Kernels& kernels, WeightFormat format, ActivationForm form, std::size_t m) {
  constexpr std::size_t n = 24, k = 100;
  alignas(64) static std::byte tiles[8 * 1088];
  alignas(64) static std::int8_t codes[most_tokens * 256];
  static GroupScale scales[most_tokens * 2];
  static float w[n * k], x[most_tokens * k], y[most_tokens * n], row[k];
  Random random;
  for (float& v : w) v = random.next();
  for (float& v : x) v = random.next();
  auto packed = pack({w, n, k, k}, format, tiles);
  if (!packed) return printf("%s\n", packed.error().message.c_str()), 1;
  const Activations a{codes, scales, m, k, form};
  kernels.prepare(x, k, a);
  kernels.matmul({*packed, a, y, n, false}, 0, packed->row_blocks());
  const double tolerance = form == ActivationForm::a16 ? 1e-4 : 1e-2;
  for (std::size_t j = 0; j < n; ++j) {
    dequantize_row(*packed, j, row);
    for (std::size_t i = 0; i < m; ++i) {
      double sum = 0, size = 0;
      for (std::size_t c = 0; c < k; ++c) {
        const double term = static_cast<double>(row[c]) * static_cast<double>(x[i * k + c]);
        sum += term;
        size += magnitude(term);
      }
      const double is = static_cast<double>(y[i * n + j]);
      if (!(magnitude(is - sum) <= tolerance * size)) return wrong(name_of(format), is, sum);
    }
  }
  return 0;
}

// One query against equal keys: every position has the same weight, and the result is the values' mean.
int check_attention(const Kernels& kernels) {
  constexpr std::size_t d = 16, count = 40, heads = 7;
  static f16 k[3 * key_block * d], v[count * d];
  static float q[heads * d], scores[heads * attention_chunk], out[heads * d], max[heads], sum[heads];
  Random random;
  for (f16& one : k) one = to_f16(0.5f);
  for (f16& one : v) one = to_f16(random.next());
  for (float& one : q) one = random.next();
  kernels.attention({q, k, v, k, count, heads, d, scores, out, max, sum});
  for (std::size_t h = 0; h < heads; ++h) {
    for (std::size_t c = 0; c < d; ++c) {
      double mean = 0;
      for (std::size_t j = 0; j < count; ++j) mean += static_cast<double>(to_float(v[j * d + c])) / double{count};
      const double is = static_cast<double>(out[h * d + c]) / static_cast<double>(sum[h]);
      if (!(magnitude(is - mean) <= 1e-4)) return wrong("attention", is, mean);
    }
  }
  return 0;
}

struct Model {
  HostWeights weights;
  alignas(64) std::byte tiles[128 * 1024];
  float matrix[256 * 96], norm[64];
  std::size_t used = 0;
  Random random;

  PackedMatrix add(std::size_t n, std::size_t k) {
    for (std::size_t i = 0; i < n * k; ++i) matrix[i] = random.next() * 0.25f;
    auto packed = pack({matrix, n, k, k}, WeightFormat::w4_g64, std::span(tiles).subspan(used));
    if (!packed) return {};  // which the session's check refuses
    used += packed->bytes();
    return *packed;
  }
  void fill() {
    for (float& v : norm) v = 1;
    weights.rms_epsilon = 1e-6f;
    weights.rope_base = 1e4;
    weights.output_norm = norm;
    weights.embedding = weights.head = add(spec.vocab, spec.hidden);
    for (std::size_t l = 0; l < spec.layers; ++l)
      weights.layers.push_back({norm, norm, norm, norm, add(qkv_width(spec), spec.hidden),
                                add(spec.hidden, q_width(spec)), add(gate_up_width(spec), spec.hidden),
                                add(spec.hidden, spec.ffn)});
  }
};

// The same tokens in one step on two threads, and one by one on one thread: the same logits, and not all zero.
int check_session(const Kernels& kernels) {
  static Model model;
  if (model.used == 0) model.fill();
  auto pool = ThreadPool::create(2);
  if (!pool) return printf("%s\n", pool.error().message.c_str()), 1;
  SerialExecutor serial;
  const SessionShape shape{.context = 300, .batch = most_tokens};
  auto whole = Transformer<RuntimeSpec>::create(spec, model.weights, shape,
                                                {.executor = pool->get(), .kernels = &kernels, .memory = {}});
  auto steps = Transformer<RuntimeSpec>::create(spec, model.weights, shape,
                                                {.executor = &serial, .kernels = &kernels, .memory = {}});
  if (!whole || !steps) return printf("%s\n", (whole ? steps : whole).error().message.c_str()), 1;
  static const std::int32_t tokens[most_tokens] = {3, 99, 0, 42, 7};
  if (!whole->forward(tokens)) return wrong("forward", 0, 1);
  for (const std::int32_t& t : tokens)
    if (!steps->forward({&t, 1})) return wrong("forward", 0, 1);
  double size = 0;
  for (std::size_t i = 0; i < spec.vocab; ++i) {
    const float a = whole->logits()[i], b = steps->logits()[i];
    if (!(a == b)) return wrong("logits", static_cast<double>(b), static_cast<double>(a));
    size += magnitude(static_cast<double>(a));
  }
  if (!(size > 1)) return wrong("logits' size", size, 1);
  static const std::int32_t bad = 100;
  if (whole->forward({&bad, 1})) return wrong("token outside the vocabulary accepted", 1, 0);
  return 0;
}

}  // namespace

// isa: null for the best, ? to ask for no more than whether the best runs here.
// 0: all is right. 1: something is not. 3: this CPU does not have the kernels.
int run(const char* isa) {
  if (isa != nullptr && isa[0] == '?') {
    const bool here = isa_list().front().runs_here();
    printf("best here: %s\n", here ? "yes" : "no");
    return here ? 0 : 3;
  }
  const auto found = isa != nullptr ? kernels_by_name(isa) : best_kernels();
  if (!found) {
    printf("error: %s\n", found.error().message.c_str());
    return found.error().code == Errc::unsupported ? 3 : 1;
  }
  const Kernels& kernels = **found;
  printf("kernels: %s\n", kernels.name);
  for (const WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32})
    for (const ActivationForm form : {ActivationForm::a16, ActivationForm::a8})
      for (const std::size_t m : {std::size_t{1}, most_tokens})
        if (check_product(kernels, format, form, m) != 0) return 1;
  if (check_attention(kernels) != 0 || check_session(kernels) != 0) return 1;
  printf("all right\n");
  return 0;
}

}  // namespace UNIT
