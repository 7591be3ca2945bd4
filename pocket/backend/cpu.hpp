// The CPU backend: the graph's fused operations over one instruction set's kernels and the caller's executor.
//
// Guarantee: within one instruction set and one program a token's logits are the same bits for any thread count, any
// batch, and whether it came in one prefill, in chunks, by decoding or in a verification. It rests on the kernels (one
// accumulator per output, groups in order), on element-wise functions that handle one row at a time, and on attention
// in chunks of 256 positions at absolute places, joined in ascending order.
//
// All memory is laid out when the session is created; no operation allocates.
#ifndef POCKET_BACKEND_CPU_HPP
#define POCKET_BACKEND_CPU_HPP

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "../../kernels/elementwise.hpp"
#include "../../kernels/isa.hpp"
#include "../../kernels/kernels.hpp"
#include "../config.hpp"
#include "../core/executor.hpp"
#include "../core/status.hpp"
#include "../core/workspace.hpp"
#include "../model/kv_cache.hpp"
#include "../model/memory_plan.hpp"
#include "../model/spec.hpp"
#include "../model/weights.hpp"
#include "../quant/activations.hpp"
#include "../quant/pack.hpp"
#include "backend.hpp"

POCKET_NAMESPACE_BEGIN

namespace detail {

// Tokens whose attention is computed together over each chunk of the cache: a chunk is read from L2 that often.
inline constexpr std::size_t attention_tokens = 8;

// Offsets in bytes of everything that a session of the CPU backend owns.
struct CpuLayout {
  std::size_t cache, residual, qkv, attended, gated, logits, codes, scales, rotary, inverse_frequency, partial,
      open_chunks, workers;
  std::size_t worker_floats;  // of scratch per worker
  std::size_t bytes;

  static constexpr CpuLayout of(const ModelSpec auto& s, const SessionShape& shape) noexcept {
    const std::size_t m = shape.batch, group = s.heads / s.kv_heads;
    const std::size_t widest = (std::max)({std::size_t{s.hidden}, q_width(s), std::size_t{s.ffn}});
    const Activations a{nullptr, nullptr, m, widest, shape.activations};
    Layout l;
    CpuLayout c{};
    c.cache = l.add<f16>(KvCache::values(s, shape.context));
    c.residual = l.add<float>(m * s.hidden);
    c.qkv = l.add<float>(m * qkv_width(s));
    c.attended = l.add<float>(m * q_width(s));
    c.gated = l.add<float>(m * s.ffn);
    c.logits = l.add<float>(shape.logit_rows * s.vocab);
    c.codes = l.add<std::int8_t>(a.code_bytes());
    c.scales = l.add<GroupScale>(a.scale_count());
    c.rotary = l.add<float>(m * s.head_dim);
    c.inverse_frequency = l.add<double>(s.head_dim / 2);
    c.partial = l.add<float>(div_up(shape.context, attention_chunk) * s.heads * (s.head_dim + 2));
    c.open_chunks = l.add<std::uint32_t>(s.kv_heads);
    const std::size_t attention =
        group * (attention_chunk + (attention_tokens + 1) * (s.head_dim + 2));  // scores; running and chunk's states
    c.worker_floats =
        round_up((std::max)({std::size_t{s.hidden}, m * 2 * tile_rows, 2 * std::size_t{s.ffn}, attention}), 16);
    c.workers = l.add<float>(shape.threads * c.worker_floats);
    c.bytes = l.bytes();
    return c;
  }
};

}  // namespace detail

// One session's memory and the operations on it; Transformer makes it and calls them.
class CpuBackend {
 public:
  using Buffer = float*;
  using Weights = HostWeights;

