// pocket/files/gguf_export.hpp: what is written comes back through gguf_model.hpp, bit for bit where codes are written;
// and what a GGUF file cannot hold is refused, naming it, without a file left behind. That llama.cpp reads the same in
// these files: test/peer/README.md.
#include "pocket/files/gguf_export.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "model_fixture.hpp"
#include "pocket/files/hf_tokenizer_writer.hpp"

using namespace pocket;
using test::value;
namespace fs = std::filesystem;

namespace {

const std::string data = POCKET_SOURCE_DIR "/test/data/";

struct Directory {
  Directory() {
    char name[] = "/tmp/pocket-export-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path = name;
  }
  ~Directory() { fs::remove_all(path); }
  std::string operator/(const char* name) const { return path + "/" + name; }
  std::string path;
};

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Shapes in which nothing is a multiple of what it could be: padded rows, heads of three row blocks, and for groups of
// 32 padded columns.
constexpr RuntimeSpec spec_of(bool qwen3, bool wide) {
  return {2, wide ? 64u : 96u, wide ? 4u : 2u, wide ? 2u : 1u, 48, wide ? 192u : 160u, 37, 300, qwen3};
}

// Random weights as a loader would give them; the head is another matrix or the embedding.
struct Model {
  Model(const RuntimeSpec& spec, WeightFormat format, bool tied, float offset = 0)
      : random(spec, test::ModelFormats::all(format, offset), 1),
        other(spec, test::ModelFormats::all(format, offset), 2) {
    loaded.name = "random";
    loaded.architecture = spec.qk_norm ? "qwen3" : "llama";
    loaded.spec = spec;
    loaded.weights = random.weights();
    loaded.tied = tied;
    if (!tied) loaded.weights.head = other.weights().embedding;
  }
  test::RandomModel random, other;
  LoadedModel loaded;
};

void write_package(LoadedModel& m, const std::string& directory) {
  SafetensorsWriter writer;
  REQUIRE(begin_package(
      writer, m.spec, m.architecture, m.tied, m.weights.rms_epsilon, m.weights.rope_base,
      [&](const std::string&) { return m.weights.embedding.format; }, package_path(directory), false));
  REQUIRE(pocket::detail::for_each_tensor(
      m.spec, m.weights, m.tied,
      [&](const std::string& name, PackedMatrix& w, std::size_t, std::size_t) {
        return writer.append(name, {w.tiles, w.bytes()});
      },
      [&](const std::string& name, const float*& v, std::size_t n) {
        return writer.append(name, std::as_bytes(std::span(v, n)));
      }));
  REQUIRE(writer.finish());
}

LoadedModel load(const std::string& path) {
  SerialExecutor serial;
  return value(load_gguf(value(GgufFile::open(path)), serial));
}

// The same model: shape, constants, norms, and the tiles bit for bit, or the values where formats may differ.
void check_same(LoadedModel& a, LoadedModel& b, bool bit_for_bit = true) {
  REQUIRE(a.architecture == b.architecture);
  REQUIRE(a.tied == b.tied);
  REQUIRE_FALSE(b.quantized_here);
  REQUIRE(std::memcmp(&a.spec, &b.spec, offsetof(RuntimeSpec, qk_norm)) == 0);
  REQUIRE(a.spec.qk_norm == b.spec.qk_norm);
  REQUIRE(a.weights.rms_epsilon == b.weights.rms_epsilon);
  REQUIRE(a.weights.rope_base == b.weights.rope_base);
  std::vector<const PackedMatrix*> matrices;
  std::vector<const float*> vectors;
  const auto take_matrix = [&](const std::string&, PackedMatrix& m, std::size_t, std::size_t) -> Expected<void> {
    matrices.push_back(&m);
    return {};
  };
  const auto take_vector = [&](const std::string&, const float*& v, std::size_t) -> Expected<void> {
    vectors.push_back(v);
    return {};
  };
  REQUIRE(pocket::detail::for_each_tensor(a.spec, a.weights, a.tied, take_matrix, take_vector));
  std::size_t matrix = 0, vector = 0;
  const auto same_matrix = [&](const std::string& name, PackedMatrix& m, std::size_t n,
                               std::size_t k) -> Expected<void> {
    const PackedMatrix& w = *matrices[matrix++];
    INFO(name);
    if (bit_for_bit) {
      REQUIRE(m.format == w.format);
      REQUIRE(std::memcmp(m.tiles, w.tiles, w.bytes()) == 0);
    }
    std::vector<float> x(k), y(k);
    for (std::size_t r = 0; r < n; ++r) {
      dequantize_row(w, r, x.data());
      dequantize_row(m, r, y.data());
      if (x != y) FAIL("row " << r);
    }
    return {};
  };
  const auto same_vector = [&](const std::string& name, const float*& v, std::size_t n) -> Expected<void> {
    INFO(name);
    REQUIRE(std::memcmp(v, vectors[vector++], n * sizeof(float)) == 0);
    return {};
  };
  REQUIRE(pocket::detail::for_each_tensor(b.spec, b.weights, b.tied, same_matrix, same_vector));
  REQUIRE(matrix == matrices.size());
}

void refused(const Expected<GgufExported>& done, Errc code, const std::vector<std::string>& texts) {
  REQUIRE_FALSE(done);
  INFO(done.error().message);
  REQUIRE(done.error().code == code);
  for (const std::string& text : texts) REQUIRE(done.error().message.find(text) != std::string::npos);
}

}  // namespace

