// pocket/files/calibration.hpp: the mean squares are those of the float64 graph's inputs, and weights quantised by them
// have the smaller weighted error. The models are Transformers' small directories (test/data/hf).
#include "pocket/files/calibration.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "model_fixture.hpp"
#include "pocket/core/executor.hpp"
#include "pocket/files/hf_model.hpp"
#include "pocket/files/open.hpp"
#include "reference.hpp"

using namespace pocket;
using namespace test;

namespace {

Vector64 mean_squares(const Matrix64& x) { return x.cwiseAbs2().colwise().mean(); }

// Of each product's input, in the order of the graph, from the float64 graph over the same weights.
std::vector<Vector64> wanted(const LoadedModel& model, std::span<const std::int32_t> tokens) {
  const ReferenceWeights weights = reference_weights(model.spec, model.weights);
  SerialExecutor serial;
  ReferenceGraph<Exact> graph(weights, serial, {.kv_f16 = true, .activations = {}});
  std::vector<Vector64> want;
  graph.on_project = [&](std::size_t, Projection p, const Matrix64& input, const Matrix64&) {
    if (p == Projection::q || p == Projection::output || p == Projection::gate || p == Projection::down)
      want.push_back(mean_squares(input));
  };
  want.push_back(mean_squares(graph.hidden(tokens, tokens.size())));  // the head's comes last
  return want;
}

// The measured ones in the same order.
std::vector<Vector64> measured(const LoadedModel& model, const ColumnImportance& importance) {
  std::vector<Vector64> got;
  const auto take = [&](const std::string& name) {
    const auto at = importance.find(name);
    if (at == importance.end()) throw std::runtime_error("nothing measured for " + name);
    got.push_back(Eigen::Map<const Eigen::RowVectorXf>(at->second.data(), static_cast<Eigen::Index>(at->second.size()))
                      .cast<double>());
  };
  for (std::size_t l = 0; l < model.spec.layers; ++l)
    for (const char* const matrix : {"qkv", "output", "gate_up", "down"})
      take("layers." + std::to_string(l) + "." + matrix);
  take(model.tied ? "embedding" : "head");
  REQUIRE(importance.size() == got.size());
  return got;
}

double distance(const Vector64& a, const Vector64& b) {
  return a.size() == b.size() ? (a - b).cwiseAbs().sum() / b.sum() : std::numeric_limits<double>::infinity();
}

}  // namespace

// Inputs are off by at most 1e-3 of their norm (A16, derived in graph.cpp for what comes at the very end), so that the
// sum of |squares - squares| is at most 2e-3 + 1e-6 of the sum of squares.
TEST_CASE("the mean squares of all inputs are the float64 graph's") {
  for (const char* const name : {"qwen3", "llama"}) {
    const auto directory = value(HfDirectory::open(hf_fixture(name)));
    const auto source = value(hf_source(directory, WeightFormat::w8_g32));
    const auto pool = value(ThreadPool::create(2));
    const LoadedModel model = value(load_model(source, *pool));
    const auto tokens = random_tokens(60, model.spec.vocab, 5);
    const auto want = wanted(model, tokens);
    const auto got = measured(model, value(measure_importance(model, tokens, *pool, 60)));
    REQUIRE(got.size() == want.size());
    double worst = 0, nearest = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < got.size(); ++i) {
      worst = (std::max)(worst, distance(got[i], want[i]));
      for (std::size_t j = 0; j < got.size(); ++j)
        if (i != j) nearest = (std::min)(nearest, distance(got[j], want[i]));
    }
    std::printf("%s: mean squares off by %.1e at most; another product's by %.1e at least\n", name, worst, nearest);
    CHECK(worst < 2.1e-3);
    CHECK(nearest > 10 * 2.1e-3);  // taking one for another would be seen
  }
}

TEST_CASE("windows start anew, and the mean is over all tokens") {
  const auto directory = value(HfDirectory::open(hf_fixture("qwen3")));
  const auto source = value(hf_source(directory, WeightFormat::w8_g32));
  SerialExecutor serial;
  const LoadedModel model = value(load_model(source, serial));
  const auto tokens = random_tokens(50, model.spec.vocab, 6);
  std::size_t calls = 0;
  const auto all =
      measured(model, value(measure_importance(model, tokens, serial, 30, [&](std::size_t done, std::size_t total) {
                 REQUIRE(total == 50);
                 REQUIRE(done == (calls++ == 0 ? 30 : 50));
                 return true;
               })));
  REQUIRE(calls == 2);
  const std::span both(tokens);
  const auto first = measured(model, value(measure_importance(model, both.first(30), serial, 30)));
  const auto second = measured(model, value(measure_importance(model, both.subspan(30), serial, 30)));
  const auto joined = measured(model, value(measure_importance(model, tokens, serial, 50)));
  for (std::size_t i = 0; i < all.size(); ++i) {
    CHECK(distance(all[i], (first[i] * 30 + second[i] * 20) / 50) < 1e-6);  // float32 results
    if (i % 4 == 1) CHECK(distance(joined[i], all[i]) > 1e-4);              // attention sees the whole window
  }

  REQUIRE(measure_importance(model, {}, serial).error().code == Errc::invalid_argument);
  REQUIRE(measure_importance(model, tokens, serial, 30, [](std::size_t, std::size_t) { return false; }).error().code ==
          Errc::cancelled);
  const std::vector<std::int32_t> outside(3, static_cast<std::int32_t>(model.spec.vocab));
  REQUIRE(measure_importance(model, outside, serial).error().code == Errc::invalid_argument);
}

