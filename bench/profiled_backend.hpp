// A backend around another that adds up the time of each of the graph's operations: a compile-time policy like any
// other. One reading of the clock an operation, about 170 a token.
#ifndef POCKET_BENCH_PROFILED_BACKEND_HPP
#define POCKET_BENCH_PROFILED_BACKEND_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "pocket/backend/backend.hpp"
#include "pocket/model/memory_plan.hpp"
#include "pocket/model/spec.hpp"
#include "read_bandwidth.hpp"

namespace bench {

// In the order in which a step runs them; `output` and `down` are both project_add.
enum class Operation : std::uint8_t { begin, embed, qkv, rope, attention, output, gate_up, down, logits };
inline constexpr std::size_t operations = 9;
inline constexpr const char* operation_names[operations] = {"begin",  "embed",   "qkv",  "rope",  "attention",
                                                            "output", "gate_up", "down", "logits"};

template <class B>
class Profiled : public B {
 public:
  using Buffer = typename B::Buffer;

  static pocket::Expected<Profiled> create(const pocket::RuntimeSpec& spec, const typename B::Weights& weights,
                                           const pocket::SessionShape& shape, const typename B::Options& options) {
    POCKET_TRY(b, B::create(spec, weights, shape, options));
    return Profiled(std::move(b));
  }

  // Seconds of each operation since the last call.
  std::array<double, operations> take() const { return std::exchange(seconds_, {}); }

  void begin(std::span<const std::int32_t> tokens, std::size_t position) {
    last_ = now();
    B::begin(tokens, position);
    note(Operation::begin);
  }
  void embed(const pocket::PackedMatrix& e, Buffer x) {
    B::embed(e, x);
    note(Operation::embed);
  }
  void norm_project(Buffer x, const float* g, const pocket::PackedMatrix& w, Buffer y) {
    B::norm_project(x, g, w, y);
    note(Operation::qkv);
  }
  void rope_append(Buffer qkv, std::size_t layer, const float* q_gamma, const float* k_gamma) {
    B::rope_append(qkv, layer, q_gamma, k_gamma);
    note(Operation::rope);
  }
  void attend(Buffer qkv, std::size_t layer, Buffer y) {
    B::attend(qkv, layer, y);
    note(Operation::attention);
    after_attention_ = true;
  }
  void project_add(Buffer y, const pocket::PackedMatrix& w, Buffer x) {
    B::project_add(y, w, x);
    note(std::exchange(after_attention_, false) ? Operation::output : Operation::down);
  }
  void norm_gate(Buffer x, const float* g, const pocket::PackedMatrix& w, Buffer y) {
    B::norm_gate(x, g, w, y);
    note(Operation::gate_up);
  }
  void norm_logits(Buffer x, std::size_t first, std::size_t count, const float* g, const pocket::PackedMatrix& w,
                   std::size_t row) {
    B::norm_logits(x, first, count, g, w, row);
    note(Operation::logits);
  }

 private:
  explicit Profiled(B&& b) : B(std::move(b)) {}

  void note(Operation o) {
    const double t = now();
    seconds_[static_cast<std::size_t>(o)] += t - std::exchange(last_, t);
  }

  mutable std::array<double, operations> seconds_{};  // a session hands out its backend const
  double last_ = 0;
  bool after_attention_ = false;
};

}  // namespace bench

#endif
