// The transformer at its edges: full contexts, bad tokens and weights, cancelling, memory that the caller lends, and
// the promises about memory (nothing allocates after creation, nothing is left behind, the plan is exact).
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "model_fixture.hpp"
#include "pocket/backend/cpu.hpp"
#include "pocket/core/executor.hpp"
#include "pocket/model/transformer.hpp"

using namespace pocket;
using namespace test;
using Session = Transformer<RuntimeSpec>;

// ---- every allocation of the program is counted ----

namespace {
std::atomic<std::size_t> allocations{0};
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define POCKET_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define POCKET_TEST_SANITIZED 1
#endif
#endif
#ifndef POCKET_TEST_SANITIZED
#define POCKET_TEST_SANITIZED 0
#endif

#if POCKET_TEST_SANITIZED
extern "C" void __sanitizer_malloc_hook(const volatile void*, std::size_t) { allocations.fetch_add(1); }
#define POCKET_TEST_COUNTS 1
#elif defined(__GLIBC__)
// The program's own malloc comes before the C library's, also for operator new and for what libraries ask for.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void* malloc(std::size_t n) {
  allocations.fetch_add(1);
  return __libc_malloc(n);
}
void* calloc(std::size_t count, std::size_t size) {
  allocations.fetch_add(1);
  return __libc_calloc(count, size);
}
void* realloc(void* p, std::size_t n) {
  allocations.fetch_add(1);
  return __libc_realloc(p, n);
}
void* aligned_alloc(std::size_t alignment, std::size_t n) {
  allocations.fetch_add(1);
  return __libc_memalign(alignment, n);
}
}
#define POCKET_TEST_COUNTS 1
#else
#define POCKET_TEST_COUNTS 0
#endif

namespace {

constexpr RuntimeSpec small{2, 80, 6, 2, 16, 112, 90, 1024, true};
constexpr RuntimeSpec llama_small{1, 48, 3, 1, 16, 80, 77, 64, false};

const RandomModel& model() {
  static const RandomModel m(small, ModelFormats::all(WeightFormat::w4_g64), 41);
  return m;
}

bool same(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}
std::vector<float> copy(std::span<const float> v) { return {v.begin(), v.end()}; }

Session open(Executor& executor, const SessionShape& shape, std::span<std::byte> memory = {}) {
  return value(Session::create(small, model().weights(), shape, {&executor, nullptr, memory}));
}

// Logits after these tokens, computed apart.
std::vector<float> logits_after(std::span<const std::int32_t> tokens) {
  SerialExecutor serial;
  auto session = open(serial, {.context = tokens.size(), .batch = 32});
  REQUIRE(session.forward(tokens));
  return copy(session.logits());
}

void check_error(const Expected<void>& result, Errc code, const std::vector<std::string>& parts) {
  REQUIRE_FALSE(result);
  CHECK(result.error().code == code);
  for (const std::string& part : parts) {
    CAPTURE(result.error().message, part);
    CHECK(result.error().message.find(part) != std::string::npos);
  }
}
template <class T>
Expected<void> outcome(Expected<T>&& e) {
  if (!e) return std::move(e).error();
  return {};
}

}  // namespace

TEST_CASE("a context of 16 takes 15 or 16 tokens; one more is an error that changes nothing") {
  const auto tokens = random_tokens(18, small.vocab, 42);
  SerialExecutor serial;
  for (const std::size_t n : {15u, 16u, 17u}) {
    auto session = open(serial, {.context = 16, .batch = 8});
    CHECK(session.context() == 16);
    const auto prompt = std::span(tokens).first(n);
    if (n > 16) {
      check_error(session.forward(prompt), Errc::context_full, {"17", "16"});
      CHECK(session.position() == 0);
      REQUIRE(session.forward(prompt.first(16)));
    } else {
      REQUIRE(session.forward(prompt));
    }
    if (session.position() == 15) REQUIRE(session.forward(std::span(tokens).subspan(15, 1)));
    const auto full = copy(session.logits());
    CHECK(same(full, logits_after(std::span(tokens).first(16))));
    for (int repeat = 0; repeat < 2; ++repeat) {
      check_error(session.forward(std::span(tokens).subspan(16, 1)), Errc::context_full, {"1 tokens", "16"});
      CHECK(session.position() == 16);
      CHECK(same(session.logits(), full));
    }
    REQUIRE(session.rewind(9));
    REQUIRE(session.forward(std::span(tokens).subspan(9, 7)));
    CHECK(same(session.logits(), full));
  }
}