TEST_CASE("weighed columns: the error in what a product is made of falls, in every matrix") {
  for (const char* const name : {"qwen3", "llama"}) {
    const auto directory = value(HfDirectory::open(hf_fixture(name)));
    const auto pool = value(ThreadPool::create(2));
    const auto precise = value(hf_source(directory, WeightFormat::w8_g32));
    const LoadedModel model = value(load_model(precise, *pool));
    const auto tokens = random_tokens(200, model.spec.vocab, 7);
    const auto importance = value(measure_importance(model, tokens, *pool));
    const auto plain = value(hf_source(directory));
    auto weighed = value(hf_source(directory));
    REQUIRE(weigh_columns(weighed, importance));
    const auto error = [&](const SourceMatrix& m, const std::vector<float>& u) {
      std::vector<float> want(m.k), got(m.k);
      std::vector<std::byte> tiles(packed_bytes(m.format, tile_rows, m.k));
      RowBlock block(m.format, m.k);
      double sum = 0;
      for (std::size_t b = 0; b < m.row_blocks(); ++b) {
        REQUIRE(m.pack(b, block, want.data(), tiles.data()));
        for (std::size_t r = 0; r < tile_rows && b * tile_rows + r < m.n; ++r) {
          m.read(b * tile_rows + r, want.data());
          dequantize_row({tiles.data(), tile_rows, m.k, m.format, 0}, r, got.data());
          for (std::size_t k = 0; k < m.k; ++k) {
            const double d = static_cast<double>(got[k]) - static_cast<double>(want[k]);
            sum += static_cast<double>(u[k]) * d * d;
          }
        }
      }
      return sum;
    };
    for (std::size_t i = 0; i < plain.matrices.size(); ++i) {
      const SourceMatrix &a = plain.matrices[i], &b = weighed.matrices[i];
      if (b.importance.empty()) {
        REQUIRE((!plain.tied && a.name == "embedding"));
        continue;
      }
      CAPTURE(a.name);
      CHECK(error(b, b.importance) < error(a, b.importance));
    }

    const auto refused = [&](const std::string& matrix, auto&& change) {
      ColumnImportance wrong = importance;
      change(wrong);
      auto source = value(hf_source(directory));
      const auto done = weigh_columns(source, wrong);
      REQUIRE_FALSE(done);
      REQUIRE(done.error().message.find("'" + matrix + "'") != std::string::npos);
      REQUIRE(source.matrices[0].importance.empty());
    };
    refused("layers.1.down", [](ColumnImportance& u) { u.erase("layers.1.down"); });
    refused("layers.0.qkv", [](ColumnImportance& u) { u["layers.0.qkv"].pop_back(); });
    refused("layers.1.output", [](ColumnImportance& u) { u["layers.1.output"][3] = -1; });
    refused("layers.1.gate_up", [](ColumnImportance& u) { u["layers.1.gate_up"][3] = std::nanf(""); });
  }
}

TEST_CASE("open_model calibrates what it quantises, unless told not to; the number of threads changes nothing") {
  const auto pool = value(ThreadPool::create(3));
  SerialExecutor serial;
  for (const char* const name : {"qwen3", "llama"}) {
    const auto directory = value(HfDirectory::open(hf_fixture(name)));
    const auto tiles = [](LoadedModel& m) {
      std::vector<std::byte> all;
      const auto matrix = [&](const std::string&, PackedMatrix& w, std::size_t, std::size_t) -> Expected<void> {
        all.insert(all.end(), w.tiles, w.tiles + w.bytes());
        return {};
      };
      const auto vector = [](const std::string&, const float*&, std::size_t) { return Expected<void>(); };
      REQUIRE(pocket::detail::for_each_tensor(m.spec, m.weights, m.tied, matrix, vector));
      return all;
    };
    auto source = value(hf_source(directory));
    REQUIRE(calibrate(source, *pool));
    for (const SourceMatrix& m : source.matrices)
      REQUIRE(m.importance.size() == (!source.tied && m.name == "embedding" ? 0 : m.k));
    auto by_hand = value(load_model(source, serial));
    auto opened = value(open_model(hf_fixture(name), serial));
    auto plain =
        value(open_model(hf_fixture(name), *pool, {.format = {}, .memory = {}, .progress = {}, .calibrate = false}));
    auto loaded = value(load_hf(hf_fixture(name), serial));
    REQUIRE(tiles(opened) == tiles(by_hand));
    REQUIRE(tiles(plain) == tiles(loaded));
    REQUIRE(tiles(opened) != tiles(plain));

    auto eight = value(hf_source(directory, WeightFormat::w8_g32));
    REQUIRE_FALSE(takes_calibration(eight));
    REQUIRE(calibrate(eight, serial));
    REQUIRE(eight.matrices[0].importance.empty());

    const auto tokens = calibration_tokens(source.spec);
    REQUIRE(tokens.size() == (std::min)(std::size_t{256}, source.spec.positions));
    for (const std::int32_t t : tokens) REQUIRE((t >= 0 && static_cast<std::size_t>(t) < source.spec.vocab));

    LoadOptions cancelling;
    cancelling.progress = [](std::size_t, std::size_t) { return false; };
    REQUIRE(open_model(hf_fixture(name), serial, cancelling).error().code == Errc::cancelled);
  }
}
