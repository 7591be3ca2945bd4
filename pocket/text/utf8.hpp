// UTF-8, one character at a time: where it ends, and whether it is well formed (Unicode 15, table 3-7: no overlong
// forms, no surrogates, nothing above U+10FFFF).
#ifndef POCKET_TEXT_UTF8_HPP
#define POCKET_TEXT_UTF8_HPP

#include <cstddef>
#include <string_view>

#include "../config.hpp"

POCKET_NAMESPACE_BEGIN

// How a text begins.
enum class Utf8Kind : unsigned char {
  whole,   // one well-formed character
  broken,  // bytes that no continuation can mend: the maximal subpart, one U+FFFD in Unicode's recommended practice
  cut,     // a well-formed beginning; the text ends before the character does
};

// What a text begins with, and how many bytes that takes.
struct Utf8Front {
  Utf8Kind kind;
  unsigned char bytes;  // 1..4
};

// What stands at the front of `text`, which is not empty.
constexpr Utf8Front utf8_front(std::string_view text) noexcept {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = at(0);
  if (lead < 0x80) return {Utf8Kind::whole, 1};
  if (lead < 0xc2 || lead > 0xf4) return {Utf8Kind::broken, 1};
  const unsigned char length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // Only the second byte's range depends on the lead: this is what shuts out overlong forms and surrogates.
  unsigned low = 0x80, high = 0xbf;
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  for (unsigned char i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Kind::cut, i};
    if (at(i) < low || at(i) > high) return {Utf8Kind::broken, i};
    low = 0x80;
    high = 0xbf;
  }
  return {Utf8Kind::whole, length};
}

// How many bytes at the front of `text` are well-formed UTF-8.
constexpr std::size_t utf8_valid_prefix(std::string_view text) noexcept {
  std::size_t i = 0;
  while (i < text.size()) {
    const Utf8Front front = utf8_front(text.substr(i));
    if (front.kind != Utf8Kind::whole) break;
    i += front.bytes;
  }
  return i;
}

// The code point of one well-formed character.
constexpr char32_t utf8_point(std::string_view character) noexcept {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (lead < 0x80) return lead;
  // The lead byte of n bytes has n ones and a zero before its bits of the code point.
  char32_t point = lead & (0x7fu >> character.size());
  for (const char c : character.substr(1)) point = point << 6 | (static_cast<unsigned char>(c) & 0x3fu);
  return point;
}

POCKET_NAMESPACE_END

#endif
