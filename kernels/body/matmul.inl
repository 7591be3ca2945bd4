// The loops of a product, written once. Included inside an instruction set's namespace and target region, after its
// primitives:
//   Rows, RowsI              16 float / int32 lanes, one per output row of a tile
//   zero, broadcast, add, multiply, fma(a, b, c) = a*b + c, load_f16, load, store, to_float
//   dot_packed<Format, Form>(codes, activation codes, stride, RowsI (&sum)[T][groups])
//                            a tile as it lies against T tokens, whose codes are `stride` bytes apart; sums complete in
//                            int32
//   tokens_from_tiles<Format, Form>   the largest T, a power of two
//   streams_at_once          in so many places in turn the weights are read where the tokens are few
// and followed by a definition of many_tokens. No include guard: it is meant to be included several times.

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
#if defined(__aarch64__) && !defined(__clang__)
  asm("" : "+r"(tile));  // g++ would make each address anew, in three instructions
#endif
#pragma GCC unroll 17
  for (std::size_t line = 0; line < Format::bytes / 64; ++line) __builtin_prefetch(tile + line * 64, 0, Locality);
}
inline constexpr std::size_t prefetch_ahead = 4096;  // bytes of one stream: a memory latency (115 ns) at 35 GB/s

// T tokens from `token` on, straight from the tiles: row block b of `streams` ranges side by side, at most
// streams_at_once, which begin `apart` blocks from each other; b from begin to end. Each range is a sequential stream.
template <class Format, class Form, std::size_t T>
POCKET_NOINLINE void from_tiles(const Matmul& p, std::size_t token, float* y, std::size_t begin, std::size_t end,
                                std::size_t apart, std::size_t streams) {
  if constexpr (streams_at_once == 1) streams = 1;  // the sums are in registers then
  const std::size_t k_tiles = p.w.k_tiles(), next = apart * k_tiles * Format::bytes, stride = p.a.code_stride();
  const Rows minus_offset = broadcast(-p.w.offset);
  const std::byte* tile = p.w.tiles + begin * k_tiles * Format::bytes;
  for (std::size_t block = begin; block < end; ++block, y += tile_rows) {
    Rows acc[streams_at_once][T];
    for (std::size_t s = 0; s < streams; ++s)
#pragma GCC unroll 8
      for (std::size_t i = 0; i < T; ++i) acc[s][i] = zero();
    const std::int8_t* codes = p.a.codes + token * stride;
    const GroupScale* group = p.a.scales + token * k_tiles;
    for (std::size_t kt = 0; kt < k_tiles;
         ++kt, tile += Format::bytes, codes += tile_cols * Form::bytes_per_code, ++group) {
      for (std::size_t s = 0; s < streams; ++s) {
        const std::byte* const t = tile + s * next;
        prefetch<Format, 3>(t + prefetch_ahead);
        RowsI sum[T][Format::groups];
        dot_packed<Format, Form>(t + Format::codes_offset, codes, stride, sum);
        const TileScales<Format> scales = load_scales<Format>(t, minus_offset);
#pragma GCC unroll 8
        for (std::size_t i = 0; i < T; ++i) accumulate<Format>(acc[s][i], sum[i], scales, group[i * k_tiles]);
      }
    }
    for (std::size_t s = 0; s < streams; ++s)
#pragma GCC unroll 8
      for (std::size_t i = 0; i < T; ++i)
        store_outputs(y + (token + i) * p.y_stride + s * apart * tile_rows, acc[s][i], p.add,
                      p.w.n - (block + s * apart) * tile_rows);
  }
}

// All tokens from `token` on against the row blocks of `streams` ranges, T at a time, what is left over by half as
// many.
template <class Format, class Form, std::size_t T = tokens_from_tiles<Format, Form>>
void in_passes(const Matmul& p, std::size_t token, float* y, std::size_t begin, std::size_t end, std::size_t apart,
               std::size_t streams) {
  for (; token + T <= p.a.m; token += T) from_tiles<Format, Form, T>(p, token, y, begin, end, apart, streams);
  if constexpr (T > 1) in_passes<Format, Form, T / 2>(p, token, y, begin, end, apart, streams);
}

// All tokens from `token` on against the row blocks [begin, end). What needs several passes makes them over one row
// block of each stream, which stays in the first-level cache, or in the second.
template <class Format, class Form>
void few_tokens(const Matmul& p, std::size_t begin, std::size_t end, float* y, std::size_t token) {
  const std::size_t left = p.a.m - token;
  if (left == 0) return;
  const bool one_pass = left <= tokens_from_tiles<Format, Form> && (left & (left - 1)) == 0;
  while (begin < end) {
    std::size_t streams = streams_at_once;  // of two row blocks at least, since a stream's beginning is not prefetched
    while (streams > 1 && end - begin < 2 * streams) streams /= 2;
    const std::size_t apart = (end - begin) / streams, step = one_pass ? apart : 1;
    for (std::size_t i = 0; i < apart; i += step)
      in_passes<Format, Form>(p, token, y + i * tile_rows, begin + i, begin + i + step, apart, streams);
    begin += apart * streams;
    y += apart * streams * tile_rows;
  }
}

// The row blocks [block_begin, block_end) for the first tokens, where many have a loop of their own; returns how many
// tokens that were. y: the outputs of the first of these blocks.
template <class Format, class Form>
std::size_t many_tokens(const Matmul& p, std::size_t block_begin, std::size_t block_end, float* y);

template <class Format, class Form>
void product(const Matmul& p, std::size_t block_begin, std::size_t block_end) {
  constexpr std::size_t at_once = 8;  // blocks: they stay in the cache for the rest of the tokens
  float* y = p.y;
  if (p.a.m == 1) return few_tokens<Format, Form>(p, block_begin, block_end, y, 0);
  for (std::size_t block = block_begin, end; block < block_end; block = end, y += at_once * tile_rows) {
    end = block_end - block < at_once ? block_end : block + at_once;
    const std::size_t done = many_tokens<Format, Form>(p, block, end, y);
    if (done == 0) return few_tokens<Format, Form>(p, block, block_end, y, 0);
    few_tokens<Format, Form>(p, block, end, y, done);
  }
}

template <class Format>
void matmul_of(const Matmul& p, std::size_t block_begin, std::size_t block_end) {
  if (p.a.form == ActivationForm::a16) return product<Format, A16>(p, block_begin, block_end);
  return product<Format, A8>(p, block_begin, block_end);
}

inline void matmul(const Matmul& p, std::size_t block_begin, std::size_t block_end) noexcept {
  switch (p.w.format) {
    case WeightFormat::w4_g64: return matmul_of<W4G64>(p, block_begin, block_end);
    case WeightFormat::w4_g32: return matmul_of<W4G32>(p, block_begin, block_end);
    case WeightFormat::w8_g32: return matmul_of<W8G32>(p, block_begin, block_end);
  }
}
