// A model from a Hugging Face directory, model_type `qwen3` and `llama`: config.json, and the tensors of
// model.safetensors or of the shards that model.safetensors.index.json names, as F32, F16 or BF16.
//
// config.json says (as Transformers reads it; absent fields take the values in brackets):
//   hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, vocab_size, max_position_embeddings,
//   rms_norm_eps, num_key_value_heads [num_attention_heads], head_dim [qwen3: 128; llama: hidden_size / heads],
//   rope_theta or rope_parameters.rope_theta [10000], tie_word_embeddings [whether there is no lm_head.weight]
//
// What the graph does not compute is refused, never skipped: a rotary scaling, a sliding window, biases, another
// activation, weights that are quantised already, a tensor that has no place in it. Two tensors may be there without a
// use: the rotary frequencies that old Llama files carry, and an lm_head.weight beside a tied embedding if it is its
// copy, byte for byte (Qwen3's published files have one). Errors name the file and the field or tensor.
#ifndef POCKET_FILES_HF_MODEL_HPP
#define POCKET_FILES_HF_MODEL_HPP

#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/executor.hpp"
#include "../core/status.hpp"
#include "../model/spec.hpp"
#include "json_file.hpp"
#include "loaded_model.hpp"
#include "model_source.hpp"
#include "safetensors.hpp"

POCKET_NAMESPACE_BEGIN

// The mapped files of a directory. Movable; what it returns is valid as long as it, or the object it is moved to,
// lives.
class HfDirectory {
 public:
  // Reads config.json and the headers of all safetensors files; no weights.
  static Expected<HfDirectory> open(const std::string& path) {
    HfDirectory d;
    d.path_ = path;
    POCKET_TRY(config, JsonFile::open(path + "/config.json"));
    d.config_ = std::move(config);
    const std::string single = path + "/model.safetensors", index = single + ".index.json";
    struct stat about{};
    if (::stat(single.c_str(), &about) == 0 || ::stat(index.c_str(), &about) != 0) {
      POCKET_TRY(file, SafetensorsFile::open(single));
      d.shards_.push_back(std::move(file));
      d.add_tensors(0);
    } else {
      POCKET_CHECK(d.open_shards(index));
    }
    return d;
  }

  const std::string& path() const noexcept { return path_; }
  const JsonFile& config() const noexcept { return config_; }

  // Where a tensor is: the number of its file, and its number there.
  struct Place {
    std::string name;
    std::size_t shard, tensor;
  };
  const std::vector<Place>& tensors() const noexcept { return tensors_; }  // sorted by name
  // The file that holds it, for messages.
  const SafetensorsFile& file_of(const Place& p) const noexcept { return shards_[p.shard]; }
  // Its type, shape and bytes.
  const SafetensorsTensor& tensor_of(const Place& p) const noexcept { return file_of(p).tensors()[p.tensor]; }

  // Null if there is none of that name.
  const Place* find(std::string_view name) const noexcept {
    const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                     [](const Place& p, std::string_view n) { return std::string_view(p.name) < n; });
    return it != tensors_.end() && it->name == name ? &*it : nullptr;
  }

 private:
  void add_tensors(std::size_t shard) {
    const auto tensors = shards_[shard].tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors_.push_back({tensors[i].name, shard, i});
    std::sort(tensors_.begin(), tensors_.end(), [](const Place& a, const Place& b) { return a.name < b.name; });
  }

  // {"weight_map": {"TENSOR": "FILE", ...}}
  Expected<void> open_shards(const std::string& path) {
    POCKET_TRY(index, JsonFile::open(path));
    const nlohmann::json* const map = index.find("weight_map");
    if (map == nullptr || !map->is_object() || map->empty()) return index.wrong("weight_map", "tensors and files");
    std::vector<std::string> names;  // of the shards
    for (const auto& [tensor, file] : map->items()) {
      if (!file.is_string()) return index.wrong("weight_map", "a file name for " + in_quotes(tensor));
      names.push_back(file.get<std::string>());
    }
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    for (const std::string& name : names) {
      // A shard lies in the directory: no other place is read because a file says so.
      if (name.empty() || name.find('/') != std::string::npos || name.find('\0') != std::string::npos)
        return index.wrong("weight_map", "file names without a folder, got " + in_quotes(name));
      POCKET_TRY(shard, SafetensorsFile::open(path_ + "/" + name));
      shards_.push_back(std::move(shard));
      add_tensors(shards_.size() - 1);
    }
    for (std::size_t i = 1; i < tensors_.size(); ++i)
      if (tensors_[i].name == tensors_[i - 1].name)
        return fail(Errc::malformed, file_of(tensors_[i]).name() + ": tensor " + in_quotes(tensors_[i].name) +
                                         ": is in " + file_of(tensors_[i - 1]).name() + " as well");
    for (const auto& [tensor, file] : map->items()) {
      const Place* const place = find(tensor);
      if (place == nullptr || file_of(*place).name() != path_ + "/" + file.get<std::string>())
        return fail(Errc::malformed, path_ + "/" + file.get<std::string>() + ": tensor " + in_quotes(tensor) +
                                         ": is missing; the index says that it is there");
    }
    return {};
  }

  std::string path_;
  JsonFile config_;
  std::vector<SafetensorsFile> shards_;
  std::vector<Place> tensors_;
};

