// Replaces every form of operator new and delete, and counts. Include in one unit of a test program.
// All forms, since a sanitiser pairs them; out of line, or the compiler would see malloc and delete meet.
#ifndef POCKET_TEST_COUNT_NEW_HPP
#define POCKET_TEST_COUNT_NEW_HPP

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "pocket/config.hpp"

namespace test {
inline std::atomic<std::size_t> new_calls{0};
inline std::atomic<std::size_t> new_bytes{0};  // asked for, whether freed again or not
}  // namespace test

POCKET_NOINLINE void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  test::new_calls += 1;
  test::new_bytes += size;
  return std::malloc(size == 0 ? 1 : size);
}
POCKET_NOINLINE void* operator new(std::size_t size) {
  if (void* const p = operator new(size, std::nothrow)) return p;
  throw std::bad_alloc();
}
void* operator new[](std::size_t size) { return operator new(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return operator new(size, std::nothrow); }
POCKET_NOINLINE void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { operator delete(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { operator delete(p); }
void operator delete[](void* p) noexcept { operator delete(p); }
void operator delete[](void* p, std::size_t) noexcept { operator delete(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { operator delete(p); }

#endif
