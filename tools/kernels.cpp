// All kernels, compiled once for the command, the tests and the benchmarks (POCKET_EXTERN_KERNELS in meson.build).
#include "kernels/isa_list.hpp"
