// A matrix somewhere in the caller's memory: rows of `cols` elements, `stride` elements from one row to the next.
#ifndef POCKET_CORE_VIEW_HPP
#define POCKET_CORE_VIEW_HPP

#include <cstddef>

#include "../config.hpp"

POCKET_NAMESPACE_BEGIN

// rows x cols elements of type T (const T: to be read); owns nothing.
template <class T>
struct MatrixView {
  T* data = nullptr;
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::size_t stride = 0;  // elements, at least cols

  constexpr T* row(std::size_t r) const noexcept { return data + r * stride; }  // of row r; unchecked
};

// `value` rounded up to a multiple of `step`, a power of two or not.
constexpr std::size_t round_up(std::size_t value, std::size_t step) noexcept {
  return (value + step - 1) / step * step;
}
// `value` / `step`, rounded up.
constexpr std::size_t div_up(std::size_t value, std::size_t step) noexcept { return (value + step - 1) / step; }

POCKET_NAMESPACE_END

#endif
