// Several tokens against one tile on AArch64, eight rows at a time: sixteen registers of sums, eight of codes, and the
// activations come two by two. Every group of tokens unpacks the codes anew, a tenth of all instructions; kept unpacked
// they would have to be loaded as often. Included inside an instruction set's namespace and target region, after
// neon_dot.inl and matmul.inl, which declares many_tokens, and after
//   Staged<Form>(a, stride)    the activations of a tile, as add_columns wants them: tokens `stride` bytes apart
//   EightRows                  sums of eight rows and these tokens, zero at first
//   add_columns<Format, Form>(sums, codes, b, staged)     block b of the columns; codes: of the eight rows
//   join_rows<Form, Token>(sums, low, high)               the int32 sums of one token
// No include guard.

// Scales and shifted minima of eight rows: of a tile's rows 0..7 where `half` is 0, of rows 8..15 where it is 16, the
// bytes between their scales.
struct EightScales {
  float32x4_t s[2], m[2];
};
template <class Format>
POCKET_ALWAYS_INLINE EightScales load_eight_scales(const std::byte* tile, std::size_t g, std::size_t half,
                                                   float32x4_t minus_offset) {
  EightScales w;
  load_f16(tile + Format::scales_offset(g) + half, w.s[0], w.s[1]);
  if constexpr (Format::has_minimum) {
    load_f16(tile + Format::minima_offset(g) + half, w.m[0], w.m[1]);
    w.m[0] = vfmaq_f32(w.m[0], minus_offset, w.s[0]);
    w.m[1] = vfmaq_f32(w.m[1], minus_offset, w.s[1]);
  }
  return w;
}
// Group G of one token: acc is that of the eight rows.
template <class Format, class Form, std::size_t G, std::size_t Token>
POCKET_ALWAYS_INLINE void accumulate_rows(const EightRows& sums, const EightScales& w, const GroupScale& scale,
                                          float32x4_t (&acc)[2]) {
  float32x4_t a = vld1q_f32(reinterpret_cast<const float*>(&scale));  // t, sum, half[0], half[1]
  int32x4_t low, high;
  join_rows<Form, Token>(sums, low, high);
  float32x4_t x = acc[0], y = acc[1];
  asm volatile("" : "+w"(x), "+w"(y), "+w"(a));
  x = vfmaq_f32(x, w.s[0], vmulq_laneq_f32(vcvtq_f32_s32(low), a, 0));
  y = vfmaq_f32(y, w.s[1], vmulq_laneq_f32(vcvtq_f32_s32(high), a, 0));
  if constexpr (Format::has_minimum) {
    constexpr int lane = Format::groups == 1 ? 1 : 2 + G;
    x = vfmaq_laneq_f32(x, w.m[0], a, lane);
    y = vfmaq_laneq_f32(y, w.m[1], a, lane);
  }
  acc[0] = x;
  acc[1] = y;
}
// Eight rows (see EightScales) x group G, all tokens. group: the first token's scales, of which those of the
// next lie k_tiles further.
template <class Format, class Form, std::size_t G, std::size_t Tokens>
POCKET_ALWAYS_INLINE void add_group_of_rows(const std::byte* tile, std::size_t half, const Staged<Form>& staged,
                                            const GroupScale* group, std::size_t k_tiles, float32x4_t minus_offset,
                                            float32x4_t (&acc)[Tokens][2]) {
  constexpr std::size_t blocks = 4 / Format::groups;  // of sixteen columns, in one group
  asm volatile("" ::: "memory");                      // no activations loaded earlier, to be kept in memory again
  const std::byte* codes = tile + Format::codes_offset + half * (codes_at<Format>(0, 4) / 16);
  EightRows sums;
  add_columns<Format, Form>(sums, codes, G * blocks, staged);
  add_columns<Format, Form>(sums, codes, G * blocks + 1, staged);
  if constexpr (blocks == 4) {
    add_columns<Format, Form>(sums, codes, 2, staged);
    add_columns<Format, Form>(sums, codes, 3, staged);
  }
  const EightScales w = load_eight_scales<Format>(tile, G, half, minus_offset);
  accumulate_rows<Format, Form, G, 0>(sums, w, group[0], acc[0]);
  accumulate_rows<Format, Form, G, 1>(sums, w, group[k_tiles], acc[1]);
  accumulate_rows<Format, Form, G, 2>(sums, w, group[2 * k_tiles], acc[2]);
  accumulate_rows<Format, Form, G, 3>(sums, w, group[3 * k_tiles], acc[3]);
  if constexpr (Tokens == 8) {
    accumulate_rows<Format, Form, G, 4>(sums, w, group[4 * k_tiles], acc[4]);
    accumulate_rows<Format, Form, G, 5>(sums, w, group[5 * k_tiles], acc[5]);
    accumulate_rows<Format, Form, G, 6>(sums, w, group[6 * k_tiles], acc[6]);
    accumulate_rows<Format, Form, G, 7>(sums, w, group[7 * k_tiles], acc[7]);
  }
}

