// 4-bit codes against activations on x86, written once over the register's width and the dot instruction. Included
// inside an instruction set's namespace and target region, after
//   Register, parts                  16 rows are `parts` registers of sums, 16 / parts rows each
//   broadcast_64(p)                  eight signed bytes, repeated
//   FromTile, FromUnpacked           get(b, i, low, high): part i of block b, columns 16b..16b+7 and 16b+8..16b+15
//   join(sum, t0, t1[, t2, t3])      int32 sums of the parts, two neighbouring lanes a row, to one lane a row
// and of the file that chose the instruction
//   Dot::product(q, a)               8 unsigned 4-bit codes a row times 8 signed bytes
//   Dot::add(sums, q, a)             sums + product
//   Dot::total(hi, lo), (lo)         a group's sums as int32: 256 * hi + lo
//   keep_here(sums)
// No include guard.
//
// The steps are functions and calls written out, not loops: g++ 12 keeps arrays in memory whose index is a loop's
// variable, even where it unrolls the loop afterwards. Nested lambdas over index sequences make the same code, and take
// twice as long to compile.

template <class Form>
inline constexpr std::size_t planes_of = Form::bytes_per_code;

// 16 columns of activations, one register per plane and half.
template <class Form>
struct Columns {
  Register low[planes_of<Form>], high[planes_of<Form>];
};
template <class Form>
POCKET_ALWAYS_INLINE Columns<Form> load_columns(const std::int8_t* a) {
  if constexpr (planes_of<Form> == 2)
    return {{broadcast_64(a), broadcast_64(a + 8)}, {broadcast_64(a + 16), broadcast_64(a + 24)}};
  else
    return {{broadcast_64(a)}, {broadcast_64(a + 8)}};
}

// A group's sums for 16 rows.
template <class Form>
struct GroupSums {
  Register part[parts][planes_of<Form>];
};

template <bool First>
POCKET_ALWAYS_INLINE void add_products(Register& sums, Register low, Register high, Register a_low, Register a_high) {
  sums = First ? Dot::product(low, a_low) : Dot::add(sums, low, a_low);
  sums = Dot::add(sums, high, a_high);
  keep_here(sums);
}
template <bool First, class Form, class Source>
POCKET_ALWAYS_INLINE void add_part(GroupSums<Form>& sums, const Source& source, const Columns<Form>& a, std::size_t b,
                                   std::size_t i) {
  Register low, high;
  source.get(b, i, low, high);
  add_products<First>(sums.part[i][0], low, high, a.low[0], a.high[0]);
  if constexpr (planes_of<Form> == 2) add_products<First>(sums.part[i][1], low, high, a.low[1], a.high[1]);
}
// Block b of the tile, 16 columns. a: the token's codes of the whole tile.
template <bool First, class Form, class Source>
POCKET_ALWAYS_INLINE void add_block(GroupSums<Form>& sums, const Source& source, const std::int8_t* a, std::size_t b) {
  const Columns<Form> columns = load_columns<Form>(a + b * 16 * planes_of<Form>);
  add_part<First>(sums, source, columns, b, 0);
  add_part<First>(sums, source, columns, b, 1);
  if constexpr (parts == 4) {
    add_part<First>(sums, source, columns, b, 2);
    add_part<First>(sums, source, columns, b, 3);
  }
}

template <class Form>
POCKET_ALWAYS_INLINE Register total(const Register (&part)[planes_of<Form>]) {
  if constexpr (planes_of<Form> == 2)
    return Dot::total(part[0], part[planes_of<Form> - 1]);
  else
    return Dot::total(part[0]);
}

// 16 rows x one group of 16 * Blocks columns, from block b on. The sums stay in registers over the blocks.
template <std::size_t Blocks, class Form, class Source>
POCKET_ALWAYS_INLINE void dot_group(const Source& source, const std::int8_t* a, std::size_t b, RowsI& sum) {
  GroupSums<Form> sums;
  add_block<true>(sums, source, a, b);
  add_block<false>(sums, source, a, b + 1);
  if constexpr (Blocks == 4) {
    add_block<false>(sums, source, a, b + 2);
    add_block<false>(sums, source, a, b + 3);
  }
  if constexpr (parts == 4)
    join(sum, total<Form>(sums.part[0]), total<Form>(sums.part[1]), total<Form>(sums.part[2]),
         total<Form>(sums.part[parts - 1]));
  else
    join(sum, total<Form>(sums.part[0]), total<Form>(sums.part[1]));
}

template <class Format, class Form, class Source>
POCKET_ALWAYS_INLINE void dot_4bit(const Source& source, const std::int8_t* a, RowsI (&sum)[Format::groups]) {
  constexpr std::size_t blocks = 4 / Format::groups;  // of 16 columns, in one group
  static_assert(blocks == 2 || blocks == 4);
  dot_group<blocks, Form>(source, a, 0, sum[0]);
  if constexpr (Format::groups == 2) dot_group<blocks, Form>(source, a, blocks, sum[Format::groups - 1]);
}
