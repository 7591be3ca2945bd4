// 4-bit codes against the activations of T tokens with 512 bits, over the dot instruction of the file that includes
// this:
//   Dot::product(q, a)                unsigned 4-bit codes times signed bytes, summed in lanes of 32 bits, or of 16
//   Dot::add(sums, q, a)              sums + product
//   Dot::total(hi, lo), (lo)          as int32 lanes: 256 * hi + lo
//   Dot::sums_64_columns              do a lane's sums hold 64 columns of one row? Else 32, or 64 in two lanes a row.
//   keep_here(sums)
// Included by avx512.inl. No include guard.
//
// The sums are members of nested structures and not elements of an array: g++ 12 keeps arrays in memory whose index is
// a loop's variable, even where it unrolls the loop afterwards.

// ---- The tile as it lies: eight rows a register, eight columns each, so two lanes a row
// ------------------------------

template <class Form, std::size_t T>
struct HalfSums {
  __m512i half[2][Form::bytes_per_code];
  HalfSums<Form, T - 1> others;
};
template <class Form>
struct HalfSums<Form, 0> {};

// Sixteen columns of both halves, and the tokens' codes of them at a, a + stride, ...
template <bool First, class Form, std::size_t T>
POCKET_ALWAYS_INLINE void add_halves(HalfSums<Form, T>& sums, const __m512i (&low)[2], const __m512i (&high)[2],
                                     const std::int8_t* a, std::size_t stride) {
  if constexpr (T > 0) {
#pragma GCC unroll 2
    for (std::size_t plane = 0; plane < Form::bytes_per_code; ++plane) {
      const __m512i a_low = broadcast_64(a + 8 * plane), a_high = broadcast_64(a + 8 * (Form::bytes_per_code + plane));
#pragma GCC unroll 2
      for (std::size_t h = 0; h < 2; ++h) {
        __m512i& s = sums.half[h][plane];
        s = First ? Dot::product(low[h], a_low) : Dot::add(s, low[h], a_low);
        s = Dot::add(s, high[h], a_high);
        keep_here(s);
      }
    }
    add_halves<First>(sums.others, low, high, a + stride, stride);
  }
}
template <bool First, class Form, std::size_t T>
POCKET_ALWAYS_INLINE void add_block(HalfSums<Form, T>& sums, const std::byte* codes, std::size_t block,
                                    const std::int8_t* a, std::size_t stride) {
  const __m512i mask = _mm512_set1_epi8(15);
  const __m512i two[2] = {load_512(codes + block * 64), load_512(codes + (4 + block) * 64)};
  const __m512i low[2] = {_mm512_and_si512(two[0], mask), _mm512_and_si512(two[1], mask)};
  const __m512i high[2] = {_mm512_and_si512(_mm512_srli_epi16(two[0], 4), mask),
                           _mm512_and_si512(_mm512_srli_epi16(two[1], 4), mask)};
  add_halves<First>(sums, low, high, a + block * 16 * Form::bytes_per_code, stride);
}

template <class Form>
POCKET_ALWAYS_INLINE __m512i total_of(const __m512i (&plane)[Form::bytes_per_code]) {
  if constexpr (Form::bytes_per_code == 2)
    return Dot::total(plane[0], plane[1]);
  else
    return Dot::total(plane[0]);
}
template <class Form, std::size_t T>
POCKET_ALWAYS_INLINE void store_halves(const HalfSums<Form, T>& sums, RowsI* sum, std::size_t next_token) {
  if constexpr (T > 0) {
    sum->v = add_pairs(total_of<Form>(sums.half[0]), total_of<Form>(sums.half[1]));
    store_halves(sums.others, sum + next_token, next_token);
  }
}

template <class Format, class Form, std::size_t T>
POCKET_ALWAYS_INLINE void dot_halves(const std::byte* codes, const std::int8_t* a, std::size_t stride,
                                     RowsI (&sum)[T][Format::groups]) {
  HalfSums<Form, T> sums;
  add_block<true>(sums, codes, 0, a, stride);
  add_block<false>(sums, codes, 1, a, stride);
  if constexpr (Format::groups == 2) store_halves(sums, &sum[0][0], 2);
  add_block<Format::groups == 2>(sums, codes, 2, a, stride);
  add_block<false>(sums, codes, 3, a, stride);
  store_halves(sums, &sum[0][Format::groups - 1], Format::groups);
}

// ---- Unpacked: sixteen rows a register, four columns each, so one lane a row: nothing to join for each token
// ---------

// 8-bit codes are used where they lie.
struct Unpacked {
  __m512i columns[16];  // [s]: 4s..4s+3
  const std::byte* codes;
};

