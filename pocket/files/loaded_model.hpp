// A model taken from files: its shape, its weights, and the memory in which they lie. load_model packs any ModelSource
// into private memory; open_package (package.hpp) maps what is packed already.
#ifndef POCKET_FILES_LOADED_MODEL_HPP
#define POCKET_FILES_LOADED_MODEL_HPP

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/executor.hpp"
#include "../core/status.hpp"
#include "../core/workspace.hpp"
#include "../model/spec.hpp"
#include "../model/weights.hpp"
#include "../quant/pack.hpp"
#include "model_source.hpp"
#include "safetensors.hpp"

POCKET_NAMESPACE_BEGIN

// Movable; the pointers in `weights` stay valid. Const, it may serve any number of sessions at once.
struct LoadedModel {
  std::string name;          // the file or directory
  std::string architecture;  // "qwen3" or "llama"
  RuntimeSpec spec;
  HostWeights weights;
  bool tied = true;              // the head is the embedding
  bool quantized_here = false;   // the file's values were quantised while loading
  std::size_t weight_bytes = 0;  // of tiles and norms
  std::size_t mapped_bytes = 0;  // of them, used from the mapped file as they lie; the rest is in private memory
  // whichever holds the weights
  SafetensorsFile file;
  Workspace memory;
};

// What a caller may want of a loader. Loading a package looks at none of it: nothing is packed then.
struct LoadOptions {
  std::optional<WeightFormat> format;  // of all matrices; empty: the one that is exact, or w4_g64 for floats
  std::span<std::byte> memory;         // for the weights, 64-byte aligned, weight_bytes(source) long; empty: allocated
  Progress progress;
  // open_model only: what is quantised, by the columns that count (calibration.hpp). For the while that takes the
  // memory of the model in 8 bits and of a session.
  bool calibrate = true;
};

namespace detail {

// Calls matrix(name, Matrix&, n, k) and vector(name, Vector&, n) for every tensor of w, a ModelWeights<Matrix, Vector>,
// in the order in which decoding reads them; both return Expected<void>. The embedding comes first, the head only where
// it is apart.
template <class Weights, class M, class V>
Expected<void> for_each_tensor(const RuntimeSpec& s, Weights& w, bool tied, M&& matrix, V&& vector) {
  POCKET_CHECK(matrix(std::string("embedding"), w.embedding, s.vocab, s.hidden));
  for (std::size_t l = 0; l < s.layers; ++l) {
    const std::string at = "layers." + std::to_string(l) + ".";
    auto& layer = w.layers[l];
    POCKET_CHECK(vector(at + "attention_norm", layer.attention_norm, s.hidden));
    POCKET_CHECK(matrix(at + "qkv", layer.qkv, qkv_width(s), s.hidden));
    if (s.qk_norm) {
      POCKET_CHECK(vector(at + "q_norm", layer.q_norm, s.head_dim));
      POCKET_CHECK(vector(at + "k_norm", layer.k_norm, s.head_dim));
    }
    POCKET_CHECK(matrix(at + "output", layer.output, s.hidden, q_width(s)));
    POCKET_CHECK(vector(at + "ffn_norm", layer.ffn_norm, s.hidden));
    POCKET_CHECK(matrix(at + "gate_up", layer.gate_up, gate_up_width(s), s.hidden));
    POCKET_CHECK(matrix(at + "down", layer.down, s.hidden, s.ffn));
  }
  POCKET_CHECK(vector(std::string("output_norm"), w.output_norm, s.hidden));
  if (!tied) POCKET_CHECK(matrix(std::string("head"), w.head, s.vocab, s.hidden));
  return {};
}

// Packs row blocks [begin, end) of a matrix to `out` on the executor's threads.
inline Expected<void> pack_blocks(const SourceMatrix& m, std::size_t begin, std::size_t end, std::byte* out,
                                  Executor& executor) {
  constexpr std::size_t step = 16;  // row blocks that share one buffer
  const std::size_t block_bytes = packed_bytes(m.format, tile_rows, m.k);
  std::vector<Expected<void>> results(executor.concurrency());
  executor.parallel_for(div_up(end - begin, step), [&](std::size_t task, unsigned worker) {
    RowBlock block(m.format, m.k);
    std::vector<float> floats(m.k);
    const std::size_t first = begin + task * step, last = (std::min)(end, first + step);
    for (std::size_t b = first; b < last && results[worker]; ++b)
      if (auto done = m.pack(b, block, floats.data(), out + (b - begin) * block_bytes); !done)
        results[worker] = std::move(done);
  });
  for (auto& r : results) POCKET_CHECK(std::move(r));
  return {};
}

// Adds up what was packed and tells the caller.
class ProgressMeter {
 public:
  ProgressMeter(const Progress& progress, std::size_t total) : progress_(progress), total_(total) {}
  Expected<void> add(std::size_t bytes) {
    done_ += bytes;
    if (progress_ && !progress_(done_, total_))
      return fail(Errc::cancelled,
                  "cancelled after " + std::to_string(done_) + " of " + std::to_string(total_) + " bytes of weights");
    return {};
  }