TEST_CASE("a package's codes, scales and minima come back bit for bit, and a GGUF file as the same file") {
  SerialExecutor serial;
  for (const WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32})
    for (const bool qwen3 : {true, false})
      for (const bool tied : {true, false}) {
        INFO(name_of(format) << (qwen3 ? ", qwen3" : ", llama") << (tied ? ", tied" : ""));
        Directory d;
        Model m(spec_of(qwen3, format == WeightFormat::w4_g64), format, tied);
        write_package(m.loaded, d.path);
        const std::string out = d / "m.gguf";
        std::size_t last = 0, all = 0;
        GgufExportOptions options;
        options.progress = [&](std::size_t done, std::size_t total) {
          REQUIRE(done > last);
          last = done;
          all = total;
          return true;
        };
        const GgufExported done = value(export_gguf(d.path, out, serial, options));
        REQUIRE(done.types == (format == WeightFormat::w8_g32 ? "Q8_0, F32" : "Q4_1, F32"));
        REQUIRE_FALSE(done.text);
        REQUIRE(last == all);
        REQUIRE(all == done.bytes);
        LoadedModel back = load(out);
        check_same(m.loaded, back);

        REQUIRE(export_gguf(out, d / "again.gguf", serial));
        REQUIRE(read_file(out) == read_file(d / "again.gguf"));
        const GgufFile file = value(GgufFile::open(out));
        REQUIRE_FALSE(has_gguf_text(file));
        REQUIRE(value(file.unsigned_value(m.loaded.architecture + ".vocab_size")) == 37);
        REQUIRE((file.find("output.weight") == nullptr) == tied);
      }
}

TEST_CASE("w4_g64 with half a group at the end of a row keeps its values") {
  Directory d;
  Model m(spec_of(true, false), WeightFormat::w4_g64, false);
  REQUIRE(export_gguf(m.loaded, {}, d / "m.gguf"));
  LoadedModel back = load(d / "m.gguf");
  REQUIRE(back.weights.embedding.format == WeightFormat::w4_g32);
  check_same(m.loaded, back, false);
}

