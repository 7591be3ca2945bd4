// Kernels alone: quantise and pack a matrix, prepare a vector, multiply. No file, no model, no threads.
#include <cstdio>
#include <vector>

#include "pocket/pocket.hpp"

int main() {
  constexpr std::size_t n = 48, k = 128;
  std::vector<float> weights(n * k), x(k), y(n);
  for (std::size_t i = 0; i < n * k; ++i) weights[i] = static_cast<float>(i * 7 % 64) / 64 - 0.5f;
  for (std::size_t i = 0; i < k; ++i) x[i] = static_cast<float>(i % 5) - 2;

  using namespace pocket;
  const auto memory = Workspace::allocate(packed_bytes(WeightFormat::w4_g64, n, k));  // 64-byte aligned
  const auto kernels = best_kernels();                                                // of this CPU
  if (!memory || !kernels) return 1;
  const auto w = pack({weights.data(), n, k, k}, WeightFormat::w4_g64, {memory->at<std::byte>(0), memory->bytes()});
  if (!w) return std::fprintf(stderr, "%s\n", w.error().message.c_str()), 1;

  Activations a{.m = 1, .k = k, .form = ActivationForm::a16};
  std::vector<std::int8_t> codes(a.code_bytes());
  std::vector<GroupScale> scales(a.scale_count());
  a.codes = codes.data();
  a.scales = scales.data();
  (*kernels)->prepare(x.data(), k, a);
  (*kernels)->matmul({.w = *w, .a = a, .y = y.data(), .y_stride = n}, 0, w->row_blocks());

  double exact = 0;
  for (std::size_t i = 0; i < k; ++i) exact += static_cast<double>(weights[i]) * static_cast<double>(x[i]);
  std::printf("%s: y[0] = %.4f, with unquantised weights %.4f\n", (*kernels)->name, static_cast<double>(y[0]), exact);
}
