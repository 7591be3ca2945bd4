// A streaming UTF-8 decoder: tokens end in the middle of characters, a terminal or a JSON string must not. Push each
// token's bytes, take out whole characters; the beginning of an unfinished one, at most 3 bytes, is held back.
//
// Utf8Mode::raw      every byte comes out, unchanged and in order: the outputs of all pushes and of the last flush,
//                    joined, are the input. Bytes that are not UTF-8 pass as soon as that is certain.
// Utf8Mode::replace  the output is always valid UTF-8: each maximal subpart of an ill-formed sequence becomes one
//                    U+FFFD (the practice that Unicode recommends, and that browsers follow).
//
// flush() ends the text: what is held comes out as it is (raw) or as one U+FFFD (replace). Nothing is allocated but the
// caller's string.
#ifndef POCKET_TEXT_UTF8_STREAM_HPP
#define POCKET_TEXT_UTF8_STREAM_HPP

#include <cstddef>
#include <string>
#include <string_view>

#include "../config.hpp"
#include "utf8.hpp"

POCKET_NAMESPACE_BEGIN

// What becomes of bytes that are no UTF-8.
enum class Utf8Mode : unsigned char { raw, replace };

// Bytes in pieces of any size in, whole characters out.
class Utf8Stream {
 public:
  explicit Utf8Stream(Utf8Mode mode = Utf8Mode::raw) noexcept : mode_(mode) {}

  // Appends to `out` what `bytes` completes.
  void push(std::string_view bytes, std::string& out) {
    while (held_ > 0 && !bytes.empty()) finish_held(bytes, out);
    while (!bytes.empty()) {
      const std::size_t good = utf8_valid_prefix(bytes);
      out.append(bytes.substr(0, good));
      bytes.remove_prefix(good);
      if (bytes.empty()) return;
      const Utf8Front front = utf8_front(bytes);
      if (front.kind == Utf8Kind::cut) {
        held_ = bytes.copy(hold_, sizeof hold_);
        return;
      }
      put_broken(bytes.substr(0, front.bytes), out);
      bytes.remove_prefix(front.bytes);
    }
  }

  // Ends the text: appends what is held, by the rule above. The stream is then as new.
  void flush(std::string& out) {
    if (held_ > 0) put_broken({hold_, held_}, out);
    held_ = 0;
  }

  // Forgets what is held.
  void reset() noexcept { held_ = 0; }
  std::size_t held_bytes() const noexcept { return held_; }

 private:
  // Takes one byte. If it does not continue the held character, it stays in `bytes` and begins the next one.
  void finish_held(std::string_view& bytes, std::string& out) {
    hold_[held_] = bytes.front();
    const Utf8Front front = utf8_front({hold_, held_ + 1});
    if (front.kind == Utf8Kind::broken) {
      put_broken({hold_, held_}, out);
      held_ = 0;
      return;
    }
    bytes.remove_prefix(1);
    ++held_;
    if (front.kind == Utf8Kind::cut) return;
    out.append(hold_, held_);
    held_ = 0;
  }

  void put_broken(std::string_view bytes, std::string& out) const {
    if (mode_ == Utf8Mode::raw)
      out.append(bytes);
    else
      out.append("\xef\xbf\xbd");
  }

  char hold_[4] = {};
  std::size_t held_ = 0;
  Utf8Mode mode_;
};

POCKET_NAMESPACE_END

#endif
