// A byte-level BPE tokenizer, as GGUF's metadata describes one (tokenizer.ggml.model = "gpt2") and as a Hugging Face
// tokenizer.json of type BPE with a ByteLevel pre-tokenizer does: GPT-2, SmolLM, Qwen2, Qwen3, Llama 3.
//
// Text to tokens: the special tokens are cut out (special_matcher.hpp), the rest is brought into the vocabulary's
// normal form (normalizer.hpp) and split into pieces (pre_tokenizer.hpp), each piece's bytes are merged (bpe.hpp).
// Tokens to text: every ordinary token stands for bytes, not characters; utf8_stream.hpp makes characters of them
// again.
//
// Control tokens in the text stay text unless the caller opts in, so that a user's message cannot end its own turn.
// User-defined tokens are always matched whole.
//
// A vocabulary may lack some of the 256 bytes (SmolLM2's lacks 21: those that UTF-8 never uses, the leads of unassigned
// planes, six control characters). encode() leaves such a byte out, as llama.cpp and Hugging Face do, or puts the token
// that the file names for it; has_byte() tells. A vocabulary without all of printable ASCII, space and newline is
// refused: it is not byte-level.
//
// Not done here: no BOS or EOS is added; add_bos() says what the file asks for.
//
// After create() everything is const and may be used by any number of threads at once.
#ifndef POCKET_TEXT_TOKENIZER_HPP
#define POCKET_TEXT_TOKENIZER_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <forward_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "bpe.hpp"
#include "byte_alphabet.hpp"
#include "normalizer.hpp"
#include "pre_tokenizer.hpp"
#include "recent_pieces.hpp"
#include "special_matcher.hpp"
#include "token_index.hpp"

POCKET_NAMESPACE_BEGIN

// GGUF's tokenizer.ggml.token_type.
enum class TokenType : std::uint8_t {
  undefined = 0,
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6,
};

// Whose rules hold where vocabularies are odd and the references differ: a byte without a token keeps its neighbours
// apart (gguf, llama.cpp) or lets them meet and merge (hugging_face); of two merges of one pair the first counts, or
// the last; a token that is listed twice is its last id, or an error.
enum class VocabularyRules : unsigned char { gguf, hugging_face };

// What the file calls its parts, for messages.
struct TokenizerFields {
  std::string_view tokens = "tokenizer.ggml.tokens", types = "tokenizer.ggml.token_type";
  std::string_view merges = "tokenizer.ggml.merges", pre = "tokenizer.ggml.pre";
  std::string_view bos = "tokenizer.ggml.bos_token_id", eos = "tokenizer.ggml.eos_token_id";
  std::string_view eot = "tokenizer.ggml.eot_token_id", unknown = "tokenizer.ggml.unknown_token_id";
  std::string_view padding = "tokenizer.ggml.padding_token_id";
};

// What a file says. The views need to live until create() returns, no longer: they may point into a mapped file.
struct TokenizerData {
  std::vector<std::string_view> tokens;  // by id, at most 2^24; ordinary ones spelled in the byte alphabet
  std::vector<TokenType> types;          // by id; empty means all normal
  std::vector<std::string_view> merges;  // "left right", in the order of their rank
  std::string pre;                       // the pre-tokenizer's name, see pre_tokenizer.hpp
  Normalizer normalizer = Normalizer::none;
  std::vector<std::int32_t> normalized;  // special tokens to look for after normalisation; all others before
  std::optional<std::int32_t> bos, eos, eot, unknown, padding;
  std::vector<std::int32_t> stop_ids;        // what ends a text beside eos and eot
  std::optional<std::int32_t> unknown_byte;  // takes the place of each byte without a token; none: it is left out
  bool add_bos = false;
  bool ignore_merges = false;  // a piece that is one token as a whole is that token, whatever the merges make of it
  VocabularyRules rules = VocabularyRules::gguf;
  TokenizerFields fields;
};

// Text to token ids and back.
class Tokenizer {
 public:
  static constexpr std::size_t most_tokens = std::size_t{1} << 24;

