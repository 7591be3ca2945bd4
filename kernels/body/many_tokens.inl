// Many tokens: each tile is unpacked once for up to 64 of them. Included after matmul.inl and its primitives, and
//   Unpacked                 a tile's codes in the form that `dot` wants
//   unpack<Format>(codes, unpacked)
//   dot<Format, Form>(const Unpacked (&)[B], activation codes, stride, RowsI (&sum)[B][T][groups])
//                            B tiles against T tokens, whose codes are `stride` bytes apart; sums complete in int32
//   tokens_at_once<Format, Form>, blocks_at_once       T and B
//   fewest_unpacked<Form>    from so many tokens on (at least T) it pays
// No include guard.

// B tiles of one step along k.
template <class Format, std::size_t B>
struct Tiles {
  Unpacked unpacked[B];
  TileScales<Format> scales[B];
};
template <class Format, std::size_t B>
POCKET_ALWAYS_INLINE void load_tiles(Tiles<Format, B>& tiles, const std::byte* tile, std::size_t k_tiles,
                                     const Rows& minus_offset, bool in_memory) {
#pragma GCC unroll 2
  for (std::size_t b = 0; b < B; ++b, tile += k_tiles * Format::bytes) {
    if (in_memory) prefetch<Format, 2>(tile + B * k_tiles * Format::bytes);
    unpack<Format>(tile + Format::codes_offset, tiles.unpacked[b]);
    tiles.scales[b] = load_scales<Format>(tile, minus_offset);
  }
}

// Accumulators (8 KB for two row blocks), codes (4 KB) and activations (8 KB in A16) stay in L1.
inline constexpr std::size_t token_block = 64;

// Tokens [begin, end), at least T and at most token_block, against B row blocks. A step's tiles are unpacked while the
// one before is multiplied, and the next row blocks' fetched.
template <class Format, class Form, std::size_t B>
void unpacked_blocks(const Matmul& p, std::size_t block, std::size_t begin, std::size_t end, float* y) {
  constexpr std::size_t T = tokens_at_once<Format, Form>;
  const std::size_t k_tiles = p.w.k_tiles(), stride = p.a.code_stride();
  const Rows minus_offset = broadcast(-p.w.offset);
  // The last T overlap those before where their number is no multiple; what comes out twice is stored once.
  const std::size_t twice = (T - (end - begin) % T) % T, whole = (end - begin) / T * T;
  const std::byte* tile = p.w.tiles + block * k_tiles * Format::bytes;
  const std::int8_t* codes = p.a.codes + begin * stride;
  const GroupScale* group = p.a.scales + begin * k_tiles;
  Rows acc[B][token_block];
  for (std::size_t b = 0; b < B; ++b)
    for (std::size_t i = 0; i < end - begin + twice; ++i) acc[b][i] = zero();
  Tiles<Format, B> tiles[2];
  load_tiles(tiles[0], tile, k_tiles, minus_offset, begin == 0);
  for (std::size_t kt = 0; kt < k_tiles; ++kt, codes += tile_cols * Form::bytes_per_code, ++group) {
    tile += Format::bytes;
    if (kt + 1 < k_tiles) load_tiles(tiles[(kt + 1) % 2], tile, k_tiles, minus_offset, begin == 0);
    const Tiles<Format, B>& now = tiles[kt % 2];
    for (std::size_t i = 0; i < end - begin; i += T) {
      const auto from = static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(i < whole ? 0 : twice);
      const GroupScale* scale = group + from * static_cast<std::ptrdiff_t>(k_tiles);
      RowsI sum[B][T][Format::groups];
      dot<Format, Form>(now.unpacked, codes + from * static_cast<std::ptrdiff_t>(stride), stride, sum);
#pragma GCC unroll 2
      for (std::size_t b = 0; b < B; ++b)
#pragma GCC unroll 8
        for (std::size_t t = 0; t < T; ++t)
          accumulate<Format>(acc[b][i + t], sum[b][t], now.scales[b], scale[t * k_tiles]);
    }
  }
  for (std::size_t b = 0; b < B; ++b)
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t at = i - begin < whole ? i - begin : i - begin + twice;
      store_outputs(y + i * p.y_stride + b * tile_rows, acc[b][at], p.add, p.w.n - (block + b) * tile_rows);
    }
}

template <class Format, class Form>
std::size_t many_tokens(const Matmul& p, std::size_t block_begin, std::size_t block_end, float* y) {
  constexpr std::size_t T = tokens_at_once<Format, Form>;
  static_assert(token_block % T == 0 && fewest_unpacked<Form> >= T);
  if (p.a.m < fewest_unpacked<Form>) return 0;
  std::size_t block = block_begin;
  for (; block + blocks_at_once <= block_end; block += blocks_at_once, y += blocks_at_once * tile_rows)
    for (std::size_t begin = 0, end; begin < p.a.m; begin = end) {
      end = p.a.m - begin < token_block ? p.a.m : begin + token_block;
      unpacked_blocks<Format, Form, blocks_at_once>(p, block, begin, end, y);
    }
  for (; block < block_end; ++block, y += tile_rows) few_tokens<Format, Form>(p, block, block + 1, y, 0);
  return p.a.m;
}