TEST_CASE("bad arguments of forward and rewind are errors that change nothing") {
  const auto tokens = random_tokens(12, small.vocab, 43);
  SerialExecutor serial;
  auto session = open(serial, {.context = 32, .batch = 4, .logit_rows = 2});
  REQUIRE(session.forward(std::span(tokens).first(10)));
  const auto before = copy(session.logits());
  const auto vocab = static_cast<std::int32_t>(small.vocab);
  for (const std::int32_t bad :
       {-1, vocab, vocab + 1, std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max()}) {
    const std::int32_t last_bad[] = {1, 2, 3, 4, 5, bad};
    check_error(session.forward(last_bad), Errc::invalid_argument, {std::to_string(bad), "90"});
  }
  check_error(session.forward({}), Errc::invalid_argument, {"no tokens"});
  check_error(session.forward(std::span(tokens).first(2), 3), Errc::invalid_argument, {"3", "2"});
  check_error(session.forward(std::span(tokens).first(1), 2), Errc::invalid_argument, {"2", "1"});
  check_error(session.forward(std::span(tokens).first(1), std::numeric_limits<std::size_t>::max()),
              Errc::invalid_argument, {});
  check_error(session.rewind(11), Errc::invalid_argument, {"11", "10"});
  CHECK(session.position() == 10);
  CHECK(same(session.logits(), before));
  REQUIRE(session.forward(std::span(tokens).subspan(10)));
  CHECK(same(session.logits(), logits_after(tokens)));
}

TEST_CASE("sessions that do not fit the model are refused, naming the argument") {
  SerialExecutor serial;
  const auto create = [&](const SessionShape& shape) {
    return outcome(Session::create(small, model().weights(), shape, {&serial, nullptr, {}}));
  };
  CHECK(create({.context = small.positions}));
  CHECK(create({.context = 1, .batch = 65536}));
  check_error(create({.context = 0}), Errc::invalid_argument, {"context of 0", "1024"});
  check_error(create({.context = small.positions + 1}), Errc::invalid_argument, {"1025", "1024"});
  check_error(create({.context = std::numeric_limits<std::size_t>::max()}), Errc::invalid_argument, {"context"});
  check_error(create({.context = 16, .batch = 0}), Errc::invalid_argument, {"batch of 0"});
  check_error(create({.context = 16, .batch = std::numeric_limits<std::size_t>::max()}), Errc::invalid_argument,
              {"batch"});
  check_error(create({.context = 16, .logit_rows = 0}), Errc::invalid_argument, {"0 rows"});
  check_error(create({.context = 16, .logit_rows = std::numeric_limits<std::size_t>::max()}), Errc::invalid_argument,
              {"rows"});
  check_error(outcome(Session::create(small, model().weights(), {.context = 16}, {})), Errc::invalid_argument,
              {"executor"});
  struct Nobody final : Executor {
    unsigned concurrency() const noexcept override { return 0; }
    void parallel_for(std::size_t, LoopBody) noexcept override {}
  } nobody;
  check_error(outcome(Session::create(small, model().weights(), {.context = 16}, {&nobody, nullptr, {}})),
              Errc::invalid_argument, {"concurrency"});
  auto damaged = model().weights();
  damaged.layers[0].down.format = static_cast<WeightFormat>(7);
  check_error(outcome(Session::create(small, damaged, {.context = 16}, {&serial, nullptr, {}})), Errc::invalid_argument,
              {"down", "format"});
}

TEST_CASE("shapes that the graph cannot run are refused, naming the dimension") {
  struct Change {
    std::size_t RuntimeSpec::* field;
    std::size_t value;
    const char* name;
  };
  const Change changes[] = {
      {&RuntimeSpec::layers, 0, "layer count"},       {&RuntimeSpec::hidden, 0, "hidden size"},
      {&RuntimeSpec::hidden, 81, "hidden size"},      {&RuntimeSpec::heads, 0, "head count"},
      {&RuntimeSpec::kv_heads, 0, "KV head count"},   {&RuntimeSpec::kv_heads, 4, "KV head count"},
      {&RuntimeSpec::head_dim, 8, "head size"},       {&RuntimeSpec::ffn, 100, "feed-forward size"},
      {&RuntimeSpec::vocab, 0, "vocabulary size"},    {&RuntimeSpec::positions, 0, "context length"},
      {&RuntimeSpec::layers, SIZE_MAX, "layer count"}};
  SerialExecutor serial;
  for (const Change& c : changes) {
    RuntimeSpec spec = small;
    spec.*c.field = c.value;
    check_error(outcome(Session::create(spec, model().weights(), {.context = 16}, {&serial, nullptr, {}})),
                Errc::unsupported, {c.name});
  }
}