TEST_CASE("packed weights as F32 and F16 have the values of their codes") {
  Directory d;
  for (const WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w8_g32}) {
    Model m(spec_of(false, false), format, true, format == WeightFormat::w4_g64 ? 8.0f : 0.0f);
    for (const bool half : {false, true}) {
      GgufExportOptions options;
      options.overwrite = true;
      options.type = half ? GgufExportType::f16 : GgufExportType::f32;
      REQUIRE(export_gguf(m.loaded, {}, d / "m.gguf", options));
      const GgufFile file = value(GgufFile::open(d / "m.gguf"));
      const ModelSource back = value(gguf_source(file));
      const PackedMatrix* const matrices[] = {&m.loaded.weights.embedding, &m.loaded.weights.layers[0].qkv,
                                              &m.loaded.weights.layers[0].output, &m.loaded.weights.layers[0].gate_up,
                                              &m.loaded.weights.layers[0].down};
      for (std::size_t i = 0; i < std::size(matrices); ++i) {
        const PackedMatrix& w = *matrices[i];
        REQUIRE(back.matrices[i].parts[0].type == (half ? ElementType::f16 : ElementType::f32));
        std::vector<float> want(w.k), got(w.k);
        for (std::size_t r = 0; r < w.n; ++r) {
          dequantize_row(w, r, want.data());
          if (half)
            for (float& v : want) v = to_float(to_f16(v));
          back.matrices[i].read(r, got.data());
          if (got != want) FAIL(back.matrices[i].name << " row " << r);
        }
      }
    }
  }
}

TEST_CASE("floats of a Hugging Face directory: values, or the codes that loading gives") {
  SerialExecutor serial;
  for (const std::string name : {"qwen3", "llama"}) {
    Directory d;
    INFO(name);
    const HfDirectory directory = value(HfDirectory::open(data + "hf/" + name));
    const ModelSource source = value(hf_source(directory));
    for (const GgufExportType type : {GgufExportType::exact, GgufExportType::f16, GgufExportType::f32}) {
      GgufExportOptions options;
      options.overwrite = true;
      options.type = type;
      const GgufExported done = value(export_gguf(data + "hf/" + name, d / "m.gguf", serial, options));
      REQUIRE(done.types == (type == GgufExportType::f32 ? "F32" : "F16, F32"));
      const GgufFile file = value(GgufFile::open(d / "m.gguf"));
      const ModelSource back = value(gguf_source(file));
      REQUIRE(back.tied == source.tied);
      REQUIRE(back.rope_base == source.rope_base);
      REQUIRE(back.matrices.size() == source.matrices.size());
      for (std::size_t i = 0; i < back.matrices.size(); ++i) {
        const SourceMatrix& m = source.matrices[i];
        REQUIRE(back.matrices[i].name == m.name);
        std::vector<float> want(m.k), got(m.k);
        for (std::size_t r = 0; r < m.n; ++r) {
          m.read(r, want.data());
          if (type != GgufExportType::f32)
            for (float& v : want) v = to_float(to_f16(v));
          back.matrices[i].read(r, got.data());
          if (got != want) FAIL(m.name << " row " << r);
        }
      }
      for (std::size_t i = 0; i < back.vectors.size(); ++i) {
        std::vector<float> want(source.vectors[i].size()), got(want.size());
        source.vectors[i].read(want.data());
        back.vectors[i].read(got.data());
        REQUIRE(got == want);
      }
    }
    GgufExportOptions options;
    options.overwrite = true;
    options.type = GgufExportType::q4_1;
    const auto done = export_gguf(data + "hf/" + name, d / "m.gguf", serial, options);
    if (name == "llama") {  // hidden size 80
      refused(done, Errc::unsupported, {data + "hf/llama", "token_embd.weight", "80", "32", "Q4_1"});
      continue;
    }
    REQUIRE(done);
    LoadedModel loaded = value(open_model(data + "hf/" + name, serial)), back = load(d / "m.gguf");
    loaded.quantized_here = false;
    check_same(loaded, back, false);
  }
}

