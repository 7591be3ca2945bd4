// The peak of an instruction set's dot product of 4-bit codes and 8-bit activations: multiply-adds a second of one core
// where nothing is loaded, unpacked or scaled.
#ifndef POCKET_BENCH_DOT_PEAK_HPP
#define POCKET_BENCH_DOT_PEAK_HPP

#include <cstddef>
#include <cstring>

#include "kernels/isa.hpp"

#if POCKET_ARCH_X86
#include "kernels/avx2.hpp"
#include "kernels/avx512bw.hpp"
#include "kernels/avx512vnni.hpp"
#include "kernels/avxvnni.hpp"

#define POCKET_BENCH_TARGET "avx2,fma,f16c"
namespace bench::avx2 {
using pocket::avx2::Dot, pocket::avx2::Register;
#include "dot_peak.inl"
}  // namespace bench::avx2
#define POCKET_BENCH_TARGET "avxvnni,avx2,fma,f16c"
namespace bench::avxvnni {
using pocket::avxvnni::Dot, pocket::avxvnni::Register;
#include "dot_peak.inl"
}  // namespace bench::avxvnni
#define POCKET_BENCH_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"
namespace bench::avx512bw {
using pocket::avx512bw::Dot, pocket::avx512bw::Register;
#include "dot_peak.inl"
}  // namespace bench::avx512bw
#define POCKET_BENCH_TARGET "avx512vnni,avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"
namespace bench::avx512vnni {
using pocket::avx512vnni::Dot, pocket::avx512vnni::Register;
#include "dot_peak.inl"
}  // namespace bench::avx512vnni
#endif

namespace bench {

// Multiply-adds of one of `steps` rounds, which it makes; 0 where there is no such function (the portable tier).
inline double dot_peak(pocket::Isa isa, [[maybe_unused]] std::size_t steps) {
  switch (isa) {
#if POCKET_ARCH_X86
    case pocket::Isa::avx2: return avx2::dot_peak(steps);
    case pocket::Isa::avxvnni: return avxvnni::dot_peak(steps);
    case pocket::Isa::avx512bw: return avx512bw::dot_peak(steps);
    case pocket::Isa::avx512vnni: return avx512vnni::dot_peak(steps);
#endif
    default: return 0;
  }
}

}  // namespace bench

#endif