  // Errors name the field as the file calls it.
  static Expected<Tokenizer> create(const TokenizerData& data) {
    POCKET_CHECK(check_tables(data));
    POCKET_CHECK(check_ids(data));
    POCKET_TRY(pre, PreTokenizer::create(data.pre, data.fields.pre));
    Tokenizer t(std::move(pre));
    t.set_bytes(data);
    const Index index(data.tokens);
    if (data.rules == VocabularyRules::hugging_face && index.twice() >= 0)
      return malformed(data.fields.tokens, "token " + std::to_string(index.twice()) + " is listed twice");
    POCKET_CHECK(t.set_byte_ids(data, index));
    POCKET_CHECK(t.set_merges(data, index));
    t.set_specials(data);
    t.rules_ = data.rules;
    t.normalizer_ = data.normalizer;
    t.unknown_byte_ = data.unknown_byte;
    t.stop_ids_ = data.stop_ids;
    t.bos_ = data.bos;
    t.eos_ = data.eos;
    t.eot_ = data.eot;
    t.unknown_ = data.unknown;
    t.padding_ = data.padding;
    t.add_bos_ = data.add_bos;
    return t;
  }

  // Appends the text's tokens to `out`; any bytes will do, up to 2^31 of them. parse_special: control tokens that are
  // spelled out in the text become those tokens. After an error `out` is as it was.
  Expected<void> encode(std::string_view text, bool parse_special, std::vector<std::int32_t>& out) const {
    if (text.size() > most_text)
      return fail(Errc::invalid_argument, "text: " + std::to_string(text.size()) + " bytes are more than the " +
                                              std::to_string(most_text) + " that one call takes");
    const Specials& specials = parse_special ? all_specials_ : user_defined_;
    const std::size_t before = out.size();
    Scratch scratch;
    auto done = cut(text, specials.as_is, out, [&](std::string_view stretch) {
      return cut(normalize(stretch, scratch), specials.normalized, out,
                 [&](std::string_view plain) { return encode_plain(plain, scratch, out); });
    });
    if (!done) out.resize(before);
    return done;
  }
  // The same, to a vector of its own.
  Expected<std::vector<std::int32_t>> encode(std::string_view text, bool parse_special = false) const {
    std::vector<std::int32_t> ids;
    POCKET_CHECK(encode(text, parse_special, ids));
    return ids;
  }

  // The bytes that a token stands for. A control token stands for none, or with `with_control` for its own text; an id
  // outside the vocabulary for none. The view lives as long as the tokenizer.
  std::string_view token_bytes(std::int32_t id, bool with_control = false) const noexcept {
    if (!has_id(id) || (!with_control && is_control(id))) return {};
    const auto i = static_cast<std::size_t>(id);
    return std::string_view(bytes_).substr(ends_[i], ends_[i + 1] - ends_[i]);
  }
  // The bytes of several tokens, joined. Half a character at either end stays half: see utf8_stream.hpp.
  std::string decode(std::span<const std::int32_t> ids, bool with_control = false) const {
    std::string text;
    for (const std::int32_t id : ids) text.append(token_bytes(id, with_control));
    return text;
  }

  // The token with exactly these bytes (for a control or user-defined token: this text), special ones first. Fast for
  // those; for ordinary ones it walks the vocabulary.
  std::optional<std::int32_t> find(std::string_view bytes) const noexcept {
    if (const auto special = find_special(bytes)) return special;
    for (std::size_t i = 0; i < types_.size(); ++i)
      if (ends_[i + 1] - ends_[i] == bytes.size() && std::string_view(bytes_).substr(ends_[i], bytes.size()) == bytes)
        return static_cast<std::int32_t>(i);
    return std::nullopt;
  }
  // The control, unknown or user-defined token with exactly this text.
  std::optional<std::int32_t> find_special(std::string_view text) const noexcept {
    const auto id = all_specials_.as_is.find(text);
    return id ? id : all_specials_.normalized.find(text);
  }

