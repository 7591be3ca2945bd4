// Runs one kernel of one instruction set a given number of times and nothing else that depends on that number: what N
// and N + 1 runs differ by is one run. For count.py, which counts the instructions that an emulator executes.
// usage: instructions ISA KERNEL FORMAT a8|a16 M N K RUNS
//        KERNEL: matmul, prepare, or attention (M heads, N positions, head_dim K)
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/isa.hpp"

namespace {

using namespace pocket;

template <class T>
T* memory(std::size_t count) {  // zero, aligned to 64 bytes
  const std::size_t bytes = (count * sizeof(T) + 64 + 63) / 64 * 64;
  void* p = std::aligned_alloc(64, bytes);
  if (p == nullptr) std::abort();
  std::memset(p, 0, bytes);
  return static_cast<T*>(p);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) return 2;
  const auto kernels = kernels_by_name(argv[1]);
  if (!kernels) {
    std::fprintf(stderr, "%s\n", kernels.error().message.c_str());
    return 1;
  }
  const auto number = [&](int i) { return static_cast<std::size_t>(std::atoll(argv[i])); };
  const std::size_t m = number(5), n = number(6), k = number(7), runs = number(8);
  const ActivationForm form = std::strcmp(argv[4], "a8") == 0 ? ActivationForm::a8 : ActivationForm::a16;
  WeightFormat format = WeightFormat::w4_g64;
  for (const WeightFormat f : {WeightFormat::w4_g32, WeightFormat::w8_g32})
    if (std::strcmp(argv[3], name_of(f)) == 0) format = f;

  if (std::strcmp(argv[2], "attention") == 0) {
    AttentionChunk c;
    c.q = memory<float>(m * k);
    c.k = c.next = memory<f16>(div_up(n, key_block) * key_block * k);
    c.v = memory<f16>(n * k);
    c.count = n;
    c.heads = m;
    c.head_dim = k;
    c.scores = memory<float>(m * attention_chunk);
    c.out = memory<float>(m * k);
    c.max = memory<float>(m);
    c.sum = memory<float>(m);
    for (std::size_t i = 0; i < runs; ++i) (*kernels)->attention(c);
    return 0;
  }
  Activations a{nullptr, nullptr, m, k, form};
  a.codes = memory<std::int8_t>(a.code_bytes());
  a.scales = memory<GroupScale>(a.scale_count());
  float* x = memory<float>(m * k);
  for (std::size_t i = 0; i < m * k; ++i) x[i] = static_cast<float>(i % 13) - 6.0f;
  (*kernels)->prepare(x, k, a);
  if (std::strcmp(argv[2], "prepare") == 0) {
    for (std::size_t i = 0; i < runs; ++i) (*kernels)->prepare(x, k, a);
    return 0;
  }
  const PackedMatrix w{memory<std::byte>(packed_bytes(format, n, k)), n, k, format, 0};
  float* y = memory<float>(m * n);
  for (std::size_t i = 0; i < runs; ++i) (*kernels)->matmul({w, a, y, n, false}, 0, w.row_blocks());
  return 0;
}
