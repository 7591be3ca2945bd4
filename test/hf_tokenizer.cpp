// Text of Hugging Face directories: ids against those of the `tokenizers` library (test/peer/hf_tokens.py), for a small
// tokenizer cut from Qwen3's, for variants of it, and for Qwen3's own where it is at hand; every refusal; files that
// are damaged or hostile; what is written, read back.
#include "pocket/files/hf_tokenizer.hpp"

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "count_new.hpp"
#include "pocket/files/hf_tokenizer_writer.hpp"
#include "support.hpp"

using namespace pocket;
using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;
namespace fs = std::filesystem;

namespace {

const std::string cut_directory = POCKET_SOURCE_DIR "/test/data/hf_tokenizer";

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Directory {
  std::string path;
  Directory() {
    std::string name = (fs::temp_directory_path() / "pocket-hf-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Directory() { fs::remove_all(path); }
  void put(const char* name, std::string_view text) const {
    std::ofstream(path + "/" + name, std::ios::binary) << text;
  }
};

Expected<Tokenizer> parse(const std::string& tokenizer, const std::string& config = "",
                          const std::string& generation = "") {
  POCKET_TRY(read, parse_hf_tokenizer(tokenizer, config, generation, "DIR"));
  return Tokenizer::create(read.data);
}
Tokenizer make(const Json& tokenizer, const Json& config = {}, const Json& generation = {}) {
  auto t =
      parse(tokenizer.dump(), config.is_null() ? "" : config.dump(), generation.is_null() ? "" : generation.dump());
  if (!t) FAIL(t.error().message);
  return std::move(*t);
}
Ids encode(const Tokenizer& t, std::string_view text, bool special = true) {
  auto ids = t.encode(text, special);
  REQUIRE(ids);
  return *ids;
}

// The 256 bytes and what "ab", "abc" merge from.
Json tiny() {
  Json vocab = Json::object();
  for (int b = 0; b < 256; ++b) vocab[spell_byte(static_cast<unsigned char>(b))] = b;
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array({{{"id", 258},
                                         {"content", "<|end|>"},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", true}}})},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", ""},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", Json::array({"a b", "ab c"})}}}};
}

// The tokenizer of a variant in golden.json, as hf_tokens.py makes it.
Json varied(Json json, const Json& variant) {
  if (variant.contains("replace")) json.update(variant["replace"]);
  if (variant.contains("model")) json["model"].update(variant["model"]);
  if (variant.contains("drop_merges")) {
    Json merges = Json::array();
    for (std::size_t i = 0; i < json["model"]["merges"].size(); ++i)
      if (i % variant["drop_merges"].get<std::size_t>() != 0) merges.push_back(json["model"]["merges"][i]);
    json["model"]["merges"] = merges;
  }
  if (variant.contains("add"))
    for (const Json& token : variant["add"]) json["added_tokens"].push_back(token);
  return json;
}

int compare(const Tokenizer& t, const Json& golden, const std::string& name) {
  int checked = 0;
  for (const Json& one : golden["cases"]) {
    const auto text = one["text"].get<std::string>();
    for (const bool special : {true, false}) {
      const Json& ids = !special && one.contains("plain") ? one["plain"] : one["ids"];
      INFO(name << (special ? ": " : ", special tokens as text: ") << text);
      REQUIRE(encode(t, text, special) == (ids.contains(name) ? ids[name] : ids["cut"]).get<Ids>());
      ++checked;
    }
  }
  return checked;
}

struct Refusal {
  const char* pointer;  // where in the document; "-" at its end appends
  Json value;
  const char* field;  // what the message names
  Errc code = Errc::unsupported;
};

}  // namespace

TEST_CASE("ids are those of Hugging Face's tokenizers: the cut vocabulary and its variants") {
  const Json golden = Json::parse(slurp(cut_directory + "/golden.json"));
  const auto cut = load_hf_tokenizer(cut_directory);
  if (!cut) FAIL(cut.error().message);
  REQUIRE(compare(*cut, golden, "cut") >= 600);
  const Json json = Json::parse(slurp(cut_directory + "/tokenizer.json"));
  int variants = 0, differing = 0;
  for (const auto& [name, variant] : golden["variants"].items()) {
    compare(make(varied(json, variant)), golden, name);
    ++variants;
    for (const Json& one : golden["cases"]) differing += one["ids"].contains(name);
  }
  REQUIRE(variants == 4);
  REQUIRE(differing > 100);
}

TEST_CASE("ids are those of Hugging Face's tokenizers: Qwen3's full vocabulary") {
  const char* const given = std::getenv("POCKET_TEST_QWEN3_TOKENIZER");
  const std::string directory =
      given != nullptr && *given != '\0' ? given : POCKET_SOURCE_DIR "/models/qwen3-tokenizer";
  if (!fs::exists(directory + "/tokenizer.json")) {
    std::printf("skipped: no tokenizer.json in %s (test/peer/README.md says where to get Qwen3's)\n",
                directory.c_str());
    return;
  }
  const auto t = load_hf_tokenizer(directory);
  if (!t) FAIL(t.error().message);
  REQUIRE(t->vocab_size() == 151669);
  REQUIRE(compare(*t, Json::parse(slurp(cut_directory + "/golden.json")), "full") >= 600);
}

TEST_CASE("Qwen3's settings, end tokens and chat template") {
  const auto t = load_hf_tokenizer(cut_directory);
  REQUIRE(t);
  const auto end = t->find_special("<|im_end|>"), text_end = t->find_special("<|endoftext|>");
  REQUIRE(end);
  REQUIRE(t->eos() == end);
  REQUIRE(Ids(t->stop_ids().begin(), t->stop_ids().end()) == Ids{*text_end});
  REQUIRE(t->padding() == text_end);
  REQUIRE_FALSE(t->bos());
  REQUIRE_FALSE(t->add_bos());
  REQUIRE(t->is_control(*end));
  REQUIRE(t->type(*t->find_special("<think>")) == TokenType::user_defined);
  REQUIRE(t->normalizer() == Normalizer::nfc);
  const auto chat = load_hf_chat_template(cut_directory);
  if (!chat) FAIL(chat.error().message);
  REQUIRE(chat->default_system().empty());
  REQUIRE(*ChatTemplate::end_ids(*t) == Ids{*end, *text_end});
}

TEST_CASE("merges are strings or pairs, and both give the same") {
  Json json = tiny();
  REQUIRE(encode(make(json), "abcab") == Ids{257, 256});
  json["model"]["merges"] = Json::parse(R"([["a", "b"], ["ab", "c"]])");
  REQUIRE(encode(make(json), "abcab") == Ids{257, 256});
}

TEST_CASE("ignore_merges takes a piece that is a token") {
  Json json = tiny();
  json["model"]["vocab"]["\xc4\xa0x"] = 259;  // " x", which no merge makes
  REQUIRE(encode(make(json), "abc x") == Ids{257, ' ', 'x'});
  json["model"]["ignore_merges"] = true;
  REQUIRE(encode(make(json), "abc x xx") == Ids{257, 259, ' ', 'x', 'x'});
  REQUIRE(encode(make(json), "<|end|>", false).size() > 1);
}

TEST_CASE("a byte without a token is left out before merging, or becomes the unknown token") {
  Json json = tiny();
  json["model"]["vocab"].erase(spell_byte(4));
  REQUIRE(encode(make(json), "a\x04") == Ids{'a'});
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"},
                              {"pattern", {{"Regex", hf_splits[0].expression}}},
                              {"behavior", "Isolated"},
                              {"invert", false}},
                             {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  json["model"]["vocab"]["!!"] = 259;
  json["model"]["merges"].push_back("! !");
  REQUIRE(encode(make(json), "!\x04!") == Ids{259});
  json["model"]["unk_token"] = "abc";
  REQUIRE(encode(make(json), "!\x04\x04!!") == Ids{'!', 257, 257, 259});
}

TEST_CASE("of two merges of one pair the last one's rank counts, as in Hugging Face's") {
  Json json = tiny();
  json["model"]["vocab"]["ba"] = 259;
  json["model"]["merges"] = {"a b", "b a", "a b"};
  REQUIRE(encode(make(json), "aba") == Ids{'a', 259});
}

TEST_CASE("added tokens: ids without a token, and normalised ones") {
  Json json = tiny();
  json["added_tokens"][0]["id"] = 300;
  const Tokenizer t = make(json);
  REQUIRE(t.vocab_size() == 301);
  REQUIRE(t.type(258) == TokenType::unused);
  REQUIRE(t.token_bytes(258).empty());
  REQUIRE(encode(t, "ab<|end|>") == Ids{256, 300});
  json["normalizer"] = {{"type", "NFC"}};
  json["added_tokens"][0]["content"] = "e\xcc\x81";
  const std::string composed = "\xc3\xa9", apart = "e\xcc\x81";
  REQUIRE(encode(make(json), apart + composed) == Ids{300, 0xc3, 0xa9});
  json["added_tokens"][0]["normalized"] = true;
  REQUIRE(encode(make(json), apart + composed) == Ids{300, 300});
}

TEST_CASE("the post-processor and tokenizer_config.json say what comes in front") {
  Json json = tiny();
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json bos = {{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}};
  Json processor = {{"type", "TemplateProcessing"},
                    {"single", {bos, text}},
                    {"pair", Json::array()},
                    {"special_tokens", {{"<|end|>", {{"id", "<|end|>"}, {"ids", Json::array({258})}}}}}};
  json["post_processor"] = {{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}, processor}}};
  REQUIRE(make(json).add_bos());
  REQUIRE(make(json).bos() == 258);
  REQUIRE_FALSE(make(json, {{"add_bos_token", false}}).add_bos());
  REQUIRE(make(tiny(), {{"add_bos_token", true}, {"bos_token", {{"content", "<|end|>"}}}}).add_bos());
  REQUIRE_FALSE(make(tiny(), {{"bos_token", "<|end|>"}, {"pad_token", "[PAD]"}}).padding());
  processor["single"] = Json::array({text});
  json["post_processor"] = processor;
  REQUIRE_FALSE(make(json).add_bos());
  for (const Json& single : {Json::array({text, bos}), Json::array({bos, bos, text}), Json::array({bos})}) {
    json["post_processor"]["single"] = single;
    const auto t = parse(json.dump());
    REQUIRE_FALSE(t);
    REQUIRE(t.error().message.find("post_processor.single") != std::string::npos);
  }
}

TEST_CASE("end tokens: one, several, or tokenizer_config.json's") {
  REQUIRE(make(tiny(), {{"eos_token", "<|end|>"}}).eos() == 258);
  REQUIRE(make(tiny(), {{"eos_token", "<|end|>"}}, {{"eos_token_id", 97}}).eos() == 97);
  const Tokenizer t = make(tiny(), {}, {{"eos_token_id", {98, 258, 97}}});
  REQUIRE(t.eos() == 98);
  REQUIRE(Ids(t.stop_ids().begin(), t.stop_ids().end()) == Ids{258, 97});
  REQUIRE_FALSE(make(tiny(), {}, {{"temperature", 0.5}}).eos());
}

TEST_CASE("whatever is not known or not done is refused, with the field's name") {
  const Json list[] = {"x", 1};
  const Json step = {{"type", "Lowercase"}};
  const Refusal refusals[] = {
      {"/version", "2.0", "version"},
      {"/surprise", 1, "'surprise'"},
      {"/model/surprise", 1, "model.'surprise'"},
      {"/model/type", "Unigram", "model.type"},
      {"/model/dropout", 0.1, "model.dropout"},
      {"/model/fuse_unk", true, "model.fuse_unk"},
      {"/model/byte_fallback", true, "model.byte_fallback"},
      {"/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix"},
      {"/model/unk_token", "nowhere", "model.unk_token", Errc::malformed},
      {"/model/ignore_merges", "yes", "model.ignore_merges", Errc::malformed},
      {"/model/vocab", list, "model.vocab", Errc::malformed},
      {"/model/merges", "a b", "model.merges", Errc::malformed},
      {"/model", nullptr, "model", Errc::malformed},
      {"/normalizer", {{"type", "NFKC"}}, "normalizer.type"},
      {"/normalizer", {{"type", "NFC"}, {"form", 1}}, "normalizer.'form'"},
      {"/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, step}}}, "normalizer.normalizers[1]"},
      {"/normalizer", "NFC", "normalizer", Errc::malformed},
      {"/pre_tokenizer", nullptr, "pre_tokenizer"},
      {"/pre_tokenizer", {{"type", "Whitespace"}}, "pre_tokenizer"},
      {"/pre_tokenizer/add_prefix_space", true, "pre_tokenizer.add_prefix_space"},
      {"/pre_tokenizer/use_regex", false, "pre_tokenizer.use_regex"},
      {"/post_processor", {{"type", "BertProcessing"}}, "post_processor.type"},
      {"/decoder", {{"type", "WordPiece"}}, "decoder.type"},
      {"/added_tokens/0/lstrip", true, "added_tokens[0] '<|end|>'.lstrip"},
      {"/added_tokens/0/rstrip", true, "added_tokens[0] '<|end|>'.rstrip"},
      {"/added_tokens/0/single_word", true, "added_tokens[0] '<|end|>'.single_word"},
      {"/added_tokens/0/normalized", nullptr, "added_tokens[0] '<|end|>'.normalized", Errc::malformed},
      {"/added_tokens/0/special", 1, "added_tokens[0] '<|end|>'.special", Errc::malformed},
      {"/added_tokens/0/colour", 1, "added_tokens[0] '<|end|>'.'colour'"},
      {"/added_tokens/0/content", "", "added_tokens[0].content", Errc::malformed},
      {"/added_tokens/0/id", 5, "has the id of", Errc::malformed},
      {"/added_tokens/0/content", "abc", "listed twice", Errc::malformed},
      {"/added_tokens/-", tiny()["added_tokens"][0], "added_tokens[1]", Errc::malformed},
  };
  for (const Refusal& r : refusals) {
    Json json = tiny();
    json[Json::json_pointer(r.pointer)] = r.value;
    const auto t = parse(json.dump());
    INFO(r.pointer << " = " << r.value);
    REQUIRE_FALSE(t);
    INFO(t.error().message);
    REQUIRE(t.error().message.find(r.field) != std::string::npos);
    REQUIRE(t.error().code == r.code);
  }
  for (const char* pointer : {"/type", "/pattern/Regex", "/behavior", "/invert"}) {
    Json json = Json::parse(slurp(cut_directory + "/tokenizer.json"));
    Json& split = json["pre_tokenizer"]["pretokenizers"][0];
    split[Json::json_pointer(pointer)] = pointer == std::string("/invert") ? Json(true) : Json("other");
    const auto t = parse(json.dump());
    REQUIRE_FALSE(t);
    REQUIRE(t.error().code == Errc::unsupported);
    REQUIRE(t.error().message.find("DIR/tokenizer.json: pre_tokenizer.pretokenizers[0].") == 0);
  }
}

TEST_CASE("the two configurations are checked too, by their own names") {
  const auto refused = [](const Json& config, const Json& generation, const char* what) {
    const auto t =
        parse(tiny().dump(), config.is_null() ? "" : config.dump(), generation.is_null() ? "" : generation.dump());
    REQUIRE_FALSE(t);
    INFO(t.error().message);
    REQUIRE(t.error().message.find(what) != std::string::npos);
  };
  refused({{"bos_token", "<s>"}}, {}, "DIR/tokenizer_config.json: 'bos_token'");
  refused({{"eos_token", 5}}, {}, "DIR/tokenizer_config.json: 'eos_token'");
  refused({{"add_bos_token", true}}, {}, "'bos_token'");
  refused({{"add_eos_token", true}}, {}, "'add_eos_token'");
  refused({{"add_prefix_space", true}}, {}, "'add_prefix_space'");
  refused({{"added_tokens_decoder", {{"258", {{"content", "<|other|>"}}}}}}, {}, "'added_tokens_decoder.258'");
  refused({{"added_tokens_decoder", {{"257", {{"content", "<|end|>"}}}}}}, {}, "'added_tokens_decoder.257'");
  for (const Json& bad : {Json(259), Json(-1), Json("x"), Json::array(), Json{97, 1000}, Json(2.5)})
    refused({}, {{"eos_token_id", bad}}, "DIR/generation_config.json: 'eos_token_id'");
  refused(Json::array(), {}, "DIR/tokenizer_config.json: is not a JSON object");
}

TEST_CASE("hostile files are errors, and cost no more memory than their size justifies") {
  const std::string good = tiny().dump();
  const auto refused = [](const std::string& text, const char* what) {
    const std::size_t before = test::new_bytes;
    const auto t = parse(text);
    REQUIRE(test::new_bytes - before < 100 * text.size() + 1'000'000);
    REQUIRE_FALSE(t);
    INFO(t.error().message);
    REQUIRE(t.error().message.find(what) != std::string::npos);
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  refused("", "not valid JSON");
  refused("[]", "is not a JSON object");
  refused(std::string(1'000'000, '['), "nested more than");
  refused("{\"normalizer\":" + std::string(1'000'000, '['), "nested more than");
  std::string many = "{\"decoder\":[0";
  for (int i = 0; i < 2'000'000; ++i) many += ",0";
  refused(many + "]}", "values beside vocabulary and merges");
  refused(good + "x", "not valid JSON");
  refused(good + std::string(1, '\0'), "zero byte");
  refused(with("\"abc\":257", "\"abc\":-1"), "model.vocab: token 'abc'");
  refused(with("\"abc\":257", "\"abc\":16777216"), "model.vocab: token 'abc': id 16777216");
  refused(with("\"abc\":257", "\"abc\":18446744073709551616"), "model.vocab: token 'abc'");
  refused(with("\"abc\":257", "\"abc\":16777215"), "the highest id is 16777215");
  refused(with("\"abc\":257", "\"abc\":256"), "tokens 'ab' and 'abc' have the same id 256");
  refused(with("\"abc\":257", "\"abc\":257,\"abc\":259"), "listed twice");
  refused(with("\"abc\":257", "\"abc\":[257]"), "model.vocab: token 'abc'");
  refused(with("\"type\":\"BPE\"", "\"type\":\"BPE\",\"type\":\"BPE\""), "occurs twice");
  refused(with("\"type\":\"BPE\"", "\"type\":\"BPE\",\"vocab\":{}"), "occurs twice");
  for (const char* merges :
       {"\"a zz\"", "\"zz b\"", "\"b a\"", "\"ab\"", "\"a b c\"", "\"\"", "\" \"", "[\"a\",\"zz\"]"})
    refused(with("\"a b\",", "\"a b\"," + std::string(merges) + ","), "model.merges: entry 1");
  for (const char* merges : {"[]", "[\"a\"]", "[\"a\",\"b\",\"c\"]", "[\"a\",1]", "[\"a\",\"\"]", "[\"a b\",\"c\"]",
                             "5", "{}", "[[]]", "null"})
    refused(with("\"a b\",", "\"a b\"," + std::string(merges) + ","), "model.merges: entry 1");
}

TEST_CASE("a file that is cut or damaged anywhere is read without harm") {
  const std::string good = slurp(cut_directory + "/tokenizer.json");
  for (std::size_t size = 0; size + 2 < good.size(); size += test::slow ? 4999 : 997)
    REQUIRE_FALSE(parse(good.substr(0, size)));
  std::string small = tiny().dump();
  for (std::size_t size = 0; size < small.size(); size += 7) REQUIRE_FALSE(parse(small.substr(0, size)));
  test::Random random(4);
  int refused = 0;
  for (int i = 0; i < (test::slow ? 300 : 3000); ++i) {
    std::string text = small;
    for (std::size_t n = 1 + random.below(3); n > 0; --n)
      text[random.below(text.size())] = "\"\\{}[],:0919ab\x80"[random.below(15)];
    const auto t = parse(text);
    refused += !t;
    if (t) encode(*t, "abc <|end|>");
  }
  REQUIRE(refused > 100);
}

TEST_CASE("directories: what is missing, and where the chat template stands") {
  const Directory d;
  const auto none = load_hf_tokenizer(d.path);
  REQUIRE_FALSE(none);
  REQUIRE(none.error().code == Errc::io);
  REQUIRE(none.error().message.find(d.path + "/tokenizer.json") == 0);
  d.put("tokenizer.json", tiny().dump());
  REQUIRE(load_hf_tokenizer(d.path));
  const auto without = load_hf_chat_template(d.path);
  REQUIRE_FALSE(without);
  REQUIRE(without.error().message.find("chat_template.jinja") != std::string::npos);
  const auto chatml = [](const std::string& system) {
    return "{{ '<|im_start|>system\n" + system + "<|im_end|>\n' }}{% if add_generation_prompt %}{% endif %}";
  };
  d.put("tokenizer_config.json", Json{{"chat_template", chatml("one")}}.dump());
  REQUIRE(load_hf_chat_template(d.path)->default_system() == "one");
  d.put("tokenizer_config.json",
        Json{{"chat_template",
              {{{"name", "tools"}, {"template", "x"}}, {{"name", "default"}, {"template", chatml("two")}}}}}
            .dump());
  REQUIRE(load_hf_chat_template(d.path)->default_system() == "two");
  d.put("chat_template.jinja", chatml("three"));
  REQUIRE(load_hf_chat_template(d.path)->default_system() == "three");
  d.put("chat_template.jinja", "[INST]");
  REQUIRE(load_hf_chat_template(d.path).error().message.find(d.path + ": chat template") == 0);
  fs::remove(d.path + "/chat_template.jinja");
  for (const Json& bad : {Json(5), Json::array(), Json{{{"name", "tools"}, {"template", "x"}}}}) {
    d.put("tokenizer_config.json", Json{{"chat_template", bad}}.dump());
    const auto chat = load_hf_chat_template(d.path);
    REQUIRE_FALSE(chat);
    REQUIRE(chat.error().message.find("tokenizer_config.json: 'chat_template'") != std::string::npos);
  }
  d.put("tokenizer_config.json", "{");
  REQUIRE_FALSE(load_hf_tokenizer(d.path));
}

TEST_CASE("what is written gives the same ids, and the same bytes every time") {
  const Json golden = Json::parse(slurp(cut_directory + "/golden.json"));
  const Json json = Json::parse(slurp(cut_directory + "/tokenizer.json"));
  Json variants = golden["variants"];
  variants["cut"] = Json::object();
  for (const auto& [name, variant] : variants.items()) {
    const auto read = parse_hf_tokenizer(varied(json, variant).dump(), slurp(cut_directory + "/tokenizer_config.json"),
                                         slurp(cut_directory + "/generation_config.json"), "DIR");
    REQUIRE(read);
    const Directory one, two;
    const auto written = write_hf_text(one.path, read->data, "template", false);
    if (!written) FAIL(written.error().message);
    const auto t = load_hf_tokenizer(one.path);
    if (!t) FAIL(t.error().message);
    compare(*t, golden, name);
    REQUIRE(t->eos() == read->data.eos);
    REQUIRE(Ids(t->stop_ids().begin(), t->stop_ids().end()) == read->data.stop_ids);
    REQUIRE(t->padding() == read->data.padding);
    REQUIRE(write_hf_text(two.path, read_hf_tokenizer(one.path)->data, "template", false));
    for (const std::string_view file : detail::hf_text_files)
      REQUIRE(slurp(one.path + "/" + std::string(file)) == slurp(two.path + "/" + std::string(file)));
    // Not over what is there, unless asked to; and an old template does not stay beside a new vocabulary.
    REQUIRE_FALSE(write_hf_text(one.path, read->data, "", false));
    REQUIRE(write_hf_text(one.path, read->data, "", true));
    REQUIRE_FALSE(fs::exists(one.path + "/chat_template.jinja"));
  }
}

TEST_CASE("a BOS token and unknown bytes survive writing") {
  Json json = tiny();
  json["model"]["unk_token"] = "abc";
  auto read = parse_hf_tokenizer(json.dump(), R"({"bos_token": "<|end|>", "add_bos_token": true})", "", "DIR");
  REQUIRE(read);
  read->data.eot = 97;
  const Directory d;
  REQUIRE(write_hf_text(d.path, read->data, "", false));
  const auto again = read_hf_tokenizer(d.path);
  REQUIRE(again);
  REQUIRE(again->data.add_bos);
  REQUIRE(again->data.bos == 258);
  REQUIRE(again->data.unknown_byte == 257);
  REQUIRE(again->data.eos == 97);
}

TEST_CASE("vocabularies that tokenizer.json cannot express are refused, and nothing is written") {
  const Json json = tiny();
  const auto read = parse_hf_tokenizer(json.dump(), "", "", "DIR");
  REQUIRE(read);
  const auto refused = [&](auto change, const char* what) {
    const Directory d;
    TokenizerData data = read->data;
    data.rules = VocabularyRules::gguf;
    change(data);
    const auto done = write_hf_text(d.path, data, "", false);
    REQUIRE_FALSE(done);
    INFO(done.error().message);
    REQUIRE(done.error().message.find(what) != std::string::npos);
    REQUIRE(fs::is_empty(d.path));
  };
  refused([](TokenizerData& d) { d.tokens[258] = "\xff"; }, "token 258 is not UTF-8");
  refused([](TokenizerData& d) { d.tokens[258] = "ab"; }, "'ab' occurs twice");
  refused([](TokenizerData& d) { d.merges.push_back("a b"); }, "'a b' occurs twice");
  refused([](TokenizerData& d) { d.eos = 1000; }, "eos_token");
}

TEST_CASE("copies are the same bytes, made only of what loads") {
  const Directory from, to;
  from.put("tokenizer_config.json", "{}");
  REQUIRE(copy_hf_text(from.path, to.path, false));  // no tokenizer.json: no text
  REQUIRE(fs::is_empty(to.path));
  from.put("tokenizer.json", tiny().dump(1));
  to.put("chat_template.jinja", "another model's");
  REQUIRE(copy_hf_text(from.path, to.path, true));
  REQUIRE(slurp(to.path + "/tokenizer.json") == tiny().dump(1));
  REQUIRE(slurp(to.path + "/tokenizer_config.json") == "{}");
  REQUIRE_FALSE(fs::exists(to.path + "/generation_config.json"));
  REQUIRE_FALSE(fs::exists(to.path + "/chat_template.jinja"));
  REQUIRE_FALSE(copy_hf_text(from.path, to.path, false));
  from.put("tokenizer.json", "{}");
  const Directory fresh;
  REQUIRE_FALSE(copy_hf_text(from.path, fresh.path, false));
  REQUIRE(fs::is_empty(fresh.path));
}