  // Is this the id of a token, even of an unused one?
  bool has_id(std::int32_t id) const noexcept { return id >= 0 && static_cast<std::size_t>(id) < types_.size(); }
  // undefined for an id outside the vocabulary.
  TokenType type(std::int32_t id) const noexcept {
    return has_id(id) ? types_[static_cast<std::size_t>(id)] : TokenType::undefined;
  }
  // Control tokens, and the one for unknown text: they mark, and stand for no text of their own.
  bool is_control(std::int32_t id) const noexcept {
    return type(id) == TokenType::control || type(id) == TokenType::unknown;
  }
  // Can this byte be encoded?
  bool has_byte(unsigned char byte) const noexcept { return byte_ids_[byte] >= 0; }
  std::size_t vocab_size() const noexcept { return types_.size(); }
  // Heap bytes of the tables, which live as long as the tokenizer (special tokens' few kilobytes not counted).
  std::size_t memory_bytes() const noexcept {
    return bytes_.capacity() + ends_.capacity() * sizeof ends_[0] + types_.capacity() + merges_.bytes() +
           whole_.bytes();
  }

  std::optional<std::int32_t> bos() const noexcept { return bos_; }
  std::optional<std::int32_t> eos() const noexcept { return eos_; }
  std::optional<std::int32_t> eot() const noexcept { return eot_; }
  std::span<const std::int32_t> stop_ids() const noexcept { return stop_ids_; }  // beside eos and eot
  std::optional<std::int32_t> unknown() const noexcept { return unknown_; }
  std::optional<std::int32_t> padding() const noexcept { return padding_; }
  bool add_bos() const noexcept { return add_bos_; }
  Normalizer normalizer() const noexcept { return normalizer_; }

 private:
  static constexpr std::size_t most_text = std::size_t{1} << 31;

  // Spelling to id, for as long as create() runs.
  class Index {
   public:
    explicit Index(std::span<const std::string_view> tokens) : text_of_{tokens}, index_(tokens.size(), text_of_) {}
    std::int32_t find(std::string_view spelling) const { return index_.find(spelling, text_of_); }
    std::int32_t twice() const noexcept { return index_.twice(); }

   private:
    struct Spelling {
      std::span<const std::string_view> tokens;
      std::string_view operator()(std::int32_t id) const noexcept { return tokens[static_cast<std::size_t>(id)]; }
    };
    Spelling text_of_;
    TokenIndex index_;
  };
  // The bytes of ordinary tokens: a special one is matched as such or not at all.
  struct OrdinaryBytes {
    const Tokenizer& tokenizer;
    std::string_view operator()(std::int32_t id) const noexcept {
      return is_special(tokenizer.type(id)) ? std::string_view() : tokenizer.token_bytes(id);
    }
  };

  explicit Tokenizer(PreTokenizer pre) : pre_(std::move(pre)) { byte_ids_.fill(-1); }

  static Error malformed(std::string_view field, const std::string& what) {
    return fail(Errc::malformed, std::string(field) + ": " + what);
  }

  static Expected<void> check_tables(const TokenizerData& data) {
    const std::size_t n = data.tokens.size();
    if (n == 0 || n > most_tokens)
      return malformed(data.fields.tokens,
                       std::to_string(n) + " tokens; 1 to " + std::to_string(most_tokens) + " were expected");
    if (!data.types.empty() && data.types.size() != n)
      return malformed(data.fields.types, std::to_string(data.types.size()) + " entries; one for each of the " +
                                              std::to_string(n) + " tokens was expected");
    for (std::size_t i = 0; i < data.types.size(); ++i)
      if (data.types[i] > TokenType::byte)
        return malformed(data.fields.types, "token " + std::to_string(i) + " has type " +
                                                std::to_string(static_cast<int>(data.types[i])) +
                                                "; 0 to 6 was expected");
    if (data.merges.size() > most_tokens)
      return malformed(data.fields.merges, std::to_string(data.merges.size()) + " entries; at most " +
                                               std::to_string(most_tokens) + " were expected");
    // Their sizes are added up in 32 bits.
    std::size_t total = 0;
    for (const std::string_view token : data.tokens) {
      total += token.size();
      if (token.size() > most_text || total > most_text)
        return malformed(data.fields.tokens, "more than 2^31 bytes of text");
    }
    return {};
  }

