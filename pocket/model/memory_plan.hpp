// How much memory a session takes, before anything is opened: constexpr where the spec is static.
//
//   constexpr auto plan = pocket::memory_plan<pocket::CpuBackend>(pocket::MnnPocket03B{}, {.context = 512});
//   static_assert(plan.total_bytes < 200'000'000);
#ifndef POCKET_MODEL_MEMORY_PLAN_HPP
#define POCKET_MODEL_MEMORY_PLAN_HPP

#include <cstddef>

#include "../config.hpp"
#include "../quant/activations.hpp"
#include "kv_cache.hpp"
#include "spec.hpp"
#include "weights.hpp"

POCKET_NAMESPACE_BEGIN

// A session's size, fixed when it is created.
struct SessionShape {
  std::size_t context = 4096;  // positions, prompt and answer together
  std::size_t batch = 128;     // tokens of one step: prompts are taken in chunks of this
  std::size_t logit_rows = 1;  // tokens of one call whose logits are wanted (more for verification and scoring)
  unsigned threads = 1;        // the executor's concurrency
  ActivationForm activations = ActivationForm::a16;
};

// As a session uses it: no step is longer than the context.
constexpr SessionShape fitted(SessionShape shape) noexcept {
  shape.batch = shape.batch < shape.context ? shape.batch : shape.context;
  return shape;
}

// Bytes of one session and the weights that it shares with others.
struct MemoryPlan {
  std::size_t weight_bytes = 0;     // mapped from the package, shared by all sessions
  std::size_t kv_bytes = 0;         // private; pages are touched as the context grows
  std::size_t workspace_bytes = 0;  // private
  std::size_t total_bytes = 0;
};

// With `weights` bytes of packed weights, as an opened model counts them.
template <class Backend, ModelSpec S>
constexpr MemoryPlan memory_plan(const S& spec, const SessionShape& shape, std::size_t weights) noexcept {
  MemoryPlan p;
  p.weight_bytes = weights;
  p.kv_bytes = KvCache::values(spec, shape.context) * sizeof(f16);
  p.workspace_bytes = Backend::memory_bytes(spec, shape) - p.kv_bytes;
  p.total_bytes = p.weight_bytes + p.kv_bytes + p.workspace_bytes;
  return p;
}
// With all matrices in one format and the embedding tied.
template <class Backend, ModelSpec S>
constexpr MemoryPlan memory_plan(const S& spec, const SessionShape& shape,
                                 WeightFormat format = WeightFormat::w4_g64) noexcept {
  return memory_plan<Backend>(spec, shape, weight_bytes(spec, format));
}

POCKET_NAMESPACE_END

#endif
