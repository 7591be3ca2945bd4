// The wall: how fast this machine reads a buffer of the weights' size. A plain loop is not the ceiling, so several
// kinds of read loop run over the same buffer (one to four streams, with and without a software prefetch) and the best
// counts.
#ifndef POCKET_BENCH_READ_BANDWIDTH_HPP
#define POCKET_BENCH_READ_BANDWIDTH_HPP

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "pocket/core/executor.hpp"
#include "pocket/core/status.hpp"
#include "pocket/core/workspace.hpp"

namespace bench {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class ReadBandwidth {
 public:
  static pocket::Expected<ReadBandwidth> create(std::size_t bytes) {
    constexpr std::size_t piece = 4 * 4096;
    bytes = pocket::round_up(bytes, piece);
    POCKET_TRY(memory, pocket::Workspace::allocate(bytes));
    std::memset(memory.at<std::byte>(0), 1, bytes);  // pages of its own, not the zero page
    return ReadBandwidth(std::move(memory));
  }

  static constexpr std::size_t loops = 6;

  // GB/s of each loop, once over the buffer, which is shared out in equal parts to the executor's threads.
  std::array<double, loops> measure(pocket::Executor& executor) {
    return {run<1, 0>(executor),    run<1, 4096>(executor), run<2, 0>(executor),
            run<2, 4096>(executor), run<4, 0>(executor),    run<4, 2048>(executor)};
  }

 private:
  explicit ReadBandwidth(pocket::Workspace&& memory) : memory_(std::move(memory)) {}

  template <int Streams, std::size_t Prefetch>
  static std::uint64_t read(const std::byte* data, std::size_t bytes) {
    constexpr std::size_t lane = 8;
    std::uint64_t sum[lane] = {};
    const std::size_t each = bytes / Streams / 64 * 64;
    for (std::size_t at = 0; at < each; at += 64)
      for (int s = 0; s < Streams; ++s) {
        const std::byte* line = data + static_cast<std::size_t>(s) * each + at;
        if constexpr (Prefetch != 0) __builtin_prefetch(line + Prefetch);
        std::uint64_t words[lane];
        std::memcpy(words, line, 64);
        for (std::size_t i = 0; i < lane; ++i) sum[i] += words[i];
      }
    std::uint64_t total = 0;
    for (const std::uint64_t v : sum) total += v;
    return total;
  }

  template <int Streams, std::size_t Prefetch>
  double run(pocket::Executor& executor) {
    const std::size_t threads = executor.concurrency(), part = memory_.bytes() / threads / 64 * 64;
    const std::byte* data = memory_.at<std::byte>(0);
    const double start = now();
    executor.parallel_for(threads, [&](std::size_t i, unsigned) {
      sink_.fetch_add(read<Streams, Prefetch>(data + i * part, part), std::memory_order_relaxed);
    });
    return static_cast<double>(part * threads) / (now() - start) * 1e-9;
  }

  pocket::Workspace memory_;
  static inline std::atomic<std::uint64_t> sink_{0};  // keeps the loops from being removed
};

}  // namespace bench

#endif
