// Errors are values: Expected<T> holds a T or an Error that says what was wrong, where, and what was expected.
// No function of Pocket throws or aborts; every fallible one returns Expected.
#ifndef POCKET_CORE_STATUS_HPP
#define POCKET_CORE_STATUS_HPP

#include <cstdio>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "../config.hpp"

POCKET_NAMESPACE_BEGIN

// What kind of thing went wrong; the message says the rest.
enum class Errc : unsigned char {
  invalid_argument,  // the caller's argument; the message names it and what it may be
  io,                // the operating system said no: missing file, no permission, disk full
  malformed,         // a file's content breaks its own format; the message names file and field
  unsupported,       // well-formed, but not something that this version can run
  out_of_memory,     // an allocation failed; nothing was changed
  context_full,      // more tokens than the context holds; the state is as before the call
  cancelled,         // the caller's cancel flag was seen; the state is valid up to the last whole step
};

// The text of messages: "context of " + number(n) + " tokens". std::to_string and std::operator+ are inline functions
// that all units of a program share: the linker may keep those of a unit that was compiled for a newer processor. These
// live in this namespace, which spells the unit's target. None of it is inlined: there is a message at every check, and
// a tenth of a second of compilation and a kilobyte of code in each would buy nothing.
class Text {
 public:
  POCKET_NOINLINE Text(const char* s) : Text(std::string_view(s)) {}
  POCKET_NOINLINE Text(const std::string& s) : Text(std::string_view(s.data(), s.size())) {}
  POCKET_NOINLINE Text(std::string_view s) { text_.append(s.data(), s.size()); }
  POCKET_NOINLINE Text(const Text& other) : Text(other.view()) {}
  POCKET_NOINLINE Text(Text&& other) noexcept : text_(std::move(other.text_)) {}
  Text& operator=(const Text&) = delete;
  POCKET_NOINLINE ~Text() {}
  POCKET_NOINLINE operator std::string() && { return std::move(text_); }
  // Appends.
  POCKET_NOINLINE Text& add(std::string_view s) {
    text_.append(s.data(), s.size());
    return *this;
  }
  std::string_view view() const noexcept { return {text_.data(), text_.size()}; }  // until the next change

 private:
  std::string text_;
};
POCKET_NOINLINE inline Text operator+(Text a, const Text& b) { return std::move(a.add(b.view())); }
POCKET_NOINLINE inline Text operator+(Text a, const char* b) { return std::move(a.add(b)); }
POCKET_NOINLINE inline Text operator+(Text a, const std::string& b) { return std::move(a.add({b.data(), b.size()})); }

namespace detail {
template <class... T>
POCKET_NOINLINE Text formatted(const char* format, T... value) {
  char buffer[64];
  const int size = std::snprintf(buffer, sizeof buffer, format, value...);
  return Text(std::string_view(buffer, static_cast<std::size_t>(size)));
}
}  // namespace detail

// A number of any arithmetic type as text: %g for floating point.
template <class T>
Text number(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return detail::formatted("%g", static_cast<double>(value));
  else if constexpr (std::is_signed_v<T>)
    return detail::formatted("%lld", static_cast<long long>(value));
  else
    return detail::formatted("%llu", static_cast<unsigned long long>(value));
}

// What an Expected holds when there is no value.
struct Error {
  Errc code = Errc::invalid_argument;
  std::string message;
};

// An Error, for `return fail(Errc::io, "...")` in a function that returns an Expected.
[[gnu::cold]] POCKET_NOINLINE inline Error fail(Errc code, std::string message) {
  return Error{code, std::move(message)};
}

namespace detail {
[[gnu::cold]] POCKET_NOINLINE inline void move_error(Error* to, Error& from) noexcept {
  ::new (static_cast<void*>(to)) Error(std::move(from));
}
[[gnu::cold]] POCKET_NOINLINE inline void copy_error(Error* to, const Error& from) {
  ::new (static_cast<void*>(to)) Error(from);
}
[[gnu::cold]] POCKET_NOINLINE inline void destroy_error(Error& e) noexcept { e.~Error(); }
}  // namespace detail

// A T, or the Error that says why there is none: test it, then take *e, e-> or e.error(). Copies if T does. A plain
// union: std::variant and std::optional cost several times the compilation, for each T.
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) noexcept(std::is_nothrow_move_constructible_v<T>) : value_(std::move(value)), ok_(true) {}
  Expected(Error error) noexcept : ok_(false) { detail::move_error(&error_, error); }
  Expected(Expected&& other) noexcept(std::is_nothrow_move_constructible_v<T>) : ok_(other.ok_) {
    if (ok_)
      ::new (static_cast<void*>(&value_)) T(std::move(other.value_));
    else
      detail::move_error(&error_, other.error_);
  }
  Expected(const Expected& other)
    requires std::is_copy_constructible_v<T>
      : ok_(other.ok_) {
    if (ok_)
      ::new (static_cast<void*>(&value_)) T(other.value_);
    else
      detail::copy_error(&error_, other.error_);
  }
  // T's move constructor does not throw, or this object must not be used after it did.
  Expected& operator=(Expected other) noexcept(std::is_nothrow_move_constructible_v<T>) {
    this->~Expected();
    return *::new (static_cast<void*>(this)) Expected(std::move(other));
  }
  ~Expected() {
    if (ok_)
      value_.~T();
    else
      detail::destroy_error(error_);
  }

  explicit operator bool() const noexcept { return ok_; }
  bool has_value() const noexcept { return ok_; }  // what the conversion to bool says

  // The caller has tested this object: the wrong side is undefined behaviour, as with std::expected.
  T& operator*() & noexcept { return value_; }
  const T& operator*() const& noexcept { return value_; }
  T&& operator*() && noexcept { return std::move(value_); }
  T* operator->() noexcept { return &value_; }
  const T* operator->() const noexcept { return &value_; }
  // Of an object that holds none: undefined behaviour.
  const Error& error() const& noexcept { return error_; }
  Error&& error() && noexcept { return std::move(error_); }  // moved from, for `return`

 private:
  union {
    T value_;
    Error error_;
  };
  bool ok_;
};

// Success, or an Error: of what gives no value.
template <>
class [[nodiscard]] Expected<void> {
 public:
  Expected() noexcept = default;
  Expected(Error error) noexcept : error_(std::move(error)), ok_(false) {}

  explicit operator bool() const noexcept { return ok_; }
  bool has_value() const noexcept { return ok_; }            // what the conversion to bool says
  const Error& error() const& noexcept { return error_; }    // empty after success
  Error&& error() && noexcept { return std::move(error_); }  // moved from, for `return`

 private:
  Error error_;
  bool ok_ = true;
};

POCKET_NAMESPACE_END

// POCKET_TRY(name, expression): `name` becomes a reference to the value; an error returns from the calling function.
#define POCKET_TRY(name, ...)                                      \
  auto name##_expected = (__VA_ARGS__);                            \
  if (!name##_expected) return std::move(name##_expected).error(); \
  auto& name = *name##_expected
// POCKET_CHECK(expression): the same for Expected<void>.
#define POCKET_CHECK(...)                                                                         \
  do {                                                                                            \
    if (auto pocket_check = (__VA_ARGS__); !pocket_check) return std::move(pocket_check).error(); \
  } while (false)

#endif
