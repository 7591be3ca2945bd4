// Threads are the caller's. The library runs parallel loops through one operation, Executor::parallel_for; a program
// that has its own threads derives from Executor, one that has none uses ThreadPool.
#ifndef POCKET_CORE_EXECUTOR_HPP
#define POCKET_CORE_EXECUTOR_HPP

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "../config.hpp"
#include "status.hpp"

POCKET_NAMESPACE_BEGIN

// A loop body, by reference: body(index, worker). It outlives the call that it is handed to, and nothing more.
class LoopBody {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::remove_cvref_t<F>, LoopBody>>>
  LoopBody(F&& f) noexcept
      : context_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* c, std::size_t i, unsigned w) { (*static_cast<std::remove_reference_t<F>*>(c))(i, w); }) {}
  // One iteration, on the worker of that number.
  void operator()(std::size_t index, unsigned worker) const { call_(context_, index, worker); }

 private:
  void* context_;
  void (*call_)(void*, std::size_t, unsigned);
};

// What the library asks of the caller's threads.
class Executor {
 public:
  virtual ~Executor() = default;
  // How many workers may run a body at once, at least 1. Constant over the executor's life.
  virtual unsigned concurrency() const noexcept = 0;
  // Calls body(i, w) once for every i in [0, n), w in [0, concurrency()) and no two calls with one w at the same time,
  // and returns when all have returned. Any order, any split. What the bodies wrote is visible to the caller
  // afterwards. Bodies do not throw and do not call parallel_for of the same executor.
  virtual void parallel_for(std::size_t n, LoopBody body) noexcept = 0;
};

// Everything on the calling thread.
class SerialExecutor final : public Executor {
 public:
  unsigned concurrency() const noexcept override { return 1; }
  void parallel_for(std::size_t n, LoopBody body) noexcept override {
    for (std::size_t i = 0; i < n; ++i) body(i, 0);
  }
};

// The calling thread and `threads - 1` others. Each worker begins with an equal part of the iterations and takes them
// in order, so that work on memory in a row stays one stream; who has finished takes from the far end of the others'
// parts, so that cores of unequal speed finish together. Idle threads spin for some tens of microseconds (a decode
// step's next loop starts within that), then sleep; a sleeping pool uses no CPU. If several threads call parallel_for
// at once, the first has the pool and each other one runs its own loop alone.
class ThreadPool final : public Executor {
 public:
  // threads: 0 means as many as the machine has cores.
  static Expected<std::unique_ptr<ThreadPool>> create(unsigned threads = 0) {
    if (threads == 0) threads = std::thread::hardware_concurrency();
    if (threads == 0) threads = 1;
    constexpr unsigned most = 1024;
    if (threads > most)
      return fail(Errc::invalid_argument,
                  "threads: " + number(threads) + " is more than the " + number(most) + " allowed");
    std::unique_ptr<ThreadPool> pool{new ThreadPool};
    pool->parts_ = std::make_unique<Part[]>(threads);
    pool->workers_.resize(threads - 1);
    for (unsigned i = 0; i + 1 < threads; ++i) {
      Worker& w = pool->workers_[i];
      w.pool = pool.get();
      w.index = i + 1;
      if (pthread_create(&w.thread, nullptr, &ThreadPool::main, &w) != 0) {
        pool->workers_.resize(i);
        return fail(Errc::out_of_memory, "cannot start thread " + number(i + 2) + " of " + number(threads));
      }
    }
    return pool;
  }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() override {
    stop_.store(true);
    wake_.fetch_add(1);
    wake_.notify_all();
    for (Worker& w : workers_) pthread_join(w.thread, nullptr);
  }

  unsigned concurrency() const noexcept override { return static_cast<unsigned>(workers_.size()) + 1; }

  void parallel_for(std::size_t n, LoopBody body) noexcept override {
    constexpr std::size_t most = 0x7fffffff;  // an iteration's number fits half of a part's left
    if (n < 2 || n > most || workers_.empty() || busy_.exchange(true, std::memory_order_acquire)) {
      for (std::size_t i = 0; i < n; ++i) body(i, 0);
      return;
    }
    body_ = &body;
    done_.store(0, std::memory_order_relaxed);
    const std::uint64_t all = n;
    const unsigned parts = concurrency();
    for (unsigned p = 0; p < parts; ++p)  // publishes body_ and done_
      parts_[p].left.store(pack(all * p / parts, all * (p + 1) / parts), std::memory_order_release);
    wake_.fetch_add(1);
    if (sleepers_.load() > 0) wake_.notify_all();

    run(0);
    for (int spin = 0, done; (done = done_.load(std::memory_order_acquire)) != static_cast<int>(n); ++spin) {
      if (spin < spin_rounds)
        pause();
      else
        done_.wait(done, std::memory_order_acquire);
    }
    busy_.store(false, std::memory_order_release);
  }

 private:
  struct Worker {
    ThreadPool* pool = nullptr;
    pthread_t thread{};
    unsigned index = 0;
  };

  // What nobody has taken yet of a worker's iterations: first << 32 | end.
  struct alignas(64) Part {
    std::atomic<std::uint64_t> left{0};
  };
  static constexpr std::uint64_t pack(std::uint64_t first, std::uint64_t end) noexcept { return first << 32 | end; }

  ThreadPool() = default;

  static constexpr int spin_rounds = 2000;  // pauses of some 10 to 70 ns: 20 to 140 microseconds

  static void pause() noexcept {
#if POCKET_ARCH_X86
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  // Runs iterations of the current loop until none is left, the worker's own first. A claim succeeds only while its
  // loop is unfinished, so body_, read after it, belongs to that loop: the caller replaces it only when every iteration
  // has been counted, and this worker counts its own at the end.
  void run(unsigned worker) noexcept {
    const unsigned parts = concurrency();
    int count = 0;
    for (unsigned p = 0; p < parts; ++p) {
      std::atomic<std::uint64_t>& left = parts_[(worker + p) % parts].left;
      std::uint64_t s = left.load(std::memory_order_acquire);
      while (s >> 32 != (s & 0xffffffffu)) {
        const std::uint64_t first = s >> 32, end = s & 0xffffffffu;
        const std::uint64_t after = p == 0 ? pack(first + 1, end) : pack(first, end - 1);
        if (!left.compare_exchange_weak(s, after, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        (*body_)(static_cast<std::size_t>(p == 0 ? first : end - 1), worker);
        ++count;
        s = left.load(std::memory_order_acquire);
      }
    }
    if (count > 0) {
      done_.fetch_add(count, std::memory_order_acq_rel);
      done_.notify_one();
    }
  }

  static void* main(void* argument) {
    const Worker& w = *static_cast<Worker*>(argument);
    ThreadPool& p = *w.pool;
    int seen = 0;
    for (int spin = 0; !p.stop_.load(std::memory_order_relaxed);) {
      if (const int now = p.wake_.load(std::memory_order_acquire); now != seen) {
        seen = now;
        spin = 0;
        p.run(w.index);
      } else if (++spin < spin_rounds) {
        pause();
      } else {
        p.sleepers_.fetch_add(1);
        p.wake_.wait(seen);
        p.sleepers_.fetch_sub(1);
        spin = 0;
      }
    }
    return nullptr;
  }

  std::vector<Worker> workers_;
  std::unique_ptr<Part[]> parts_;  // one a worker, the caller's first
  const LoopBody* body_ = nullptr;
  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<int> done_{0};  // iterations that have returned
  alignas(64) std::atomic<int> wake_{0};  // loops begun; also what idle threads watch
  std::atomic<int> sleepers_{0};
};

POCKET_NAMESPACE_END

#endif
