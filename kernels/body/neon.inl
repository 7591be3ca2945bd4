// 128-bit primitives of AArch64, the same for all of its instruction sets: sixteen rows are four registers. Included
// inside an instruction set's namespace and target region. No include guard.
//
// Written out by register: g++ 12 keeps arrays in memory whose index is a loop's variable.

// attention.inl: sixteen registers of sums, four of keys or values and one of the query or weight, of 32.
inline constexpr std::size_t heads_at_once = 4, rows_at_once = 1;

// What is computed here is computed before what follows. Without this the compilers finish one sum before they begin
// another, a chain of latencies, and keep codes in memory meanwhile for want of registers.
template <class R>
POCKET_ALWAYS_INLINE void keep_here(R& a, R& b) {
  asm volatile("" : "+w"(a), "+w"(b));
}
template <class R>
POCKET_ALWAYS_INLINE void keep_here(R& a, R& b, R& c, R& d) {
  asm volatile("" : "+w"(a), "+w"(b), "+w"(c), "+w"(d));
}
// A zero of its own for each sum: the compilers would keep one more register for all to be copied from.
POCKET_ALWAYS_INLINE int32x4_t zero_sum() {
  int32x4_t zero;
  asm volatile("movi %0.4s, #0" : "=w"(zero));
  return zero;
}

struct Rows {
  float32x4_t v[4];
};
struct RowsI {
  int32x4_t v[4];
};

POCKET_ALWAYS_INLINE Rows broadcast(float x) {
  const float32x4_t all = vdupq_n_f32(x);
  return {{all, all, all, all}};
}
POCKET_ALWAYS_INLINE Rows zero() { return broadcast(0.0f); }
POCKET_ALWAYS_INLINE Rows add(Rows a, Rows b) {
  return {{vaddq_f32(a.v[0], b.v[0]), vaddq_f32(a.v[1], b.v[1]), vaddq_f32(a.v[2], b.v[2]), vaddq_f32(a.v[3], b.v[3])}};
}
POCKET_ALWAYS_INLINE Rows subtract(Rows a, Rows b) {
  return {{vsubq_f32(a.v[0], b.v[0]), vsubq_f32(a.v[1], b.v[1]), vsubq_f32(a.v[2], b.v[2]), vsubq_f32(a.v[3], b.v[3])}};
}
POCKET_ALWAYS_INLINE Rows multiply(Rows a, Rows b) {
  return {{vmulq_f32(a.v[0], b.v[0]), vmulq_f32(a.v[1], b.v[1]), vmulq_f32(a.v[2], b.v[2]), vmulq_f32(a.v[3], b.v[3])}};
}
POCKET_ALWAYS_INLINE Rows divide(Rows a, Rows b) {
  return {{vdivq_f32(a.v[0], b.v[0]), vdivq_f32(a.v[1], b.v[1]), vdivq_f32(a.v[2], b.v[2]), vdivq_f32(a.v[3], b.v[3])}};
}
POCKET_ALWAYS_INLINE Rows fma(Rows a, Rows b, Rows c) {
  return {{vfmaq_f32(c.v[0], a.v[0], b.v[0]), vfmaq_f32(c.v[1], a.v[1], b.v[1]), vfmaq_f32(c.v[2], a.v[2], b.v[2]),
           vfmaq_f32(c.v[3], a.v[3], b.v[3])}};
}
POCKET_ALWAYS_INLINE float32x4_t less_select(float32x4_t a, float32x4_t b, float32x4_t x, float32x4_t y) {
  return vbslq_f32(vcltq_f32(a, b), x, y);
}
POCKET_ALWAYS_INLINE Rows less_select(Rows a, Rows b, Rows x, Rows y) {
  return {{less_select(a.v[0], b.v[0], x.v[0], y.v[0]), less_select(a.v[1], b.v[1], x.v[1], y.v[1]),
           less_select(a.v[2], b.v[2], x.v[2], y.v[2]), less_select(a.v[3], b.v[3], x.v[3], y.v[3])}};
}
POCKET_ALWAYS_INLINE Rows round(Rows a) {
  return {{vrndnq_f32(a.v[0]), vrndnq_f32(a.v[1]), vrndnq_f32(a.v[2]), vrndnq_f32(a.v[3])}};
}
POCKET_ALWAYS_INLINE float32x4_t power_of_two(float32x4_t n) {
  return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
}
POCKET_ALWAYS_INLINE Rows power_of_two(Rows n) {
  return {{power_of_two(n.v[0]), power_of_two(n.v[1]), power_of_two(n.v[2]), power_of_two(n.v[3])}};
}
// Lanes i and i+8, then i and i+4, i+2, i+1: the order of the other instruction sets.
POCKET_ALWAYS_INLINE float sum_of(Rows a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(vpadd_f32(two, two), 0);
}
POCKET_ALWAYS_INLINE float max_of(Rows a) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[2]), vmaxq_f32(a.v[1], a.v[3])));
}

