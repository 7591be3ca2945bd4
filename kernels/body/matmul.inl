// The loops of a product, written once. Included inside an instruction set's namespace and target region, after its
// primitives:
//   Rows, RowsI              16 float / int32 lanes, one per output row of a tile
//   zero, broadcast, add, multiply, fma(a, b, c) = a*b + c, load_f16, load, store, to_float
//   Unpacked                 a tile's codes in the form that `dot` wants
//   unpack<Format>(codes, unpacked)
//   dot_packed<Format, Form>(codes, activation codes, stride, RowsI (&sum)[T][groups])
//                            a tile as it lies against T tokens, whose codes are `stride` bytes apart; sums complete in
//                            int32
//   dot<Format, Form>(const Unpacked (&)[B], activation codes, stride, RowsI (&sum)[B][T][groups])
//                            the same for B tiles, unpacked
//   few_tokens<Form>         up to so many tokens are multiplied with the tiles as they lie
//   tokens_at_once<Format, Form>, blocks_at_once     the largest T, a power of two, and B
//   streams_at_once          1, or 2 where one token's product is faster reading two places in turn
// No include guard: it is meant to be included several times.

// Scales and shifted minima of one tile, as floats.
template <class Format>
struct TileScales {
  Rows s[Format::groups];
  Rows m[Format::groups];
};

template <class Format>
POCKET_ALWAYS_INLINE TileScales<Format> load_scales(const std::byte* tile, const Rows& minus_offset) {
  TileScales<Format> t;
  for (std::size_t g = 0; g < Format::groups; ++g) {
    t.s[g] = load_f16(tile + Format::scales_offset(g));
    if constexpr (Format::has_minimum) t.m[g] = fma(minus_offset, t.s[g], load_f16(tile + Format::minima_offset(g)));
  }
  return t;
}

template <class Format>
POCKET_ALWAYS_INLINE void accumulate(Rows& acc, const RowsI (&sum)[Format::groups], const TileScales<Format>& tile,
                                     const GroupScale& a) {
  for (std::size_t g = 0; g < Format::groups; ++g) {
    acc = fma(tile.s[g], multiply(broadcast(a.t), to_float(sum[g])), acc);
    if constexpr (Format::has_minimum) acc = fma(tile.m[g], broadcast(Format::groups == 1 ? a.sum : a.half[g]), acc);
  }
}

POCKET_ALWAYS_INLINE void store_outputs(float* y, const Rows& acc, bool add_to, std::size_t count) {
  if (count >= tile_rows) {
    store(y, add_to ? add(load(y), acc) : acc);
    return;
  }
  alignas(64) float padded[tile_rows];
  store(padded, acc);
  for (std::size_t i = 0; i < count; ++i) y[i] = add_to ? y[i] + padded[i] : padded[i];
}

// A tile, to the first-level cache (Locality 3) or the second (2).
template <class Format, int Locality>
POCKET_ALWAYS_INLINE void prefetch(const std::byte* tile) {
#pragma GCC unroll 17
  for (std::size_t line = 0; line < Format::bytes / 64; ++line) __builtin_prefetch(tile + line * 64, 0, Locality);
}
inline constexpr std::size_t prefetch_ahead = 4096;  // bytes of one stream: a memory latency (115 ns) at 35 GB/s

