// One chunk of attention (see AttentionChunk), written once over an instruction set's Rows: sixteen positions side by
// side for the scores, sixteen columns of the head for the values. `heads_at_once` query heads share each conversion of
// K and V (what is left over goes by four, and then by fewer), `rows_at_once` Rows each broadcast of a query or weight:
// at least eight accumulators, which cover the latency of a fused multiply-add (4 cycles) on two ports, and fewer loads
// than multiply-adds. Included inside an instruction set's namespace and target region, after exp.inl and
//   attention_scores<H, W>(chunk, h0, j)         see attention_rows.inl
//   attention_values<H, W>(chunk, h0, d, next)
// No include guard.

template <std::size_t H>
void attention_heads(const AttentionChunk& c, std::size_t h0) {
  constexpr std::size_t keys = rows_at_once * key_block, columns = rows_at_once * tile_rows;
  const std::size_t end = (c.count + key_block - 1) / key_block * key_block;  // of the keys
  std::size_t j = 0, d = 0;
  for (; j + keys <= end; j += keys) attention_scores<H, rows_at_once>(c, h0, j);
  if (j < end && end >= keys)
    attention_scores<H, rows_at_once>(c, h0, end - keys);  // some blocks once more: the same scores
  else
    for (; j < end; j += key_block)
      for (std::size_t h = h0; h < h0 + H; ++h) attention_scores<1, 1>(c, h, j);
  auto next = reinterpret_cast<std::uintptr_t>(c.next);
  for (std::size_t h = h0; h < h0 + H; ++h)
    softmax_partial(c.scores + h * attention_chunk, c.count, c.max[h], c.sum[h], next + (h - h0) * c.count * 8);
  next += H * c.count * 8;
  for (; d + columns <= c.head_dim; d += columns) attention_values<H, rows_at_once>(c, h0, d, next + d * c.count);
  for (; d < c.head_dim; d += tile_rows)
    for (std::size_t h = h0; h < h0 + H; ++h) attention_values<1, 1>(c, h, d, next + d * c.count);
}

inline void attention(const AttentionChunk& c) noexcept {
  std::size_t h = 0;
  if constexpr (heads_at_once > 4)
    for (; h + heads_at_once <= c.heads; h += heads_at_once) attention_heads<heads_at_once>(c, h);
  for (; h + 4 <= c.heads; h += 4) attention_heads<4>(c, h);
  switch (c.heads - h) {
    case 3: return attention_heads<3>(c, h);
    case 2: return attention_heads<2>(c, h);
    case 1: return attention_heads<1>(c, h);
    default: return;
  }
}
