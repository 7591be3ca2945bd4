// What tests need of the reference graph (pocket/validate/reference_graph.hpp): logits in one call, matrices that can
// be spoilt, and what Transformers computed.
#ifndef POCKET_TEST_REFERENCE_HPP
#define POCKET_TEST_REFERENCE_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model_fixture.hpp"
#include "pocket/core/executor.hpp"
#include "pocket/files/hf_model.hpp"
#include "pocket/validate/reference_graph.hpp"

namespace test {

using Matrix64 = pocket::DenseMatrix64;
using Vector64 = Eigen::RowVectorXd;

// Logits of every position of one window; keys and values rounded to float16, as the library's cache rounds them.
inline Matrix64 reference_logits(const pocket::ReferenceWeights& weights, std::span<const std::int32_t> tokens,
                                 pocket::ReferenceOptions options = {.kv_f16 = true, .activations = {}}) {
  pocket::SerialExecutor serial;
  const pocket::ReferenceGraph<pocket::Exact> graph(weights, serial, options);
  return graph.logits(graph.hidden(tokens, tokens.size()));
}

// All rows of a matrix.
inline Matrix64 rows_of(const pocket::ReferenceMatrix& w) {
  Matrix64 m(static_cast<Eigen::Index>(w.n), static_cast<Eigen::Index>(w.k));
  for (std::size_t r = 0; r < w.n; ++r) w.read(r, m.data() + r * w.k);
  return m;
}

// A matrix whose row r is row from(r) of w.
inline pocket::ReferenceMatrix permuted(const pocket::ReferenceMatrix& w,
                                        std::function<std::size_t(std::size_t)> from) {
  return {w.n, w.k, [read = w.read, from = std::move(from)](std::size_t row, double* out) { read(from(row), out); }};
}

// Place `i` of a head of d values (or of all heads, one after the other): even ones to the first half, odd ones to the
// second. The rotate-half form then pairs what the interleaved form pairs.
inline std::size_t interleaved_from(std::size_t i, std::size_t d) {
  const std::size_t at = i % d, half = d / 2;
  return i - at + 2 * (at % half) + at / half;
}
// The rotary embedding of a layer interleaved; scores do not see the order within a head.
inline void interleave_rotary(pocket::ReferenceLayer& l, std::size_t d) {
  const auto from = [d](std::size_t i) { return interleaved_from(i, d); };
  l.q = permuted(l.q, from);
  l.k = permuted(l.k, from);
  for (std::vector<double>* const norm : {&l.q_norm, &l.k_norm}) {
    const std::vector<double> old = *norm;
    for (std::size_t i = 0; i < old.size(); ++i) (*norm)[i] = old[from(i)];
  }
}

// ---- test/data/hf: models that Transformers wrote, and the logits that it computed ----

inline std::string hf_fixture(const std::string& name) { return POCKET_SOURCE_DIR "/test/data/hf/" + name; }

// A directory's values, before quantisation.
struct HfReference {
  explicit HfReference(const std::string& name)
      : directory(value(pocket::HfDirectory::open(hf_fixture(name)))),
        source(value(pocket::hf_source(directory))),
        weights(pocket::reference_weights(source)) {}
  HfReference(const HfReference&) = delete;
  HfReference& operator=(const HfReference&) = delete;
  pocket::HfDirectory directory;
  pocket::ModelSource source;
  pocket::ReferenceWeights weights;
};

struct Golden {
  std::vector<std::int32_t> tokens;
  Matrix64 f64, f32, low;  // low: in the file's own type, qwen3 in BF16 and llama in float16
};

inline Golden golden_of(const std::string& name) {
  using pocket::load_unaligned;
  const auto file = value(pocket::SafetensorsFile::open(hf_fixture(name) + "/golden.safetensors"));
  const auto matrix = [&](const char* tensor) {
    const pocket::SafetensorsTensor& t = *value(file.require(tensor));
    Matrix64 m(static_cast<Eigen::Index>(t.shape.at(0)), static_cast<Eigen::Index>(t.shape.at(1)));
    for (std::size_t i = 0; i < static_cast<std::size_t>(m.size()); ++i) {
      const std::byte* const p = t.data.data();
      m.data()[i] =
          static_cast<double>(t.dtype == pocket::Dtype::F32   ? load_unaligned<float>(p + 4 * i)
                              : t.dtype == pocket::Dtype::F16 ? to_float(load_unaligned<pocket::f16>(p + 2 * i))
                                                              : to_float(load_unaligned<pocket::bf16>(p + 2 * i)));
    }
    return m;
  };
  Golden g;
  const pocket::SafetensorsTensor& tokens = *value(file.require("tokens"));
  g.tokens.resize(tokens.data.size() / sizeof(std::int32_t));
  std::memcpy(g.tokens.data(), tokens.data.data(), tokens.data.size());
  g.f64 = matrix("float64") + matrix("float64_rest");
  g.f32 = matrix("float32");
  g.low = matrix("low");
  return g;
}

}  // namespace test

#endif
