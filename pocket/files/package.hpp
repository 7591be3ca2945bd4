// The packed package: a directory with a safetensors container whose tensors are tiles, mapped and used as they lie.
//
//   DIR/tokenizer.json, tokenizer_config.json, generation_config.json, chat_template.jinja
//                as in a Hugging Face directory (hf_tokenizer.hpp); optional
//   DIR/pocket.safetensors
//     metadata   format = "pocket", layout = "1" (of the tile, quant/format.hpp), architecture, and the shape:
//                layers, hidden, heads, kv_heads, head_dim, ffn, vocab, positions, rms_epsilon, rope_base
//                and for each matrix   "<tensor>" = "<format> <n> <k> <offset>"    for example "w4_g64 1152 896 0"
//     tensors    output_norm, layers.N.{attention_norm, q_norm, k_norm, ffn_norm} as F32; embedding, head (absent where
//                tied), layers.N.{qkv, output, gate_up, down} as U8, whole tiles (model/weights.hpp says what rows)
// Every tensor lies at a multiple of 64 bytes. Errors name the file and the key or tensor.
#ifndef POCKET_FILES_PACKAGE_HPP
#define POCKET_FILES_PACKAGE_HPP

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/executor.hpp"
#include "../core/status.hpp"
#include "../model/spec.hpp"
#include "../model/weights.hpp"
#include "../quant/format.hpp"
#include "loaded_model.hpp"
#include "model_source.hpp"
#include "safetensors.hpp"

POCKET_NAMESPACE_BEGIN

inline constexpr std::string_view package_file = "pocket.safetensors";

// "the file of the package in this directory"
inline std::string package_path(const std::string& directory) { return directory + "/" + std::string(package_file); }

namespace detail {

struct PackageField {
  const char* key;
  std::size_t RuntimeSpec::* member;
};
inline constexpr PackageField package_fields[] = {
    {"layers", &RuntimeSpec::layers},     {"hidden", &RuntimeSpec::hidden},       {"heads", &RuntimeSpec::heads},
    {"kv_heads", &RuntimeSpec::kv_heads}, {"head_dim", &RuntimeSpec::head_dim},   {"ffn", &RuntimeSpec::ffn},
    {"vocab", &RuntimeSpec::vocab},       {"positions", &RuntimeSpec::positions},
};

// The shortest text that reads back as the same number, without a locale.
template <class T>
std::string number_text(T v) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, v).ptr);
}

