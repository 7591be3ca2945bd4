// 256-bit primitives of x86, over the dot instruction `Dot` of the file that includes this (avx2_dot.inl), with
//   Dot::add_16(sums, q, a)     int32 lanes: sums + the products of int16 neighbours
// Four rows share a register of codes; a tile is four of them x two planes = eight sums, four broadcast activations,
// the mask, and two registers of codes: fifteen of sixteen. 8-bit codes are widened to int16 and meet the whole 16-bit
// activation: 64 * 127 * 32639 < 2^31. Included inside the instruction set's namespace and target region, after Dot and
// keep_here. No include guard.

// matmul.inl, many_tokens.inl. Streams hide each other's waits at a page's end, where arithmetic soon fills the
// out-of-order window (Emerald Rapids: one token 6 % faster with four than with two, eight no faster).
inline constexpr std::size_t streams_at_once = 4, blocks_at_once = 1;
template <class Form>
inline constexpr std::size_t fewest_unpacked = 6 - Form::bytes_per_code;  // 4, 5
template <class Format, class Form>
inline constexpr std::size_t tokens_at_once = Format::bits == 4 && Format::groups == 1 ? 2 / Form::bytes_per_code : 1;
template <class Format, class Form>
inline constexpr std::size_t tokens_from_tiles =
    Format::bits == 4 && Format::groups == 1 ? 4 / Form::bytes_per_code : 1;
inline constexpr std::size_t heads_at_once = 4, rows_at_once = 1;  // attention.inl: eight registers of sums

struct Rows {
  __m256 v[2];
};
struct RowsI {
  __m256i v[2];
};

POCKET_ALWAYS_INLINE Rows zero() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
POCKET_ALWAYS_INLINE Rows broadcast(float x) { return {{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
POCKET_ALWAYS_INLINE Rows add(Rows a, Rows b) {
  return {{_mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1])}};
}
POCKET_ALWAYS_INLINE Rows multiply(Rows a, Rows b) {
  return {{_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1])}};
}
POCKET_ALWAYS_INLINE Rows fma(Rows a, Rows b, Rows c) {
  return {{_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1])}};
}
POCKET_ALWAYS_INLINE Rows subtract(Rows a, Rows b) {
  return {{_mm256_sub_ps(a.v[0], b.v[0]), _mm256_sub_ps(a.v[1], b.v[1])}};
}
POCKET_ALWAYS_INLINE Rows divide(Rows a, Rows b) {
  return {{_mm256_div_ps(a.v[0], b.v[0]), _mm256_div_ps(a.v[1], b.v[1])}};
}
POCKET_ALWAYS_INLINE __m256 less_select(__m256 a, __m256 b, __m256 x, __m256 y) {
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
POCKET_ALWAYS_INLINE Rows less_select(Rows a, Rows b, Rows x, Rows y) {
  return {{less_select(a.v[0], b.v[0], x.v[0], y.v[0]), less_select(a.v[1], b.v[1], x.v[1], y.v[1])}};
}
POCKET_ALWAYS_INLINE Rows round(Rows a) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {{_mm256_round_ps(a.v[0], nearest), _mm256_round_ps(a.v[1], nearest)}};
}
POCKET_ALWAYS_INLINE __m256 power_of_two(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
POCKET_ALWAYS_INLINE Rows power_of_two(Rows n) { return {{power_of_two(n.v[0]), power_of_two(n.v[1])}}; }
#include "x86_lanes.inl"
POCKET_ALWAYS_INLINE float sum_of(Rows a) { return sum_of(_mm256_add_ps(a.v[0], a.v[1])); }
POCKET_ALWAYS_INLINE float max_of(Rows a) { return max_of(_mm256_max_ps(a.v[0], a.v[1])); }
POCKET_ALWAYS_INLINE Rows load_f16(const std::byte* p) {
  return {{_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
           _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))}};
}
POCKET_ALWAYS_INLINE Rows load(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
POCKET_ALWAYS_INLINE void store(float* p, Rows a) {
  _mm256_storeu_ps(p, a.v[0]);
  _mm256_storeu_ps(p + 8, a.v[1]);
}
POCKET_ALWAYS_INLINE Rows to_float(RowsI a) { return {{_mm256_cvtepi32_ps(a.v[0]), _mm256_cvtepi32_ps(a.v[1])}}; }

POCKET_ALWAYS_INLINE __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
POCKET_ALWAYS_INLINE __m256i broadcast_64(const void* p) {
  return _mm256_castpd_si256(_mm256_broadcast_sd(static_cast<const double*>(p)));
}

// Row r of `low` (rows 0..3, two neighbouring int32 each) and of `high` (rows 4..7) to one int32 a row, in order.
POCKET_ALWAYS_INLINE __m256i add_pairs(__m256i low, __m256i high) {
  return _mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), 0xd8);
}

