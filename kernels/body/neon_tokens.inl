// Several tokens against one tile on AArch64, eight rows at a time: sixteen registers of sums, eight of codes, and the
// activations come one by one. The codes are unpacked again for each eight bytes' worth of tokens, which costs a tenth
// of the dot products; kept unpacked they would have to be loaded as often. Included inside an instruction set's
// namespace and target region, after neon_dot.inl and
//   tokens_at_once             8: tokens with 8-bit activations; of 16-bit ones half as many
//   Staged<Form>(a, stride)    the activations of a tile, as add_columns wants them: tokens `stride` bytes apart
//   EightRows                  sums of eight rows and these tokens, zero at first
//   add_columns<Format, Form>(sums, codes, b, staged)     block b of the columns; codes: of the eight rows
//   join_rows<Form, Token>(sums, low, high)               the int32 sums of one token
// No include guard.

template <class Format, class Form, std::size_t Token>
POCKET_ALWAYS_INLINE void accumulate_rows(const EightRows& sums, const GroupScale& scale, std::size_t g, float32x4_t s0,
                                          float32x4_t s1, float32x4_t m0, float32x4_t m1, float32x4_t* acc) {
  const float32x4_t a = vld1q_f32(reinterpret_cast<const float*>(&scale));  // t, sum, half[0], half[1]
  int32x4_t low, high;
  join_rows<Form, Token>(sums, low, high);
  acc[0] = vfmaq_f32(acc[0], s0, vmulq_laneq_f32(vcvtq_f32_s32(low), a, 0));
  acc[1] = vfmaq_f32(acc[1], s1, vmulq_laneq_f32(vcvtq_f32_s32(high), a, 0));
  if constexpr (Format::has_minimum && Format::groups == 1) {
    acc[0] = vfmaq_laneq_f32(acc[0], m0, a, 1);
    acc[1] = vfmaq_laneq_f32(acc[1], m1, a, 1);
  } else if constexpr (Format::has_minimum) {
    acc[0] = vfmaq_n_f32(acc[0], m0, scale.half[g]);
    acc[1] = vfmaq_n_f32(acc[1], m1, scale.half[g]);
  }
}

// Adds a tile's products for `tokens_at_once` tokens to their sums. group: of the first token, the others' are k_tiles
// further each.
template <class Format, class Form>
POCKET_ALWAYS_INLINE void add_tokens(const std::byte* tile, const std::int8_t* a, std::size_t stride,
                                     const GroupScale* group, std::size_t k_tiles, const Rows& minus_offset,
                                     Rows* acc) {
  constexpr std::size_t blocks = 4 / Format::groups;  // of sixteen columns, in one group
  const Staged<Form> staged(a, stride);
  for (std::size_t half = 0; half < 2; ++half) {
    const std::byte* codes = tile + Format::codes_offset + half * codes_at<Format>(0, 4);
    for (std::size_t g = 0; g < Format::groups; ++g) {
      EightRows sums;
      add_columns<Format, Form>(sums, codes, g * blocks, staged);
      add_columns<Format, Form>(sums, codes, g * blocks + 1, staged);
      if constexpr (blocks == 4) {
        add_columns<Format, Form>(sums, codes, 2, staged);
        add_columns<Format, Form>(sums, codes, 3, staged);
      }
      float32x4_t s0, s1, m0 = vdupq_n_f32(0), m1 = m0;
      load_f16(tile + Format::scales_offset(g) + half * 16, s0, s1);
      if constexpr (Format::has_minimum) {
        load_f16(tile + Format::minima_offset(g) + half * 16, m0, m1);
        m0 = vfmaq_f32(m0, minus_offset.v[0], s0);
        m1 = vfmaq_f32(m1, minus_offset.v[0], s1);
      }
      const auto token = [&]<std::size_t I>(std::integral_constant<std::size_t, I>) POCKET_INLINE_LAMBDA {
        accumulate_rows<Format, Form, I>(sums, group[I * k_tiles], g, s0, s1, m0, m1, acc[I].v + 2 * half);
      };
      token(std::integral_constant<std::size_t, 0>{});
      token(std::integral_constant<std::size_t, 1>{});
      token(std::integral_constant<std::size_t, 2>{});
      token(std::integral_constant<std::size_t, 3>{});
      if constexpr (Form::bytes_per_code == 1) {
        token(std::integral_constant<std::size_t, 4>{});
        token(std::integral_constant<std::size_t, 5>{});
        token(std::integral_constant<std::size_t, 6>{});
        token(std::integral_constant<std::size_t, 7>{});
      }
    }
  }
}
