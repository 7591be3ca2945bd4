// The kernel interface: what an instruction set offers to a backend, and the arguments of each operation. A kernel
// allocates nothing, starts no thread, keeps no state; its caller has checked shapes and alignment.
#ifndef POCKET_KERNELS_KERNELS_HPP
#define POCKET_KERNELS_KERNELS_HPP

#include <cstddef>
#include <cstdint>

#include "../pocket/config.hpp"
#include "../pocket/core/types.hpp"
#include "../pocket/quant/activations.hpp"
#include "../pocket/quant/format.hpp"

POCKET_NAMESPACE_BEGIN

// Which instruction set: for messages and tests; dispatch goes by function pointers.
enum class Isa : std::uint8_t { portable, avx2, avxvnni, avx512bw, avx512vnni, neon, neon_dotprod, neon_i8mm };

// y[m, n] = sum over k of w[n, k] * a[m, k], for the row blocks [block_begin, block_end) of w:
//
//   y = sum over groups g, in ascending order, of
//         fma(s, t*float(isum), acc), then fma(m - o*s, t*asum, acc)
//   with isum = sum of q*code and asum = sum of codes, in int32
//
// One float32 accumulator per output, always in this order: the result does not depend on m, on the other tokens, or
// on how the row blocks were shared out. (Instruction sets with a fused multiply-add agree bit for bit; others round
// the product as well.) Error against exact arithmetic on the same codes, u = 2^-24:
//   |error| <= (2*groups + 4) * u * sum over groups of t * (|s| * |isum| + |m - o*s| * |asum|)
// y: element (token i, output n) at y[i*y_stride + n - 16*block_begin]; only outputs n < w.n are written. With `add`,
// the product is added to what y holds, in one rounding.
// w.tiles is aligned to 64 bytes; a is as `prepare` wrote it; nothing outside w, a and the outputs is read or written.
struct Matmul {
  PackedMatrix w;
  Activations a;
  float* y = nullptr;
  std::size_t y_stride = 0;  // floats from one token to the next
  bool add = false;          // y += product
};

inline constexpr std::size_t attention_chunk = 256;  // positions: K and V of a chunk (64 KB at head_dim 64) stay in L2
inline constexpr std::size_t key_block = 16;

// One chunk of attention: up to attention_chunk consecutive positions of one KV head, for one token and all the query
// heads that share the KV head.
//
//   score[h, j] = sum over d of q[h, d] * k[j, d]      float32, d ascending, one accumulator
//   max[h] = max over j of score;  p = exp(score - max);  sum[h] = sum of p;  out[h, d] = sum over j of p[j] * v[j, d]
//
// q: [heads][head_dim], already scaled by 1/sqrt(head_dim). k: blocks of 16 positions, [block][head_dim][16] float16
// (16 positions side by side: no horizontal sums). v: [position][head_dim] float16. count: 1..attention_chunk.
// next: what the caller will read after this chunk, up to as many bytes as k has: it is prefetched meanwhile. Any
// address, also none.
// scores: scratch, [heads][attention_chunk]. The last block of k is read whole, whatever lies beyond `count`.
// head_dim is a multiple of 16.
struct AttentionChunk {
  const float* q = nullptr;
  const f16* k = nullptr;
  const f16* v = nullptr;
  const f16* next = nullptr;
  std::size_t count = 0;
  std::size_t heads = 0;
  std::size_t head_dim = 0;
  float* scores = nullptr;
  float* out = nullptr;  // [heads][head_dim]
  float* max = nullptr;  // [heads]
  float* sum = nullptr;  // [heads]
};

// One instruction set's functions; isa_list.hpp has the list.
struct Kernels {
  Isa isa = Isa::portable;
  const char* name = "";
  // x: [m][x_stride] floats, of which a.k are used; writes a.codes and a.scales (see quant/activations.hpp).
  void (*prepare)(const float* x, std::size_t x_stride, const Activations& a) noexcept = nullptr;
  // The row blocks [block_begin, block_end) of a product: see Matmul.
  void (*matmul)(const Matmul&, std::size_t block_begin, std::size_t block_end) noexcept = nullptr;
  // y[i*y_stride + r] = silu(both[32*i + r]) * both[32*i + 16 + r] for r in [0, 16), i in [0, m), silu(x) = x /
  // (1 + e^-x): the outputs of a row block of the gate and of the up projection. silu(-infinity) is -0, silu(NaN) NaN.
  void (*gate)(const float* both, std::size_t m, float* y, std::size_t y_stride) noexcept = nullptr;
  // One chunk: see AttentionChunk.
  void (*attention)(const AttentionChunk&) noexcept = nullptr;
};

// One instruction set of the list.
struct IsaEntry {
  const Kernels* kernels;
  bool (*runs_here)() noexcept;  // does this CPU, with this operating system, have what the kernels need?
};

POCKET_NAMESPACE_END

#endif
