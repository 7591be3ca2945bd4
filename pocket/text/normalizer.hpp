// Unicode's normalisation form C: a letter and its accent, written as two characters, become one where Unicode has one
// (UAX #15). Qwen's tokenizers ask for it; the others take text as it comes.
//
// The tables are utf8proc's (version 2.8: Unicode 15.0; characters that are younger stay as they are). utf8proc itself
// would order a run of n marks in n² steps; here that is a sort, so that no text takes long. Nothing recurses.
//
// Bytes that are not UTF-8 stay, and the text on either side of them is normalised as though it began or ended there.
#ifndef POCKET_TEXT_NORMALIZER_HPP
#define POCKET_TEXT_NORMALIZER_HPP

#include <utf8proc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../config.hpp"
#include "utf8.hpp"

POCKET_NAMESPACE_BEGIN

// What is done to a text before it is split.
enum class Normalizer : unsigned char { none, nfc };

// Characters that need no table: each is in NFC by itself, has combining class 0 and joins with nothing before it. They
// are most of most texts; the list is not complete, and need not be.
constexpr bool is_quiet_in_nfc(char32_t c) noexcept {
  struct Range {
    char32_t first, last;
  };
  // Latin and IPA; Cyrillic; punctuation; kana; Chinese characters; Hangul syllables; full-width ASCII; emoji.
  constexpr Range ranges[] = {{0x0, 0x2ff},       {0x400, 0x482},    {0x48a, 0x52f},   {0x2010, 0x2027},
                              {0x3001, 0x3029},   {0x3041, 0x3096},  {0x30a1, 0x30fa}, {0x3400, 0x4dbf},
                              {0x4e00, 0x9fff},   {0xac00, 0xd7a3},  {0xff01, 0xff5e}, {0x1f300, 0x1f6ff},
                              {0x1f900, 0x1f9ff}, {0x20000, 0x2a6df}};
  for (const Range& range : ranges)
    if (c <= range.last) return c >= range.first;
  return false;
}

// One thread's working memory; grows with the longest stretch without a quiet character.
class NfcNormalizer {
 public:
  // True if the text was not in NFC: `out` is then what it becomes. False if it was, and `out` has no meaning.
  bool normalize(std::string_view text, std::string& out) {
    out.clear();
    std::size_t copied = 0;  // out stands for text[0, copied)
    for (std::size_t at = first_loud(text, 0); at < text.size(); at = first_loud(text, at)) {
      const std::size_t begin = base_before(text, at);
      at = first_quiet(text, at);
      compose(text.substr(begin, at - begin));
      if (composed_ == text.substr(begin, at - begin)) continue;
      out.append(text.substr(copied, begin - copied)).append(composed_);
      copied = at;
    }
    if (copied == 0) return false;  // what changed ended behind byte 0
    out.append(text.substr(copied));
    return true;
  }

 private:
  // Where the first character stands, from `at` on, that is not quiet; bytes that are no character are passed.
  static std::size_t first_loud(std::string_view text, std::size_t at) noexcept {
    while (at < text.size()) {
      if (static_cast<unsigned char>(text[at]) < 0xcc) {  // nothing below U+0300 has such a byte
        ++at;
        continue;
      }
      const Utf8Front front = utf8_front(text.substr(at));
      if (front.kind == Utf8Kind::whole && !is_quiet_in_nfc(utf8_point(text.substr(at, front.bytes)))) return at;
      at += front.bytes;
    }
    return at;
  }
  static std::size_t first_quiet(std::string_view text, std::size_t at) noexcept {
    while (at < text.size()) {
      const Utf8Front front = utf8_front(text.substr(at));
      if (front.kind != Utf8Kind::whole || is_quiet_in_nfc(utf8_point(text.substr(at, front.bytes)))) break;
      at += front.bytes;
    }
    return at;
  }

  // Where the character before `at` begins, which marks may join; `at` where there is none.
  static std::size_t base_before(std::string_view text, std::size_t at) noexcept {
    for (std::size_t bytes = 1; bytes <= 4 && bytes <= at; ++bytes) {
      const Utf8Front front = utf8_front(text.substr(at - bytes, bytes));
      if (front.kind == Utf8Kind::whole && front.bytes == bytes) return at - bytes;
    }
    return at;
  }

  // Valid UTF-8 into composed_: taken apart, marks in order, put together.
  void compose(std::string_view text) {
    points_.clear();
    while (!text.empty()) {
      const Utf8Front front = utf8_front(text);
      take_apart(static_cast<utf8proc_int32_t>(utf8_point(text.substr(0, front.bytes))));
      text.remove_prefix(front.bytes);
    }
    order_marks();
    const utf8proc_ssize_t count =
        utf8proc_normalize_utf32(points_.data(), static_cast<utf8proc_ssize_t>(points_.size()), options);
    if (count >= 0) points_.resize(static_cast<std::size_t>(count));
    composed_.clear();
    for (const utf8proc_int32_t point : points_) {
      utf8proc_uint8_t bytes[4];
      const utf8proc_ssize_t n = utf8proc_encode_char(point, bytes);
      composed_.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(n));
    }
  }

  void take_apart(utf8proc_int32_t point) {
    constexpr std::size_t most = 8;  // Unicode's longest canonical decomposition has four
    utf8proc_int32_t parts[most];
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(point, parts, most, options, &boundary);
    if (count > 0 && count <= static_cast<utf8proc_ssize_t>(most))
      points_.insert(points_.end(), parts, parts + count);
    else
      points_.push_back(point);
  }

  // Each run of marks by combining class, equal ones as they stood.
  void order_marks() {
    for (std::size_t run = 0; run < points_.size();) {
      std::size_t end = run;
      bool ordered = true;
      for (int last = 0; end < points_.size(); ++end) {
        const int next = mark_class(points_[end]);
        if (next == 0) break;
        ordered = ordered && last <= next;
        last = next;
      }
      if (!ordered) sort_marks(run, end);
      run = end + 1;
    }
  }
  void sort_marks(std::size_t begin, std::size_t end) {
    constexpr int point_bits = 21, place_bits = 32;
    keys_.clear();
    for (std::size_t i = begin; i < end; ++i)
      keys_.push_back(static_cast<std::uint64_t>(mark_class(points_[i])) << (point_bits + place_bits) |
                      static_cast<std::uint64_t>(i - begin) << point_bits | static_cast<std::uint64_t>(points_[i]));
    std::sort(keys_.begin(), keys_.end());
    for (std::size_t i = begin; i < end; ++i)
      points_[i] = static_cast<utf8proc_int32_t>(keys_[i - begin] & ((1u << point_bits) - 1));
  }
  static int mark_class(utf8proc_int32_t point) noexcept { return utf8proc_get_property(point)->combining_class; }

  static constexpr auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  std::vector<utf8proc_int32_t> points_;
  std::vector<std::uint64_t> keys_;  // combining class, place, code point
  std::string composed_;
};

POCKET_NAMESPACE_END

#endif