TEST_CASE("weights that do not fit the spec are refused, naming the tensor") {
  using Layer = LayerWeights<PackedMatrix, const float*>;
  struct Change {
    const char* name;
    std::function<void(HostWeights&)> make;
  };
  const auto in_layer = [](auto f) { return [f](HostWeights& w) { f(w.layers[1]); }; };
  const std::vector<Change> changes = {
      {"embedding", [](HostWeights& w) { w.embedding.n -= 1; }},
      {"head", [](HostWeights& w) { w.head.k += 64; }},
      {"head", [](HostWeights& w) { w.head.tiles = nullptr; }},
      {"embedding is not aligned", [](HostWeights& w) { w.embedding.tiles += 32; }},
      {"output norm", [](HostWeights& w) { w.output_norm = nullptr; }},
      {"1 layers", [](HostWeights& w) { w.layers.pop_back(); }},
      {"epsilon", [](HostWeights& w) { w.rms_epsilon = -1; }},
      {"epsilon", [](HostWeights& w) { w.rms_epsilon = std::numeric_limits<float>::quiet_NaN(); }},
      {"rotary base", [](HostWeights& w) { w.rope_base = 0; }},
      {"rotary base", [](HostWeights& w) { w.rope_base = std::numeric_limits<double>::infinity(); }},
      {"layer 1 qkv", in_layer([](Layer& l) { l.qkv.n -= 16; })},
      {"layer 1 output", in_layer([](Layer& l) { std::swap(l.output.n, l.output.k); })},
      {"layer 1 gate_up", in_layer([](Layer& l) { l.gate_up.n /= 2; })},
      {"layer 1 down", in_layer([](Layer& l) { l.down = l.output; })},
      {"layer 1 attention norm", in_layer([](Layer& l) { l.attention_norm = nullptr; })},
      {"layer 1 feed-forward norm", in_layer([](Layer& l) { l.ffn_norm = nullptr; })},
      {"layer 1 q norm", in_layer([](Layer& l) { l.q_norm = nullptr; })},
      {"layer 1 k norm", in_layer([](Layer& l) { l.k_norm = nullptr; })},
  };
  SerialExecutor serial;
  for (const Change& c : changes) {
    HostWeights weights = model().weights();
    c.make(weights);
    CAPTURE(c.name);
    check_error(outcome(Session::create(small, weights, {.context = 16}, {&serial, nullptr, {}})),
                Errc::invalid_argument, {c.name});
  }
  const RandomModel without(llama_small, ModelFormats::all(WeightFormat::w8_g32), 44);  // no q and k norms: none needed
  CHECK(Session::create(llama_small, without.weights(), {.context = 16}, {&serial, nullptr, {}}));
}

namespace {

// Raises the flag in the middle of the n-th loop.
class Interrupting final : public Executor {
 public:
  explicit Interrupting(int loops) : left_(loops) {}
  unsigned concurrency() const noexcept override { return 1; }
  void parallel_for(std::size_t n, LoopBody body) noexcept override {
    for (std::size_t i = 0; i < n; ++i) {
      if (i == n / 2 && left_-- == 0) flag.store(true);
      body(i, 0);
    }
  }
  std::atomic<bool> flag{false};

 private:
  int left_;
};

}  // namespace

TEST_CASE("a cancelled call keeps whole steps, and what follows is as if it had not been cancelled") {
  const auto tokens = random_tokens(60, small.vocab, 45);
  const auto uncancelled = logits_after(tokens);
  for (const int loops : {0, 1, 20, 40, 60, 100}) {
    Interrupting executor(loops);
    auto session = open(executor, {.context = 60, .batch = 7});
    const auto result = session.forward(tokens, 1, &executor.flag);
    CAPTURE(loops, session.position());
    check_error(result, Errc::cancelled, {"60 tokens"});
    CHECK(session.position() % 7 == 0);
    CHECK(session.position() > 0);
    CHECK(session.position() < 60);
    check_error(session.forward(std::span(tokens).subspan(session.position()), 1, &executor.flag), Errc::cancelled, {});
    executor.flag.store(false);
    REQUIRE(session.forward(std::span(tokens).subspan(session.position()), 1, &executor.flag));
    CHECK(same(session.logits(), uncancelled));
  }
}

