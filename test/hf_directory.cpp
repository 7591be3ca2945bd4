// Hugging Face directories (pocket/files/hf_model.hpp): the same model in other words, and what must be refused. Made
// from test/data/hf by changing one thing. That the model itself comes out right: hf_model.cpp.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model_fixture.hpp"
#include "pocket/core/executor.hpp"
#include "pocket/files/hf_model.hpp"
#include "pocket/files/safetensors.hpp"

using namespace pocket;
using test::value;
using Json = nlohmann::json;

namespace {

std::string fixture(const std::string& name) { return POCKET_SOURCE_DIR "/test/data/hf/" + name; }

// ---- copies of a directory, changed ----

struct Tensor {
  Dtype dtype{};
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> data;
};
using Tensors = std::map<std::string, Tensor>;

class Copy {
 public:
  explicit Copy(const std::string& name) {
    char path[] = "/tmp/pocket-hf-XXXXXX";
    REQUIRE(mkdtemp(path) != nullptr);
    path_ = path;
    std::filesystem::copy(fixture(name), path_);
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  ~Copy() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  Copy& json(const std::string& name, const std::function<void(Json&)>& change) {
    Json j = Json::parse(std::ifstream(file(name)));
    change(j);
    std::ofstream(file(name)) << j;
    return *this;
  }
  Copy& config(const std::function<void(Json&)>& change) { return json("config.json", change); }
  Copy& set(const char* field, Json to) {
    return config([&](Json& j) { j[field] = std::move(to); });
  }

  Tensors tensors(const std::string& name) const {
    const auto from = value(SafetensorsFile::open(file(name)));
    Tensors all;
    for (const SafetensorsTensor& t : from.tensors()) all[t.name] = {t.dtype, t.shape, {t.data.begin(), t.data.end()}};
    return all;
  }
  void write(const std::string& name, const Tensors& all) const {
    SafetensorsWriter writer;
    for (const auto& [tensor, t] : all) REQUIRE(writer.add_tensor(tensor, t.dtype, t.shape));
    REQUIRE(writer.begin(file(name), true));
    for (const auto& [tensor, t] : all) REQUIRE(writer.append(tensor, t.data));
    REQUIRE(writer.finish());
  }
  Copy& change(const std::string& name, const std::function<void(Tensors&)>& change) {
    Tensors all = tensors(name);
    change(all);
    write(name, all);
    return *this;
  }

 private:
  std::string path_;
};

// The packed bytes of a model, in order: equal for equal models.
std::vector<std::byte> packed(const std::string& path) {
  SerialExecutor serial;
  LoadedModel m = value(load_hf(path, serial));
  std::vector<std::byte> all;
  const auto add = [&](const void* p, std::size_t n) -> Expected<void> {
    all.insert(all.end(), static_cast<const std::byte*>(p), static_cast<const std::byte*>(p) + n);
    return {};
  };
  REQUIRE(pocket::detail::for_each_tensor(
      m.spec, m.weights, m.tied,
      [&](const std::string&, PackedMatrix& w, std::size_t, std::size_t) { return add(w.tiles, w.bytes()); },
      [&](const std::string&, const float*& v, std::size_t n) { return add(v, n * sizeof(float)); }));
  REQUIRE(add(&m.weights.rope_base, sizeof(double)));
  return all;
}

}  // namespace

namespace {

constexpr const char *shard_1 = "model-00001-of-00002.safetensors", *shard_2 = "model-00002-of-00002.safetensors",
                     *index_file = "model.safetensors.index.json", *single = "model.safetensors";

using Change = std::function<void(Copy&)>;

// All shards in one file, with another element type if asked for.
void in_one_file(Copy& c, bool as_f32) {
  Tensors all = c.tensors(shard_1);
  all.merge(c.tensors(shard_2));
  for (auto& [name, t] : all) {
    if (!as_f32) break;
    std::vector<float> values(t.data.size() / 2);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = to_float(load_unaligned<bf16>(t.data.data() + 2 * i));
    const auto bytes = std::as_bytes(std::span(values));
    t = {Dtype::F32, t.shape, {bytes.begin(), bytes.end()}};
  }
  c.write(single, all);
  for (const char* name : {shard_1, shard_2, index_file}) std::filesystem::remove(c.file(name));
}

Tensor floats(std::vector<std::uint64_t> shape, float fill = 1) {
  std::uint64_t n = 1;
  for (const std::uint64_t d : shape) n *= d;
  const std::vector<float> values(n, fill);
  const auto bytes = std::as_bytes(std::span(values));
  return {Dtype::F32, std::move(shape), {bytes.begin(), bytes.end()}};
}

}  // namespace

TEST_CASE("the same model in other words gives the same bytes") {
  struct Row {
    const char *what, *model;
    Change change;
  };
  const Row rows[] = {
      {"one file", "qwen3", [](Copy& c) { in_one_file(c, false); }},
      {"one file of F32", "qwen3", [](Copy& c) { in_one_file(c, true); }},
      {"as Transformers 4 writes the rotary base", "qwen3",
       [](Copy& c) {
         c.config([](Json& j) {
           j.erase("rope_parameters");
           j["rope_theta"] = 1000000;
           j["rope_scaling"] = nullptr;
         });
       }},
      {"an unused window", "qwen3", [](Copy& c) { c.set("sliding_window", 16); }},
      {"no word on tying", "qwen3", [](Copy& c) { c.config([](Json& j) { j.erase("tie_word_embeddings"); }); }},
      {"a head that is the embedding again", "qwen3",
       [](Copy& c) {
         c.change(shard_2,
                  [&](Tensors& t) { t["lm_head.weight"] = c.tensors(shard_1).at("model.embed_tokens.weight"); });
       }},
      {"no head size", "llama", [](Copy& c) { c.config([](Json& j) { j.erase("head_dim"); }); }},
      {"no word on tying", "llama", [](Copy& c) { c.config([](Json& j) { j.erase("tie_word_embeddings"); }); }},
      {"the default rotary base", "llama", [](Copy& c) { c.config([](Json& j) { j.erase("rope_parameters"); }); }},
      {"rotary frequencies", "llama",
       [](Copy& c) {
         c.change(single, [](Tensors& t) { t["model.layers.0.self_attn.rotary_emb.inv_freq"] = floats({8}); });
       }},
  };
  for (const Row& row : rows) {
    CAPTURE(row.model, row.what);
    Copy c(row.model);
    row.change(c);
    CHECK(packed(c.path()) == packed(fixture(row.model)));
  }
}

namespace {

// After the change, loading fails; the message has the file's path in it (or the directory's) and all of the words.
struct Refusal {
  const char* model;
  Errc code;
  const char* file;
  std::vector<const char*> words;
  Change change;
};

void check_refusal(const Refusal& r) {
  Copy c(r.model);
  r.change(c);
  SerialExecutor serial;
  const auto model = load_hf(c.path(), serial);
  CAPTURE(r.model, r.file, r.words);
  if (model) {
    CHECK_FALSE(model);
    return;
  }
  CAPTURE(model.error().message);
  CHECK(model.error().code == r.code);
  CHECK(model.error().message.find(*r.file == 0 ? c.path() : c.file(r.file)) != std::string::npos);
  for (const char* word : r.words) CHECK(model.error().message.find(word) != std::string::npos);
}

Refusal config_refusal(const char* model, Errc code, const char* field, Json to, std::vector<const char*> more = {}) {
  more.push_back(field);
  return {model, code, "config.json", more, [field, to](Copy& c) { c.set(field, to); }};
}

}  // namespace

TEST_CASE("config.json: what is missing, of another type or not computed is refused, naming file and field") {
  constexpr Errc bad = Errc::malformed, other = Errc::unsupported;
  for (const char* field : {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps"})
    for (const Json& wrong : {Json(), Json(true), Json::array({96})})
      check_refusal(config_refusal("qwen3", bad, field, wrong));
  for (const char* field : {"hidden_size", "vocab_size", "num_key_value_heads", "head_dim"})
    for (const Json& wrong : {Json(-96), Json(96.5), Json("96"), Json(1e30)})
      check_refusal(config_refusal("qwen3", bad, field, wrong));
  for (const char* field : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
    check_refusal(config_refusal("qwen3", bad, field, "no"));
    check_refusal(config_refusal("qwen3", other, field, true));
    check_refusal(config_refusal("llama", other, field, true));
  }
  const Json yarn = {{"rope_type", "yarn"}, {"rope_theta", 1e6}, {"factor", 4}};
  const Json linear = {{"type", "linear"}, {"factor", 2}};
  const Json kinds = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
                      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  const Refusal refusals[] = {
      config_refusal("qwen3", bad, "tie_word_embeddings", "yes"),
      config_refusal("qwen3", bad, "tie_word_embeddings", 1),
      config_refusal("qwen3", bad, "rope_parameters", 1e6),
      config_refusal("qwen3", bad, "rope_parameters", {{"rope_theta", "1e6"}}, {"rope_theta"}),
      config_refusal("qwen3", bad, "rope_theta", "1e6"),
      config_refusal("qwen3", bad, "rope_scaling", "linear"),
      config_refusal("qwen3", bad, "layer_types", "full_attention"),
      config_refusal("qwen3", bad, "hidden_act", 1),
      config_refusal("qwen3", other, "model_type", "mistral", {"mistral", "qwen3", "llama"}),
      config_refusal("qwen3", other, "rope_parameters", yarn, {"yarn"}),
      config_refusal("llama", other, "rope_scaling", linear, {"linear"}),
      config_refusal("qwen3", other, "rope_parameters", kinds),
      config_refusal("qwen3", other, "rope_parameters", {{"rope_theta", 1e6}, {"partial_rotary_factor", 0.5}},
                     {"partial_rotary_factor"}),
      config_refusal("llama", other, "partial_rotary_factor", 0.25),
      config_refusal("qwen3", other, "layer_types", {"full_attention", "sliding_attention", "full_attention"},
                     {"sliding_attention"}),
      config_refusal("qwen3", other, "hidden_act", "gelu", {"gelu", "silu"}),
      config_refusal("llama", other, "quantization_config", {{"quant_method", "awq"}}),
      // Sizes that the graph refuses are named in words.
      {"qwen3", other, "config.json", {"layer count"}, [](Copy& c) { c.set("num_hidden_layers", 1ull << 62); }},
      {"qwen3", other, "config.json", {"layer count"}, [](Copy& c) { c.set("num_hidden_layers", (1ull << 32) + 3); }},
      {"qwen3", other, "config.json", {"head count 0"}, [](Copy& c) { c.set("num_attention_heads", 0); }},
      {"llama", other, "config.json", {"head count 0"}, [](Copy& c) { c.set("num_attention_heads", 0); }},
      {"qwen3",
       other,
       "config.json",
       {"head count 4", "KV head count 3"},
       [](Copy& c) { c.set("num_key_value_heads", 3); }},
      {"qwen3", other, "config.json", {"hidden size 90"}, [](Copy& c) { c.set("hidden_size", 90); }},
  };
  for (const Refusal& r : refusals) check_refusal(r);
  for (const Json& wrong : {Json(-1e-6), Json(2), Json(1e300)})
    check_refusal({"qwen3", Errc::invalid_argument, "", {"epsilon"}, [&](Copy& c) { c.set("rms_norm_eps", wrong); }});
  for (const Json& wrong : {Json(0), Json(-1e6), Json(1e13)})
    check_refusal({"qwen3", Errc::invalid_argument, "", {"rotary base"}, [&](Copy& c) { c.set("rope_theta", wrong); }});
}

TEST_CASE("tensors that do not fit config.json are refused, naming file and tensor") {
  constexpr Errc bad = Errc::malformed, other = Errc::unsupported;
  const auto in_single = [](const std::function<void(Tensors&)>& change) {
    return [change](Copy& c) { c.change(single, change); };
  };
  const Refusal refusals[] = {
      // The configuration asks for something else.
      {"qwen3", bad, "", {"lm_head.weight", "missing"}, [](Copy& c) { c.set("tie_word_embeddings", false); }},
      {"llama",
       bad,
       single,
       {"lm_head.weight", "tie_word_embeddings"},
       [](Copy& c) { c.set("tie_word_embeddings", true); }},
      {"qwen3", other, shard_2, {"model.layers.2."}, [](Copy& c) { c.set("num_hidden_layers", 2); }},
      {"qwen3", bad, "", {"model.layers.3.", "missing"}, [](Copy& c) { c.set("num_hidden_layers", 4); }},
      {"qwen3",
       bad,
       shard_1,
       {"q_proj.weight", "256 x 96", "512 x 96"},
       [](Copy& c) { c.config([](Json& j) { j.erase("head_dim"); }); }},
      {"qwen3",
       bad,
       shard_1,
       {"k_proj.weight", "128 x 96", "256 x 96"},
       [](Copy& c) { c.config([](Json& j) { j.erase("num_key_value_heads"); }); }},
      {"qwen3",
       bad,
       shard_1,
       {"gate_proj.weight", "160 x 96", "144 x 96"},
       [](Copy& c) { c.set("intermediate_size", 144); }},
      {"qwen3",
       bad,
       shard_1,
       {"embed_tokens.weight", "384 x 96", "400 x 96"},
       [](Copy& c) { c.set("vocab_size", 400); }},
      {"qwen3", other, "", {"k_norm.weight", "llama"}, [](Copy& c) { c.set("model_type", "llama"); }},
      {"llama",
       bad,
       "",
       {"q_norm.weight", "missing"},
       [](Copy& c) { c.set("model_type", "qwen3").set("head_dim", 16); }},
      // The file does.
      {"llama", bad, "", {"model.norm.weight", "missing"}, in_single([](Tensors& t) { t.erase("model.norm.weight"); })},
      {"llama", bad, "", {"model.layers.1.mlp.up_proj.weight", "missing"}, in_single([](Tensors& t) {
         t.erase("model.layers.1.mlp.up_proj.weight");
       })},
      {"llama",
       bad,
       single,
       {"model.layers.1.self_attn.o_proj.weight", "80 x 64", "80 x 80"},
       in_single([](Tensors& t) { t["model.layers.1.self_attn.o_proj.weight"] = floats({80, 64}); })},
      {"llama", bad, single, {"model.layers.0.mlp.down_proj.weight", "112 x 80", "80 x 112"}, in_single([](Tensors& t) {
         t["model.layers.0.mlp.down_proj.weight"] = floats({112, 80});
       })},
      {"llama", bad, single, {"model.layers.0.mlp.down_proj.weight", "dimensions"}, in_single([](Tensors& t) {
         t["model.layers.0.mlp.down_proj.weight"] = floats({80, 112, 1});
       })},
      {"llama", bad, single, {"model.norm.weight", "dimensions"}, in_single([](Tensors& t) {
         t["model.norm.weight"] = floats({});
       })},
      {"llama", bad, single, {"model.norm.weight", "1 x 0", "1 x 80"}, in_single([](Tensors& t) {
         t["model.norm.weight"] = floats({0});
       })},
      {"llama", bad, single, {"model.norm.weight", "80 x 1", "1 x 80"}, in_single([](Tensors& t) {
         t["model.norm.weight"] = floats({80, 1});
       })},
      {"llama", bad, single, {"model.norm.weight", "finite"}, in_single([](Tensors& t) {
         t["model.norm.weight"] = floats({80}, std::nanf(""));
       })},
      {"llama", other, single, {"model.layers.0.self_attn.q_proj.weight", "row 0"}, in_single([](Tensors& t) {
         t["model.layers.0.self_attn.q_proj.weight"] = floats({80, 80}, 1e6f);
       })},
      {"llama", other, single, {"model.layers.0.self_attn.q_proj.bias", "no place"}, in_single([](Tensors& t) {
         t["model.layers.0.self_attn.q_proj.bias"] = floats({80});
       })},
      {"llama", other, single, {"model.layers.0.mlp.up_proj.weight", "I8", "BF16"}, in_single([](Tensors& t) {
         Tensor& up = t.at("model.layers.0.mlp.up_proj.weight");
         up.dtype = Dtype::I8;
         up.data.resize(up.data.size() / 2);
       })},
  };
  for (const Refusal& r : refusals) check_refusal(r);
}

TEST_CASE("files and shards: what is missing or contradicts the index is refused, naming it") {
  constexpr Errc bad = Errc::malformed;
  const auto remove = [](const char* name) { return [name](Copy& c) { std::filesystem::remove(c.file(name)); }; };
  const auto text = [](const char* name, const char* words) {
    return [=](Copy& c) { std::ofstream(c.file(name)) << words; };
  };
  const auto map = [](const std::function<void(Json&)>& change) {
    return [change](Copy& c) { c.json(index_file, [&](Json& j) { change(j["weight_map"]); }); };
  };
  const Refusal refusals[] = {
      {"qwen3", Errc::io, "config.json", {}, remove("config.json")},
      {"llama", Errc::io, single, {}, remove(single)},
      {"qwen3", Errc::io, shard_1, {}, remove(shard_1)},
      {"qwen3", Errc::io, shard_2, {}, remove(shard_2)},
      {"qwen3", Errc::io, single, {}, remove(index_file)},
      {"qwen3", bad, "config.json", {}, text("config.json", "")},
      {"qwen3", bad, "config.json", {}, text("config.json", "[1]")},
      {"qwen3", bad, "config.json", {}, text("config.json", "{\"hidden_size\": 96")},
      {"qwen3", bad, index_file, {}, text(index_file, "{")},
      {"qwen3", bad, index_file, {"weight_map"}, text(index_file, "{}")},
      {"qwen3", bad, index_file, {"weight_map"}, map([](Json& m) { m = Json::object(); })},
      {"qwen3", bad, index_file, {"weight_map"}, map([](Json& m) { m = "all"; })},
      {"qwen3", bad, index_file, {"weight_map", "model.norm.weight"}, map([](Json& m) { m["model.norm.weight"] = 2; })},
      {"qwen3", bad, index_file, {"weight_map"}, map([](Json& m) {
         m["model.norm.weight"] = "../model-00002-of-00002.safetensors";
       })},
      {"qwen3", bad, index_file, {"weight_map"}, map([](Json& m) { m["model.norm.weight"] = ""; })},
      {"qwen3", Errc::io, "other.safetensors", {}, map([](Json& m) { m["model.norm.weight"] = "other.safetensors"; })},
      {"qwen3", bad, shard_2, {"model.layers.9.mlp.up_proj.weight", "index"}, map([](Json& m) {
         m["model.layers.9.mlp.up_proj.weight"] = shard_2;
       })},
      {"qwen3", bad, shard_1, {"model.norm.weight", "index"}, map([](Json& m) { m["model.norm.weight"] = shard_1; })},
      {"qwen3",
       bad,
       shard_2,
       {"model.norm.weight", "index"},
       [](Copy& c) { c.change(shard_2, [](Tensors& t) { t.erase("model.norm.weight"); }); }},
      {"qwen3",
       bad,
       shard_1,
       {"model.norm.weight", shard_2},
       [](Copy& c) { c.change(shard_1, [](Tensors& t) { t["model.norm.weight"] = floats({96}); }); }},
      {"qwen3",
       bad,
       shard_2,
       {},
       [](Copy& c) { std::filesystem::resize_file(c.file(shard_2), std::filesystem::file_size(c.file(shard_2)) - 1); }},
  };
  for (const Refusal& r : refusals) check_refusal(r);
}