  // What the caller brings, once per session.
  struct Options {
    Executor* executor = nullptr;      // the caller's; its concurrency is the session's thread count
    const Kernels* kernels = nullptr;  // null: the best that this CPU has
    std::span<std::byte> memory = {};  // the caller's, 64-byte aligned; empty: allocated here
  };
  // float32: residual [m, hidden], qkv [m, qkv_width], attended [m, heads*head_dim], gated [m, ffn].
  struct Buffers {
    Buffer residual, qkv, attended, gated;
  };

  // Bytes of a session, its KV cache included: what Options::memory needs. shape.threads: the executor's concurrency.
  template <ModelSpec S>
  static constexpr std::size_t memory_bytes(const S& spec, const SessionShape& shape) noexcept {
    return detail::CpuLayout::of(spec, fitted(shape)).bytes;
  }

  // shape.threads is the executor's concurrency. The spec and the weights have been checked.
  static Expected<CpuBackend> create(const RuntimeSpec& spec, const Weights& weights, const SessionShape& shape,
                                     const Options& options) {
    CpuBackend b;
    b.spec_ = spec;
    b.shape_ = shape;
    b.layout_ = detail::CpuLayout::of(spec, shape);
    b.executor_ = options.executor;
    b.epsilon_ = weights.rms_epsilon;
    b.kernels_ = options.kernels;
    if (b.kernels_ == nullptr) {
      POCKET_TRY(best, best_kernels());
      b.kernels_ = best;
    }
    auto memory = options.memory.empty() ? Workspace::allocate(b.layout_.bytes)
                                         : Workspace::borrow(options.memory, b.layout_.bytes);
    if (!memory) return std::move(memory).error();
    b.memory_ = *std::move(memory);
    b.cache_ = {b.memory_.at<f16>(b.layout_.cache), spec.layers, spec.kv_heads, spec.head_dim,
                round_up(shape.context, key_block)};
    double* frequency = b.memory_.at<double>(b.layout_.inverse_frequency);
    for (std::size_t i = 0; i < spec.head_dim / 2; ++i)
      frequency[i] = std::pow(weights.rope_base, -2.0 * static_cast<double>(i) / static_cast<double>(spec.head_dim));
    return b;
  }

  const Kernels& kernels() const noexcept { return *kernels_; }  // the instruction set in use
  const KvCache& cache() const noexcept { return cache_; }       // for tests
  // Room for a step of up to shape.batch tokens.
  Buffers buffers() const noexcept {
    return {at(layout_.residual), at(layout_.qkv), at(layout_.attended), at(layout_.gated)};
  }
  // vocab floats; row < shape.logit_rows.
  std::span<const float> logits(std::size_t row) const noexcept {
    return {at(layout_.logits) + row * spec_.vocab, spec_.vocab};
  }

  // ---- the graph's operations (see backend.hpp) ----

  // Takes the step's tokens, and computes its angles in double precision, so that position 32767 is as exact as
  // position 1.
  void begin(std::span<const std::int32_t> tokens, std::size_t position) noexcept {
    tokens_ = tokens;
    position_ = position;
    const std::size_t half = spec_.head_dim / 2;
    const double* frequency = memory_.at<double>(layout_.inverse_frequency);
    for (std::size_t i = 0; i < m(); ++i)
      for (std::size_t j = 0; j < half; ++j) {
        const double angle = static_cast<double>(position + i) * frequency[j];
        cosines(i)[j] = static_cast<float>(std::cos(angle));
        sines(i)[j] = static_cast<float>(std::sin(angle));
      }
  }

  // x[m, hidden] = the tokens' rows of the embedding, dequantised.
  void embed(const PackedMatrix& embedding, Buffer x) noexcept {
    executor_->parallel_for(m(), [&](std::size_t i, unsigned) {
      dequantize_row(embedding, static_cast<std::size_t>(tokens_[i]), x + i * spec_.hidden);
    });
  }

  // y[m, n] = RMSNorm(x[m, k]; gamma[k]) w^T.
  void norm_project(Buffer x, const float* gamma, const PackedMatrix& w, Buffer y) noexcept {
    multiply({w, prepare_normed(x, m(), gamma), y, w.n, false});
  }

