// The one place where sizes and offsets of a file that nobody vouches for are computed: checked 64-bit arithmetic, a
// bounds-checked little-endian cursor, and an index of names. gguf.hpp and safetensors.hpp stand on it.
//
// Positions and lengths are bytes, std::uint64_t, until they have been compared with the real size of the memory; only
// then do they become std::size_t. Errors are Errc::malformed and read "FILE: PLACE: what was wrong".
#ifndef POCKET_FILES_READER_HPP
#define POCKET_FILES_READER_HPP

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"

POCKET_NAMESPACE_BEGIN

static_assert(std::endian::native == std::endian::little, "tensor data is used as it lies in the file: little-endian");

// a + b, or nothing where 64 bits do not hold it.
constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// a * b, or nothing where 64 bits do not hold it.
constexpr std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// The number of elements of a shape; of an empty shape (a scalar) 1. A zero anywhere gives 0, whatever the others are.
constexpr std::optional<std::uint64_t> checked_product(std::span<const std::uint64_t> dims) noexcept {
  for (const std::uint64_t d : dims)
    if (d == 0) return 0;
  std::uint64_t product = 1;
  for (const std::uint64_t d : dims) {
    const auto next = checked_mul(product, d);
    if (!next) return std::nullopt;
    product = *next;
  }
  return product;
}

// A T from anywhere in memory, aligned or not.
template <class T>
T load_unaligned(const std::byte* from) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Text out of a file, fit for a message: at most 80 bytes, and none that a terminal would take for a command.
inline std::string in_quotes(std::string_view text) {
  constexpr std::size_t most = 80;
  std::string out = "'";
  for (const char c : text.substr(0, most)) out += c >= 0x20 && c < 0x7f ? c : '?';
  out += text.size() > most ? "...'" : "'";
  return out;
}

// Takes a file apart from front to back; nothing is read beyond its end.
class ByteReader {
 public:
  // `file` is the name for messages; it and the bytes outlive the reader.
  ByteReader(std::span<const std::byte> bytes, std::string_view file) noexcept : bytes_(bytes), file_(file) {}

  std::uint64_t position() const noexcept { return position_; }
  std::uint64_t remaining() const noexcept { return bytes_.size() - position_; }
  // Bytes [begin, end) of the file; empty where that does not lie inside it.
  std::span<const std::byte> between(std::uint64_t begin, std::uint64_t end) const noexcept {  // begin <= end <= size
    return bytes_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }

  // What is being read, for messages: "tensor 'blk.0.attn_q.weight'".
  void set_place(std::string place) { place_ = std::move(place); }

  // "FILE: PLACE: what"
  Error malformed(std::string_view what) const {
    std::string message{file_};
    message.append(": ");
    if (!place_.empty()) message.append(place_).append(": ");
    return fail(Errc::malformed, message.append(what));
  }

  // The next `count` bytes.
  Expected<std::span<const std::byte>> take(std::uint64_t count, std::string_view field) {
    if (count > remaining())
      return malformed(std::string(field) + " needs " + std::to_string(count) + " bytes at byte " +
                       std::to_string(position_) + ", the file has " + std::to_string(remaining()) + " left");
    const auto taken = bytes_.subspan(position_, static_cast<std::size_t>(count));
    position_ += static_cast<std::size_t>(count);
    return taken;
  }

  // A number in little-endian order.
  template <class T>
  Expected<T> read(std::string_view field) {
    static_assert(std::is_arithmetic_v<T>);
    POCKET_TRY(taken, take(sizeof(T), field));
    return load_unaligned<T>(taken.data());
  }

  // A 64-bit length, then that many bytes.
  Expected<std::string_view> read_string(std::string_view field) {
    POCKET_TRY(length, read<std::uint64_t>(field));
    POCKET_TRY(taken, take(length, field));
    return std::string_view(reinterpret_cast<const char*>(taken.data()), taken.size());
  }

  // A 64-bit count of things that take at least `least` bytes each: refused where the rest of the file cannot hold
  // them, so that no count is believed, looped over or allocated for beyond what the file's own size justifies.
  Expected<std::uint64_t> read_count(std::uint64_t least, std::string_view field) {
    POCKET_TRY(count, read<std::uint64_t>(field));
    if (count > remaining() / least)
      return malformed(std::string(field) + " is " + std::to_string(count) + ", but the remaining " +
                       std::to_string(remaining()) + " bytes hold at most " + std::to_string(remaining() / least));
    return count;
  }

 private:
  std::span<const std::byte> bytes_;
  std::string_view file_;
  std::string place_;
  std::size_t position_ = 0;  // never beyond bytes_.size()
};

// Finds items by name, and finds out whether two share one. `name(i)` gives the name of item i as a string_view.
class NameIndex {
 public:
  // The name that occurs twice, if one does.
  template <class Name>
  std::optional<std::string_view> build(std::size_t count, Name name) {
    order_.resize(count);
    for (std::size_t i = 0; i < count; ++i) order_[i] = i;
    std::sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) { return name(a) < name(b); });
    for (std::size_t i = 1; i < count; ++i)
      if (name(order_[i - 1]) == name(order_[i])) return name(order_[i]);
    return std::nullopt;
  }

  // The number of the item of that name.
  template <class Name>
  std::optional<std::size_t> find(std::string_view wanted, Name name) const {
    const auto at = std::lower_bound(order_.begin(), order_.end(), wanted,
                                     [&](std::size_t i, std::string_view text) { return name(i) < text; });
    if (at == order_.end() || name(*at) != wanted) return std::nullopt;
    return *at;
  }

 private:
  std::vector<std::size_t> order_;  // item numbers, ascending by name
};

POCKET_NAMESPACE_END

#endif