template <class Format>
POCKET_ALWAYS_INLINE void unpack(const std::byte* codes, Unpacked& u) {
  if constexpr (Format::bits == 4) {
    const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (std::size_t b = 0; b < 4; ++b) {
      const __m512i first = load_512(codes + b * 64), second = load_512(codes + (4 + b) * 64);
      const __m512i even = even_lanes(first, second), odd = odd_lanes(first, second);
      u.columns[4 * b] = _mm512_and_si512(even, mask);
      u.columns[4 * b + 1] = _mm512_and_si512(odd, mask);
      u.columns[4 * b + 2] = _mm512_and_si512(_mm512_srli_epi16(even, 4), mask);
      u.columns[4 * b + 3] = _mm512_and_si512(_mm512_srli_epi16(odd, 4), mask);
    }
  } else {
    u.codes = codes;
  }
}

template <class Form, std::size_t T, std::size_t B>
struct ColumnSums {
  __m512i tile[B][Form::bytes_per_code];
  ColumnSums<Form, T - 1, B> others;
};
template <class Form, std::size_t B>
struct ColumnSums<Form, 0, B> {};

template <class Form, std::size_t T, std::size_t B>
POCKET_ALWAYS_INLINE void clear(ColumnSums<Form, T, B>& sums) {
  if constexpr (T > 0) {
#pragma GCC unroll 2
    for (std::size_t b = 0; b < B; ++b)
#pragma GCC unroll 2
      for (std::size_t plane = 0; plane < Form::bytes_per_code; ++plane) sums.tile[b][plane] = _mm512_setzero_si512();
    clear(sums.others);
  }
}
// Four columns.
template <class Form, std::size_t T, std::size_t B>
POCKET_ALWAYS_INLINE void add_columns(ColumnSums<Form, T, B>& sums, const __m512i (&q)[B], const std::int8_t* a,
                                      std::size_t stride) {
  if constexpr (T > 0) {
#pragma GCC unroll 2
    for (std::size_t plane = 0; plane < Form::bytes_per_code; ++plane) {
      const __m512i four = broadcast_32(a + 8 * plane);
#pragma GCC unroll 2
      for (std::size_t b = 0; b < B; ++b) {
        sums.tile[b][plane] = Dot::add(sums.tile[b][plane], q[b], four);
        keep_here(sums.tile[b][plane]);
      }
    }
    add_columns(sums.others, q, a + stride, stride);
  }
}
// Sets sum[b * next_tile + token * next_token], or adds to it.
template <bool Set, class Form, std::size_t T, std::size_t B>
POCKET_ALWAYS_INLINE void store_columns(const ColumnSums<Form, T, B>& sums, RowsI* sum, std::size_t next_tile,
                                        std::size_t next_token) {
  if constexpr (T > 0) {
#pragma GCC unroll 2
    for (std::size_t b = 0; b < B; ++b) {
      const __m512i total = total_of<Form>(sums.tile[b]);
      __m512i& s = sum[b * next_tile].v;
      s = Set ? total : _mm512_add_epi32(s, total);
    }
    store_columns<Set>(sums.others, sum + next_token, next_tile, next_token);
  }
}

template <class Format, class Form, std::size_t B, std::size_t T>
POCKET_ALWAYS_INLINE void dot_columns(const Unpacked (&u)[B], const std::int8_t* a, std::size_t stride,
                                      RowsI (&sum)[B][T][Format::groups]) {
  constexpr std::size_t at_once = Format::groups == 1 && Dot::sums_64_columns ? 64 : 32;  // columns
  constexpr std::size_t next_tile = T * Format::groups;
#pragma GCC unroll 2
  for (std::size_t begin = 0; begin < tile_cols; begin += at_once) {
    ColumnSums<Form, T, B> sums;
    clear(sums);
#pragma GCC unroll 2
    for (std::size_t c = begin; c < begin + at_once; c += 8) {
      __m512i first[B], second[B];
#pragma GCC unroll 2
      for (std::size_t b = 0; b < B; ++b) {
        first[b] = u[b].columns[c / 4];
        second[b] = u[b].columns[c / 4 + 1];
      }
      add_columns(sums, first, a + c * Form::bytes_per_code, stride);
      add_columns(sums, second, a + c * Form::bytes_per_code + 4, stride);
    }
    RowsI* group = &sum[0][0][begin / Format::group];
    if (begin % Format::group == 0)
      store_columns<true>(sums, group, next_tile, Format::groups);
    else
      store_columns<false>(sums, group, next_tile, Format::groups);
  }
}