  // x[m, n] += y[m, k] w^T.
  void project_add(Buffer y, const PackedMatrix& w, Buffer x) noexcept {
    const Activations a = activations(m(), w.k);
    executor_->parallel_for(m(), [&](std::size_t i, unsigned) { kernels_->prepare(y + i * w.k, w.k, row(a, i)); });
    multiply({w, a, x, w.n, true});
  }

  // y[m, ffn] = silu(h Wg^T) * (h Wu^T), h = RMSNorm(x[m, hidden]; gamma); 16 rows of Wg, the same 16 of Wu, and so on.
  void norm_gate(Buffer x, const float* gamma, const PackedMatrix& w, Buffer y) noexcept {
    const Activations a = prepare_normed(x, m(), gamma);
    const std::size_t pairs = spec_.ffn / tile_rows, step = blocks_per_task(pairs);
    executor_->parallel_for(div_up(pairs, step), [&](std::size_t task, unsigned worker) {
      constexpr std::size_t width = 2 * tile_rows;
      const std::size_t begin = task * step, end = (std::min)(pairs, begin + step);
      float* both = scratch(worker);
      if (m() == 1) {  // [pairs][gate 16, up 16]
        kernels_->matmul({w, a, both, spec_.ffn * 2, false}, 2 * begin, 2 * end);
        return kernels_->gate(both, end - begin, y + begin * tile_rows, tile_rows);
      }
      for (std::size_t p = begin; p < end; ++p) {  // [m][gate 16, up 16]
        kernels_->matmul({w, a, both, width, false}, 2 * p, 2 * p + 2);
        kernels_->gate(both, m(), y + p * tile_rows, spec_.ffn);
      }
    });
  }