// T tokens from `token` on, straight from the tiles: row block b of `Streams` ranges side by side, which begin `apart`
// blocks from each other; b from begin to end. Each range is one sequential stream.
template <class Format, class Form, std::size_t T, std::size_t Streams>
POCKET_ALWAYS_INLINE void from_tiles(const Matmul& p, std::size_t token, float* y, std::size_t begin, std::size_t end,
                                     std::size_t apart, bool in_memory) {
  const std::size_t k_tiles = p.w.k_tiles(), next = apart * k_tiles * Format::bytes, stride = p.a.code_stride();
  const Rows minus_offset = broadcast(-p.w.offset);
  const GroupScale* group = p.a.scales + token * k_tiles;
  const std::byte* tile = p.w.tiles + begin * k_tiles * Format::bytes;
  for (std::size_t block = begin; block < end; ++block, y += tile_rows) {
    Rows acc[Streams][T];
#pragma GCC unroll 2
    for (std::size_t s = 0; s < Streams; ++s)
#pragma GCC unroll 8
      for (std::size_t i = 0; i < T; ++i) acc[s][i] = zero();
    const std::int8_t* codes = p.a.codes + token * stride;
    for (std::size_t kt = 0; kt < k_tiles; ++kt, tile += Format::bytes, codes += tile_cols * Form::bytes_per_code) {
#pragma GCC unroll 2
      for (std::size_t s = 0; s < Streams; ++s) {
        const std::byte* t = tile + s * next;
        if (in_memory) prefetch<Format, 3>(t + prefetch_ahead);
        RowsI sum[T][Format::groups];
        dot_packed<Format, Form>(t + Format::codes_offset, codes, stride, sum);
        const TileScales<Format> scales = load_scales<Format>(t, minus_offset);
#pragma GCC unroll 8
        for (std::size_t i = 0; i < T; ++i) accumulate<Format>(acc[s][i], sum[i], scales, group[kt + i * k_tiles]);
      }
    }
#pragma GCC unroll 2
    for (std::size_t s = 0; s < Streams; ++s)
#pragma GCC unroll 8
      for (std::size_t i = 0; i < T; ++i)
        store_outputs(y + (token + i) * p.y_stride + s * apart * tile_rows, acc[s][i], p.add,
                      p.w.n - (block + s * apart) * tile_rows);
  }
}

// One token.
template <class Format, class Form>
void gemv(const Matmul& p, std::size_t block_begin, std::size_t block_end) {
  std::size_t rest = block_begin;
  if constexpr (streams_at_once > 1) {
    const std::size_t apart = (block_end - block_begin) / streams_at_once;
    if (apart > 0)
      from_tiles<Format, Form, 1, streams_at_once>(p, 0, p.y, block_begin, block_begin + apart, apart, true);
    rest += apart * streams_at_once;
  }
  if (rest < block_end)
    from_tiles<Format, Form, 1, 1>(p, 0, p.y + (rest - block_begin) * tile_rows, rest, block_end, 0, true);
}

// All tokens from `token` on against one row block, T at a time, what is left over by half as many. The block stays in
// the first-level cache, or in the second.
template <class Format, class Form, std::size_t T>
POCKET_ALWAYS_INLINE void few(const Matmul& p, std::size_t block, float* y, std::size_t token = 0) {
  for (; token + T <= p.a.m; token += T) from_tiles<Format, Form, T, 1>(p, token, y, block, block + 1, 0, token == 0);
  if constexpr (T > 1) few<Format, Form, T / 2>(p, block, y, token);
}

// B tiles of one step along k, ready for many tokens.
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

// Many tokens: what is unpacked serves up to so many of them. Accumulators (8 KB for two row blocks), codes (4 KB) and
// activations (8 KB in A16) stay in L1.
inline constexpr std::size_t token_block = 64;

// Adds the products of `tiles` with tokens i, i + 1, .. below `tokens` to their accumulators: T at a time, what is left
// over by half as many. group: token i's scales; the next one's are `groups` further.
template <class Format, class Form, std::size_t T, std::size_t B>
POCKET_ALWAYS_INLINE void add_tokens(Rows (&acc)[B][token_block], const Tiles<Format, B>& tiles, std::size_t i,
                                     std::size_t tokens, const std::int8_t* codes, std::size_t stride,
                                     const GroupScale* group, std::size_t groups) {
  for (; i + T <= tokens; i += T, codes += T * stride, group += T * groups) {
    RowsI sum[B][T][Format::groups];
    dot<Format, Form>(tiles.unpacked, codes, stride, sum);
#pragma GCC unroll 2
    for (std::size_t b = 0; b < B; ++b)
#pragma GCC unroll 8
      for (std::size_t t = 0; t < T; ++t)
        accumulate<Format>(acc[b][i + t], sum[b][t], tiles.scales[b], group[t * groups]);
  }
  if constexpr (T > 1) add_tokens<Format, Form, T / 2>(acc, tiles, i, tokens, codes, stride, group, groups);
}