// ---- 4-bit codes ----------------------------------------------------------------------------------------------------

// 4-bit: quad[s][i] holds rows 4i..4i+3, columns 8s..8s+7, one code a byte. 8-bit codes are used where they lie.
struct Unpacked {
  __m256i quad[8][4];
  const std::byte* codes;
};

// Rows 4i..4i+3 of block b: columns 16b..16b+7 to low, 16b+8..16b+15 to high.
struct FromTile {
  const std::byte* codes;
  POCKET_ALWAYS_INLINE void get(std::size_t b, std::size_t i, __m256i& low, __m256i& high) const {
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i two = load_256(codes + (i / 2 * 4 + b) * 64 + i % 2 * 32);
    low = _mm256_and_si256(two, mask);
    high = _mm256_and_si256(_mm256_srli_epi16(two, 4), mask);
  }
};
struct FromUnpacked {
  const Unpacked& u;
  POCKET_ALWAYS_INLINE void get(std::size_t b, std::size_t i, __m256i& low, __m256i& high) const {
    low = u.quad[2 * b][i];
    high = u.quad[2 * b + 1][i];
  }
};

template <class Format>
POCKET_ALWAYS_INLINE void unpack(const std::byte* codes, Unpacked& u) {
  if constexpr (Format::bits == 4) {
#pragma GCC unroll 4
    for (std::size_t b = 0; b < 4; ++b)
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) FromTile{codes}.get(b, i, u.quad[2 * b][i], u.quad[2 * b + 1][i]);
  } else {
    u.codes = codes;
  }
}

using Register = __m256i;

#include "avx2_dot.inl"

// ---- 8-bit codes ----------------------------------------------------------------------------------------------------

// Eight activations of a step as int16, in both halves of the register.
template <class Form>
POCKET_ALWAYS_INLINE __m256i load_step_16(const std::int8_t* codes, std::size_t step) {
  const std::int8_t* p = codes + step * 8 * Form::bytes_per_code;
  if constexpr (Form::bytes_per_code == 2) {
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i hi = _mm_slli_epi16(_mm_cvtepi8_epi16(both), 8);
    return _mm256_broadcastsi128_si256(_mm_add_epi16(hi, _mm_cvtepi8_epi16(_mm_srli_si128(both, 8))));
  } else {
    return _mm256_broadcastsi128_si256(_mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
}

// Two rows a register while summing (four int32 each), rows in order at the end.
template <class Format, class Form>
POCKET_ALWAYS_INLINE void dot_8bit(const std::byte* codes, const std::int8_t* a, RowsI (&sum)[Format::groups]) {
  for (std::size_t g = 0; g < Format::groups; ++g) {
    for (std::size_t half = 0; half < 2; ++half) {
      __m256i rows[4];  // rows 2i, 2i+1
#pragma GCC unroll 4
      for (std::size_t s = 0; s < 4; ++s) {
        const std::size_t step = g * 4 + s;
        const __m256i a16 = load_step_16<Form>(a, step);
#pragma GCC unroll 4
        for (std::size_t i = 0; i < 4; ++i) {
          const auto* q = reinterpret_cast<const __m128i*>(codes + (half * 8 + step) * 64 + i * 16);
          const __m256i q16 = _mm256_cvtepi8_epi16(_mm_loadu_si128(q));
          rows[i] = s == 0 ? _mm256_madd_epi16(q16, a16) : Dot::add_16(rows[i], q16, a16);
        }
      }
      // hadd works within 128-bit lanes: rows 0,2 | 1,3 and 4,6 | 5,7, then 0,2,4,6 | 1,3,5,7.
      const __m256i quads = _mm256_hadd_epi32(_mm256_hadd_epi32(rows[0], rows[1]), _mm256_hadd_epi32(rows[2], rows[3]));
      sum[g].v[half] = _mm256_permutevar8x32_epi32(quads, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    }
  }
}

// ---- what the loops call --------------------------------------------------------------------------------------------

template <class Format, class Form, std::size_t T>
POCKET_ALWAYS_INLINE void dot_packed(const std::byte* codes, const std::int8_t* a, std::size_t stride,
                                     RowsI (&sum)[T][Format::groups]) {
  if constexpr (Format::bits == 4)
    dot_tokens<Format, Form>(FromTile{codes}, a, stride, sum);
  else
    dot_8bit<Format, Form>(codes, a, sum[0]);
}

template <class Format, class Form, std::size_t T>
POCKET_ALWAYS_INLINE void dot(const Unpacked (&u)[1], const std::int8_t* a, std::size_t stride,
                              RowsI (&sum)[1][T][Format::groups]) {
  if constexpr (Format::bits == 4)
    dot_tokens<Format, Form>(FromUnpacked{u[0]}, a, stride, sum[0]);
  else
    dot_8bit<Format, Form>(u[0].codes, a, sum[0][0]);
}

#include "x86_prepare.inl"