  // Norms (where the model has them) and turns q and k of qkv[m, qkv_width], scales q, and stores k and v in the cache.
  void rope_append(Buffer qkv, std::size_t layer, const float* q_gamma, const float* k_gamma) noexcept {
    const std::size_t d = spec_.head_dim;
    const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(d));
    executor_->parallel_for(m(), [&](std::size_t i, unsigned) {
      float* head = qkv + i * qkv_width(spec_);
      const auto turn = [&](const float* gamma) {
        if (spec_.qk_norm) elementwise::rms_norm(head, gamma, d, epsilon_, head);
        elementwise::rotate_half(head, cosines(i), sines(i), d / 2);
      };
      for (std::size_t h = 0; h < spec_.heads; ++h, head += d) {
        turn(q_gamma);
        elementwise::scale(head, d, scale);
      }
      for (std::size_t h = 0; h < spec_.kv_heads; ++h, head += d) {
        turn(k_gamma);
        cache_.append(layer, h, position_ + i, head, head + kv_width(spec_));
      }
    });
  }

  // y[m, heads*head_dim]: causal attention of qkv's q over the layer's cache, which holds the step's k and v.
  void attend(Buffer qkv, std::size_t layer, Buffer y) noexcept {
    m() == 1 ? attend_one(qkv, layer, y) : attend_many(qkv, layer, y);
  }

  // logits[logit_row + i] = RMSNorm(x[first + i]; gamma) w^T for i in [0, count).
  void norm_logits(Buffer x, std::size_t first, std::size_t count, const float* gamma, const PackedMatrix& w,
                   std::size_t logit_row) noexcept {
    const Activations a = prepare_normed(x + first * spec_.hidden, count, gamma);
    multiply({w, a, at(layout_.logits) + logit_row * spec_.vocab, spec_.vocab, false});
  }

  // Nothing is left to do: each operation has returned when it is done.
  Expected<void> finish() noexcept { return {}; }

 private:
  // A running softmax-weighted sum for the query heads of one KV head: out[heads][head_dim], max[heads], sum[heads].
  struct State {
    float *out, *max, *sum;
  };

  CpuBackend() = default;

  std::size_t m() const noexcept { return tokens_.size(); }
  float* at(std::size_t offset) const noexcept { return memory_.at<float>(offset); }
  float* scratch(unsigned worker) const noexcept { return at(layout_.workers) + worker * layout_.worker_floats; }
  float* cosines(std::size_t i) const noexcept { return at(layout_.rotary) + i * spec_.head_dim; }
  float* sines(std::size_t i) const noexcept { return cosines(i) + spec_.head_dim / 2; }
  std::size_t heads_per_kv() const noexcept { return spec_.heads / spec_.kv_heads; }
  std::size_t state_floats() const noexcept { return heads_per_kv() * (spec_.head_dim + 2); }
  State state(float* p) const noexcept {
    float* max = p + heads_per_kv() * spec_.head_dim;
    return {p, max, max + heads_per_kv()};
  }

  // Eight tasks a thread, so that cores of unequal speed finish together; one where there is one thread: the weights
  // are then read in one stream.
  std::size_t blocks_per_task(std::size_t blocks) const noexcept {
    return shape_.threads == 1 ? blocks : div_up(blocks, 8 * shape_.threads);
  }

  Activations activations(std::size_t tokens, std::size_t k) const noexcept {
    return {memory_.at<std::int8_t>(layout_.codes), memory_.at<GroupScale>(layout_.scales), tokens, k,
            shape_.activations};
  }
  static Activations row(const Activations& a, std::size_t i) noexcept {
    return {a.codes + i * a.code_stride(), a.scales + i * a.groups(), 1, a.k, a.form};
  }

  Activations prepare_normed(const float* x, std::size_t tokens, const float* gamma) noexcept {
    const std::size_t width = spec_.hidden;
    const Activations a = activations(tokens, width);
    executor_->parallel_for(tokens, [&](std::size_t i, unsigned worker) {
      elementwise::rms_norm(x + i * width, gamma, width, epsilon_, scratch(worker));
      kernels_->prepare(scratch(worker), width, row(a, i));
    });
    return a;
  }

  void multiply(const Matmul& product) noexcept {
    const std::size_t blocks = product.w.row_blocks(), step = blocks_per_task(blocks);
    executor_->parallel_for(div_up(blocks, step), [&](std::size_t task, unsigned) {
      Matmul part = product;
      part.y += task * step * tile_rows;
      kernels_->matmul(part, task * step, (std::min)(blocks, (task + 1) * step));
    });
  }

  // The chunk of positions from `begin` on, for the query heads of one KV head of one token.
  // next: the keys that this thread will probably read then.
  void attend_chunk(const float* q, std::size_t layer, std::size_t head, std::size_t begin, std::size_t count,
                    const f16* next, float* scores, State out) const noexcept {
    const std::size_t d = spec_.head_dim;
    kernels_->attention({q, cache_.keys(layer, head) + begin * d, cache_.values(layer, head) + begin * d, next, count,
                         heads_per_kv(), d, scores, out.out, out.max, out.sum});
  }
  void start(State s) const noexcept {
    for (std::size_t i = 0; i < heads_per_kv() * spec_.head_dim; ++i) s.out[i] = 0;
    for (std::size_t h = 0; h < heads_per_kv(); ++h) {
      s.max[h] = -__builtin_huge_valf();
      s.sum[h] = 0;
    }
  }
  void merge(State running, State chunk) const noexcept {
    const std::size_t d = spec_.head_dim;
    for (std::size_t h = 0; h < heads_per_kv(); ++h)
      elementwise::merge_partial(running.max[h], running.sum[h], running.out + h * d, chunk.max[h], chunk.sum[h],
                                 chunk.out + h * d, d);
  }
  void complete(State s, float* y) const noexcept {
    const std::size_t d = spec_.head_dim;
    for (std::size_t h = 0; h < heads_per_kv(); ++h) {
      elementwise::scale(s.out + h * d, d, 1.0f / s.sum[h]);
      std::memcpy(y + h * d, s.out + h * d, d * sizeof(float));
    }
  }

  // One token: KV heads x chunks in parallel. Who finishes the last chunk of a head joins them all, in order.
  void attend_one(const float* qkv, std::size_t layer, float* y) noexcept {
    const std::size_t length = position_ + 1, chunks = div_up(length, attention_chunk), group = heads_per_kv();
    float* partial = at(layout_.partial);
    std::uint32_t* open = memory_.at<std::uint32_t>(layout_.open_chunks);
    for (std::size_t head = 0; head < spec_.kv_heads; ++head) open[head] = static_cast<std::uint32_t>(chunks);
    executor_->parallel_for(spec_.kv_heads * chunks, [&](std::size_t task, unsigned worker) {
      const std::size_t head = task / chunks, begin = task % chunks * attention_chunk;
      const std::size_t count = (std::min)(attention_chunk, length - begin);
      const bool last = begin + count == length;
      const f16* next = last ? cache_.keys(layer, (head + 1) % spec_.kv_heads)
                             : cache_.keys(layer, head) + (begin + count) * spec_.head_dim;
      attend_chunk(qkv + head * group * spec_.head_dim, layer, head, begin, count, next, scratch(worker),
                   state(partial + task * state_floats()));
      if (std::atomic_ref(open[head]).fetch_sub(1, std::memory_order_acq_rel) != 1) return;
      const State running = state(scratch(worker));
      start(running);
      for (std::size_t c = 0; c < chunks; ++c) merge(running, state(partial + (head * chunks + c) * state_floats()));
      complete(running, y + head * group * spec_.head_dim);
    });
  }

  // Several tokens: KV heads x blocks of tokens in parallel, the latest (longest) first.
  void attend_many(const float* qkv, std::size_t layer, float* y) noexcept {
    const std::size_t blocks = div_up(m(), detail::attention_tokens), group = heads_per_kv();
    executor_->parallel_for(spec_.kv_heads * blocks, [&](std::size_t task, unsigned worker) {
      const std::size_t head = task / blocks, block = blocks - 1 - task % blocks;
      const std::size_t first = block * detail::attention_tokens;
      const std::size_t last = (std::min)(m(), first + detail::attention_tokens);
      float* scores = scratch(worker);
      float* states = scores + group * attention_chunk;  // one a token, and one for the chunk
      const State chunk = state(states + detail::attention_tokens * state_floats());
      for (std::size_t i = first; i < last; ++i) start(state(states + (i - first) * state_floats()));
      for (std::size_t begin = 0; begin < position_ + last; begin += attention_chunk)
        for (std::size_t i = first; i < last; ++i) {
          const std::size_t length = position_ + i + 1;
          if (begin >= length) continue;
          const float* q = qkv + i * qkv_width(spec_) + head * group * spec_.head_dim;
          attend_chunk(q, layer, head, begin, (std::min)(attention_chunk, length - begin),
                       cache_.keys(layer, head) + begin * spec_.head_dim, scores, chunk);
          merge(state(states + (i - first) * state_floats()), chunk);
        }
      for (std::size_t i = first; i < last; ++i)
        complete(state(states + (i - first) * state_floats()), y + i * q_width(spec_) + head * group * spec_.head_dim);
    });
  }

  RuntimeSpec spec_;
  SessionShape shape_;
  detail::CpuLayout layout_{};
  Workspace memory_;
  KvCache cache_;
  Executor* executor_ = nullptr;
  const Kernels* kernels_ = nullptr;
  float epsilon_ = 0;
  // the step's state
  std::span<const std::int32_t> tokens_;
  std::size_t position_ = 0;
};
static_assert(Backend<CpuBackend>);

POCKET_NAMESPACE_END

#endif
