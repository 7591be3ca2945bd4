// The tokenizer with a real vocabulary, against llama.cpp's tokens (test/peer/tokens.py), and its way into a package.
// Needs the model's file (model_file.hpp); without it nothing is checked, and that is said.
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model_file.hpp"
#include "pocket/files/gguf_tokenizer.hpp"
#include "pocket/files/hf_tokenizer.hpp"
#include "pocket/files/hf_tokenizer_writer.hpp"
#include "pocket/text/utf8_stream.hpp"

using namespace pocket;
using Ids = std::vector<std::int32_t>;

namespace {

// The file, if it is there and its vocabulary is the fixture's.
std::optional<GgufFile> open_model() {
  const auto path = test::model_file();
  if (!path) return std::nullopt;
  auto file = GgufFile::open(*path);
  if (!file) FAIL(file.error().message);
  const auto pre = file->string_value("tokenizer.ggml.pre");
  const auto tokens = file->string_array("tokenizer.ggml.tokens");
  if (!pre || *pre != "smollm" || !tokens || tokens->size() != 49152) {
    std::puts("skipped: the model's vocabulary is not SmolLM2's");
    return std::nullopt;
  }
  return std::move(*file);
}

Tokenizer tokenizer_of(const GgufFile& file) {
  auto t = load_tokenizer(file);
  if (!t) FAIL(t.error().message);
  return std::move(*t);
}

}  // namespace

TEST_CASE("SmolLM2's tokens are llama.cpp's, and streaming them gives the text back") {
  const auto file = open_model();
  if (!file) return;
  const Tokenizer t = tokenizer_of(*file);
  std::ifstream in(POCKET_SOURCE_DIR "/test/data/smollm2_tokens.json");
  const auto golden = nlohmann::json::parse(in);
  int checked = 0;
  for (const bool special : {false, true}) {
    for (const auto& one : golden.at(special ? "special_cases" : "cases")) {
      const auto text = one.at("text").get<std::string>();
      const auto ids = t.encode(text, special);
      INFO(text);
      REQUIRE(ids);
      REQUIRE(*ids == one.at("ids").get<Ids>());
      std::string expected, streamed;
      for (const char c : text)
        if (t.has_byte(static_cast<unsigned char>(c))) expected.push_back(c);
      Utf8Stream stream(Utf8Mode::raw);
      for (const std::int32_t id : *ids) {
        std::string some;
        stream.push(t.token_bytes(id, true), some);
        // No character is cut. (One text has a character whose lead byte the vocabulary lacks: its rest is no UTF-8.)
        if (expected == text) REQUIRE(utf8_valid_prefix(some) == some.size());
        streamed += some;
      }
      stream.flush(streamed);
      REQUIRE(streamed == expected);
      ++checked;
    }
  }
  REQUIRE(checked >= 250);
}

TEST_CASE("SmolLM2's own chat template and end tokens") {
  const auto file = open_model();
  if (!file) return;
  const Tokenizer t = tokenizer_of(*file);
  const auto chat = load_chat_template(*file);
  REQUIRE(chat);
  REQUIRE(chat->default_system() == "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
  const std::vector<Message> messages{{"user", "Hi"}};
  Ids ids;
  REQUIRE(chat->encode(t, messages, {}, ids));
  // llama.cpp's tokens for the rendered text (in the fixture too, among the special cases).
  REQUIRE(ids == Ids{1,   9690,  198,  2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28,   7018, 411,
                     407, 19712, 8182, 2,    198, 1,   4093, 198,  26843, 2,    198,  1,   520,   9531, 198});
  REQUIRE(ids == *t.encode(*chat->render(messages), true));
  REQUIRE(*ChatTemplate::end_ids(t) == Ids{2, 0});
}

TEST_CASE("a damaged vocabulary is an error that names file and key") {
  const auto file = open_model();
  if (!file) return;
  auto data = tokenizer_data(*file);
  REQUIRE(data);
  REQUIRE(data->bos == 1);
  REQUIRE(data->eos == 2);
  REQUIRE_FALSE(data->add_bos);
  data->merges[100] = "nothing like";
  const auto t = Tokenizer::create(*data);
  REQUIRE_FALSE(t);
  REQUIRE(t.error().message.find("tokenizer.ggml.merges: entry 100") != std::string::npos);
}

TEST_CASE("SmolLM2's tokenizer written as Hugging Face's files gives the same tokens") {
  const auto file = open_model();
  if (!file) return;
  std::string directory = (std::filesystem::temp_directory_path() / "pocket-text-XXXXXX").string();
  REQUIRE(mkdtemp(directory.data()) != nullptr);
  const auto written =
      write_hf_text(directory, *tokenizer_data(*file), *file->string_value("tokenizer.chat_template"), false);
  const auto read = load_hf_tokenizer(directory);
  const auto chat = load_hf_chat_template(directory);
  std::filesystem::remove_all(directory);
  if (!written) FAIL(written.error().message);
  if (!read) FAIL(read.error().message);
  REQUIRE(chat);
  REQUIRE(chat->default_system() == load_chat_template(*file)->default_system());
  const Tokenizer direct = tokenizer_of(*file);
  REQUIRE(read->vocab_size() == direct.vocab_size());
  REQUIRE(*ChatTemplate::end_ids(*read) == *ChatTemplate::end_ids(direct));
  REQUIRE(read->bos() == direct.bos());
  REQUIRE(read->add_bos() == direct.add_bos());
  for (std::size_t i = 0; i < direct.vocab_size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (read->token_bytes(id, true) != direct.token_bytes(id, true) || read->is_control(id) != direct.is_control(id))
      FAIL("token " << id);
  }
  std::ifstream in(POCKET_SOURCE_DIR "/test/data/smollm2_tokens.json");
  const auto golden = nlohmann::json::parse(in);
  for (const bool special : {false, true})
    for (const auto& one : golden.at(special ? "special_cases" : "cases")) {
      const auto ids = read->encode(one.at("text").get<std::string>(), special);
      INFO(one.at("text").get<std::string>());
      REQUIRE(ids);
      REQUIRE(*ids == one.at("ids").get<Ids>());
    }
}