  static Expected<void> check_ids(const TokenizerData& data) {
    const auto in_range = [&](std::string_view field, std::optional<std::int32_t> id) -> Expected<void> {
      if (!id || (*id >= 0 && static_cast<std::size_t>(*id) < data.tokens.size())) return {};
      return malformed(field,
                       std::to_string(*id) + "; an id below " + std::to_string(data.tokens.size()) + " was expected");
    };
    POCKET_CHECK(in_range(data.fields.bos, data.bos));
    POCKET_CHECK(in_range(data.fields.eos, data.eos));
    POCKET_CHECK(in_range(data.fields.eot, data.eot));
    POCKET_CHECK(in_range(data.fields.unknown, data.unknown));
    POCKET_CHECK(in_range(data.fields.padding, data.padding));
    POCKET_CHECK(in_range(data.fields.unknown, data.unknown_byte));
    for (const std::int32_t id : data.stop_ids) POCKET_CHECK(in_range(data.fields.eos, id));
    for (const std::int32_t id : data.normalized) POCKET_CHECK(in_range(data.fields.tokens, id));
    return {};
  }

  void set_bytes(const TokenizerData& data) {
    types_ = data.types;
    types_.resize(data.tokens.size(), TokenType::normal);
    ends_.reserve(types_.size() + 1);
    ends_.push_back(0);
    for (std::size_t i = 0; i < types_.size(); ++i) {
      // A token outside the alphabet can come from no merge; it keeps its own text.
      const bool as_text = is_special(types_[i]) || !append_spelled_bytes(data.tokens[i], bytes_);
      if (as_text) bytes_.append(data.tokens[i]);
      ends_.push_back(static_cast<std::uint32_t>(bytes_.size()));
    }
    bytes_.shrink_to_fit();
    if (data.ignore_merges) whole_ = TokenIndex(types_.size(), OrdinaryBytes{*this});
  }

  Expected<void> set_byte_ids(const TokenizerData& data, const Index& index) {
    for (unsigned b = 0; b < 256; ++b) {
      byte_ids_[b] = index.find(spell_byte(static_cast<unsigned char>(b)));
      if (byte_ids_[b] < 0 && (b == '\n' || (b >= 0x20 && b <= 0x7e)))
        return fail(Errc::unsupported, std::string(data.fields.tokens) + ": no token for byte " + std::to_string(b) +
                                           "; a byte-level vocabulary was expected");
    }
    return {};
  }

  Expected<void> set_merges(const TokenizerData& data, const Index& index) {
    merges_ = MergeTable(data.merges.size());
    std::string joined;
    for (std::size_t rank = 0; rank < data.merges.size(); ++rank) {
      const std::string_view merge = data.merges[rank];
      // The alphabet has no space, so that the first one divides; not at the very front, where it would be the token.
      const std::size_t space = merge.find(' ', 1);
      const auto wrong = [&](const std::string& what) {
        return malformed(data.fields.merges,
                         "entry " + std::to_string(rank) + ", \"" + std::string(merge.substr(0, 200)) + "\", " + what);
      };
      if (space == std::string_view::npos) return wrong("has no space between two tokens");
      const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
      joined.assign(left).append(right);
      const MergeTable::Merge m{index.find(left), index.find(right), index.find(joined),
                                static_cast<std::uint32_t>(rank)};
      if (m.left < 0 || m.right < 0) return wrong("names a token that the vocabulary lacks");
      if (m.merged < 0) return wrong("gives a token that the vocabulary lacks");
      merges_.insert(m, data.rules == VocabularyRules::hugging_face);
    }
    return {};
  }

  void set_specials(const TokenizerData& data) {
    using Tokens = std::vector<std::pair<std::string, std::int32_t>>;
    Tokens all, user, all_normalized, user_normalized;
    std::vector<bool> late(types_.size(), false);
    for (const std::int32_t id : data.normalized) late[static_cast<std::size_t>(id)] = true;
    NfcNormalizer nfc;
    std::string changed;
    for (std::size_t i = 0; i < types_.size(); ++i) {
      if (!is_special(types_[i])) continue;
      std::pair<std::string, std::int32_t> token(data.tokens[i], static_cast<std::int32_t>(i));
      if (late[i] && data.normalizer == Normalizer::nfc && nfc.normalize(token.first, changed)) token.first = changed;
      if (types_[i] == TokenType::user_defined) (late[i] ? user_normalized : user).push_back(token);
      (late[i] ? all_normalized : all).push_back(std::move(token));
    }
    all_specials_ = {SpecialMatcher(std::move(all)), SpecialMatcher(std::move(all_normalized))};
    user_defined_ = {SpecialMatcher(std::move(user)), SpecialMatcher(std::move(user_normalized))};
  }

