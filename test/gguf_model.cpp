// pocket/files/gguf_model.hpp: every element type, the fused and interleaved rows, the rotary order, and refusals, on
// small GGUF files made here.
#include "pocket/files/gguf_model.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pocket/core/executor.hpp"
#include "pocket/quant/pack.hpp"
#include "support.hpp"

using namespace pocket;

namespace {

constexpr std::size_t hidden = 64, heads = 4, kv_heads = 2, head_dim = 16, ffn = 96, vocab = 40;

using Bytes = std::string;

template <class T>
void put(Bytes& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
void put_string(Bytes& out, const std::string& s) {
  put<std::uint64_t>(out, s.size());
  out += s;
}

struct Tensor {
  GgufType type;
  std::size_t n, k;  // n = 0: a vector of k
  Bytes data;
  std::vector<double> values;  // what the data means, [n][k]
};

// Random data of any readable type, with its meaning. `equal_pairs`: neighbouring Q4 blocks share scale and minimum.
Tensor random_tensor(GgufType type, std::size_t n, std::size_t k, std::uint64_t seed, bool equal_pairs = false) {
  test::Random random(seed);
  Tensor t{type, n, k, {}, {}};
  const std::size_t rows = n == 0 ? 1 : n;
  for (std::size_t r = 0; r < rows; ++r) {
    if (type == GgufType::F32 || type == GgufType::F16 || type == GgufType::BF16) {
      for (std::size_t i = 0; i < k; ++i) {
        const float v = 1 + random.normal() * 0.1f;
        if (type == GgufType::F32) put(t.data, v);
        if (type == GgufType::F16) put(t.data, to_f16(v));
        if (type == GgufType::BF16) put(t.data, to_bf16(v));
        t.values.push_back(static_cast<double>(type == GgufType::F32   ? v
                                               : type == GgufType::F16 ? to_float(to_f16(v))
                                                                       : to_float(to_bf16(v))));
      }
      continue;
    }
    f16 scale{}, minimum{};
    for (std::size_t b = 0; b < k / 32; ++b) {
      if (!equal_pairs || b % 2 == 0) {
        scale = to_f16(0.01f + 0.02f * random.uniform());
        minimum = to_f16(-0.2f * random.uniform());
      }
      const double d = static_cast<double>(to_float(scale)), m = static_cast<double>(to_float(minimum));
      put(t.data, scale);
      if (type == GgufType::Q4_1) put(t.data, minimum);
      if (type == GgufType::Q8_0) {
        for (int i = 0; i < 32; ++i) {
          const auto q = static_cast<std::int8_t>(random.below(256) - 128);
          put(t.data, q);
          t.values.push_back(d * q);
        }
        continue;
      }
      double low[16], high[16];
      for (int i = 0; i < 16; ++i) {
        const auto byte = static_cast<std::uint8_t>(random.below(256));
        put(t.data, byte);
        low[i] = type == GgufType::Q4_1 ? d * (byte & 15) + m : d * ((byte & 15) - 8);
        high[i] = type == GgufType::Q4_1 ? d * (byte >> 4) + m : d * ((byte >> 4) - 8);
      }
      t.values.insert(t.values.end(), low, low + 16);
      t.values.insert(t.values.end(), high, high + 16);
    }
  }
  return t;
}

// One layer of either architecture.
struct Model {
  std::string architecture;
  std::map<std::string, std::function<void(Bytes&)>> metadata;
  std::map<std::string, Tensor> tensors;

  Model(const std::string& arch, GgufType type, bool equal_pairs = false) : architecture(arch) {
    const auto integer = [&](const std::string& key, std::size_t value) {
      metadata[arch + "." + key] = [value](Bytes& out) {
        put<std::uint32_t>(out, 4);
        put(out, static_cast<std::uint32_t>(value));
      };
    };
    text("general.architecture", arch);
    integer("block_count", 1);
    integer("embedding_length", hidden);
    integer("feed_forward_length", ffn);
    integer("attention.head_count", heads);
    integer("attention.head_count_kv", kv_heads);
    integer("attention.key_length", head_dim);
    integer("context_length", 128);
    number("attention.layer_norm_rms_epsilon", 1e-6f);
    number("rope.freq_base", 5000.0f);
    std::uint64_t seed = 1;
    const auto matrix = [&](const std::string& name, std::size_t n, std::size_t k) {
      tensors.emplace(name, random_tensor(type, n, k, ++seed, equal_pairs));
    };
    const auto vector = [&](const std::string& name, std::size_t k) {
      tensors.emplace(name, random_tensor(GgufType::F32, 0, k, ++seed));
    };
    matrix("token_embd.weight", vocab, hidden);
    matrix("blk.0.attn_q.weight", heads * head_dim, hidden);
    matrix("blk.0.attn_k.weight", kv_heads * head_dim, hidden);
    matrix("blk.0.attn_v.weight", kv_heads * head_dim, hidden);
    matrix("blk.0.attn_output.weight", hidden, heads * head_dim);
    matrix("blk.0.ffn_gate.weight", ffn, hidden);
    matrix("blk.0.ffn_up.weight", ffn, hidden);
    matrix("blk.0.ffn_down.weight", hidden, ffn);
    for (const char* name : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"})
      vector(name, hidden);
    if (arch == "qwen3") {
      vector("blk.0.attn_q_norm.weight", head_dim);
      vector("blk.0.attn_k_norm.weight", head_dim);
    }
  }
  void text(const std::string& key, const std::string& value) {
    metadata[key] = [value](Bytes& out) {
      put<std::uint32_t>(out, 8);
      put_string(out, value);
    };
  }
  void number(const std::string& key, float value) {
    metadata[architecture + "." + key] = [value](Bytes& out) {
      put<std::uint32_t>(out, 6);
      put(out, value);
    };
  }

  Bytes file() const {
    Bytes out = "GGUF", data;
    put<std::uint32_t>(out, 3);
    put<std::uint64_t>(out, tensors.size());
    put<std::uint64_t>(out, metadata.size());
    for (const auto& [key, write] : metadata) {
      put_string(out, key);
      write(out);
    }
    for (const auto& [name, t] : tensors) {
      put_string(out, name);
      put<std::uint32_t>(out, t.n == 0 ? 1 : 2);
      put<std::uint64_t>(out, t.k);
      if (t.n != 0) put<std::uint64_t>(out, t.n);
      put(out, static_cast<std::uint32_t>(t.type));
      data.resize(round_up(data.size(), 32));
      put<std::uint64_t>(out, data.size());
      data += t.data;
    }
    out.resize(round_up(out.size(), 32));
    return out + data;
  }

  Expected<LoadedModel> load() const {
    const Bytes bytes = file();
    auto parsed = GgufFile::parse(std::as_bytes(std::span(bytes)), "test.gguf");
    if (!parsed) return std::move(parsed).error();
    SerialExecutor serial;
    return load_gguf(*parsed, serial);
  }
};

LoadedModel loaded(const Model& m) {
  auto model = m.load();
  if (!model) FAIL(model.error().message);
  return *std::move(model);
}

// Is row `row` of w the row `from` of t, to float32's rounding or to half a quantisation step?
// What was quantised (tolerance 0) errs by at most half of min/max's step in the root mean square (quantize.hpp). The
// step is 1/15 of the group's range, here of the row's, where both ends are rounded to float16.
void check_row(const PackedMatrix& w, std::size_t row, const Tensor& t, std::size_t from, double tolerance) {
  std::vector<float> got(t.k);
  dequantize_row(w, row, got.data());
  double squares = 0, low = t.values[from * t.k], high = low;
  for (std::size_t i = 0; i < t.k; ++i) {
    const double want = t.values[from * t.k + i], error = std::fabs(static_cast<double>(got[i]) - want);
    if (tolerance > 0 && error > tolerance)
      FAIL("row " << row << " column " << i << ": " << got[i] << ", not " << want);
    squares += error * error;
    low = (std::min)(low, want);
    high = (std::max)(high, want);
  }
  const double up = std::ldexp(1.0, -10), step = (high - low + std::fabs(low) * up) / 15 * (1 + up);
  if (tolerance == 0 && std::sqrt(squares / static_cast<double>(t.k)) > 0.5 * step)
    FAIL("row " << row << ": off by " << std::sqrt(squares / static_cast<double>(t.k)) << ", steps of " << step);
}

void refused(const Model& m, const std::string& text) {
  const auto model = m.load();
  REQUIRE_FALSE(model);
  INFO(model.error().message);
  REQUIRE(model.error().message.find("test.gguf") != std::string::npos);
  REQUIRE(model.error().message.find(text) != std::string::npos);
}

}  // namespace

TEST_CASE("every element type: weights come through, exactly or within half a step on average") {
  struct Row {
    GgufType type;
    bool equal_pairs;
    WeightFormat format;
    double tolerance;
  };
  const Row rows[] = {
      {GgufType::Q4_1, false, WeightFormat::w4_g32, 1e-7}, {GgufType::Q4_1, true, WeightFormat::w4_g64, 1e-7},
      {GgufType::Q4_0, false, WeightFormat::w4_g32, 1e-7}, {GgufType::Q4_0, true, WeightFormat::w4_g64, 1e-7},
      {GgufType::Q8_0, false, WeightFormat::w8_g32, 1e-6}, {GgufType::F32, false, WeightFormat::w4_g64, 0},
      {GgufType::F16, false, WeightFormat::w4_g64, 0},     {GgufType::BF16, false, WeightFormat::w4_g64, 0}};
  for (const Row& row : rows) {
    INFO(gguf_type_name(row.type) << (row.equal_pairs ? ", pairs of blocks alike" : ""));
    const Model m("qwen3", row.type, row.equal_pairs);
    const LoadedModel model = loaded(m);
    REQUIRE(model.spec.qk_norm);
    REQUIRE(model.tied);
    REQUIRE(model.quantized_here == (row.tolerance == 0));
    REQUIRE(model.weights.rms_epsilon == 1e-6f);
    REQUIRE(model.weights.rope_base == 5000.0);
    REQUIRE(model.weights.head.tiles == model.weights.embedding.tiles);
    const auto& layer = model.weights.layers[0];
    REQUIRE(layer.qkv.format == row.format);
    const auto& t = m.tensors;
    for (std::size_t r = 0; r < vocab; ++r)
      check_row(model.weights.embedding, r, t.at("token_embd.weight"), r, row.tolerance);
    for (std::size_t r = 0; r < heads * head_dim; ++r)
      check_row(layer.qkv, r, t.at("blk.0.attn_q.weight"), r, row.tolerance);
    for (std::size_t r = 0; r < kv_heads * head_dim; ++r) {
      check_row(layer.qkv, heads * head_dim + r, t.at("blk.0.attn_k.weight"), r, row.tolerance);
      check_row(layer.qkv, (heads + kv_heads) * head_dim + r, t.at("blk.0.attn_v.weight"), r, row.tolerance);
    }
    for (std::size_t r = 0; r < ffn; ++r) {
      check_row(layer.gate_up, r / 16 * 32 + r % 16, t.at("blk.0.ffn_gate.weight"), r, row.tolerance);
      check_row(layer.gate_up, r / 16 * 32 + 16 + r % 16, t.at("blk.0.ffn_up.weight"), r, row.tolerance);
    }
    for (std::size_t r = 0; r < hidden; ++r) {
      check_row(layer.output, r, t.at("blk.0.attn_output.weight"), r, row.tolerance);
      // ffn is 96: pairs that would merge do not exist in its last group, so this one stays in groups of 32
      check_row(layer.down, r, t.at("blk.0.ffn_down.weight"), r, row.tolerance);
    }
    for (std::size_t i = 0; i < hidden; ++i)
      REQUIRE(static_cast<double>(layer.ffn_norm[i]) == t.at("blk.0.ffn_norm.weight").values[i]);
    for (std::size_t i = 0; i < head_dim; ++i)
      REQUIRE(static_cast<double>(layer.k_norm[i]) == t.at("blk.0.attn_k_norm.weight").values[i]);
  }
}

TEST_CASE("llama: rows of q and k are brought from the interleaved to the rotate-half order, v is not") {
  const Model m("llama", GgufType::Q8_0);
  const LoadedModel model = loaded(m);
  REQUIRE_FALSE(model.spec.qk_norm);
  const auto& qkv = model.weights.layers[0].qkv;
  for (std::size_t h = 0; h < heads + kv_heads; ++h)
    for (std::size_t half = 0; half < 2; ++half)
      for (std::size_t i = 0; i < head_dim / 2; ++i) {
        const bool q = h < heads;
        const std::size_t in_tensor = (q ? h : h - heads) * head_dim + 2 * i + half;
        check_row(qkv, h * head_dim + half * head_dim / 2 + i,
                  m.tensors.at(q ? "blk.0.attn_q.weight" : "blk.0.attn_k.weight"), in_tensor, 1e-6);
      }
  for (std::size_t r = 0; r < kv_heads * head_dim; ++r)
    check_row(qkv, (heads + kv_heads) * head_dim + r, m.tensors.at("blk.0.attn_v.weight"), r, 1e-6);
}

TEST_CASE("an output matrix of its own is used") {
  Model m("llama", GgufType::Q8_0);
  m.tensors.emplace("output.weight", random_tensor(GgufType::Q4_1, vocab, hidden, 99));
  const LoadedModel model = loaded(m);
  REQUIRE_FALSE(model.tied);
  REQUIRE(model.weights.head.format == WeightFormat::w4_g32);
  for (std::size_t r = 0; r < vocab; ++r) check_row(model.weights.head, r, m.tensors.at("output.weight"), r, 1e-7);
}

TEST_CASE("what the graph does not compute is refused, naming the key or tensor") {
  const auto changed = [](auto&& change) {
    Model m("qwen3", GgufType::Q8_0);
    change(m);
    return m;
  };
  refused(changed([](Model& m) { m.text("general.architecture", "mamba"); }), "mamba");
  refused(changed([](Model& m) { m.text("qwen3.rope.scaling.type", "yarn"); }), "yarn");
  refused(changed([](Model& m) { m.metadata.erase("qwen3.block_count"); }), "qwen3.block_count");
  refused(changed([](Model& m) { m.number("rope.freq_base", std::nanf("")); }), "rotary base");
  refused(changed([](Model& m) { m.tensors.emplace("blk.0.attn_q.bias", random_tensor(GgufType::F32, 0, 64, 1)); }),
          "blk.0.attn_q.bias");
  refused(changed([](Model& m) { m.tensors.erase("blk.0.ffn_up.weight"); }), "blk.0.ffn_up.weight");
  refused(changed([](Model& m) { m.tensors.erase("blk.0.attn_k_norm.weight"); }), "blk.0.attn_k_norm.weight");
  refused(changed([](Model& m) { m.tensors.at("blk.0.ffn_down.weight") = random_tensor(GgufType::Q8_0, 64, 64, 1); }),
          "blk.0.ffn_down.weight");
  refused(changed([](Model& m) {
            m.tensors.at("blk.0.attn_v.weight") = random_tensor(GgufType::Q4_1, kv_heads * head_dim, hidden, 1);
          }),
          "do not go together");
  refused(changed([](Model& m) {
            Tensor& t = m.tensors.at("blk.0.attn_output.weight");
            t = random_tensor(GgufType::F32, hidden, heads * head_dim, 1);
            const float huge = 1e6f;
            std::memcpy(t.data.data() + 40, &huge, 4);
          }),
          "blk.0.attn_output.weight");
}