// The row blocks [block_begin, block_end), two at a time (their activations are staged once), for as many tokens as are
// whole groups of eight, or of four with 16-bit activations; returns how many. y: the first block's outputs of the
// first token. Nothing is prefetched: a tile takes hundreds of cycles here, and the next one is where any processor
// looks for it.
template <class Format, class Form>
POCKET_NOINLINE std::size_t many_tokens(const Matmul& p, std::size_t block_begin, std::size_t block_end, float* y) {
  constexpr std::size_t tokens = 8 / Form::bytes_per_code;
  const std::size_t k_tiles = p.w.k_tiles(), stride = p.a.code_stride(), y_stride = p.y_stride;
  const std::size_t end = p.a.m / tokens * tokens;
  const float32x4_t minus_offset = vdupq_n_f32(-p.w.offset);
  const bool add_to = p.add;
  for (std::size_t block = block_begin; block < block_end; block += 2) {
    const std::size_t row_blocks = block_end - block > 1 ? 2 : 1, rows = p.w.n - block * tile_rows;
    for (std::size_t i = 0; i < end; i += tokens) {
      const std::byte* tile = p.w.tiles + block * k_tiles * Format::bytes;
      const std::int8_t* a = p.a.codes + i * stride;
      const GroupScale* group = p.a.scales + i * k_tiles;
      float32x4_t acc[4][tokens][2];  // of the first block's rows 0..7 and 8..15, of the second's
      for (std::size_t half = 0; half < 2 * row_blocks; ++half)
#pragma GCC unroll 8
        for (std::size_t t = 0; t < tokens; ++t) acc[half][t][0] = acc[half][t][1] = vdupq_n_f32(0);
      for (std::size_t kt = 0; kt < k_tiles;
           ++kt, tile += Format::bytes, a += tile_cols * Form::bytes_per_code, ++group) {
        const Staged<Form> staged(a, stride);
        const std::byte* of_block = tile;
        auto* sum = acc;
        for (std::size_t b = 0; b < row_blocks; ++b, of_block += k_tiles * Format::bytes)
          for (std::size_t half = 0; half < 32; half += 16, ++sum) {
#if defined(__clang__)
            asm("" : "+r"(half));  // it would count by a flag, and shift
#endif
            add_group_of_rows<Format, Form, 0>(of_block, half, staged, group, k_tiles, minus_offset, *sum);
            if constexpr (Format::groups == 2)
              add_group_of_rows<Format, Form, 1>(of_block, half, staged, group, k_tiles, minus_offset, *sum);
          }
      }
      for (std::size_t b = 0; b < row_blocks; ++b) {
        float* out = y + i * y_stride + (block - block_begin + b) * tile_rows;
        for (std::size_t t = 0; t < tokens; ++t, out += y_stride) {
          const auto &top = acc[2 * b][t], &bottom = acc[2 * b + 1][t];
          store_outputs(out, {{top[0], top[1], bottom[0], bottom[1]}}, add_to, rows - b * tile_rows);
        }
      }
    }
  }
  return end;
}