  static bool is_special(TokenType type) noexcept {
    return type == TokenType::control || type == TokenType::unknown || type == TokenType::user_defined;
  }

  // What one call of encode() works with.
  struct Scratch {
    BpeMerger merger;
    RecentPieces recent;
    NfcNormalizer nfc;
    std::forward_list<std::string> changed;  // stretches that normalisation changed: the recent pieces point into them
  };

  // Calls plain(stretch) for what stands between the special tokens, and appends those.
  template <class Plain>
  static Expected<void> cut(std::string_view text, const SpecialMatcher& specials, std::vector<std::int32_t>& out,
                            Plain plain) {
    for (std::size_t at = 0; at < text.size();) {
      const SpecialMatcher::Match match = specials.next(text, at);
      if (match.begin > at) POCKET_CHECK(plain(text.substr(at, match.begin - at)));
      if (match.id >= 0) out.push_back(match.id);
      at = match.end;
    }
    return {};
  }

  // The stretch itself, or what it becomes, which lives as long as the scratch.
  std::string_view normalize(std::string_view stretch, Scratch& scratch) const {
    std::string changed;
    if (normalizer_ != Normalizer::nfc || !scratch.nfc.normalize(stretch, changed)) return stretch;
    return scratch.changed.emplace_front(std::move(changed));
  }

  Expected<void> encode_plain(std::string_view text, Scratch& scratch, std::vector<std::int32_t>& out) const {
    return pre_.split(text, [&](std::string_view piece) {
      if (scratch.recent.copy(piece, out)) return;
      const std::size_t begin = out.size();
      encode_piece(piece, scratch.merger, out);
      scratch.recent.remember(piece, begin, out.size() - begin);
    });
  }

  void encode_piece(std::string_view piece, BpeMerger& merger, std::vector<std::int32_t>& out) const {
    if (!whole_.empty())
      if (const std::int32_t id = whole_.find(piece, OrdinaryBytes{*this}); id >= 0) return out.push_back(id);
    const std::size_t begin = out.size();
    bool complete = true;
    for (const char c : piece) {
      out.push_back(byte_ids_[static_cast<unsigned char>(c)]);
      complete = complete && out.back() >= 0;
    }
    // Bytes without a token: before merging, or (llama.cpp) after it, so that what stands on either side does not meet.
    const bool before = rules_ == VocabularyRules::hugging_face;
    if (!complete && unknown_byte_)
      std::replace(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), -1, *unknown_byte_);
    if (!complete && before) remove_missing(begin, out);
    out.resize(begin + merger.merge(out.data() + begin, out.size() - begin, merges_));
    if (!complete && !before) remove_missing(begin, out);
  }
  static void remove_missing(std::size_t begin, std::vector<std::int32_t>& out) {
    out.erase(std::remove(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), -1), out.end());
  }

  // Those matched in the text as it comes, and those matched in the normalised text.
  struct Specials {
    SpecialMatcher as_is, normalized;
  };

  PreTokenizer pre_;
  MergeTable merges_;
  std::array<std::int32_t, 256> byte_ids_;
  std::string bytes_;                // of all tokens, in the order of their ids
  std::vector<std::uint32_t> ends_;  // token i's bytes are [ends_[i], ends_[i + 1])
  std::vector<TokenType> types_;
  TokenIndex whole_;                      // tokens by their bytes, with ignore_merges
  Specials user_defined_, all_specials_;  // the second: control and unknown tokens as well
  std::vector<std::int32_t> stop_ids_;
  std::optional<std::int32_t> unknown_byte_;
  Normalizer normalizer_ = Normalizer::none;
  VocabularyRules rules_ = VocabularyRules::gguf;
  std::optional<std::int32_t> bos_, eos_, eot_, unknown_, padding_;
  bool add_bos_ = false;
};

POCKET_NAMESPACE_END

#endif