TEST_CASE("a flag raised before a call, and one raised by another thread") {
  const auto tokens = random_tokens(600, small.vocab, 46);
  const auto uncancelled = logits_after(tokens);
  const auto pool = value(ThreadPool::create(2));
  auto session = open(*pool, {.context = 600, .batch = 4});
  std::atomic<bool> flag{true};
  check_error(session.forward(tokens, 1, &flag), Errc::cancelled, {"0 of 600"});
  CHECK(session.position() == 0);
  for (const int microseconds : {0, 500, 2000}) {
    flag.store(false);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
      flag.store(true);
    });
    const auto result = session.forward(tokens, 1, &flag);
    other.join();
    if (!result) {
      CHECK(result.error().code == Errc::cancelled);
      REQUIRE(session.forward(std::span(tokens).subspan(session.position())));
    }
    CHECK(session.position() == 600);
    CHECK(same(session.logits(), uncancelled));
    REQUIRE(session.rewind(0));
  }
}

TEST_CASE("memory that the caller lends: exactly as planned, of any content") {
  const auto tokens = random_tokens(290, small.vocab, 47);
  const auto expected = logits_after(tokens);
  for (const unsigned threads : {1u, 3u})
    for (const std::size_t batch : {1u, 7u, 290u})
      for (const bool at_front : {false, true}) {
        const SessionShape shape{.context = 290, .batch = batch, .threads = threads};
        const auto plan = memory_plan<CpuBackend>(small, shape);
        const std::size_t bytes = plan.kv_bytes + plan.workspace_bytes;
        Guarded<std::byte> memory(bytes, at_front);
        std::memset(memory.data(), 0xff, bytes);  // NaN as float16, float and double
        const auto pool = value(ThreadPool::create(threads));
        auto session = open(*pool, shape, {memory.data(), bytes});
        CAPTURE(threads, batch, at_front);
        REQUIRE(session.forward(std::span(tokens).first(280)));
        for (std::size_t i = 280; i < 290; ++i) REQUIRE(session.forward(std::span(tokens).subspan(i, 1)));
        CHECK(same(session.logits(), expected));
      }
}

TEST_CASE("lent memory that is too small or not aligned is refused") {
  SerialExecutor serial;
  const SessionShape shape{.context = 64, .batch = 8, .threads = 1};
  const std::size_t bytes = CpuBackend::memory_bytes(small, shape);
  Guarded<std::byte> memory(bytes + 64);
  const auto create = [&](std::size_t first, std::size_t count) {
    return outcome(
        Session::create(small, model().weights(), shape, {&serial, nullptr, std::span(memory.data() + first, count)}));
  };
  CHECK(create(0, bytes));
  CHECK(create(64, bytes));
  check_error(create(0, bytes - 1), Errc::invalid_argument, {std::to_string(bytes - 1), std::to_string(bytes)});
  check_error(create(4, bytes), Errc::invalid_argument, {"aligned"});
}

TEST_CASE("a tiny model with far more threads than work") {
  const RandomModel tiny(llama_small, ModelFormats::all(WeightFormat::w4_g32, 8), 48);
  const auto tokens = random_tokens(20, llama_small.vocab, 49);
  std::vector<float> first;
  for (const unsigned threads : {1u, 64u}) {
    const auto pool = value(ThreadPool::create(threads));
    auto session = value(Session::create(llama_small, tiny.weights(), {.context = 21}, {pool.get(), nullptr, {}}));
    REQUIRE(session.forward(std::span(tokens).first(19)));
    REQUIRE(session.forward(std::span(tokens).subspan(19)));
    if (first.empty()) first = copy(session.logits());
    CHECK(same(session.logits(), first));
  }
}

