// AArch64's dot product as neon_dot.inl wants it. Included inside an instruction set's namespace and target region,
// after neon.inl. No include guard.

// sdot: four products a lane, two neighbouring lanes a row.
struct Dot {
  using Sums = int32x4_t;
  static POCKET_ALWAYS_INLINE Sums add(Sums sums, int8x16_t q, int8x16_t a) { return vdotq_s32(sums, q, a); }
  static POCKET_ALWAYS_INLINE Sums product(int8x16_t q, int8x16_t a) { return add(zero_sum(), q, a); }
  static POCKET_ALWAYS_INLINE void keep(Sums& a, Sums& b, Sums& c, Sums& d) { keep_here(a, b, c, d); }
  static POCKET_ALWAYS_INLINE int32x4_t total(Sums sums) { return sums; }
};
