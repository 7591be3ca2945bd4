// The core as a whole, compiled for systems that cannot be run here (../targets.sh): kernels, graph, threads, sampling.
#include "pocket/pocket.hpp"

template class pocket::Transformer<pocket::RuntimeSpec>;

const char* started();
const char* started() {
  const auto pool = pocket::ThreadPool::create(2);
  const auto kernels = pocket::best_kernels();
  return pool && kernels ? (*kernels)->name : nullptr;
}
