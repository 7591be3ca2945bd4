// Words repeat. A small table of the pieces that one call of encode() has met, by where their tokens stand in that
// call's own output: nothing is kept between calls or shared between threads, and the table's size does not depend on
// the text (24 kB). A piece that falls on another's slot replaces it.
#ifndef POCKET_TEXT_RECENT_PIECES_HPP
#define POCKET_TEXT_RECENT_PIECES_HPP

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "../config.hpp"

POCKET_NAMESPACE_BEGIN

// Of one call of encode().
class RecentPieces {
 public:
  // Appends the tokens of `piece` to `out` if they are remembered; `out` is the vector that remember() spoke of.
  bool copy(std::string_view piece, std::vector<std::int32_t>& out) const {
    if (piece.size() > longest || slots_.empty()) return false;
    const Slot& slot = slots_[slot_of(piece)];
    if (slot.text == nullptr || std::string_view(slot.text, slot.bytes) != piece) return false;
    for (std::size_t i = 0; i < slot.count; ++i) {
      const std::int32_t id = out[slot.begin + i];  // by value: push_back may move the vector
      out.push_back(id);
    }
    return true;
  }

  // The tokens of `piece`, whose bytes stay where they are as long as this object, are out[begin .. begin + count).
  void remember(std::string_view piece, std::size_t begin, std::size_t count) {
    if (piece.size() < 2 || piece.size() > longest) return;
    if (slots_.empty()) slots_.resize(slot_count);
    slots_[slot_of(piece)] = {piece.data(), begin, static_cast<std::uint32_t>(piece.size()),
                              static_cast<std::uint32_t>(count)};
  }

 private:
  static constexpr std::size_t slot_count = 1024;
  static constexpr std::size_t longest = 32;
  struct Slot {
    const char* text = nullptr;
    std::size_t begin = 0;
    std::uint32_t bytes = 0, count = 0;
  };

  // FNV-1a, ended by a multiplication that brings its best bits to the top.
  static std::size_t slot_of(std::string_view piece) noexcept {
    std::uint32_t hash = 2166136261u;
    for (const char c : piece) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
    return hash * 2654435769u >> 22;
  }
  static_assert(slot_count == std::size_t{1} << (32 - 22));

  std::vector<Slot> slots_;
};

POCKET_NAMESPACE_END

#endif