TEST_CASE("nothing allocates after creation") {
  if (!POCKET_TEST_COUNTS) {
    std::printf("skipped: allocations cannot be counted with this C library\n");
    return;
  }
  const auto tokens = random_tokens(300, small.vocab, 50);
  for (const ActivationForm form : {ActivationForm::a16, ActivationForm::a8}) {
    const auto pool = value(ThreadPool::create(3));
    // Every worker runs before anything is counted: a thread's start may allocate.
    std::atomic<int> running{0};
    pool->parallel_for(3, [&](std::size_t, unsigned) {
      running.fetch_add(1);
      while (running.load() < 3) std::this_thread::yield();
    });
    const std::size_t before_creation = allocations.load();
    auto session = open(*pool, {.context = 300, .batch = 32, .logit_rows = 4, .activations = form});
    const std::size_t after_creation = allocations.load();
    const std::atomic<bool> cancel{false};
    bool good = bool(session.forward(std::span(tokens).first(280), 4, &cancel));
    for (std::size_t i = 280; i < 300; ++i) good = session.forward(std::span(tokens).subspan(i, 1)) && good;
    good = session.rewind(100) && good;
    good = session.forward(std::span(tokens).subspan(100)) && good;
    const std::size_t after = allocations.load();
    CHECK(good);
    CHECK(after_creation > before_creation);  // the counter counts
    CHECK(after == after_creation);
  }
}

TEST_CASE("sessions leave nothing behind") {
  const auto tokens = random_tokens(40, small.vocab, 51);
  const auto resident = [] {
    long total = 0, pages = 0;
    std::FILE* f = std::fopen("/proc/self/statm", "r");
    if (f == nullptr || std::fscanf(f, "%ld %ld", &total, &pages) != 2) pages = 0;
    if (f != nullptr) std::fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
  };
  long early = 0;
  for (int i = 0; i < 50; ++i) {
    const auto pool = value(ThreadPool::create(2));
    auto session = open(*pool, {.context = 1024, .batch = 64, .logit_rows = 8});
    REQUIRE(session.forward(tokens));
    if (i == 5) early = resident();
  }
  const long late = resident();
  std::printf("resident after 6 sessions %ld kB, after 50 %ld kB\n", early / 1024, late / 1024);
  // A sanitizer keeps freed memory, and finds leaks itself; an emulator's own memory grows with the code that it meets.
  if (!POCKET_TEST_SANITIZED && std::getenv("QEMU_CPU") == nullptr) CHECK(late - early < 1'000'000);
}

TEST_CASE("a session can be moved") {
  const auto tokens = random_tokens(30, small.vocab, 52);
  SerialExecutor serial;
  auto first = open(serial, {.context = 30, .batch = 16});
  REQUIRE(first.forward(std::span(tokens).first(20)));
  auto second = std::move(first);
  REQUIRE(second.forward(std::span(tokens).subspan(20)));
  CHECK(same(second.logits(), logits_after(tokens)));
}

namespace {

// The plan of the real model is a constant, and stays within the promised memory: 300 MB at 512 tokens.
constexpr auto plan_512 = memory_plan<CpuBackend>(MnnPocket03B{}, {.context = 512, .threads = 4});
static_assert(plan_512.total_bytes == plan_512.weight_bytes + plan_512.kv_bytes + plan_512.workspace_bytes);
static_assert(plan_512.kv_bytes == std::size_t{512} * 7168 * 2);
static_assert(plan_512.weight_bytes > 170'000'000 && plan_512.weight_bytes < 171'000'000);
static_assert(plan_512.total_bytes < 200'000'000);
// Long contexts and large shapes stay in 64 bits: 28 * 2 * 8 * 128 * 32768 * 2 bytes.
static_assert(memory_plan<CpuBackend>(Qwen3_06B{}, {.context = 32768}).kv_bytes == 3'758'096'384);

}  // namespace

TEST_CASE("the plan's weight bytes are those of the packed model") {
  std::printf("MNN-Pocket-0.3B, 512 tokens, 4 threads: weights %zu, cache %zu, workspace %zu bytes\n",
              plan_512.weight_bytes, plan_512.kv_bytes, plan_512.workspace_bytes);
  for (const RuntimeSpec& spec : {small, llama_small})
    for (const WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32}) {
      const RandomModel packed(spec, ModelFormats::all(format), 53);
      CHECK(memory_plan<CpuBackend>(spec, {.context = 32}, format).weight_bytes == packed.bytes());
    }
  SerialExecutor serial;
  const SessionShape shape{.context = 100, .batch = 9, .logit_rows = 3, .threads = 1};
  const auto plan = memory_plan<CpuBackend>(small, shape);
  CHECK(plan.kv_bytes == 2 * small.layers * small.kv_heads * small.head_dim * 112 * 2);  // 100 positions, rounded to 16
  CHECK(plan.kv_bytes + plan.workspace_bytes == CpuBackend::memory_bytes(small, shape));
}