namespace detail {

inline constexpr TensorNames hf_names{.embedding = "model.embed_tokens.weight",
                                      .output_norm = "model.norm.weight",
                                      .head = "lm_head.weight",
                                      .layers = "model.layers.",
                                      .attention_norm = "input_layernorm.weight",
                                      .q = "self_attn.q_proj.weight",
                                      .k = "self_attn.k_proj.weight",
                                      .v = "self_attn.v_proj.weight",
                                      .q_norm = "self_attn.q_norm.weight",
                                      .k_norm = "self_attn.k_norm.weight",
                                      .output = "self_attn.o_proj.weight",
                                      .ffn_norm = "post_attention_layernorm.weight",
                                      .gate = "mlp.gate_proj.weight",
                                      .up = "mlp.up_proj.weight",
                                      .down = "mlp.down_proj.weight"};

class HfSourceReader {
 public:
  explicit HfSourceReader(const HfDirectory& directory) : directory_(directory), config_(directory.config()) {}

  Expected<ModelSource> read(std::optional<WeightFormat> format) {
    source_.name = directory_.path();
    POCKET_CHECK(read_spec());
    POCKET_CHECK(read_rotary());
    POCKET_CHECK(refuse_what_is_not_computed());
    POCKET_TRY(tied, config_.boolean("tie_word_embeddings", directory_.find(hf_names.head) == nullptr));
    source_.tied = tied;
    SourceGatherer gatherer(source_, hf_names, 0, format, [this](const std::string& name) { return tensor(name); });
    POCKET_CHECK(gatherer.gather());
    const auto used = gatherer.used();
    for (const HfDirectory::Place& p : directory_.tensors())
      if (!std::binary_search(used.begin(), used.end(), std::string_view(p.name))) POCKET_CHECK(check_unused(p));
    return std::move(source_);
  }

 private:
  Error refuse(std::string_view field, const std::string& why) const {
    return fail(Errc::unsupported, config_.name() + ": " + in_quotes(field) + ": " + why);
  }

  Expected<void> read_spec() {
    POCKET_TRY(type, config_.text("model_type"));
    if (type != "qwen3" && type != "llama")
      return refuse("model_type", "is " + in_quotes(type) + "; this version runs qwen3 and llama");
    source_.architecture = std::string(type);
    RuntimeSpec& s = source_.spec;
    s.qk_norm = type == "qwen3";
    const std::pair<const char*, std::size_t*> sizes[] = {
        {"hidden_size", &s.hidden},        {"intermediate_size", &s.ffn}, {"num_hidden_layers", &s.layers},
        {"num_attention_heads", &s.heads}, {"vocab_size", &s.vocab},      {"max_position_embeddings", &s.positions}};
    for (const auto& [field, to] : sizes) POCKET_CHECK(size(field, *to));
    s.kv_heads = s.heads;
    if (config_.find("num_key_value_heads") != nullptr) POCKET_CHECK(size("num_key_value_heads", s.kv_heads));
    s.head_dim = s.qk_norm ? 128 : s.heads == 0 ? 0 : s.hidden / s.heads;
    if (config_.find("head_dim") != nullptr) POCKET_CHECK(size("head_dim", s.head_dim));
    POCKET_CHECK(check_spec(s, config_.name()));
    POCKET_TRY(epsilon, config_.number("rms_norm_eps"));
    source_.rms_epsilon = static_cast<float>(epsilon);
    return {};
  }
  Expected<void> size(std::string_view field, std::size_t& to) const {
    POCKET_TRY(value, config_.unsigned_value(field));
    to = static_cast<std::size_t>((std::min)(value, std::uint64_t{1} << 31));  // check_spec refuses it well before
    return {};
  }

  // rope_theta at the top with rope_scaling beside it (Transformers 4), or both inside rope_parameters (5).
  Expected<void> read_rotary() {
    source_.rope_base = 10000;
    for (const char* field : {"rope_scaling", "rope_parameters"}) {
      const nlohmann::json* const inner = config_.find(field);
      if (inner == nullptr) continue;
      if (!inner->is_object()) return config_.wrong(field, "an object");
      for (const char* key : {"rope_type", "type"}) {
        const nlohmann::json* const type = JsonFile::find_in(*inner, key);
        if (type != nullptr && *type != "default")
          return refuse(field, "has " + in_quotes(key) + ": " + short_text(*type) + "; this version runs \"default\"");
      }
      if (JsonFile::find_in(*inner, "full_attention") != nullptr)
        return refuse(field, "differs between kinds of layers; this version runs one kind");
      if (const nlohmann::json* const partial = JsonFile::find_in(*inner, "partial_rotary_factor");
          partial != nullptr && *partial != 1)
        return refuse(field, "has \"partial_rotary_factor\": " + short_text(*partial) + "; this version runs 1");
      if (const nlohmann::json* const base = JsonFile::find_in(*inner, "rope_theta"); base != nullptr) {
        if (!base->is_number()) return config_.wrong(field, "a number as rope_theta");
        source_.rope_base = base->get<double>();
      }
    }
    if (config_.find("rope_theta") == nullptr) return {};
    POCKET_TRY(base, config_.number("rope_theta"));
    source_.rope_base = base;
    return {};
  }