TEST_CASE("an offset becomes part of the minimum, exactly or not at all") {
  using pocket::detail::folded_minimum;
  const auto bits = [](float minimum, float offset, float scale) {
    const auto folded = folded_minimum(to_f16(minimum), offset, to_f16(scale));
    return folded ? static_cast<int>(folded->bits) : -1;
  };
  REQUIRE(bits(1, 8, 0.125f) == 0);
  REQUIRE(bits(0, 8, 0.125f) == to_f16(-1).bits);
  REQUIRE(bits(-0.25f, 7, 0.5f) == to_f16(-3.75f).bits);
  REQUIRE(bits(-0.0f, 0, 1) == 0x8000);
  REQUIRE(bits(1, 8, 0x1p-24f) == -1);  // between two float16
  REQUIRE(bits(1, 1e-30f, 1) == -1);    // and between two doubles
  REQUIRE(bits(1e-7f, 255, 256) == -1);
  REQUIRE(bits(0, 8, 10000) == -1);  // beyond float16
  REQUIRE(bits(65504, 1, -65504) == -1);

  // An offset of 8 beside a minimum that was rounded with it: both are multiples of one power of two.
  Directory d;
  Model m(spec_of(true, true), WeightFormat::w4_g64, true, 8);
  REQUIRE(export_gguf(m.loaded, {}, d / "m.gguf"));
  LoadedModel back = load(d / "m.gguf");
  REQUIRE(back.weights.embedding.offset == 0);
  check_same(m.loaded, back, false);
  Model uneven(spec_of(true, true), WeightFormat::w4_g64, true, 7.3f);
  refused(export_gguf(uneven.loaded, {}, d / "x.gguf"), Errc::unsupported, {"random", "token_embd.weight", "offset"});
  REQUIRE(std::distance(fs::directory_iterator(d.path), {}) == 1);
}

TEST_CASE("what a type does not hold is refused, naming the tensor, and nothing is left behind") {
  Directory d;
  const std::string out = d / "m.gguf";
  GgufExportOptions options;
  options.type = GgufExportType::q4_1;
  Model eight(spec_of(true, false), WeightFormat::w8_g32, true);
  refused(export_gguf(eight.loaded, {}, out, options), Errc::unsupported, {"token_embd.weight", "Q8_0", "Q4_1"});
  RuntimeSpec narrow = spec_of(false, false);
  narrow.ffn = 176;
  Model odd(narrow, WeightFormat::w4_g32, true);
  refused(export_gguf(odd.loaded, {}, out), Errc::unsupported, {"blk.0.ffn_down.weight", "176", "32"});
  Model base(spec_of(true, false), WeightFormat::w4_g32, true);
  base.loaded.weights.rope_base = 1e6 + 0.001;
  refused(export_gguf(base.loaded, {}, out), Errc::unsupported, {"rotary base", "1000000.001"});

  // A float that does not fit, in the second layer's feed-forward matrix.
  const HfDirectory directory = value(HfDirectory::open(data + "hf/llama"));
  ModelSource source = value(hf_source(directory));
  REQUIRE(source.matrices[8].name == "layers.1.down");
  SourceTensor& down = source.matrices[8].parts[0];
  std::vector<float> floats(down.rows * down.cols, 1.0f);
  down.type = ElementType::f32;
  down.data = std::as_bytes(std::span(floats));
  float& odd_one = floats[3 * down.cols + 5];
  const auto written = [&](GgufExportType type, float v) {
    odd_one = v;
    options.type = type;
    return export_gguf(source, {}, out, options);
  };
  const std::vector<std::string> place = {"hf/llama", "blk.1.ffn_down.weight", "row 3"};
  for (const float v : {65520.0f, -1e30f, std::nanf(""), INFINITY}) {
    refused(written(GgufExportType::exact, v), Errc::unsupported, place);
    refused(written(GgufExportType::f16, v), Errc::unsupported, place);
  }
  for (const float v : {std::nanf(""), -INFINITY}) refused(written(GgufExportType::f32, v), Errc::unsupported, place);
  refused(written(GgufExportType::q4_1, 1), Errc::unsupported, {"token_embd.weight", "F16", "Q4_1"});
  options.progress = [](std::size_t, std::size_t) { return false; };
  refused(written(GgufExportType::f32, 1), Errc::cancelled, {});
  options.progress = {};
  REQUIRE(fs::is_empty(d.path));
  REQUIRE(written(GgufExportType::f16, 65519));

  const std::string before = read_file(out);
  refused(written(GgufExportType::f32, 1e30f), Errc::invalid_argument, {out, "exists"});
  REQUIRE(read_file(out) == before);
  options.overwrite = true;
  refused(written(GgufExportType::f16, 1e30f), Errc::unsupported, place);
  REQUIRE(read_file(out) == before);
  REQUIRE(written(GgufExportType::f32, 1e30f));
  REQUIRE(read_file(out) != before);
  SerialExecutor serial;
  refused(export_gguf("/nowhere", out, serial), Errc::io, {"/nowhere"});
}

