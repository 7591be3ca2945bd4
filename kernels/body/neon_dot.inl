// Codes against the activations of one token, or of two, on AArch64: sixteen bytes are two rows x eight columns, and
// meet the same eight columns of the activations in both halves of a register. Included inside an instruction set's
// namespace and target region, after neon.inl and
//   Method<Format, Form>       how registers of codes meet activations, with
//     Sums                     of two rows
//     registers                of activations for eight columns: each has Sums of its own
//     pairs                    of rows at once: 8, or 4 where their Sums would not fit the registers
//     load(a, stride)          Columns of sixteen columns
//     product(q, a), add(sums, q, a), keep(four sums)
//     join<Token>(x, y)        the Sums of two pairs of rows to int32 sums of four rows; Token: which of two
// No include guard.

// Two tokens with 8-bit activations share each register of codes, as the two planes of a 16-bit one do.
struct A8Pair {
  static constexpr std::size_t bytes_per_code = 1;
};
template <class Form>
inline constexpr std::size_t planes_of = Form::bytes_per_code;
template <>
inline constexpr std::size_t planes_of<A8Pair> = 2;

// Activations of sixteen columns, by register and half of the columns.
template <std::size_t Registers>
struct Columns {
  int8x16_t low[Registers], high[Registers];
};

// What a register of codes meets where the instruction takes eight columns of one row, twice: `Dot` with
//   Sums, product, add, and total(sums), which leaves two neighbouring int32 a row.
template <class Dot, class Form, std::size_t Pairs>
struct Repeated {
  using Sums = typename Dot::Sums;
  static constexpr std::size_t registers = planes_of<Form>, pairs = Pairs;

  // ld2r and ld4r: two or four times eight bytes, each twice.
  static POCKET_ALWAYS_INLINE Columns<registers> load(const std::int8_t* a, [[maybe_unused]] std::size_t stride) {
    const auto* p = reinterpret_cast<const std::int64_t*>(a);
    if constexpr (std::is_same_v<Form, A8Pair>) {
      const int64x2x2_t c = vld2q_dup_s64(p), d = vld2q_dup_s64(reinterpret_cast<const std::int64_t*>(a + stride));
      return {{vreinterpretq_s8_s64(c.val[0]), vreinterpretq_s8_s64(d.val[0])},
              {vreinterpretq_s8_s64(c.val[1]), vreinterpretq_s8_s64(d.val[1])}};
    } else if constexpr (registers == 2) {
      const int64x2x4_t c = vld4q_dup_s64(p);
      return {{vreinterpretq_s8_s64(c.val[0]), vreinterpretq_s8_s64(c.val[1])},
              {vreinterpretq_s8_s64(c.val[2]), vreinterpretq_s8_s64(c.val[3])}};
    } else {
      const int64x2x2_t c = vld2q_dup_s64(p);
      return {{vreinterpretq_s8_s64(c.val[0])}, {vreinterpretq_s8_s64(c.val[1])}};
    }
  }
  static POCKET_ALWAYS_INLINE Sums product(int8x16_t q, int8x16_t a) { return Dot::product(q, a); }
  static POCKET_ALWAYS_INLINE Sums add(Sums sums, int8x16_t q, int8x16_t a) { return Dot::add(sums, q, a); }
  static POCKET_ALWAYS_INLINE void keep(Sums& a, Sums& b, Sums& c, Sums& d) { Dot::keep(a, b, c, d); }
  template <std::size_t Token>
  static POCKET_ALWAYS_INLINE int32x4_t join(const Sums (&x)[registers], const Sums (&y)[registers]) {
    const int32x4_t first = vpaddq_s32(Dot::total(x[Token]), Dot::total(y[Token]));
    if constexpr (Form::bytes_per_code == 2)
      return vmlaq_n_s32(vpaddq_s32(Dot::total(x[1]), Dot::total(y[1])), first, 256);
    else
      return first;
  }
};

// ---- codes ----------------------------------------------------------------------------------------------------------

POCKET_ALWAYS_INLINE uint8x16_t load_bytes(const std::byte* p) {
  return vld1q_u8(reinterpret_cast<const std::uint8_t*>(p));
}
POCKET_ALWAYS_INLINE int8x16_t low_nibbles(uint8x16_t q) { return vreinterpretq_s8_u8(vandq_u8(q, vdupq_n_u8(15))); }
POCKET_ALWAYS_INLINE int8x16_t high_nibbles(uint8x16_t q) { return vreinterpretq_s8_u8(vshrq_n_u8(q, 4)); }