  Expected<void> refuse_what_is_not_computed() const {
    for (const char* field : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
      POCKET_TRY(set, config_.boolean(field, false));
      if (set) return refuse(field, "is true; this version runs false only");
    }
    if (config_.find("hidden_act") != nullptr) {
      POCKET_TRY(act, config_.text("hidden_act"));
      if (act != "silu") return refuse("hidden_act", "is " + in_quotes(act) + "; this version runs \"silu\"");
    }
    if (const nlohmann::json* const partial = config_.find("partial_rotary_factor");
        partial != nullptr && *partial != 1)
      return refuse("partial_rotary_factor", "is " + short_text(*partial) + "; this version runs 1");
    if (const nlohmann::json* const types = config_.find("layer_types"); types != nullptr) {
      if (!types->is_array()) return config_.wrong("layer_types", "a list");
      for (const nlohmann::json& type : *types)
        if (type != "full_attention")
          return refuse("layer_types", "has " + short_text(type) + "; this version runs \"full_attention\"");
    }
    if (config_.find("quantization_config") != nullptr)
      return refuse("quantization_config", "is set; this version takes F32, F16 and BF16 weights");
    return {};
  }
  static std::string short_text(const nlohmann::json& value) {
    return value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 64);
  }

  Expected<SourceTensor> tensor(const std::string& name) const {
    const HfDirectory::Place* const place = directory_.find(name);
    if (place == nullptr)
      return fail(Errc::malformed, directory_.path() + ": tensor " + in_quotes(name) + ": is missing");
    const SafetensorsTensor& t = directory_.tensor_of(*place);
    const std::string& file = directory_.file_of(*place).name();
    const bool vector = t.shape.size() == 1;
    if (!vector && t.shape.size() != 2)
      return fail(Errc::malformed, file + ": tensor " + in_quotes(name) + ": has " + std::to_string(t.shape.size()) +
                                       " dimensions, expected one or two");
    SourceTensor s{file,
                   t.name,
                   ElementType::f32,
                   vector ? 1 : static_cast<std::size_t>(t.shape[0]),
                   static_cast<std::size_t>(t.shape.back()),
                   t.data};
    if (t.dtype == Dtype::F16)
      s.type = ElementType::f16;
    else if (t.dtype == Dtype::BF16)
      s.type = ElementType::bf16;
    else if (t.dtype != Dtype::F32)
      return fail(Errc::unsupported,
                  file + ": tensor " + in_quotes(name) + ": is " + t.dtype_name + ", expected F32, F16 or BF16");
    return s;
  }

  Expected<void> check_unused(const HfDirectory::Place& p) const {
    constexpr std::string_view rotary = ".rotary_emb.inv_freq";
    if (p.name.size() > rotary.size() && p.name.ends_with(rotary)) return {};
    const std::string place = directory_.file_of(p).name() + ": tensor " + in_quotes(p.name) + ": ";
    if (p.name != hf_names.head)
      return fail(Errc::unsupported, place + "has no place in the " + source_.architecture + " graph");
    const SafetensorsTensor& head = directory_.tensor_of(p);
    const SourceTensor& embedding = source_.matrices.front().parts.front();
    if (head.data.size() == embedding.data.size() &&
        std::memcmp(head.data.data(), embedding.data.data(), head.data.size()) == 0)
      return {};
    return fail(Errc::malformed, place +
                                     "differs from the embedding, though config.json ties them "
                                     "(\"tie_word_embeddings\")");
  }

  const HfDirectory& directory_;
  const JsonFile& config_;
  ModelSource source_;
};

}  // namespace detail

// The directory outlives the source. Nothing is read of the weights but the norms.
inline Expected<ModelSource> hf_source(const HfDirectory& directory,
                                       std::optional<WeightFormat> format = std::nullopt) {
  return detail::HfSourceReader(directory).read(format);
}

// Quantises on the executor's threads.
inline Expected<LoadedModel> load_hf(const std::string& path, Executor& executor, const LoadOptions& options = {}) {
  POCKET_TRY(directory, HfDirectory::open(path));
  POCKET_TRY(source, hf_source(directory, options.format));
  return load_model(source, executor, options);
}

POCKET_NAMESPACE_END

#endif
