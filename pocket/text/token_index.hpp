// Text to id, by open addressing on ids alone: whoever asks says what text an id has, so that nothing is stored twice.
// 8 to 16 bytes for each token.
#ifndef POCKET_TEXT_TOKEN_INDEX_HPP
#define POCKET_TEXT_TOKEN_INDEX_HPP

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "../config.hpp"

POCKET_NAMESPACE_BEGIN

// Spelling to id.
class TokenIndex {
 public:
  TokenIndex() = default;  // finds nothing

  // The ids 0 to count - 1; text_of(id) gives each one's text, and an empty one is left out. Of equal texts the last
  // counts, and twice() names an earlier one.
  template <class TextOf>
  TokenIndex(std::size_t count, TextOf text_of) : slots_(std::bit_ceil(count * 2 + 1), -1) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto id = static_cast<std::int32_t>(i);
      const std::string_view text = text_of(id);
      if (text.empty()) continue;
      std::int32_t& slot = slots_[slot_of(text, text_of)];
      if (slot >= 0) twice_ = slot;
      slot = id;
    }
  }

  // -1 if there is none; text_of as the index was made with.
  template <class TextOf>
  std::int32_t find(std::string_view text, TextOf text_of) const {
    return slots_.empty() ? -1 : slots_[slot_of(text, text_of)];
  }
  bool empty() const noexcept { return slots_.empty(); }
  std::int32_t twice() const noexcept { return twice_; }  // -1 if all texts differ
  std::size_t bytes() const noexcept { return slots_.capacity() * sizeof slots_[0]; }

 private:
  template <class TextOf>
  std::size_t slot_of(std::string_view text, TextOf& text_of) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = std::hash<std::string_view>{}(text)&mask;
    while (slots_[i] >= 0 && text_of(slots_[i]) != text) i = (i + 1) & mask;
    return i;
  }

  std::vector<std::int32_t> slots_;
  std::int32_t twice_ = -1;
};

POCKET_NAMESPACE_END

#endif