template <class T>
bool parse_number(std::string_view text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

class PackageReader {
 public:
  explicit PackageReader(SafetensorsFile file) : file_(std::move(file)) {}

  Expected<LoadedModel> read(const std::string& directory) {
    if (file_.metadata_value("format") != "pocket")
      return fail(Errc::malformed, file_.name() + ": metadata 'format' is not \"pocket\": this is no Pocket package");
    if (const auto layout = file_.metadata_value("layout"); layout != std::to_string(layout_version))
      return fail(Errc::unsupported, file_.name() + ": metadata 'layout' is " +
                                         std::string(layout.value_or("missing")) + ", this version reads " +
                                         std::to_string(layout_version));
    LoadedModel model;
    model.name = directory;
    POCKET_TRY(architecture, text("architecture"));
    if (architecture != "llama" && architecture != "qwen3")
      return fail(Errc::unsupported, file_.name() + ": metadata 'architecture' is neither llama nor qwen3");
    model.architecture = std::string(architecture);
    for (const PackageField& f : package_fields) POCKET_CHECK(number(f.key, model.spec.*f.member));
    model.spec.qk_norm = architecture == "qwen3";
    POCKET_CHECK(check_spec(model.spec, file_.name()));
    POCKET_CHECK(number("rms_epsilon", model.weights.rms_epsilon));
    POCKET_CHECK(number("rope_base", model.weights.rope_base));
    model.tied = file_.find("head") == nullptr;
    model.weights.layers.resize(model.spec.layers);
    POCKET_CHECK(for_each_tensor(
        model.spec, model.weights, model.tied,
        [&](const std::string& name, PackedMatrix& m, std::size_t n, std::size_t k) { return matrix(name, m, n, k); },
        [&](const std::string& name, const float*& v, std::size_t n) { return vector(name, v, n); }));
    if (model.tied) model.weights.head = model.weights.embedding;
    if (auto fits = check_weights(model.spec, model.weights); !fits)
      return fail(fits.error().code, file_.name() + ": " + fits.error().message);
    model.weight_bytes = model.mapped_bytes = bytes_;
    model.file = std::move(file_);
    return model;
  }

 private:
  Error bad(const std::string& what) const { return fail(Errc::malformed, file_.name() + ": " + what); }

  Expected<std::string_view> text(std::string_view key) const {
    const auto value = file_.metadata_value(key);
    if (!value) return bad("metadata '" + std::string(key) + "' is missing");
    return *value;
  }
  template <class T>
  Expected<void> number(std::string_view key, T& out) const {
    POCKET_TRY(value, text(key));
    if (!parse_number(value, out)) return bad("metadata '" + std::string(key) + "' is not a number in range");
    return {};
  }

  Expected<std::span<const std::byte>> data(const std::string& name, Dtype dtype, std::uint64_t bytes) {
    POCKET_TRY(found, file_.require(name));
    if (found->dtype != dtype || found->data.size() != bytes)
      return bad("tensor '" + name + "' holds " + std::to_string(found->data.size()) + " bytes of " +
                 found->dtype_name + ", expected " + std::to_string(bytes) + " of " +
                 std::string(dtype_info(dtype)->name));
    if (reinterpret_cast<std::uintptr_t>(found->data.data()) % 64 != 0)
      return bad("tensor '" + name + "' is not aligned to 64 bytes");
    bytes_ += found->data.size();
    return found->data;
  }

  Expected<void> matrix(const std::string& name, PackedMatrix& m, std::size_t n, std::size_t k) {
    POCKET_TRY(line, text(name));
    std::string_view rest = line;
    const auto word = [&rest] {
      const std::size_t end = (std::min)(rest.find(' '), rest.size());
      const std::string_view w = rest.substr(0, end);
      rest.remove_prefix((std::min)(end + 1, rest.size()));
      return w;
    };
    const std::string_view format = word();
    bool known = false;
    for (const WeightFormat f : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32})
      if (format == name_of(f)) {
        m.format = f;
        known = true;
      }
    if (!known || !parse_number(word(), m.n) || !parse_number(word(), m.k) || !parse_number(word(), m.offset) ||
        !rest.empty() || !(m.offset >= 0 && m.offset <= 255))
      return bad("metadata '" + name +
                 "': expected a format, rows, columns and the offset, as in \"w4_g64 1152 896 0\"");
    if (m.n != n || m.k != k)
      return bad("tensor '" + name + "' is " + std::to_string(m.n) + " x " + std::to_string(m.k) +
                 ", the shape asks for " + std::to_string(n) + " x " + std::to_string(k));
    POCKET_TRY(tiles, data(name, Dtype::U8, packed_bytes(m.format, n, k)));
    m.tiles = tiles.data();
    return {};
  }
  Expected<void> vector(const std::string& name, const float*& v, std::size_t n) {
    POCKET_TRY(floats, data(name, Dtype::F32, n * sizeof(float)));
    v = reinterpret_cast<const float*>(floats.data());
    return {};
  }

  SafetensorsFile file_;
  std::size_t bytes_ = 0;
};

}  // namespace detail

// Maps DIR/pocket.safetensors. Nothing is copied; a session is ready at once and its weights come in by page faults.
inline Expected<LoadedModel> open_package(const std::string& directory) {
  POCKET_TRY(file, SafetensorsFile::open(package_path(directory)));
  return detail::PackageReader(std::move(file)).read(directory);
}

