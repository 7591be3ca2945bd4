// The alphabet of byte-level vocabularies (GPT-2's): files of tokens are text, so every byte is written as a printable
// character. The bytes 0x21..0x7e, 0xa1..0xac and 0xae..0xff stand for themselves (as U+0021 and so on); the other 68,
// in ascending order, are U+0100, U+0101, ...: a space is U+0120 and a newline U+010A.
#ifndef POCKET_TEXT_BYTE_ALPHABET_HPP
#define POCKET_TEXT_BYTE_ALPHABET_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "../config.hpp"
#include "utf8.hpp"

POCKET_NAMESPACE_BEGIN

// Printable bytes do; the others are spelled by characters from U+0100 on.
constexpr bool byte_stands_for_itself(unsigned byte) noexcept {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

// Byte to code point, 0x21..0x143.
constexpr std::array<std::uint16_t, 256> make_byte_alphabet() noexcept {
  std::array<std::uint16_t, 256> points{};
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte)
    points[byte] = static_cast<std::uint16_t>(byte_stands_for_itself(byte) ? byte : next++);
  return points;
}
inline constexpr std::array<std::uint16_t, 256> byte_alphabet = make_byte_alphabet();

// Code point to byte; -1 for one outside the alphabet.
constexpr std::array<std::int16_t, 0x144> make_alphabet_bytes() noexcept {
  std::array<std::int16_t, 0x144> bytes{};
  for (std::int16_t& b : bytes) b = -1;
  for (unsigned byte = 0; byte < 256; ++byte) bytes[byte_alphabet[byte]] = static_cast<std::int16_t>(byte);
  return bytes;
}
inline constexpr std::array<std::int16_t, 0x144> alphabet_bytes = make_alphabet_bytes();
static_assert(byte_alphabet[' '] == 0x120 && byte_alphabet['\n'] == 0x10a && byte_alphabet[0xad] == 0x143);

// A byte as the vocabulary spells it: one or two bytes of UTF-8.
inline std::string spell_byte(unsigned char byte) {
  const unsigned point = byte_alphabet[byte];
  if (point < 0x80) return std::string(1, static_cast<char>(point));
  return {static_cast<char>(0xc0u | point >> 6), static_cast<char>(0x80u | (point & 0x3fu))};
}

// Appends the bytes that `spelling` stands for. False, and nothing appended, if it leaves the alphabet.
inline bool append_spelled_bytes(std::string_view spelling, std::string& out) {
  const std::size_t before = out.size();
  while (!spelling.empty()) {
    const Utf8Front front = utf8_front(spelling);
    const auto at = [&](std::size_t i) { return static_cast<unsigned char>(spelling[i]); };
    unsigned point = 0xffff;
    if (front.kind == Utf8Kind::whole && front.bytes == 1) point = at(0);
    if (front.kind == Utf8Kind::whole && front.bytes == 2) point = (at(0) & 0x1fu) << 6 | (at(1) & 0x3fu);
    if (point >= alphabet_bytes.size() || alphabet_bytes[point] < 0) {
      out.resize(before);
      return false;
    }
    out.push_back(static_cast<char>(alphabet_bytes[point]));
    spelling.remove_prefix(front.bytes);
  }
  return true;
}

POCKET_NAMESPACE_END

#endif
