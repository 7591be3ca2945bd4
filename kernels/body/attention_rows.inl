// The two loops of attention for attention.inl, over Rows of any instruction set. Included inside an instruction set's
// namespace and target region, after its primitives. No include guard.

// Scores of W blocks of keys from position j on, for H heads from h0 on. Memory is to be as busy here as in the values'
// loop: for each line of keys one of the values is fetched to the second-level cache, and there, for each line of
// values, one of what comes next.
template <std::size_t H, std::size_t W>
void attention_scores(const AttentionChunk& c, std::size_t h0, std::size_t j) {
  constexpr std::size_t ahead = 512;  // values, 1 KB: to the first-level cache
  const std::size_t block = key_block * c.head_dim;
  const float* q = c.q + h0 * c.head_dim;
  const f16 *k = c.k + j * c.head_dim, *v = c.v + j * c.head_dim;
  Rows acc[H][W];
  for (std::size_t h = 0; h < H; ++h)
    for (std::size_t w = 0; w < W; ++w) acc[h][w] = zero();
  for (std::size_t d = 0; d < c.head_dim; ++d, ++q, k += key_block, v += key_block) {
    Rows keys[W];
#pragma GCC unroll 2
    for (std::size_t w = 0; w < W; ++w) {
      keys[w] = load_f16(reinterpret_cast<const std::byte*>(k + w * block));
      if (d % 2 == 0) {
        __builtin_prefetch(k + w * block + ahead);
        __builtin_prefetch(v + w * block, 0, 2);
      }
    }
#pragma GCC unroll 8
    for (std::size_t h = 0; h < H; ++h) {
      const Rows query = broadcast(q[h * c.head_dim]);
#pragma GCC unroll 2
      for (std::size_t w = 0; w < W; ++w) acc[h][w] = fma(query, keys[w], acc[h][w]);
    }
  }
  float* scores = c.scores + h0 * attention_chunk + j;
  for (std::size_t h = 0; h < H; ++h)
    for (std::size_t w = 0; w < W; ++w) store(scores + h * attention_chunk + w * key_block, acc[h][w]);
}

// Columns d..d+16W-1 of the output, for H heads from h0 on.
template <std::size_t H, std::size_t W>
void attention_values(const AttentionChunk& c, std::size_t h0, std::size_t d, std::uintptr_t next) {
  const f16* v = c.v + d;
  const float* p = c.scores + h0 * attention_chunk;
  Rows acc[H][W];
  for (std::size_t h = 0; h < H; ++h)
    for (std::size_t w = 0; w < W; ++w) acc[h][w] = zero();
  for (std::size_t j = 0; j < c.count; ++j, v += c.head_dim, ++p) {
    if (j % 2 == 0) __builtin_prefetch(reinterpret_cast<const void*>(next + j * W * tile_rows), 0, 2);
    Rows values[W];
#pragma GCC unroll 2
    for (std::size_t w = 0; w < W; ++w) values[w] = load_f16(reinterpret_cast<const std::byte*>(v + w * tile_rows));
#pragma GCC unroll 8
    for (std::size_t h = 0; h < H; ++h) {
      const Rows weight = broadcast(p[h * attention_chunk]);
#pragma GCC unroll 2
      for (std::size_t w = 0; w < W; ++w) acc[h][w] = fma(weight, values[w], acc[h][w]);
    }
  }
  float* out = c.out + h0 * c.head_dim + d;
  for (std::size_t h = 0; h < H; ++h)
    for (std::size_t w = 0; w < W; ++w) store(out + h * c.head_dim + w * tile_rows, acc[h][w]);
}