// B row blocks. A step's tiles are unpacked while the one before is multiplied, and the next row blocks' fetched.
template <class Format, class Form, std::size_t B>
void many(const Matmul& p, std::size_t block, float* y) {
  const std::size_t k_tiles = p.w.k_tiles(), stride = p.a.code_stride();
  const Rows minus_offset = broadcast(-p.w.offset);
  for (std::size_t i0 = 0; i0 < p.a.m; i0 += token_block) {
    const std::size_t tokens = p.a.m - i0 < token_block ? p.a.m - i0 : token_block;
    const std::byte* tile = p.w.tiles + block * k_tiles * Format::bytes;
    Rows acc[B][token_block];
    for (std::size_t b = 0; b < B; ++b)
      for (std::size_t i = 0; i < tokens; ++i) acc[b][i] = zero();
    Tiles<Format, B> tiles[2];
    load_tiles(tiles[0], tile, k_tiles, minus_offset, i0 == 0);
    for (std::size_t kt = 0; kt < k_tiles; ++kt) {
      tile += Format::bytes;
      if (kt + 1 < k_tiles) load_tiles(tiles[(kt + 1) % 2], tile, k_tiles, minus_offset, i0 == 0);
      add_tokens<Format, Form, tokens_at_once<Format, Form>>(
          acc, tiles[kt % 2], 0, tokens, p.a.codes + i0 * stride + kt * tile_cols * Form::bytes_per_code, stride,
          p.a.scales + i0 * k_tiles + kt, k_tiles);
    }
    for (std::size_t b = 0; b < B; ++b)
      for (std::size_t i = 0; i < tokens; ++i)
        store_outputs(y + (i0 + i) * p.y_stride + b * tile_rows, acc[b][i], p.add, p.w.n - (block + b) * tile_rows);
  }
}

// Several tokens.
template <class Format, class Form>
void gemm(const Matmul& p, std::size_t block_begin, std::size_t block_end) {
  std::size_t block = block_begin;
  float* y = p.y;
  if (p.a.m > few_tokens<Form>)
    for (; block + blocks_at_once <= block_end; block += blocks_at_once, y += blocks_at_once * tile_rows)
      many<Format, Form, blocks_at_once>(p, block, y);
  if constexpr (few_tokens<Form> > 1 || blocks_at_once > 1)
    for (; block < block_end; ++block, y += tile_rows) few<Format, Form, tokens_at_once<Format, Form>>(p, block, y);
}

template <class Format>
void matmul_of(const Matmul& p, std::size_t block_begin, std::size_t block_end) {
  if (p.a.form == ActivationForm::a16) {
    if (p.a.m == 1) return gemv<Format, A16>(p, block_begin, block_end);
    return gemm<Format, A16>(p, block_begin, block_end);
  }
  if (p.a.m == 1) return gemv<Format, A8>(p, block_begin, block_end);
  return gemm<Format, A8>(p, block_begin, block_end);
}

inline void matmul(const Matmul& p, std::size_t block_begin, std::size_t block_end) noexcept {
  switch (p.w.format) {
    case WeightFormat::w4_g64: return matmul_of<W4G64>(p, block_begin, block_end);
    case WeightFormat::w4_g32: return matmul_of<W4G32>(p, block_begin, block_end);
    case WeightFormat::w8_g32: return matmul_of<W8G32>(p, block_begin, block_end);
  }
}
