// 512-bit primitives of x86, over the dot instruction `Dot` of the file that includes this (avx512_dot.inl), with
//   Dot::add_16(sums, q, a)     int32 lanes: sums + the products of int16 neighbours
// Included inside the instruction set's namespace and target region, after Dot and keep_here. No include guard.

// matmul.inl, many_tokens.inl. Sixteen registers of sums hide the dot instruction's latency (5 cycles, two ports), and
// each load of activations serves two of them: with a load for each dot instruction the loads set the pace (Emerald
// Rapids). Streams: see avx2.inl.
inline constexpr std::size_t streams_at_once = 4, blocks_at_once = 2;
template <class Form>
inline constexpr std::size_t fewest_unpacked = 9;
template <class Format, class Form>
inline constexpr std::size_t tokens_at_once = Format::bits == 4 ? 8 / Form::bytes_per_code : 1;
template <class Format, class Form>
inline constexpr std::size_t tokens_from_tiles = tokens_at_once<Format, Form>;
inline constexpr std::size_t heads_at_once = 7, rows_at_once = 2;  // attention.inl: fourteen registers of sums

struct Rows {
  __m512 v;
};
struct RowsI {
  __m512i v;
};

POCKET_ALWAYS_INLINE Rows zero() { return {_mm512_setzero_ps()}; }
POCKET_ALWAYS_INLINE Rows broadcast(float x) { return {_mm512_set1_ps(x)}; }
POCKET_ALWAYS_INLINE Rows add(Rows a, Rows b) { return {_mm512_add_ps(a.v, b.v)}; }
POCKET_ALWAYS_INLINE Rows multiply(Rows a, Rows b) { return {_mm512_mul_ps(a.v, b.v)}; }
POCKET_ALWAYS_INLINE Rows fma(Rows a, Rows b, Rows c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
POCKET_ALWAYS_INLINE Rows subtract(Rows a, Rows b) { return {_mm512_sub_ps(a.v, b.v)}; }
POCKET_ALWAYS_INLINE Rows divide(Rows a, Rows b) { return {_mm512_div_ps(a.v, b.v)}; }
POCKET_ALWAYS_INLINE Rows less_select(Rows a, Rows b, Rows x, Rows y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
// Below 2^31. (g++ 12 warns of its own _mm512_roundscale_ps.)
POCKET_ALWAYS_INLINE Rows round(Rows a) { return {_mm512_cvtepi32_ps(_mm512_cvtps_epi32(a.v))}; }
POCKET_ALWAYS_INLINE Rows power_of_two(Rows n) {
  return {
      _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
POCKET_ALWAYS_INLINE Rows load_f16(const std::byte* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
POCKET_ALWAYS_INLINE Rows load(const float* p) { return {_mm512_loadu_ps(p)}; }
POCKET_ALWAYS_INLINE void store(float* p, Rows a) { _mm512_storeu_ps(p, a.v); }

#include "x86_lanes.inl"
// Through memory: g++ 12 warns of its own _mm512_reduce_add_ps.
POCKET_ALWAYS_INLINE float sum_of(Rows a) {
  alignas(64) float lane[16];
  store(lane, a);
  return sum_of(_mm256_add_ps(_mm256_load_ps(lane), _mm256_load_ps(lane + 8)));
}
POCKET_ALWAYS_INLINE float max_of(Rows a) {
  alignas(64) float lane[16];
  store(lane, a);
  return max_of(_mm256_max_ps(_mm256_load_ps(lane), _mm256_load_ps(lane + 8)));
}
POCKET_ALWAYS_INLINE Rows to_float(RowsI a) { return {_mm512_cvtepi32_ps(a.v)}; }

POCKET_ALWAYS_INLINE __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
POCKET_ALWAYS_INLINE __m512i load_512(const void* p) { return _mm512_loadu_si512(p); }
POCKET_ALWAYS_INLINE __m512i broadcast_64(const void* p) {
  return _mm512_broadcastq_epi64(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
}
POCKET_ALWAYS_INLINE __m512i broadcast_32(const void* p) {
  std::int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return _mm512_set1_epi32(four);
}

// Two lanes a row in `low` (rows 0..7) and `high` (rows 8..15): the first of each row, the second, their sum.
POCKET_ALWAYS_INLINE __m512i even_lanes(__m512i low, __m512i high) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return _mm512_permutex2var_epi32(low, even, high);
}
POCKET_ALWAYS_INLINE __m512i odd_lanes(__m512i low, __m512i high) {
  const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return _mm512_permutex2var_epi32(low, odd, high);
}
POCKET_ALWAYS_INLINE __m512i add_pairs(__m512i low, __m512i high) {
  return _mm512_add_epi32(even_lanes(low, high), odd_lanes(low, high));
}

using Register = __m512i;

#include "avx512_dot.inl"

// ---- 8-bit codes ----------------------------------------------------------------------------------------------------

// Eight activations of a step as int16, in each quarter of the register.
template <class Form>
POCKET_ALWAYS_INLINE __m512i load_step_16(const std::int8_t* codes, std::size_t step) {
  const std::int8_t* p = codes + step * 8 * Form::bytes_per_code;
  if constexpr (Form::bytes_per_code == 2) {
    const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i hi = _mm_slli_epi16(_mm_cvtepi8_epi16(both), 8);
    return _mm512_broadcast_i32x4(_mm_add_epi16(hi, _mm_cvtepi8_epi16(_mm_srli_si128(both, 8))));
  } else {
    return _mm512_broadcast_i32x4(_mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
}

// Four rows a register while summing, four int32 each.
template <class Format, class Form>
POCKET_ALWAYS_INLINE void dot_8bit(const std::byte* codes, const std::int8_t* a, RowsI (&sum)[Format::groups]) {
  for (std::size_t g = 0; g < Format::groups; ++g) {
    __m512i quad[4];  // rows 4i..4i+3
#pragma GCC unroll 4
    for (std::size_t s = 0; s < 4; ++s) {
      const std::size_t step = g * 4 + s;
      const __m512i a16 = load_step_16<Form>(a, step);
#pragma GCC unroll 4
      for (std::size_t i = 0; i < 4; ++i) {
        const auto* q = reinterpret_cast<const __m256i*>(codes + (i / 2 * 8 + step) * 64 + i % 2 * 32);
        const __m512i q16 = _mm512_cvtepi8_epi16(_mm256_loadu_si256(q));
        quad[i] = s == 0 ? _mm512_madd_epi16(q16, a16) : Dot::add_16(quad[i], q16, a16);
      }
    }
    // Rows of four lanes to rows of two, rows 0..7 and 8..15, then to one.
    const __m512i first = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29);
    const __m512i second = _mm512_setr_epi32(2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
    const auto halve = [&](__m512i x, __m512i y) POCKET_INLINE_LAMBDA {
      return _mm512_add_epi32(_mm512_permutex2var_epi32(x, first, y), _mm512_permutex2var_epi32(x, second, y));
    };
    sum[g].v = add_pairs(halve(quad[0], quad[1]), halve(quad[2], quad[3]));
  }
}

// ---- what the loops call --------------------------------------------------------------------------------------------

template <class Format, class Form, std::size_t T>
POCKET_ALWAYS_INLINE void dot_packed(const std::byte* codes, const std::int8_t* a, std::size_t stride,
                                     RowsI (&sum)[T][Format::groups]) {
  if constexpr (Format::bits == 4)
    dot_halves<Format, Form>(codes, a, stride, sum);
  else
    dot_8bit<Format, Form>(codes, a, sum[0]);
}

template <class Format, class Form, std::size_t B, std::size_t T>
POCKET_ALWAYS_INLINE void dot(const Unpacked (&u)[B], const std::int8_t* a, std::size_t stride,
                              RowsI (&sum)[B][T][Format::groups]) {
  if constexpr (Format::bits == 4)
    dot_columns<Format, Form>(u, a, stride, sum);
  else
    for (std::size_t b = 0; b < B; ++b) dot_8bit<Format, Form>(u[b].codes, a, sum[b][0]);
}

#include "x86_prepare.inl"
