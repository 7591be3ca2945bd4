// Codes against the activations of one token, or of two, on AArch64: sixteen bytes are two rows x eight columns, and
// meet the same eight columns of the activations in both halves of a register. Included inside an instruction set's
// namespace and target region, after neon.inl and
//   Method<Format, Form>       how registers of codes meet activations, with
//     Sums                     of two rows
//     registers                of activations for eight columns: each has Sums of its own
//     pairs                    of rows at once: 8, or 4 where their Sums would not fit the registers
//     load(a, stride)          Columns of sixteen columns
//     product(q, a), add(sums, q, a)
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
POCKET_ALWAYS_INLINE void add_products(typename Method::Sums& sums, int8x16_t low, int8x16_t high, int8x16_t a_low,
                                       int8x16_t a_high) {
  sums = First ? Method::product(low, a_low) : Method::add(sums, low, a_low);
  sums = Method::add(sums, high, a_high);
}
template <bool First, class Method>
POCKET_ALWAYS_INLINE void add_pair(typename Method::Sums (&sums)[Method::registers], int8x16_t low, int8x16_t high,
                                   const Columns<Method::registers>& a) {
  add_products<First, Method>(sums[0], low, high, a.low[0], a.high[0]);
  if constexpr (Method::registers == 2) add_products<First, Method>(sums[1], low, high, a.low[1], a.high[1]);
}
// Pairs i and i+1 of the rows, of which the sums' first is pair `from`.
template <bool First, class Format, class Method>
POCKET_ALWAYS_INLINE void add_pairs(GroupSums<Method>& sums, const std::byte* codes,
                                    const Columns<Method::registers>& a, std::size_t b, std::size_t from,
                                    std::size_t i) {
  const std::byte* p = codes + codes_at<Format>(b, from + i);
  if constexpr (Format::bits == 4) {
    const uint8x16_t q0 = load_bytes(p), q1 = load_bytes(p + 16);
    add_pair<First, Method>(sums.pair[i], low_nibbles(q0), high_nibbles(q0), a);
    add_pair<First, Method>(sums.pair[i + 1], low_nibbles(q1), high_nibbles(q1), a);
  } else {
    const uint8x16_t low0 = load_bytes(p), low1 = load_bytes(p + 16);
    const uint8x16_t high0 = load_bytes(p + 64), high1 = load_bytes(p + 80);
    add_pair<First, Method>(sums.pair[i], vreinterpretq_s8_u8(low0), vreinterpretq_s8_u8(high0), a);
    add_pair<First, Method>(sums.pair[i + 1], vreinterpretq_s8_u8(low1), vreinterpretq_s8_u8(high1), a);
  }
}
// Sixteen columns of the tile. a: the activations of the whole tile.
template <bool First, class Format, class Form, class Method>
POCKET_ALWAYS_INLINE void add_block(GroupSums<Method>& sums, const std::byte* codes, const std::int8_t* a,
                                    std::size_t stride, std::size_t b, std::size_t from) {
  const Columns<Method::registers> columns = Method::load(a + b * 16 * Form::bytes_per_code, stride);
  add_pairs<First, Format>(sums, codes, columns, b, from, 0);
  add_pairs<First, Format>(sums, codes, columns, b, from, 2);
  if constexpr (Method::pairs == 8) {
    add_pairs<First, Format>(sums, codes, columns, b, from, 4);
    add_pairs<First, Format>(sums, codes, columns, b, from, 6);
  }
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

// Codes are unpacked where they are used: 32 registers leave room for it.
struct Unpacked {
  const std::byte* codes;
};
template <class Format>
POCKET_ALWAYS_INLINE void unpack(const std::byte* codes, Unpacked& u) {
  u.codes = codes;
}
template <class Format, class Form>
POCKET_ALWAYS_INLINE void dot_packed(const std::byte* codes, const std::int8_t* a, RowsI (&sum)[Format::groups]) {
  dot_groups<Format, Form>(codes, a, 0, sum, sum);
}
template <class Format, class Form>
POCKET_ALWAYS_INLINE void dot(const Unpacked& u, const std::int8_t* a, RowsI (&sum)[Format::groups]) {
  dot_packed<Format, Form>(u.codes, a, sum);
}
template <class Format>
POCKET_ALWAYS_INLINE void dot_pair(const Unpacked& u, const std::int8_t* a, std::size_t stride,
                                   RowsI (&first)[Format::groups], RowsI (&second)[Format::groups]) {
  dot_groups<Format, A8Pair>(u.codes, a, stride, first, second);
}