TEST_CASE("the tokenizer and the chat template come along") {
  Directory d;
  SerialExecutor serial;
  const Tokenizer original = value(load_hf_tokenizer(data + "hf_tokenizer"));
  RuntimeSpec spec = spec_of(true, false);
  spec.vocab = original.vocab_size() + 7;
  Model m(spec, WeightFormat::w4_g32, true);
  write_package(m.loaded, d.path);
  REQUIRE(copy_hf_text(data + "hf_tokenizer", d.path, false));
  REQUIRE(value(export_gguf(d.path, d / "m.gguf", serial)).text);
  LoadedModel back = load(d / "m.gguf");
  check_same(m.loaded, back);

  const GgufFile file = value(GgufFile::open(d / "m.gguf"));
  const Tokenizer t = value(load_tokenizer(file));
  REQUIRE(t.vocab_size() == spec.vocab);
  REQUIRE(t.type(static_cast<std::int32_t>(spec.vocab - 1)) == TokenType::unused);
  REQUIRE(value(file.string_array("tokenizer.ggml.tokens")).back() == "[PAD" + std::to_string(spec.vocab - 1) + "]");
  REQUIRE(t.eos() == original.eos());
  REQUIRE(t.bos() == original.bos());
  REQUIRE(t.padding() == original.padding());
  REQUIRE(t.add_bos() == original.add_bos());
  REQUIRE(value(file.string_value("tokenizer.chat_template")) == *value(read_hf_chat_template(data + "hf_tokenizer")));
  REQUIRE(*ChatTemplate::end_ids(t) == *ChatTemplate::end_ids(original));
  const auto golden = nlohmann::json::parse(read_file(data + "hf_tokenizer/golden.json"));
  int texts = 0;
  for (const auto& one : golden["cases"])
    for (const bool special : {true, false}) {
      const auto text = one["text"].get<std::string>();
      INFO(text);
      REQUIRE(*t.encode(text, special) == *original.encode(text, special));
      ++texts;
    }
  REQUIRE(texts >= 600);
  REQUIRE(export_gguf(d / "m.gguf", d / "again.gguf", serial));
  REQUIRE(read_file(d / "m.gguf") == read_file(d / "again.gguf"));

  spec.vocab = original.vocab_size() - 1;
  Model few(spec, WeightFormat::w4_g32, true);
  const auto read = value(read_hf_tokenizer(data + "hf_tokenizer"));
  refused(export_gguf(few.loaded, {&read.data, {}}, d / "few.gguf"), Errc::unsupported,
          {"random", "model.vocab", std::to_string(spec.vocab)});
}

TEST_CASE("a tokenizer that GGUF cannot express is refused, naming the field") {
  const auto read = value(read_hf_tokenizer(data + "hf_tokenizer"));
  const auto changed = [&](const char* field, const std::function<void(TokenizerData&)>& change) {
    TokenizerData t = read.data;
    change(t);
    GgufWriter writer;
    const auto added = add_gguf_text(writer, t, "", t.tokens.size());
    REQUIRE_FALSE(added);
    INFO(added.error().message);
    REQUIRE(added.error().code == Errc::unsupported);
    REQUIRE(added.error().message.find(field) == 0);
  };
  changed("normalizer", [](TokenizerData& t) { t.normalizer = Normalizer::none; });
  changed("normalizer", [](TokenizerData& t) { t.pre = "gpt-2"; });
  changed("ignore_merges", [](TokenizerData& t) { t.ignore_merges = true; });
  changed("ignore_merges", [](TokenizerData& t) {
    t.pre = "llama-bpe";
    t.normalizer = Normalizer::none;
  });
  changed("model.merges", [](TokenizerData& t) { t.merges.push_back(t.merges.front()); });
  changed("model.unk_token", [](TokenizerData& t) {
    for (std::size_t i = 0; i < t.tokens.size(); ++i)
      if (t.tokens[i] == spell_byte(0xff)) t.tokens[i] = {};
    t.unknown_byte = 5;
  });
  changed("model.vocab", [](TokenizerData& t) {
    t.tokens[t.tokens.size() - 2] = "[PAD0]";
    t.tokens.front() = {};
  });
}

