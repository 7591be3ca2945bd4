// What several tests need: a small seeded generator, memory between guard pages.
#ifndef POCKET_TEST_SUPPORT_HPP
#define POCKET_TEST_SUPPORT_HPP

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace test {

// Sanitizers and emulated processors make these tests some ten times slower: they then do the same with fewer
// repetitions and shorter prompts.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#elif defined(__has_feature)
inline constexpr bool sanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool sanitized = false;
#endif
#ifdef POCKET_TEST_EMULATED
inline constexpr bool emulated = true;
#else
inline constexpr bool emulated = false;
#endif
inline constexpr bool slow = sanitized || emulated;

// xorshift64*: the same numbers everywhere, unlike the standard distributions.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du;
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() >> 11) % n; }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }  // [0, 1)
  float normal() {  // twelve uniform numbers: close enough, and exact on every platform
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t state_;
};

// `count` objects whose last byte (or first, with at_front) touches a page that may not be read or written.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::size_t count, bool at_front = false) : count_(count) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t bytes = count * sizeof(T), inside = (bytes + page - 1) / page * page;
    size_ = inside + 2 * page;
    base_ = static_cast<std::byte*>(mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + page, inside == 0 ? page : inside, PROT_READ | PROT_WRITE) != 0)
      std::abort();
    data_ = reinterpret_cast<T*>(base_ + page + (at_front ? 0 : inside - bytes));
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(base_, size_); }
  T* data() { return data_; }
  std::size_t size() const { return count_; }
  T& operator[](std::size_t i) { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + count_; }

 private:
  std::size_t count_, size_ = 0;
  std::byte* base_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace test

#endif