// Where the codes of pair i of rows (0..7) and columns 16b..16b+7 begin; those of the next pair follow.
template <class Format>
constexpr std::size_t codes_at(std::size_t b, std::size_t i) {
  return Format::code_byte(2 * i, 16 * b) - Format::codes_offset;
}

// ---- one token or two -----------------------------------------------------------------------------------------------

template <class Method>
struct GroupSums {
  typename Method::Sums pair[Method::pairs][Method::registers];
};

template <bool First, class Method>
POCKET_ALWAYS_INLINE void add_product(typename Method::Sums& sums, int8x16_t q, int8x16_t a) {
  sums = First ? Method::product(q, a) : Method::add(sums, q, a);
}
// Sixteen columns of two or four pairs of rows, first all of one half of the columns, then of the other: what comes
// between two products of one sum covers the latency of the first.
template <bool First, class Method>
POCKET_ALWAYS_INLINE void add_two(typename Method::Sums (&s0)[2], typename Method::Sums (&s1)[2],
                                  const int8x16_t (&q)[4], const Columns<2>& a) {
  add_product<First, Method>(s0[0], q[0], a.low[0]);
  add_product<First, Method>(s0[1], q[0], a.low[1]);
  add_product<First, Method>(s1[0], q[1], a.low[0]);
  add_product<First, Method>(s1[1], q[1], a.low[1]);
  Method::keep(s0[0], s0[1], s1[0], s1[1]);
  add_product<false, Method>(s0[0], q[2], a.high[0]);
  add_product<false, Method>(s0[1], q[2], a.high[1]);
  add_product<false, Method>(s1[0], q[3], a.high[0]);
  add_product<false, Method>(s1[1], q[3], a.high[1]);
  Method::keep(s0[0], s0[1], s1[0], s1[1]);
}
template <bool First, class Method>
POCKET_ALWAYS_INLINE void add_four(typename Method::Sums (&s0)[1], typename Method::Sums (&s1)[1],
                                   typename Method::Sums (&s2)[1], typename Method::Sums (&s3)[1],
                                   const int8x16_t (&q01)[4], const int8x16_t (&q23)[4], const Columns<1>& a) {
  add_product<First, Method>(s0[0], q01[0], a.low[0]);
  add_product<First, Method>(s1[0], q01[1], a.low[0]);
  add_product<First, Method>(s2[0], q23[0], a.low[0]);
  add_product<First, Method>(s3[0], q23[1], a.low[0]);
  Method::keep(s0[0], s1[0], s2[0], s3[0]);
  add_product<false, Method>(s0[0], q01[2], a.high[0]);
  add_product<false, Method>(s1[0], q01[3], a.high[0]);
  add_product<false, Method>(s2[0], q23[2], a.high[0]);
  add_product<false, Method>(s3[0], q23[3], a.high[0]);
  Method::keep(s0[0], s1[0], s2[0], s3[0]);
}
// Two pairs of rows, columns 16b..16b+7 and then 16b+8..16b+15. p: see codes_at.
template <class Format>
POCKET_ALWAYS_INLINE void load_pairs(int8x16_t (&q)[4], const std::byte* p) {
  uint8x16_t q0 = load_bytes(p), q1 = load_bytes(p + 16);
  keep_here(q0, q1);
  if constexpr (Format::bits == 4) {
    q[0] = low_nibbles(q0);
    q[1] = low_nibbles(q1);
    q[2] = high_nibbles(q0);
    q[3] = high_nibbles(q1);
  } else {
    uint8x16_t q2 = load_bytes(p + 64), q3 = load_bytes(p + 80);
    keep_here(q2, q3);
    q[0] = vreinterpretq_s8_u8(q0);
    q[1] = vreinterpretq_s8_u8(q1);
    q[2] = vreinterpretq_s8_u8(q2);
    q[3] = vreinterpretq_s8_u8(q3);
  }
}
// Pairs i..i+3 of the sums, of which the first is pair `from` of the tile.
template <bool First, class Format, class Method>
POCKET_ALWAYS_INLINE void add_pairs(GroupSums<Method>& sums, const std::byte* codes,
                                    const Columns<Method::registers>& a, std::size_t b, std::size_t from,
                                    std::size_t i) {
  int8x16_t q01[4], q23[4];
  load_pairs<Format>(q01, codes + codes_at<Format>(b, from + i));
  if constexpr (Method::registers == 2) add_two<First, Method>(sums.pair[i], sums.pair[i + 1], q01, a);
  load_pairs<Format>(q23, codes + codes_at<Format>(b, from + i + 2));
  if constexpr (Method::registers == 2)
    add_two<First, Method>(sums.pair[i + 2], sums.pair[i + 3], q23, a);
  else
    add_four<First, Method>(sums.pair[i], sums.pair[i + 1], sums.pair[i + 2], sums.pair[i + 3], q01, q23, a);
}
// Sixteen columns of the tile. a: the activations of the whole tile.
template <bool First, class Format, class Form, class Method>
POCKET_ALWAYS_INLINE void add_block(GroupSums<Method>& sums, const std::byte* codes, const std::int8_t* a,
                                    std::size_t stride, std::size_t b, std::size_t from) {
  const Columns<Method::registers> columns = Method::load(a + b * 16 * Form::bytes_per_code, stride);
  add_pairs<First, Format>(sums, codes, columns, b, from, 0);
  if constexpr (Method::pairs == 8) add_pairs<First, Format>(sums, codes, columns, b, from, 4);
}
template <class Format, class Form, class Method>
POCKET_ALWAYS_INLINE void add_group(GroupSums<Method>& sums, const std::byte* codes, const std::int8_t* a,
                                    std::size_t stride, std::size_t b, std::size_t from) {
  add_block<true, Format, Form>(sums, codes, a, stride, b, from);
  add_block<false, Format, Form>(sums, codes, a, stride, b + 1, from);
  if constexpr (Format::groups == 1) {
    add_block<false, Format, Form>(sums, codes, a, stride, b + 2, from);
    add_block<false, Format, Form>(sums, codes, a, stride, b + 3, from);
  }
}
template <std::size_t Token, class Method>
POCKET_ALWAYS_INLINE void join_pairs(const GroupSums<Method>& sums, int32x4_t& low, int32x4_t& high) {
  low = Method::template join<Token>(sums.pair[0], sums.pair[1]);
  high = Method::template join<Token>(sums.pair[2], sums.pair[3]);
}