 private:
  const Progress& progress_;
  std::size_t total_, done_ = 0;
};

// Row blocks that are packed between two reports: some 4 MB of tiles.
inline std::size_t blocks_at_once(const SourceMatrix& m) noexcept {
  return (std::max)(std::size_t{1}, (std::size_t{4} << 20) / packed_bytes(m.format, tile_rows, m.k));
}

}  // namespace detail

// Bytes of packed weights and norms: what load_model asks for.
inline std::size_t weight_bytes(const ModelSource& source) noexcept {
  Layout layout;
  for (const SourceMatrix& m : source.matrices) layout.add<std::byte>(m.bytes());
  for (const SourceVector& v : source.vectors) layout.add<float>(v.size());
  return layout.bytes();
}

// Packs on the executor's threads. The source's file may be closed afterwards.
inline Expected<LoadedModel> load_model(const ModelSource& source, Executor& executor,
                                        const LoadOptions& options = {}) {
  LoadedModel model;
  model.name = source.name;
  model.architecture = source.architecture;
  model.spec = source.spec;
  model.tied = source.tied;
  model.quantized_here = !source.exact();
  model.weights.rms_epsilon = source.rms_epsilon;
  model.weights.rope_base = source.rope_base;
  model.weight_bytes = weight_bytes(source);
  auto memory = options.memory.empty() ? Workspace::allocate(model.weight_bytes)
                                       : Workspace::borrow(options.memory, model.weight_bytes);
  if (!memory) return fail(memory.error().code, source.name + ": " + memory.error().message);
  model.memory = *std::move(memory);
  model.weights.layers.resize(model.spec.layers);
  Layout layout;
  detail::ProgressMeter meter(options.progress, model.weight_bytes);
  auto from_matrix = source.matrices.begin();
  auto from_vector = source.vectors.begin();
  const auto matrix = [&](const std::string&, PackedMatrix& to, std::size_t, std::size_t) -> Expected<void> {
    const SourceMatrix& m = *from_matrix++;
    std::byte* const out = model.memory.at<std::byte>(layout.add<std::byte>(m.bytes()));
    to = {out, m.n, m.k, m.format, 0};
    for (std::size_t b = 0, end; b < m.row_blocks(); b = end) {
      end = (std::min)(m.row_blocks(), b + detail::blocks_at_once(m));
      POCKET_CHECK(detail::pack_blocks(m, b, end, out + b * to.block_bytes(), executor));
      POCKET_CHECK(meter.add((end - b) * to.block_bytes()));
    }
    return {};
  };
  const auto vector = [&](const std::string&, const float*& to, std::size_t) -> Expected<void> {
    const SourceVector& v = *from_vector++;
    float* const out = model.memory.at<float>(layout.add<float>(v.size()));
    v.read(out);
    to = out;
    return meter.add(round_up(v.size() * sizeof(float), workspace_alignment));
  };
  POCKET_CHECK(detail::for_each_tensor(model.spec, model.weights, model.tied, matrix, vector));
  if (model.tied) model.weights.head = model.weights.embedding;
  if (auto fits = check_weights(model.spec, model.weights); !fits)
    return fail(fits.error().code, source.name + ": " + fits.error().message);
  return model;
}

POCKET_NAMESPACE_END

#endif
