// Activations to codes on x86, with 256 bits everywhere: 512 took longer (Skylake-X). Included inside an x86
// instruction set's namespace and target region, after load_256. No include guard.

// Quantises 64 floats (see quant/activations.hpp).
template <class Form>
POCKET_ALWAYS_INLINE void prepare_group(const float* a, std::int8_t* codes, GroupScale& scale) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i top = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) top = _mm256_max_epi32(top, _mm256_and_si256(magnitude, load_256(a + 8 * i)));
  __m128i t = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0x4e));
  t = _mm_max_epi32(t, _mm_shuffle_epi32(t, 0xb1));
  const float max = _mm_cvtss_f32(_mm_castsi128_ps(t));  // as integers NaN > infinity > the rest
  const bool finite = _mm_cvtsi128_si32(t) < 0x7f800000;
  const bool live = finite && max >= smallest_activation;
  scale.t = finite ? (live ? max / Form::range : 0.0f) : __builtin_nanf("");
  const __m256 inverse = _mm256_set1_ps(live ? Form::range / max : 0.0f);
  __m256i half[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m256i q0 = _mm256_setzero_si256(), q1 = q0;
    if (live) {
      q0 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(a + 16 * i), inverse));
      q1 = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(a + 16 * i + 8), inverse));
    }
    half[i / 2] = _mm256_add_epi32(half[i / 2], _mm256_add_epi32(q0, q1));
    const __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(q0, q1), 0xd8);  // 16 int16 in order
    if constexpr (Form::bytes_per_code == 2) {
      const __m256i hi = _mm256_srai_epi16(_mm256_add_epi16(w, _mm256_set1_epi16(128)), 8);
      const __m256i lo = _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + 32 * i), _mm256_packs_epi16(hi, lo));
    } else {
      const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16 * i), bytes);
    }
  }
  const __m256i sums = _mm256_hadd_epi32(half[0], half[1]);
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
  s = _mm_hadd_epi32(s, s);  // first half's sum, second half's sum
  const int first = _mm_cvtsi128_si32(s), second = _mm_extract_epi32(s, 1);
  scale.sum = scale.t * static_cast<float>(first + second);
  scale.half[0] = scale.t * static_cast<float>(first);
  scale.half[1] = scale.t * static_cast<float>(second);
}