// Sixteen rows x the group that begins with block b. second: the sums of the second token, of two.
template <class Format, class Form>
POCKET_ALWAYS_INLINE void dot_group(const std::byte* codes, const std::int8_t* a, std::size_t stride, std::size_t b,
                                    RowsI& first, [[maybe_unused]] RowsI& second) {
  using M = Method<Format, Form>;
  GroupSums<M> sums;
  add_group<Format, Form>(sums, codes, a, stride, b, 0);
  join_pairs<0>(sums, first.v[0], first.v[1]);
  if constexpr (std::is_same_v<Form, A8Pair>) join_pairs<1>(sums, second.v[0], second.v[1]);
  if constexpr (M::pairs == 8) {
    first.v[2] = M::template join<0>(sums.pair[4], sums.pair[5]);
    first.v[3] = M::template join<0>(sums.pair[6], sums.pair[7]);
    if constexpr (std::is_same_v<Form, A8Pair>) {
      second.v[2] = M::template join<1>(sums.pair[4], sums.pair[5]);
      second.v[3] = M::template join<1>(sums.pair[6], sums.pair[7]);
    }
  } else {
    add_group<Format, Form>(sums, codes, a, stride, b, 4);
    join_pairs<0>(sums, first.v[2], first.v[3]);
    if constexpr (std::is_same_v<Form, A8Pair>) join_pairs<1>(sums, second.v[2], second.v[3]);
  }
}
template <class Format, class Form>
POCKET_ALWAYS_INLINE void dot_groups(const std::byte* codes, const std::int8_t* a, std::size_t stride,
                                     RowsI (&first)[Format::groups], RowsI (&second)[Format::groups]) {
  dot_group<Format, Form>(codes, a, stride, 0, first[0], second[0]);
  if constexpr (Format::groups == 2)
    dot_group<Format, Form>(codes, a, stride, 2, first[Format::groups - 1], second[Format::groups - 1]);
}

// ---- what the loops call --------------------------------------------------------------------------------------------

template <class Format, class Form>
inline constexpr std::size_t tokens_from_tiles = std::is_same_v<Form, A8> ? 2 : 1;

template <class Format, class Form, std::size_t T>
POCKET_ALWAYS_INLINE void dot_packed(const std::byte* codes, const std::int8_t* a, std::size_t stride,
                                     RowsI (&sum)[T][Format::groups]) {
  dot_groups<Format, std::conditional_t<T == 2, A8Pair, Form>>(codes, a, stride, sum[0], sum[T - 1]);
}
