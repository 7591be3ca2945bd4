// Small random models in memory, packed as a file would hold them, and what the tests of the graph share.
//
// Weights are normal with deviation 1/sqrt(inputs), so that a product keeps its input's size, as in a trained network;
// q and k are somewhat larger, so that attention is neither uniform nor a single peak; norms are 0.75 to 1.25. The same
// seed gives the same bytes everywhere.
#ifndef POCKET_TEST_MODEL_FIXTURE_HPP
#define POCKET_TEST_MODEL_FIXTURE_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/isa.hpp"
#include "pocket/core/status.hpp"
#include "pocket/core/types.hpp"
#include "pocket/model/spec.hpp"
#include "pocket/model/weights.hpp"
#include "pocket/quant/format.hpp"
#include "pocket/quant/pack.hpp"
#include "support.hpp"

namespace test {

// The value, or a test failure with the error's message.
template <class T>
T value(pocket::Expected<T>&& e) {
  if (!e) throw std::runtime_error(e.error().message);
  return *std::move(e);
}

inline std::vector<const pocket::Kernels*> runnable_kernels() {
  std::vector<const pocket::Kernels*> all;
  for (const pocket::IsaEntry& e : pocket::isa_list()) {
    if (e.runs_here())
      all.push_back(e.kernels);
    else
      std::cout << "skipped: instruction set " << e.kernels->name << ", which this CPU does not have\n";
  }
  return all;
}

inline std::vector<std::int32_t> random_tokens(std::size_t n, std::size_t vocab, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::int32_t> tokens(n);
  for (auto& t : tokens) t = static_cast<std::int32_t>(random.below(vocab));
  return tokens;
}

// One kind of matrix: its format, and the constant o of 4-bit formats.
struct MatrixFormat {
  pocket::WeightFormat format = pocket::WeightFormat::w4_g64;
  float offset = 0;
};
struct ModelFormats {
  MatrixFormat embedding, qkv, output, gate_up, down;
  static ModelFormats all(pocket::WeightFormat format, float offset = 0) {
    const MatrixFormat f{format, offset};
    return {f, f, f, f, f};
  }
};

// Sessions point to weights(): the object stays where it is.
class RandomModel {
 public:
  RandomModel(const pocket::RuntimeSpec& spec, const ModelFormats& formats, std::uint64_t seed)
      : spec_(spec), random_(seed) {
    constexpr float sharp = 1.0f;  // of q and k: scores have a deviation of about 2
    weights_.rms_epsilon = 1e-6f;
    weights_.rope_base = spec.qk_norm ? 1e6 : 1e4;
    weights_.embedding = matrix(spec.vocab, spec.hidden, formats.embedding);
    weights_.head = weights_.embedding;
    weights_.output_norm = norm(spec.hidden, 1);
    for (std::size_t l = 0; l < spec.layers; ++l) {
      auto& layer = weights_.layers.emplace_back();
      layer.attention_norm = norm(spec.hidden, spec.qk_norm ? 1 : sharp);
      layer.ffn_norm = norm(spec.hidden, 1);
      if (spec.qk_norm) {
        layer.q_norm = norm(spec.head_dim, sharp);
        layer.k_norm = norm(spec.head_dim, sharp);
      }
      layer.qkv = matrix(qkv_width(spec), spec.hidden, formats.qkv);
      layer.output = matrix(spec.hidden, q_width(spec), formats.output);
      layer.gate_up = matrix(gate_up_width(spec), spec.hidden, formats.gate_up);
      layer.down = matrix(spec.hidden, spec.ffn, formats.down);
    }
  }
  RandomModel(const RandomModel&) = delete;
  RandomModel& operator=(const RandomModel&) = delete;

  const pocket::RuntimeSpec& spec() const { return spec_; }
  const pocket::HostWeights& weights() const { return weights_; }
  std::size_t bytes() const { return bytes_; }  // of all matrices and norms

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };

  // A block of its own, ended exactly where the data ends: a sanitizer sees reads past it.
  template <class T>
  T* allocate(std::size_t bytes) {
    bytes_ += bytes;
    auto* p = static_cast<std::byte*>(std::aligned_alloc(64, pocket::round_up(bytes, 64)));
    if (p == nullptr) throw std::bad_alloc();
    blocks_.emplace_back(p);
    return reinterpret_cast<T*>(p);
  }

  const float* norm(std::size_t n, float size) {
    float* v = allocate<float>(n * sizeof(float));
    for (std::size_t i = 0; i < n; ++i) v[i] = size * (0.75f + 0.5f * random_.uniform());
    return v;
  }

  static void quantize(const float* rows, std::size_t count, std::size_t k, pocket::RowBlock& block) {
    block.clear();
    pocket::with_format(block.format(), [&](auto format) {
      using F = decltype(format);
      for (std::size_t r = 0; r < count; ++r)
        for (std::size_t k0 = 0; k0 < k; k0 += F::group) {
          const std::size_t g = k0 / F::group, size = k - k0 < F::group ? k - k0 : F::group;
          const auto done = pocket::quantize_group<F>(rows + r * k + k0, size, block.codes(r) + k0, block.scales(r)[g],
                                                      block.minima(r)[g]);
          if (!done) throw std::runtime_error(done.error().message);
        }
    });
  }

  // Row block by row block. With an offset o the minima become m + o*s, rounded to float16: nearly the same matrix.
  pocket::PackedMatrix matrix(std::size_t n, std::size_t k, const MatrixFormat& f) {
    using pocket::tile_rows;
    const std::size_t bytes = pocket::packed_bytes(f.format, n, k);
    auto* tiles = allocate<std::byte>(bytes);
    const float offset = f.format == pocket::WeightFormat::w8_g32 ? 0 : f.offset;
    const pocket::PackedMatrix packed{tiles, n, k, f.format, offset};
    const float deviation = 1.0f / std::sqrt(static_cast<float>(k));
    std::vector<float> rows(tile_rows * k);
    pocket::RowBlock block(f.format, k);
    for (std::size_t n0 = 0; n0 < n; n0 += tile_rows) {
      const std::size_t count = n - n0 < tile_rows ? n - n0 : tile_rows;
      for (std::size_t i = 0; i < count * k; ++i) rows[i] = random_.normal() * deviation;
      quantize(rows.data(), count, k, block);
      for (std::size_t r = 0; offset != 0 && r < count; ++r)
        for (std::size_t g = 0; g < block.groups(); ++g)
          block.minima(r)[g] =
              pocket::to_f16(pocket::to_float(block.minima(r)[g]) + offset * pocket::to_float(block.scales(r)[g]));
      pocket::pack_block(block, tiles + n0 / tile_rows * packed.block_bytes());
    }
    return packed;
  }

  pocket::RuntimeSpec spec_;
  Random random_;
  pocket::HostWeights weights_;
  std::vector<std::unique_ptr<std::byte, Free>> blocks_;
  std::size_t bytes_ = 0;
};

}  // namespace test

#endif