// Writes a package's header. format_of(name) is the format of each matrix. The tensors' bytes follow by writer.append
// in the order of for_each_tensor (checked), then writer.finish().
template <class FormatOf>
Expected<void> begin_package(SafetensorsWriter& writer, const RuntimeSpec& spec, std::string_view architecture,
                             bool tied, float rms_epsilon, double rope_base, FormatOf&& format_of,
                             const std::string& path, bool overwrite) {
  POCKET_CHECK(check_spec(spec, "package"));
  const auto put = [&](std::string key, std::string value) {
    return writer.add_metadata(std::move(key), std::move(value));
  };
  POCKET_CHECK(put("format", "pocket"));
  POCKET_CHECK(put("layout", std::to_string(layout_version)));
  POCKET_CHECK(put("architecture", std::string(architecture)));
  for (const detail::PackageField& f : detail::package_fields) POCKET_CHECK(put(f.key, std::to_string(spec.*f.member)));
  POCKET_CHECK(put("rms_epsilon", detail::number_text(rms_epsilon)));
  POCKET_CHECK(put("rope_base", detail::number_text(rope_base)));
  HostWeights names;
  names.layers.resize(spec.layers);
  const auto declare_matrix = [&](const std::string& name, PackedMatrix&, std::size_t n,
                                  std::size_t k) -> Expected<void> {
    const WeightFormat format = format_of(name);
    POCKET_CHECK(put(name, std::string(name_of(format)) + " " + std::to_string(n) + " " + std::to_string(k) + " 0"));
    return writer.add_tensor(name, Dtype::U8, {packed_bytes(format, n, k)});
  };
  const auto declare_vector = [&](const std::string& name, const float*&, std::size_t n) {
    return writer.add_tensor(name, Dtype::F32, {n});
  };
  POCKET_CHECK(detail::for_each_tensor(spec, names, tied, declare_matrix, declare_vector));
  return writer.begin(path, overwrite);
}
// All matrices in one format, the embedding tied.
inline Expected<void> begin_package(SafetensorsWriter& writer, const RuntimeSpec& spec, std::string_view architecture,
                                    float rms_epsilon, double rope_base, WeightFormat format, const std::string& path,
                                    bool overwrite) {
  return begin_package(
      writer, spec, architecture, true, rms_epsilon, rope_base, [format](const std::string&) { return format; }, path,
      overwrite);
}

// Packs a model and writes its package, some megabytes at a time, in the source's formats: the same source gives the
// same bytes, whatever the executor. The file appears in the directory, which exists, when it is whole. before_finish()
// returns Expected<void> and runs when only that is left to do: what belongs beside the weights is written there.
template <class BeforeFinish>
Expected<void> write_package(const ModelSource& source, const std::string& directory, bool overwrite,
                             Executor& executor, const Progress& progress, BeforeFinish&& before_finish) {
  SafetensorsWriter writer;
  auto declared = source.matrices.begin();
  POCKET_CHECK(begin_package(
      writer, source.spec, source.architecture, source.tied, source.rms_epsilon, source.rope_base,
      [&](const std::string&) { return (declared++)->format; }, package_path(directory), overwrite));
  detail::ProgressMeter meter(progress, weight_bytes(source));
  std::vector<std::byte> buffer;
  auto from_matrix = source.matrices.begin();
  auto from_vector = source.vectors.begin();
  const auto matrix = [&](const std::string& name, PackedMatrix&, std::size_t, std::size_t) -> Expected<void> {
    const SourceMatrix& m = *from_matrix++;
    const std::size_t block_bytes = packed_bytes(m.format, tile_rows, m.k);
    for (std::size_t b = 0, end; b < m.row_blocks(); b = end) {
      end = (std::min)(m.row_blocks(), b + detail::blocks_at_once(m));
      buffer.resize((end - b) * block_bytes);
      POCKET_CHECK(detail::pack_blocks(m, b, end, buffer.data(), executor));
      POCKET_CHECK(writer.append(name, buffer));
      POCKET_CHECK(meter.add(buffer.size()));
    }
    return {};
  };
  const auto vector = [&](const std::string& name, const float*&, std::size_t) -> Expected<void> {
    const SourceVector& v = *from_vector++;
    std::vector<float> floats(v.size());
    v.read(floats.data());
    POCKET_CHECK(writer.append(name, std::as_bytes(std::span(floats))));
    return meter.add(round_up(v.size() * sizeof(float), workspace_alignment));
  };
  HostWeights names;
  names.layers.resize(source.spec.layers);
  POCKET_CHECK(detail::for_each_tensor(source.spec, names, source.tied, matrix, vector));
  POCKET_CHECK(before_finish());
  return writer.finish();
}

POCKET_NAMESPACE_END

#endif
