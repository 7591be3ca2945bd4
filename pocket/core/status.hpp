// Errors are values: Expected<T> holds a T or an Error that says what was wrong, where, and what was expected.
// No function of Pocket throws or aborts; every fallible one returns Expected.
#ifndef POCKET_CORE_STATUS_HPP
#define POCKET_CORE_STATUS_HPP

#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

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
// live in this namespace, which spells the unit's target.
class Text {
 public:
  Text(const char* s) : Text(std::string_view(s)) {}
  Text(const std::string& s) : Text(std::string_view(s.data(), s.size())) {}
  Text(std::string_view s) { text_.append(s.data(), s.size()); }
  operator std::string() && { return std::move(text_); }
  // Appends.
  Text& add(std::string_view s) {
    text_.append(s.data(), s.size());
    return *this;
  }
  std::string_view view() const noexcept { return {text_.data(), text_.size()}; }  // until the next change

 private:
  std::string text_;
};
inline Text operator+(Text a, const Text& b) { return std::move(a.add(b.view())); }

// A number of any arithmetic type as text: %g for floating point.
template <class T>
Text number(T value) {
  char buffer[64];
  int size;
  if constexpr (std::is_floating_point_v<T>)
    size = std::snprintf(buffer, sizeof buffer, "%g", static_cast<double>(value));
  else if constexpr (std::is_signed_v<T>)
    size = std::snprintf(buffer, sizeof buffer, "%lld", static_cast<long long>(value));
  else
    size = std::snprintf(buffer, sizeof buffer, "%llu", static_cast<unsigned long long>(value));
  return Text(std::string_view(buffer, static_cast<std::size_t>(size)));
}

// What an Expected holds when there is no value.
struct Error {
  Errc code = Errc::invalid_argument;
  std::string message;
};

// A T, or the Error that says why there is none: test it, then take *e, e-> or e.error().
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Expected(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const noexcept { return state_.index() == 0; }
  bool has_value() const noexcept { return state_.index() == 0; }  // what the conversion to bool says

  // The caller has tested this object: the wrong side is undefined behaviour, as with std::expected.
  T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() noexcept { return std::get_if<0>(&state_); }
  const T* operator->() const noexcept { return std::get_if<0>(&state_); }
  // Of an object that holds none: undefined behaviour.
  const Error& error() const& noexcept { return *std::get_if<1>(&state_); }
  Error&& error() && noexcept { return std::move(*std::get_if<1>(&state_)); }  // moved from, for `return`

 private:
  std::variant<T, Error> state_;
};

// Success, or an Error: of what gives no value.
template <>
class [[nodiscard]] Expected<void> {
 public:
  Expected() noexcept = default;
  Expected(Error error) : error_(std::move(error)), ok_(false) {}

  explicit operator bool() const noexcept { return ok_; }
  bool has_value() const noexcept { return ok_; }            // what the conversion to bool says
  const Error& error() const& noexcept { return error_; }    // empty after success
  Error&& error() && noexcept { return std::move(error_); }  // moved from, for `return`

 private:
  Error error_;
  bool ok_ = true;
};

// An Error, for `return fail(Errc::io, "...")` in a function that returns an Expected.
inline Error fail(Errc code, std::string message) { return Error{code, std::move(message)}; }

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
