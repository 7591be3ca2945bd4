// What needs e^x: the softmax of one chunk's scores, and the gate of the feed-forward layer. Written once over an
// instruction set's Rows; beside matmul.inl's primitives it needs
//   subtract, divide, less_select(a, b, x, y) = a < b ? x : y per lane (NaN: y), round (to nearest even)
//   power_of_two(n) = 2^n for whole n in [-126, 127], anything for NaN
//   sum_of, max_of           of the sixteen lanes, pairwise; max_of meets no NaN
// Included inside an instruction set's namespace and target region. No include guard.

// e^x with a relative error below 3 * 2^-24: 0 below -87.33 (where the smallest normal number is), e^88.37 above 88.37,
// NaN for NaN. x = n*ln2 + r with |r| <= ln2/2; e^r = 1 + r + r^2 P(r), P fitted for the least relative error, 3.2e-9.
POCKET_ALWAYS_INLINE Rows exp(const Rows& x) {
  const Rows low = broadcast(-87.33f), high = broadcast(88.37f);
  Rows y = less_select(x, low, low, x);
  y = less_select(high, y, high, y);
  const Rows n = round(multiply(y, broadcast(1.44269504f)));
  Rows r = fma(n, broadcast(-0x1.63p-1f), y);  // ln 2 in two parts, the first short: n times it is exact
  r = fma(n, broadcast(0x1.bd0106p-13f), r);
  Rows p = fma(broadcast(0x1.6a215ap-10f), r, broadcast(0x1.123b9ap-7f));
  p = fma(p, r, broadcast(0x1.5558fcp-5f));
  p = fma(p, r, broadcast(0x1.555490p-3f));
  p = fma(p, r, broadcast(0x1.fffffcp-2f));
  const Rows e = add(fma(p, multiply(r, r), r), broadcast(1.0f));
  return less_select(x, low, zero(), multiply(e, power_of_two(n)));
}

// Replaces the scores s[0..n) by exp(s - max); gives max and the sum of the exponentials. s has room for whole Rows.
// From `next` on, two lines for each Rows are fetched to the second-level cache: memory has nothing else to do here.
// Scores that are all -infinity give zeros, max -infinity and sum 0; a NaN makes max and sum NaN.
POCKET_NOINLINE inline void softmax_partial(float* s, std::size_t n, float& max_out, float& sum_out,
                                            std::uintptr_t next) {
  constexpr float lowest = -__builtin_huge_valf();
  const std::size_t end = (n + tile_rows - 1) / tile_rows * tile_rows;
  for (std::size_t i = n; i < end; ++i) s[i] = lowest;
  Rows top = broadcast(lowest);
  for (std::size_t i = 0; i < end; i += tile_rows) {
    const Rows v = load(s + i);
    top = less_select(top, v, v, top);
  }
  const float max = max_of(top);
  const Rows shift = broadcast(max == lowest ? 0.0f : max);
  Rows total = zero();
  for (std::size_t i = 0; i < end; i += tile_rows) {
    __builtin_prefetch(reinterpret_cast<const void*>(next + i * 8), 0, 2);
    __builtin_prefetch(reinterpret_cast<const void*>(next + i * 8 + 64), 0, 2);
    const Rows e = exp(subtract(load(s + i), shift));
    store(s + i, e);
    total = add(total, e);
  }
  const float sum = sum_of(total);
  max_out = sum == sum ? max : sum;
  sum_out = sum;
}

// See Kernels::gate. silu(x) = x / (1 + e^-x); below -88.37 the true value is smaller than 1e-36, as is this one.
inline void gate(const float* both, std::size_t m, float* y, std::size_t y_stride) noexcept {
  const Rows one = broadcast(1.0f), limit = broadcast(-88.37f), minus_zero = broadcast(-0.0f);
  for (std::size_t i = 0; i < m; ++i, both += 2 * tile_rows, y += y_stride) {
    const Rows g = load(both);
    // -infinity: -0, which -infinity divided by a finite number is not.
    const Rows silu = less_select(g, limit, minus_zero, divide(g, add(one, exp(subtract(zero(), g)))));
    store(y, multiply(silu, load(both + tile_rows)));
  }
}
