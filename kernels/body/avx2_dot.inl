// 4-bit codes against activations with 256 bits, over the dot instruction of the file that includes this:
//   Dot::product(q, a)               8 unsigned 4-bit codes a row times 8 signed bytes
//   Dot::add(sums, q, a)             sums + product
//   Dot::total(hi, lo), (lo)         a group's sums as int32: 256 * hi + lo
//   keep_here(sums)
// Included by avx2.inl, after FromTile and FromUnpacked: get(b, i, low, high), part i of block b, columns 16b..16b+7
// and 16b+8..16b+15. No include guard.
//
// The steps are functions and calls written out, not loops: g++ 12 keeps arrays in memory whose index is a loop's
// variable, even where it unrolls the loop afterwards. Nested lambdas over index sequences make the same code, and take
// twice as long to compile.

// Two tokens with 8-bit activations share each register of codes, as the two planes of a 16-bit one do.
struct A8Pair {
  static constexpr std::size_t bytes_per_code = 1;
};
template <class Form>
inline constexpr std::size_t planes_of = Form::bytes_per_code;
template <>
inline constexpr std::size_t planes_of<A8Pair> = 2;

// 16 columns of activations, one register per plane and half.
template <class Form>
struct Columns {
  __m256i low[planes_of<Form>], high[planes_of<Form>];
};
template <class Form>
POCKET_ALWAYS_INLINE Columns<Form> load_columns(const std::int8_t* a, std::size_t stride) {
  if constexpr (std::is_same_v<Form, A8Pair>)
    return {{broadcast_64(a), broadcast_64(a + stride)}, {broadcast_64(a + 8), broadcast_64(a + stride + 8)}};
  else if constexpr (planes_of<Form> == 2)
    return {{broadcast_64(a), broadcast_64(a + 8)}, {broadcast_64(a + 16), broadcast_64(a + 24)}};
  else
    return {{broadcast_64(a)}, {broadcast_64(a + 8)}};
}

// A group's sums for 16 rows.
template <class Form>
struct GroupSums {
  __m256i part[4][planes_of<Form>];  // four rows each
};

template <bool First>
POCKET_ALWAYS_INLINE void add_products(__m256i& sums, __m256i low, __m256i high, __m256i a_low, __m256i a_high) {
  sums = First ? Dot::product(low, a_low) : Dot::add(sums, low, a_low);
  sums = Dot::add(sums, high, a_high);
  keep_here(sums);
}
template <bool First, class Form, class Source>
POCKET_ALWAYS_INLINE void add_part(GroupSums<Form>& sums, const Source& source, const Columns<Form>& a, std::size_t b,
                                   std::size_t i) {
  __m256i low, high;
  source.get(b, i, low, high);
  add_products<First>(sums.part[i][0], low, high, a.low[0], a.high[0]);
  if constexpr (planes_of<Form> == 2) add_products<First>(sums.part[i][1], low, high, a.low[1], a.high[1]);
}
// Block b of the tile, 16 columns. a: the token's codes of the whole tile; the second one's are `stride` bytes further.
template <bool First, class Form, class Source>
POCKET_ALWAYS_INLINE void add_block(GroupSums<Form>& sums, const Source& source, const std::int8_t* a,
                                    std::size_t stride, std::size_t b) {
  const Columns<Form> columns = load_columns<Form>(a + b * 16 * Form::bytes_per_code, stride);
  add_part<First>(sums, source, columns, b, 0);
  add_part<First>(sums, source, columns, b, 1);
  add_part<First>(sums, source, columns, b, 2);
  add_part<First>(sums, source, columns, b, 3);
}

// The planes of one part of the rows joined; of a pair, those of one token.
template <std::size_t Token, class Form>
POCKET_ALWAYS_INLINE __m256i total(const __m256i (&part)[planes_of<Form>]) {
  if constexpr (Form::bytes_per_code == 2)
    return Dot::total(part[0], part[planes_of<Form> - 1]);
  else
    return Dot::total(part[Token]);
}
template <std::size_t Token, class Form>
POCKET_ALWAYS_INLINE void join_parts(const GroupSums<Form>& sums, RowsI& sum) {
  sum.v[0] = add_pairs(total<Token, Form>(sums.part[0]), total<Token, Form>(sums.part[1]));
  sum.v[1] = add_pairs(total<Token, Form>(sums.part[2]), total<Token, Form>(sums.part[3]));
}