// The lower and the upper four of eight float16, which lie at p.
POCKET_ALWAYS_INLINE void load_f16(const std::byte* p, float32x4_t& low, float32x4_t& high) {
  const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(reinterpret_cast<const std::uint8_t*>(p)));
  low = vcvt_f32_f16(vget_low_f16(h));
  high = vcvt_high_f32_f16(h);
}
POCKET_ALWAYS_INLINE Rows load_f16(const std::byte* p) {
  Rows r;
  load_f16(p, r.v[0], r.v[1]);
  load_f16(p + 16, r.v[2], r.v[3]);
  return r;
}
POCKET_ALWAYS_INLINE Rows load(const float* p) {
  return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
POCKET_ALWAYS_INLINE void store(float* p, Rows a) {
  vst1q_f32(p, a.v[0]);
  vst1q_f32(p + 4, a.v[1]);
  vst1q_f32(p + 8, a.v[2]);
  vst1q_f32(p + 12, a.v[3]);
}
POCKET_ALWAYS_INLINE Rows to_float(RowsI a) {
  return {{vcvtq_f32_s32(a.v[0]), vcvtq_f32_s32(a.v[1]), vcvtq_f32_s32(a.v[2]), vcvtq_f32_s32(a.v[3])}};
}

// ---- activations to codes -------------------------------------------------------------------------------------------

// The magnitudes' bits, as integers: NaN > infinity > the rest.
POCKET_ALWAYS_INLINE int32x4_t magnitude(const float* a) { return vreinterpretq_s32_f32(vabsq_f32(vld1q_f32(a))); }
POCKET_ALWAYS_INLINE void raise_16(int32x4_t& t0, int32x4_t& t1, int32x4_t& t2, int32x4_t& t3, const float* a) {
  t0 = vmaxq_s32(t0, magnitude(a));
  t1 = vmaxq_s32(t1, magnitude(a + 4));
  t2 = vmaxq_s32(t2, magnitude(a + 8));
  t3 = vmaxq_s32(t3, magnitude(a + 12));
}
// Eight codes as int16, nearest even.
POCKET_ALWAYS_INLINE int16x8_t code_8(const float* a, float inverse) {
  const int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(a), inverse));
  const int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(a + 4), inverse));
  return vmovn_high_s32(vmovn_s32(low), high);
}
// Stores sixteen codes and gives their sums: in int16 for A8, where eight codes of a lane are at most 8 * 127.
template <class Form>
POCKET_ALWAYS_INLINE int32x4_t code_16(const float* a, float inverse, std::int8_t* codes) {
  const int16x8_t low = code_8(a, inverse), high = code_8(a + 8, inverse);
  if constexpr (Form::bytes_per_code == 2) {
    vst1q_s8(codes, vmovn_high_s16(vrshrn_n_s16(low, 8), low));
    vst1q_s8(codes + 16, vmovn_high_s16(vrshrn_n_s16(high, 8), high));
    return vpadalq_s16(vpaddlq_s16(low), high);
  } else {
    vst1q_s8(codes, vmovn_high_s16(vmovn_s16(low), high));
    return vpaddlq_s16(vaddq_s16(low, high));
  }
}

// Quantises 64 floats (see quant/activations.hpp). Where the factor is 0, NaN and infinity become the code 0, too.
template <class Form>
POCKET_ALWAYS_INLINE void prepare_group(const float* a, std::int8_t* codes, GroupScale& scale) {
  int32x4_t t0 = magnitude(a), t1 = magnitude(a + 4), t2 = magnitude(a + 8), t3 = magnitude(a + 12);
  raise_16(t0, t1, t2, t3, a + 16);
  raise_16(t0, t1, t2, t3, a + 32);
  raise_16(t0, t1, t2, t3, a + 48);
  const std::int32_t top = vmaxvq_s32(vmaxq_s32(vmaxq_s32(t0, t1), vmaxq_s32(t2, t3)));
  const float max = vget_lane_f32(vreinterpret_f32_s32(vdup_n_s32(top)), 0);
  const bool finite = top < 0x7f800000;
  const bool live = finite && max >= smallest_activation;
  const float t = finite ? (live ? max / Form::range : 0.0f) : __builtin_nanf("");
  const float inverse = live ? Form::range / max : 0.0f;
  constexpr std::size_t step = 16 * Form::bytes_per_code;
  const int32x4_t q0 = code_16<Form>(a, inverse, codes), q1 = code_16<Form>(a + 16, inverse, codes + step);
  const int32x4_t q2 = code_16<Form>(a + 32, inverse, codes + 2 * step);
  const int32x4_t q3 = code_16<Form>(a + 48, inverse, codes + 3 * step);
  const std::int32_t first = vaddvq_s32(vaddq_s32(q0, q1)), second = vaddvq_s32(vaddq_s32(q2, q3));
  scale.t = t;
  scale.sum = t * static_cast<float>(first + second);
  scale.half[0] = t * static_cast<float>(first);
  scale.half[1] = t * static_cast<float>(second);
}