TEST_CASE("the writer: every kind of value comes back, and calls out of order are refused") {
  Directory d;
  const std::string out = d / "w.gguf";
  const std::uint64_t dims[] = {3, 2}, blocks[] = {48, 1};
  const std::int32_t integers[] = {-1, 7};
  const std::string_view strings[] = {"a", std::string_view("\0b", 2), ""};
  GgufWriter w;
  w.add_value("u", std::uint32_t{5});
  w.add_value("f", 0.5f);
  w.add_value("b", true);
  w.add_string("s", "text");
  w.add_array("i", std::span<const std::int32_t>(integers));
  w.add_array("t", std::span<const std::string_view>(strings));
  REQUIRE(w.add_tensor("one", GgufType::F32, dims));
  REQUIRE(w.add_tensor("two", GgufType::F16, std::span(dims).first(1)));
  REQUIRE_FALSE(w.add_tensor("blocks", GgufType::Q4_1, blocks));
  REQUIRE_FALSE(w.add_tensor("", GgufType::F32, dims));
  REQUIRE_FALSE(w.add_tensor("none", GgufType::F32, {}));
  REQUIRE_FALSE(w.add_tensor("unknown", static_cast<GgufType>(77), dims));
  std::vector<std::byte> bytes(24);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  REQUIRE_FALSE(w.append("one", bytes));
  REQUIRE_FALSE(w.finish());
  REQUIRE(w.begin(out));
  REQUIRE_FALSE(w.begin(out));
  REQUIRE_FALSE(w.add_tensor("late", GgufType::F32, dims));
  REQUIRE_FALSE(w.append("two", std::span(bytes).first(6)));
  REQUIRE(w.append("one", std::span(bytes).first(10)));
  REQUIRE_FALSE(w.append("one", std::span(bytes).first(15)));
  REQUIRE(w.append("one", std::span(bytes).subspan(10)));
  REQUIRE_FALSE(w.finish());
  REQUIRE(w.append("two", std::span(bytes).first(6)));
  REQUIRE_FALSE(w.append("two", std::span(bytes).first(1)));
  REQUIRE(fs::exists(out) == false);
  REQUIRE(w.finish());
  const GgufFile file = value(GgufFile::open(out));
  REQUIRE(file.version() == 3);
  REQUIRE(value(file.unsigned_value("u")) == 5);
  REQUIRE(value(file.float_value("f")) == 0.5);
  REQUIRE(value(file.bool_value("b")));
  REQUIRE(value(file.string_value("s")) == "text");
  REQUIRE(value(file.integer_array("i")) == std::vector<std::int64_t>{-1, 7});
  REQUIRE(value(file.string_array("t")) == std::vector<std::string_view>(std::begin(strings), std::end(strings)));
  REQUIRE(file.tensors().size() == 2);
  const GgufTensor& one = *value(file.require("one"));
  REQUIRE(one.dims[0] == 3);
  REQUIRE(one.dims[1] == 2);
  REQUIRE(std::memcmp(one.data.data(), bytes.data(), 24) == 0);
  REQUIRE(std::memcmp(value(file.require("two"))->data.data(), bytes.data(), 6) == 0);

  GgufWriter twice;
  twice.add_string("a", "");
  twice.add_string("a", "");
  REQUIRE(twice.begin(d / "x.gguf").error().message.find("'a'") != std::string::npos);
  GgufWriter two;
  REQUIRE(two.add_tensor("t", GgufType::F32, dims));
  REQUIRE(two.add_tensor("t", GgufType::F32, dims));
  REQUIRE(two.begin(d / "x.gguf").error().message.find("'t'") != std::string::npos);
}
