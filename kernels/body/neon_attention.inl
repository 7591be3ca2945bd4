// The two loops of attention on AArch64, for attention.inl: a multiply-add takes its factor from one lane of a
// register, so that four steps of a head share one load. Included inside an instruction set's namespace and target
// region, after neon.inl. No include guard.

template <int Lane, std::size_t H>
POCKET_ALWAYS_INLINE void add_step(Rows (&acc)[H], const float32x4_t (&x)[H], const f16* y) {
  const Rows r = load_f16(reinterpret_cast<const std::byte*>(y));
#pragma GCC unroll 4
  for (std::size_t h = 0; h < H; ++h) {
    acc[h].v[0] = vfmaq_laneq_f32(acc[h].v[0], r.v[0], x[h], Lane);
    acc[h].v[1] = vfmaq_laneq_f32(acc[h].v[1], r.v[1], x[h], Lane);
    acc[h].v[2] = vfmaq_laneq_f32(acc[h].v[2], r.v[2], x[h], Lane);
    acc[h].v[3] = vfmaq_laneq_f32(acc[h].v[3], r.v[3], x[h], Lane);
  }
}

// out[h*out_stride + r] = sum over i < n, ascending, of x[h*x_stride + i] * y[i*y_stride + r], for H heads and sixteen
// r; fetch(y + i*y_stride, i) before each fourth i.
template <std::size_t H, class Fetch>
POCKET_ALWAYS_INLINE void weighted_sums(const float* x, std::size_t x_stride, const f16* y, std::size_t y_stride,
                                        std::size_t n, float* out, std::size_t out_stride, Fetch&& fetch) {
  Rows acc[H];
#pragma GCC unroll 4
  for (std::size_t h = 0; h < H; ++h) acc[h] = zero();
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4, x += 4, y += 4 * y_stride) {
    fetch(y, i);
    float32x4_t four[H];
#pragma GCC unroll 4
    for (std::size_t h = 0; h < H; ++h) four[h] = vld1q_f32(x + h * x_stride);
    add_step<0>(acc, four, y);
    add_step<1>(acc, four, y + y_stride);
    add_step<2>(acc, four, y + 2 * y_stride);
    add_step<3>(acc, four, y + 3 * y_stride);
  }
  for (; i < n; ++i, ++x, y += y_stride) {
    float32x4_t one[H];
#pragma GCC unroll 4
    for (std::size_t h = 0; h < H; ++h) one[h] = vdupq_n_f32(x[h * x_stride]);
    add_step<0>(acc, one, y);
  }
#pragma GCC unroll 4
  for (std::size_t h = 0; h < H; ++h) store(out + h * out_stride, acc[h]);
}

// Scores of one block of keys from position j on, for H heads from h0 on. For each line of keys one of the values is
// fetched to the second-level cache.
template <std::size_t H, std::size_t W>
void attention_scores(const AttentionChunk& c, std::size_t h0, std::size_t j) {
  static_assert(W == 1 && key_block == 16);
  constexpr std::size_t ahead = 512;  // values, 1 KB: to the first-level cache
  const f16* v = c.v + j * c.head_dim;
  weighted_sums<H>(c.q + h0 * c.head_dim, c.head_dim, c.k + j * c.head_dim, key_block, c.head_dim,
                   c.scores + h0 * attention_chunk + j, attention_chunk, [&](const f16* k, std::size_t) {
                     __builtin_prefetch(k + ahead);
                     __builtin_prefetch(k + ahead + 2 * key_block);
                     __builtin_prefetch(v, 0, 2);
                     __builtin_prefetch(v + 2 * key_block, 0, 2);
                     v += 4 * key_block;
                   });
}

// Columns d..d+15 of the output, for H heads from h0 on. For each two lines of values one from `next` on is fetched.
template <std::size_t H, std::size_t W>
void attention_values(const AttentionChunk& c, std::size_t h0, std::size_t d, std::uintptr_t next) {
  static_assert(W == 1 && tile_rows == 16);
  weighted_sums<H>(c.scores + h0 * attention_chunk, attention_chunk, c.v + d, c.head_dim, c.count,
                   c.out + h0 * c.head_dim + d, c.head_dim, [&](const f16*, std::size_t) {
                     __builtin_prefetch(reinterpret_cast<const void*>(next), 0, 2);
                     next += 4 * tile_rows;
                   });
}
