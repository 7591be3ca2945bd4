// unroll<N>(f): f(0), f(1), ... f(N-1), each index a constant, before the compiler looks at anything: arrays indexed by
// it become registers. (g++ 12 unrolls by pragma too late for that, and the accumulators stay in memory.) Included
// inside an instruction set's namespace and target region: a template from outside would not be inlined there.
template <class F, std::size_t... I>
POCKET_ALWAYS_INLINE void unroll_indices(F&& f, std::index_sequence<I...>) {
  (f(std::integral_constant<std::size_t, I>{}), ...);
}
template <std::size_t N, class F>
POCKET_ALWAYS_INLINE void unroll(F&& f) {
  unroll_indices(static_cast<F&&>(f), std::make_index_sequence<N>{});
}
