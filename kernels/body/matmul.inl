// The loops of a product, written once. Included inside an instruction set's namespace and target region, after its
// primitives:
//   Rows, RowsI              16 float / int32 lanes, one per output row of a tile
//   zero, broadcast, add, multiply, fma(a, b, c) = a*b + c, load_f16, load, store, to_float
//   Unpacked                 a tile's codes in the form that `dot` wants
//   unpack<Format>(codes, unpacked)
//   dot<Format, Form>(unpacked, activation codes, RowsI (&sum)[groups])          sums complete in int32
//   dot_pair<Format>(unpacked, activation codes, stride, first, second)          two tokens at once: w4_g64, A8
//   dot_packed<Format, Form>(codes, activation codes, sum)                        one, from the tile itself
//   streams_at_once          1, or 2 where reading two places in turn is faster than one
//   tokens_at_once           more than 1 where many tokens have a loop of their own:
//     many_tokens<Format, Form>(matmul, block, 1 or 2 blocks, y)    their outputs for the first tokens; returns how
//     many
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
#pragma GCC unroll 2
  for (std::size_t g = 0; g < Format::groups; ++g) {
    t.s[g] = load_f16(tile + Format::scales_offset(g));
    if constexpr (Format::has_minimum) t.m[g] = fma(minus_offset, t.s[g], load_f16(tile + Format::minima_offset(g)));
  }
  return t;
}

template <class Format>
POCKET_ALWAYS_INLINE void accumulate(Rows& acc, const RowsI (&sum)[Format::groups], const TileScales<Format>& tile,
                                     const GroupScale& a) {
#pragma GCC unroll 2
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

// The tile that comes `ahead` bytes after this one: a memory latency (115 ns) at 35 GB/s.
template <class Format>
POCKET_ALWAYS_INLINE void prefetch_ahead(const std::byte* tile) {
  constexpr std::size_t ahead = 4096;
  const std::byte* next = tile + ahead;
#if defined(__aarch64__) && !defined(__clang__)
  asm("" : "+r"(next));  // g++ would make each address from `tile`, in three instructions
#endif
#pragma GCC unroll 17
  for (std::size_t line = 0; line < Format::bytes / 64; ++line) __builtin_prefetch(next + line * 64);
}

// One token, straight from the tiles: row block b of `Streams` ranges side by side, which begin `apart` blocks from
// each other; b from begin to end. Each range is one sequential stream.
template <class Format, class Form, std::size_t Streams>
POCKET_ALWAYS_INLINE void gemv_streams(const Matmul& p, float* y, std::size_t begin, std::size_t end,
                                       std::size_t apart) {
  const std::size_t k_tiles = p.w.k_tiles(), next = apart * k_tiles * Format::bytes;
  const Rows minus_offset = broadcast(-p.w.offset);
  const std::byte* tile = p.w.tiles + begin * k_tiles * Format::bytes;
  for (std::size_t block = begin; block < end; ++block, y += tile_rows) {
    Rows acc[Streams];
    for (std::size_t s = 0; s < Streams; ++s) acc[s] = zero();
    const std::int8_t* codes = p.a.codes;
    const GroupScale* group = p.a.scales;
    for (std::size_t kt = 0; kt < k_tiles;
         ++kt, tile += Format::bytes, codes += tile_cols * Form::bytes_per_code, ++group) {
#pragma GCC unroll 2
      for (std::size_t s = 0; s < Streams; ++s) {
        const std::byte* t = tile + s * next;
        prefetch_ahead<Format>(t);
        RowsI sum[Format::groups];
        dot_packed<Format, Form>(t + Format::codes_offset, codes, sum);
        accumulate<Format>(acc[s], sum, load_scales<Format>(t, minus_offset), *group);
      }
    }
    for (std::size_t s = 0; s < Streams; ++s)
      store_outputs(y + s * apart * tile_rows, acc[s], p.add, p.w.n - (block + s * apart) * tile_rows);
  }
}
template <class Format, class Form>
void gemv(const Matmul& p, std::size_t block_begin, std::size_t block_end) {
  std::size_t rest = block_begin;
  if constexpr (streams_at_once > 1) {
    const std::size_t apart = (block_end - block_begin) / streams_at_once;
    if (apart > 0) gemv_streams<Format, Form, streams_at_once>(p, p.y, block_begin, block_begin + apart, apart);
    rest += apart * streams_at_once;
  }
  if (rest < block_end) gemv_streams<Format, Form, 1>(p, p.y + (rest - block_begin) * tile_rows, rest, block_end, 0);
}

// Several tokens: a tile is unpacked once for up to 16 of them. Sixteen accumulators are 1 KB and stay in L1 beside the
// unpacked tile (1 KB) and the tokens' activations of one group (2 KB in A16).
template <class Format, class Form>
void gemm(const Matmul& p, std::size_t block_begin, std::size_t block_end) {
  constexpr std::size_t token_block = 16;
  const std::size_t k_tiles = p.w.k_tiles(), stride = p.a.code_stride();
  const Rows minus_offset = broadcast(-p.w.offset);
  std::size_t done = 0;  // tokens
  for (std::size_t block = block_begin; block < block_end; ++block) {
    const std::size_t n = block * tile_rows;
    if constexpr (tokens_at_once > 1)
      if (const std::size_t row = block - block_begin;
          row % 8 == 0)  // as many blocks as stay in the cache for the rest
        done =
            many_tokens<Format, Form>(p, block, block_end - block < 8 ? block_end : block + 8, p.y + row * tile_rows);
    for (std::size_t i0 = done; i0 < p.a.m; i0 += token_block) {
      const std::size_t tokens = p.a.m - i0 < token_block ? p.a.m - i0 : token_block;
      const std::byte* tile = p.w.tiles + block * k_tiles * Format::bytes;
      Rows acc[token_block];
      for (std::size_t i = 0; i < tokens; ++i) acc[i] = zero();
      for (std::size_t kt = 0; kt < k_tiles; ++kt, tile += Format::bytes) {
        if (i0 == 0) prefetch_ahead<Format>(tile);
        Unpacked unpacked;
        unpack<Format>(tile + Format::codes_offset, unpacked);
        const TileScales<Format> scales = load_scales<Format>(tile, minus_offset);
        const std::int8_t* codes = p.a.codes + i0 * stride + kt * tile_cols * Form::bytes_per_code;
        const GroupScale* group = p.a.scales + i0 * k_tiles + kt;
        std::size_t i = 0;
        if constexpr (Form::bytes_per_code == 1 && Format::bits == 4 && Format::groups == 1)
          for (; i + 2 <= tokens; i += 2, codes += 2 * stride, group += 2 * k_tiles) {
            RowsI first[Format::groups], second[Format::groups];
            dot_pair<Format>(unpacked, codes, stride, first, second);
            accumulate<Format>(acc[i], first, scales, group[0]);
            accumulate<Format>(acc[i + 1], second, scales, group[k_tiles]);
          }
        for (; i < tokens; ++i, codes += stride, group += k_tiles) {
          RowsI sum[Format::groups];
          dot<Format, Form>(unpacked, codes, sum);
          accumulate<Format>(acc[i], sum, scales, *group);
        }
      }
      for (std::size_t i = 0; i < tokens; ++i)
        store_outputs(p.y + (i0 + i) * p.y_stride + (block - block_begin) * tile_rows, acc[i], p.add, p.w.n - n);
    }
  }
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
