// Included where Dot and Register are an instruction set's own, and POCKET_BENCH_TARGET its target. Makes `steps`
// rounds of twelve dot products, whose operands stay in registers, and returns the multiply-adds of one round. No
// include guard.
__attribute__((target(POCKET_BENCH_TARGET))) inline double dot_peak(std::size_t steps) {
  constexpr int sums_at_once = 12;  // cover the latency: 5 cycles, two ports at most
  Register q, a, sums[sums_at_once] = {};
  std::memset(&q, 15, sizeof q);
  std::memset(&a, 1, sizeof a);
  for (std::size_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < sums_at_once; ++i) {
      sums[i] = Dot::add(sums[i], q, a);
      asm volatile("" : "+x"(sums[i]), "+x"(a));  // made here, and not one product for all
    }
  }
  return sums_at_once * static_cast<double>(sizeof(Register));
}
#undef POCKET_BENCH_TARGET
