// Finds the tokens that are matched whole, before any splitting: the leftmost in the text, and of those that begin at
// one place the longest. (llama.cpp looks for the longest of all first, wherever it stands; the two differ only where
// such tokens overlap in the text. This is the Hugging Face rule.)
#ifndef POCKET_TEXT_SPECIAL_MATCHER_HPP
#define POCKET_TEXT_SPECIAL_MATCHER_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"

POCKET_NAMESPACE_BEGIN

// Const and shareable after it is made.
class SpecialMatcher {
 public:
  // Bytes [begin, end) of the text are token `id`.
  struct Match {
    std::size_t begin = 0, end = 0;
    std::int32_t id = -1;
  };

  SpecialMatcher() = default;
  // Empty texts match nothing and are left out; of equal texts the highest id stays.
  explicit SpecialMatcher(std::vector<std::pair<std::string, std::int32_t>> tokens) : tokens_(std::move(tokens)) {
    std::sort(tokens_.begin(), tokens_.end());  // by text, then by id
    std::vector<std::pair<std::string, std::int32_t>> kept;
    for (auto& token : tokens_) {
      if (token.first.empty()) continue;
      if (!kept.empty() && kept.back().first == token.first) kept.pop_back();
      kept.push_back(std::move(token));
    }
    tokens_ = std::move(kept);
    for (const auto& token : tokens_) begins_[static_cast<unsigned char>(token.first[0])] = true;
  }

  // The first match at or after `from`; {text.size(), text.size(), -1} if there is none.
  Match next(std::string_view text, std::size_t from) const noexcept {
    if (!tokens_.empty())
      for (std::size_t i = from; i < text.size(); ++i)
        if (begins_[static_cast<unsigned char>(text[i])])
          if (const Match match = at(text, i); match.id >= 0) return match;
    return {text.size(), text.size(), -1};
  }

  // The token with exactly this text.
  std::optional<std::int32_t> find(std::string_view text) const noexcept {
    const auto it = std::lower_bound(tokens_.begin(), tokens_.end(), text,
                                     [](const auto& token, std::string_view t) { return token.first < t; });
    if (it == tokens_.end() || it->first != text) return std::nullopt;
    return it->second;
  }

 private:
  // Narrows the sorted list byte by byte to the tokens that agree with the text so far: log(tokens) a byte, and no
  // more bytes than some token shares with the text.
  Match at(std::string_view text, std::size_t begin) const noexcept {
    Match match;
    auto low = tokens_.begin(), high = tokens_.end();
    for (std::size_t depth = 0; begin + depth < text.size() && low != high; ++depth) {
      const auto byte = static_cast<unsigned char>(text[begin + depth]);
      const auto byte_of = [&](const auto& token) { return static_cast<unsigned char>(token.first[depth]); };
      low = std::partition_point(low, high, [&](const auto& token) { return byte_of(token) < byte; });
      high = std::partition_point(low, high, [&](const auto& token) { return byte_of(token) == byte; });
      if (low != high && low->first.size() == depth + 1) {
        match = {begin, begin + depth + 1, low->second};
        ++low;  // no other token ends here, and the rest are longer
      }
    }
    return match;
  }

  std::vector<std::pair<std::string, std::int32_t>> tokens_;
  std::array<bool, 256> begins_{};
};

POCKET_NAMESPACE_END

#endif
