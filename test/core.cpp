// pocket/core: conversions against their definitions, the executor's contract, the planned workspace.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <numeric>
#include <thread>

#include "pocket/core/executor.hpp"
#include "pocket/core/status.hpp"
#include "pocket/core/types.hpp"
#include "pocket/core/workspace.hpp"

using namespace pocket;

TEST_CASE("every f16 value survives float and back") {
  for (std::uint32_t b = 0; b < 0x10000; ++b) {
    const f16 h{static_cast<std::uint16_t>(b)};
    const float f = to_float(h);
    if ((b & 0x7fffu) > 0x7c00u) {
      REQUIRE(std::isnan(f));
      REQUIRE(std::isnan(to_float(to_f16(f))));
    } else {
      REQUIRE(to_f16(f).bits == h.bits);
      const int exponent = static_cast<int>(b >> 10 & 31u), mantissa = static_cast<int>(b & 0x3ffu);
      double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      if (exponent == 31) value = std::numeric_limits<double>::infinity();
      REQUIRE(static_cast<double>(f) == ((b & 0x8000u) != 0 ? -value : value));
    }
  }
}

TEST_CASE("f16 and bf16 round to the nearest, ties to even") {
  // Between each two neighbours: a quarter up stays, the middle goes to the even one, three quarters goes up.
  for (std::uint32_t b = 0; b + 1 < 0x7c00u; ++b) {
    const f16 low{static_cast<std::uint16_t>(b)}, high{static_cast<std::uint16_t>(b + 1)};
    const double a = static_cast<double>(to_float(low)), c = static_cast<double>(to_float(high));
    REQUIRE(to_f16(static_cast<float>(a + (c - a) * 0.25)).bits == b);
    REQUIRE(to_f16(static_cast<float>(a + (c - a) * 0.5)).bits == ((b & 1u) != 0 ? b + 1 : b));
    REQUIRE(to_f16(static_cast<float>(-(a + (c - a) * 0.75))).bits == ((b + 1) | 0x8000u));
  }
  REQUIRE(to_f16(65519.99f).bits == 0x7bff);
  REQUIRE(to_f16(65520.0f).bits == 0x7c00);
  REQUIRE(to_bf16(std::bit_cast<float>(0x3f808000u)).bits == 0x3f80);
  REQUIRE(to_bf16(std::bit_cast<float>(0x3f818000u)).bits == 0x3f82);
  REQUIRE(to_bf16(std::bit_cast<float>(0x3f808001u)).bits == 0x3f81);
}

TEST_CASE("bf16 keeps NaN, subnormals, signed zero and the largest finite value") {
  const auto nan = to_bf16(std::bit_cast<float>(0x7f800001u));
  REQUIRE((nan.bits & 0x7fffu) > 0x7f80u);
  REQUIRE(to_bf16(0x1p-127f).bits == 0x0040);
  REQUIRE(to_bf16(-0.0f).bits == 0x8000);
  REQUIRE(to_bf16(std::numeric_limits<float>::max()).bits == 0x7f80);
  REQUIRE(to_float(bf16{0x7f7f}) == std::bit_cast<float>(0x7f7f0000u));
}

TEST_CASE("a pool runs every iteration once, with fewer and with more threads than iterations") {
  for (unsigned threads : {1u, 2u, 3u, 7u, 16u, 65u}) {
    auto pool = ThreadPool::create(threads);
    REQUIRE(pool);
    REQUIRE((*pool)->concurrency() == threads);
    for (std::size_t n : {0u, 1u, 2u, 3u, 8u, 100u, 1000u}) {
      for (int repeat = 0; repeat < 5; ++repeat) {
        std::vector<int> hits(n, 0);
        std::vector<std::atomic<int>> inside(threads);
        std::atomic<bool> shared{false};
        (*pool)->parallel_for(n, [&](std::size_t i, unsigned w) {
          if (w >= threads || inside[w].fetch_add(1) != 0) shared = true;
          ++hits[i];
          inside[w].fetch_sub(1);
        });
        REQUIRE_FALSE(shared);
        REQUIRE(std::count(hits.begin(), hits.end(), 1) == static_cast<std::ptrdiff_t>(n));
      }
    }
  }
}

TEST_CASE("several threads may use one pool at once") {
  auto pool = ThreadPool::create(3);
  REQUIRE(pool);
  std::atomic<long> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int r = 0; r < 200; ++r)
        (*pool)->parallel_for(50, [&](std::size_t i, unsigned) { sum.fetch_add(static_cast<long>(i)); });
    });
  for (auto& t : callers) t.join();
  REQUIRE(sum == 4L * 200 * (49 * 50 / 2));
}

TEST_CASE("an idle pool sleeps, and wakes again") {
  auto pool = ThreadPool::create(8);
  REQUIRE(pool);
  std::atomic<int> count{0};
  (*pool)->parallel_for(64, [&](std::size_t, unsigned) { ++count; });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  REQUIRE(used < 0.05);  // seven spinning workers would have used 0.6 s on two cores
  (*pool)->parallel_for(64, [&](std::size_t, unsigned) { ++count; });
  REQUIRE(count == 128);
}

TEST_CASE("too many threads is an error, not a crash") {
  const auto pool = ThreadPool::create(1'000'000);
  REQUIRE_FALSE(pool);
  REQUIRE(pool.error().message.find("1000000") != std::string::npos);
}

TEST_CASE("a workspace is aligned, and lent memory is checked") {
  Layout layout;
  REQUIRE(layout.add<float>(3) == 0);
  REQUIRE(layout.add<char>(1) == 64);
  REQUIRE(layout.bytes() == 128);
  auto w = Workspace::allocate(layout.bytes());
  REQUIRE(w);
  REQUIRE(reinterpret_cast<std::uintptr_t>(w->at<char>(64)) % 64 == 0);
  alignas(64) std::byte memory[192];
  REQUIRE(Workspace::borrow(memory, 128));
  REQUIRE_FALSE(Workspace::borrow(memory, 256));
  REQUIRE_FALSE(Workspace::borrow(std::span(memory).subspan(1), 128));
  REQUIRE_FALSE(Workspace::allocate(SIZE_MAX - 8));
}