// 16 rows x one group of 16 * Blocks columns, from block b on. The sums stay in registers over the blocks.
template <std::size_t Blocks, class Form, class Source>
POCKET_ALWAYS_INLINE void add_group(GroupSums<Form>& sums, const Source& source, const std::int8_t* a,
                                    std::size_t stride, std::size_t b) {
  add_block<true>(sums, source, a, stride, b);
  add_block<false>(sums, source, a, stride, b + 1);
  if constexpr (Blocks == 4) {
    add_block<false>(sums, source, a, stride, b + 2);
    add_block<false>(sums, source, a, stride, b + 3);
  }
}
template <std::size_t Blocks, class Form, class Source>
POCKET_ALWAYS_INLINE void dot_group(const Source& source, const std::int8_t* a, std::size_t b, RowsI& sum) {
  GroupSums<Form> sums;
  add_group<Blocks>(sums, source, a, 0, b);
  join_parts<0>(sums, sum);
}
// Four planes against half the tile's rows, one group: two tokens with 16-bit activations, four with 8-bit ones. The
// codes are unpacked once; the activations, too many for the registers, are loaded again for each.
struct FourPlanes {
  __m256i part[2][4];  // four rows each
};
template <class Form>
POCKET_ALWAYS_INLINE const std::int8_t* plane_of(const std::int8_t* a, std::size_t stride, std::size_t plane) {
  return a + plane / Form::bytes_per_code * stride + plane % Form::bytes_per_code * 8;
}
template <bool First, class Form, std::size_t Plane>
POCKET_ALWAYS_INLINE void add_plane(__m256i& sums, __m256i low, __m256i high, const std::int8_t* a,
                                    std::size_t stride) {
  const std::int8_t* p = plane_of<Form>(a, stride, Plane);
  add_products<First>(sums, low, high, broadcast_64(p), broadcast_64(p + 8 * Form::bytes_per_code));
}
template <bool First, class Form, class Source>
POCKET_ALWAYS_INLINE void add_four(__m256i (&part)[4], const Source& source, const std::int8_t* a, std::size_t stride,
                                   std::size_t b, std::size_t i) {
  __m256i low, high;
  source.get(b, i, low, high);
  a += b * 16 * Form::bytes_per_code;
  add_plane<First, Form, 0>(part[0], low, high, a, stride);
  add_plane<First, Form, 1>(part[1], low, high, a, stride);
  add_plane<First, Form, 2>(part[2], low, high, a, stride);
  add_plane<First, Form, 3>(part[3], low, high, a, stride);
}
template <class Form, std::size_t Token>
POCKET_ALWAYS_INLINE __m256i join_four(const FourPlanes& sums) {
  if constexpr (Form::bytes_per_code == 2)
    return add_pairs(Dot::total(sums.part[0][2 * Token], sums.part[0][2 * Token + 1]),
                     Dot::total(sums.part[1][2 * Token], sums.part[1][2 * Token + 1]));
  else
    return add_pairs(Dot::total(sums.part[0][Token]), Dot::total(sums.part[1][Token]));
}
template <std::size_t Half, class Form, class Source, std::size_t T>
POCKET_ALWAYS_INLINE void dot_half(const Source& source, const std::int8_t* a, std::size_t stride, RowsI (&sum)[T][1]) {
  FourPlanes s;
  add_four<true, Form>(s.part[0], source, a, stride, 0, 2 * Half);
  add_four<true, Form>(s.part[1], source, a, stride, 0, 2 * Half + 1);
  add_four<false, Form>(s.part[0], source, a, stride, 1, 2 * Half);
  add_four<false, Form>(s.part[1], source, a, stride, 1, 2 * Half + 1);
  add_four<false, Form>(s.part[0], source, a, stride, 2, 2 * Half);
  add_four<false, Form>(s.part[1], source, a, stride, 2, 2 * Half + 1);
  add_four<false, Form>(s.part[0], source, a, stride, 3, 2 * Half);
  add_four<false, Form>(s.part[1], source, a, stride, 3, 2 * Half + 1);
  sum[0][0].v[Half] = join_four<Form, 0>(s);
  sum[1][0].v[Half] = join_four<Form, 1>(s);
  if constexpr (T == 4) {
    sum[2][0].v[Half] = join_four<Form, 2>(s);
    sum[3][0].v[Half] = join_four<Form, 3>(s);
  }
}
// One token; where a tile has one group, two, or four with 8-bit activations.
template <class Format, class Form, class Source, std::size_t T>
POCKET_ALWAYS_INLINE void dot_tokens(const Source& source, const std::int8_t* a, std::size_t stride,
                                     RowsI (&sum)[T][Format::groups]) {
  static_assert(T == 1 || Format::groups == 1);
  if constexpr (T * Form::bytes_per_code == 4) {
    dot_half<0, Form>(source, a, stride, sum);
    dot_half<1, Form>(source, a, stride, sum);
  } else if constexpr (T == 2) {
    GroupSums<A8Pair> sums;
    add_group<4>(sums, source, a, stride, 0);
    join_parts<0>(sums, sum[0][0]);
    join_parts<1>(sums, sum[T - 1][0]);
  } else {
    constexpr std::size_t blocks = 4 / Format::groups;  // of 16 columns, in one group
    dot_group<blocks, Form>(source, a, 0, sum[0][0]);
    if constexpr (Format::groups == 2) dot_group<blocks, Form>(source, a, blocks, sum[0][Format::groups - 1]);
  }
}
