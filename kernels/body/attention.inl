// One chunk of attention (see AttentionChunk), written once over an instruction set's Rows: sixteen positions side by
// side for the scores, sixteen columns of the head for the values. Up to four query heads share each conversion of K
// and V: eight accumulators of eight lanes, enough to cover the latency of a fused multiply-add on two ports. Included
// inside an instruction set's namespace and target region. No include guard.
template <int H>
POCKET_ALWAYS_INLINE void attention_scores(const AttentionChunk& c, std::size_t h0) {
  const float* q = c.q + h0 * c.head_dim;
  const f16* k = c.k;
  for (std::size_t j = 0; j < c.count; j += key_block) {
    Rows acc[static_cast<std::size_t>(H)];
    for (int h = 0; h < H; ++h) acc[h] = zero();
    for (std::size_t d = 0; d < c.head_dim; ++d, k += key_block) {
      const Rows keys = load_f16(reinterpret_cast<const std::byte*>(k));
#pragma GCC unroll 4
      for (int h = 0; h < H; ++h)
        acc[h] = fma(broadcast(q[static_cast<std::size_t>(h) * c.head_dim + d]), keys, acc[h]);
    }
    for (int h = 0; h < H; ++h) store(c.scores + (h0 + static_cast<std::size_t>(h)) * attention_chunk + j, acc[h]);
  }
}

template <int H>
POCKET_ALWAYS_INLINE void attention_values(const AttentionChunk& c, std::size_t h0) {
  for (std::size_t d = 0; d < c.head_dim; d += tile_rows) {
    const f16* v = c.v + d;
    const float* p = c.scores + h0 * attention_chunk;
    Rows acc[static_cast<std::size_t>(H)];
    for (int h = 0; h < H; ++h) acc[h] = zero();
    for (std::size_t j = 0; j < c.count; ++j, v += c.head_dim, ++p) {
      const Rows values = load_f16(reinterpret_cast<const std::byte*>(v));
#pragma GCC unroll 4
      for (int h = 0; h < H; ++h)
        acc[h] = fma(broadcast(p[static_cast<std::size_t>(h) * attention_chunk]), values, acc[h]);
    }
    for (int h = 0; h < H; ++h) store(c.out + (h0 + static_cast<std::size_t>(h)) * c.head_dim + d, acc[h]);
  }
}

template <int H>
void attention_heads(const AttentionChunk& c, std::size_t h0) {
  attention_scores<H>(c, h0);
  for (std::size_t h = h0; h < h0 + H; ++h)
    elementwise::softmax_partial(c.scores + h * attention_chunk, c.count, c.max[h], c.sum[h]);
  attention_values<H>(c, h0);
}

inline void attention(const AttentionChunk& c) noexcept {
  std::size_t h = 0;
  for (; h + 4 <= c.heads; h += 4) attention_heads<4>(c, h);
  switch (c.heads - h) {
    case 3: return attention_heads<3>(c, h);
    case 2: return attention_heads<2>(c, h);
    case 1: return attention_heads<1>(c, h);
    default: return;
  }
}
