// Memory is planned, then asked for once. A Layout hands out offsets and adds them up (constexpr: the same code answers
// "how much?" at compile time); a Workspace is one block of that size, allocated or lent by the caller.
#ifndef POCKET_CORE_WORKSPACE_HPP
#define POCKET_CORE_WORKSPACE_HPP

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>

#include "../config.hpp"
#include "status.hpp"
#include "view.hpp"

POCKET_NAMESPACE_BEGIN

inline constexpr std::size_t workspace_alignment = 64;  // bytes: a cache line, and the widest vector

// Adds up arrays that share one block: where each begins, and how long the block is.
class Layout {
 public:
  // The offset in bytes, 64-byte aligned, of a new array of `count` objects of type T.
  template <class T>
  constexpr std::size_t add(std::size_t count) noexcept {
    const std::size_t offset = bytes_;
    bytes_ += round_up(count * sizeof(T), workspace_alignment);
    return offset;
  }
  constexpr std::size_t bytes() const noexcept { return bytes_; }  // of the whole block, a multiple of 64

 private:
  std::size_t bytes_ = 0;
};

// One block of memory, 64-byte aligned; it is freed with this object, unless it was lent. Moves, and does not copy.
class Workspace {
 public:
  Workspace() noexcept = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  Workspace(Workspace&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        owned_(std::exchange(other.owned_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Workspace& operator=(Workspace&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(owned_, other.owned_);
    return *this;
  }
  ~Workspace() { std::free(owned_); }

  // A block of its own, zeroed; pages that are never touched cost address space only.
  static Expected<Workspace> allocate(std::size_t bytes) {
    Workspace w;
    w.owned_ = bytes <= SIZE_MAX - workspace_alignment ? std::calloc(1, bytes + workspace_alignment) : nullptr;
    if (w.owned_ == nullptr)
      return fail(Errc::out_of_memory, "cannot allocate a workspace of " + number(bytes) + " bytes");
    const auto address = reinterpret_cast<std::uintptr_t>(w.owned_);
    w.data_ = static_cast<std::byte*>(w.owned_) + (round_up(address, workspace_alignment) - address);
    w.bytes_ = bytes;
    return w;
  }

  // The caller's block: 64-byte aligned, at least `bytes` long, alive as long as this object, of any content.
  static Expected<Workspace> borrow(std::span<std::byte> memory, std::size_t bytes) {
    if (memory.data() == nullptr) return fail(Errc::invalid_argument, "workspace: no memory was lent");
    if (memory.size() < bytes)
      return fail(Errc::invalid_argument,
                  "workspace: " + number(memory.size()) + " bytes were lent, " + number(bytes) + " are needed");
    if (reinterpret_cast<std::uintptr_t>(memory.data()) % workspace_alignment != 0)
      return fail(Errc::invalid_argument, "workspace: the lent memory is not aligned to 64 bytes");
    Workspace w;
    w.data_ = memory.data();
    w.bytes_ = bytes;
    return w;
  }

  // What a Layout placed at `offset` bytes; unchecked.
  template <class T>
  T* at(std::size_t offset) const noexcept {
    return reinterpret_cast<T*>(data_ + offset);
  }
  std::size_t bytes() const noexcept { return bytes_; }  // as asked for

 private:
  std::byte* data_ = nullptr;
  void* owned_ = nullptr;  // what calloc returned; null for borrowed memory
  std::size_t bytes_ = 0;
};

POCKET_NAMESPACE_END

#endif
