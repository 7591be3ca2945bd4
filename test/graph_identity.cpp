// The graph's contract: within one instruction set and one activation form a token's logits are the same bits, however
// its context was computed. The baseline is one prefill of everything on one thread with all positions' logits; every
// other way must reproduce its rows, compared byte by byte: chunks of any size, decoding, verification of several
// tokens, after a rewind, 1 to 16 threads, executors that run the iterations in any order, sessions side by side, and a
// spec known at compile time.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "model_fixture.hpp"
#include "pocket/backend/cpu.hpp"
#include "pocket/core/executor.hpp"
#include "pocket/model/transformer.hpp"

using namespace pocket;
using namespace test;
using Session = Transformer<RuntimeSpec>;

namespace {

// Small, and uneven in every dimension: seven query heads a KV head (4 + 3 in the kernels), columns that do not fill a
// tile, outputs that do not fill a row block. Long enough for two boundaries of attention chunks (256 positions), or
// for one where floating point is emulated.
struct SmallSpec {
  static constexpr std::size_t layers = 2, hidden = 80, heads = 14, kv_heads = 2, head_dim = 16, ffn = 144, vocab = 131,
                               positions = 1024;
  static constexpr bool qk_norm = true;
};
constexpr std::size_t length = emulated ? 270 : 514;

// Where all is slow, fewer of the many repetitions; every kind of check remains.
std::vector<unsigned> thread_counts() {
  return slow ? std::vector<unsigned>{1, 3} : std::vector<unsigned>{1, 2, 7, 16};
}

const RandomModel& model() {
  static const RandomModel m(runtime_spec(SmallSpec{}),
                             {{WeightFormat::w4_g64, 0},
                              {WeightFormat::w4_g32, 8},
                              {WeightFormat::w8_g32, 0},
                              {WeightFormat::w4_g64, 0},
                              {WeightFormat::w4_g32, 0}},
                             31);
  return m;
}
const std::vector<std::int32_t>& tokens() {
  static const auto t = random_tokens(length, SmallSpec::vocab, 32);
  return t;
}
std::span<const std::int32_t> part(std::size_t first, std::size_t count) {
  return std::span(tokens()).subspan(first, count);
}

bool same(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// One instruction set and activation form, with the baseline's rows.
class Baseline {
 public:
  Baseline(const Kernels* kernels, ActivationForm form) : kernels_(kernels), form_(form) {
    SerialExecutor serial;
    auto session = make(serial, length, length, length);
    REQUIRE(session.forward(tokens(), length));
    rows_.reserve(length * SmallSpec::vocab);
    for (std::size_t i = 0; i < length; ++i)
      rows_.insert(rows_.end(), session.logits(i).begin(), session.logits(i).end());
  }

  Session make(Executor& executor, std::size_t context, std::size_t batch, std::size_t rows = 1) const {
    const SessionShape shape{.context = context, .batch = batch, .logit_rows = rows, .activations = form_};
    return value(Session::create(model().spec(), model().weights(), shape, {&executor, kernels_, {}}));
  }
  std::span<const float> row(std::size_t position) const {
    return std::span(rows_).subspan(position * SmallSpec::vocab, SmallSpec::vocab);
  }
  // Are the session's last `count` rows those of the positions that end at its own?
  bool matches(const Session& session, std::size_t count = 1) const {
    for (std::size_t i = 0; i < count; ++i)
      if (!same(session.logits(i), row(session.position() - count + i))) return false;
    return true;
  }
  const Kernels* kernels() const { return kernels_; }
  ActivationForm form() const { return form_; }

 private:
  const Kernels* kernels_;
  ActivationForm form_;
  std::vector<float> rows_;
};

const std::vector<std::unique_ptr<Baseline>>& baselines() {
  static const auto all = [] {
    std::vector<std::unique_ptr<Baseline>> list;
    for (const Kernels* kernels : runnable_kernels())
      for (const ActivationForm form : {ActivationForm::a16, ActivationForm::a8}) {
        if (emulated && kernels != value(best_kernels())) break;  // each emulated processor tests its best
        list.push_back(std::make_unique<Baseline>(kernels, form));
      }
    return list;
  }();
  return all;
}

// The first `count` tokens in one call, in steps of `batch`, with every row.
void check_prefill(const Baseline& baseline, Executor& executor, std::size_t batch, std::size_t count = length) {
  auto session = baseline.make(executor, count, batch, count);
  REQUIRE(session.forward(part(0, count), count));
  CHECK(baseline.matches(session, count));
}

// The first `first` tokens at once, then one by one.
void check_decode(const Baseline& baseline, Executor& executor, std::size_t first, std::size_t last) {
  auto session = baseline.make(executor, length, 64);
  if (first > 0) REQUIRE(session.forward(part(0, first)));
  bool all = true;
  for (std::size_t i = first; i < last; ++i) {
    REQUIRE(session.forward(part(i, 1)));
    all = all && baseline.matches(session);
  }
  CHECK(all);
}

// Iterations in a random (or the reverse) order, each under a random worker's number.
class Disorderly final : public Executor {
 public:
  Disorderly(unsigned workers, bool reverse) : workers_(workers), reverse_(reverse) {}
  unsigned concurrency() const noexcept override { return workers_; }
  void parallel_for(std::size_t n, LoopBody body) noexcept override {
    order_.resize(n);
    for (std::size_t i = 0; i < n; ++i) order_[i] = n - 1 - i;
    for (std::size_t i = n; i > 1 && !reverse_; --i) std::swap(order_[i - 1], order_[random_.below(i)]);
    for (const std::size_t i : order_) body(i, static_cast<unsigned>(random_.below(workers_)));
  }

 private:
  unsigned workers_;
  bool reverse_;
  Random random_{77};
  std::vector<std::size_t> order_;
};

}  // namespace

TEST_CASE("rows differ from each other, and the two activation forms differ: there is something to compare") {
  REQUIRE(baselines().size() >= 2);
  const Baseline& b = *baselines().front();
  CHECK_FALSE(same(b.row(5), b.row(6)));
  CHECK_FALSE(same(b.row(200), baselines()[1]->row(200)));
}

TEST_CASE("prefill in steps of any size gives the same bits, for 1 to 16 threads") {
  for (const unsigned threads : thread_counts()) {
    const auto pool = value(ThreadPool::create(threads));
    for (const auto& b : baselines()) {
      CAPTURE(threads, b->kernels()->name, name_of(b->form()));
      for (const std::size_t batch : {std::size_t{7}, std::size_t{256}, length})
        check_prefill(*b, *pool, batch, threads == 1 && batch == 256 && !slow ? length : 270);
    }
  }
}

TEST_CASE("steps of one token and decoding give the same bits, for 1 to 16 threads") {
  SerialExecutor serial;
  for (const auto& b : baselines()) {
    CAPTURE(b->kernels()->name, name_of(b->form()));
    check_prefill(*b, serial, 1, slow ? 40 : length);
  }
  for (const unsigned threads : thread_counts()) {
    const auto pool = value(ThreadPool::create(threads));
    for (const auto& b : baselines()) {
      CAPTURE(threads, b->kernels()->name, name_of(b->form()));
      check_decode(*b, *pool, 0, 20);
      check_decode(*b, *pool, 250, 260);
      check_decode(*b, *pool, length - 5, length);
    }
  }
}

TEST_CASE("prompts and contexts that end around an attention chunk") {
  const auto pool = value(ThreadPool::create(2));
  for (const auto& b : baselines())
    for (const std::size_t n : {1u, 2u, 17u, 255u, 256u, 257u, 511u, 512u, 513u}) {
      if (slow && n > 257) break;
      CAPTURE(n, b->kernels()->name, name_of(b->form()));
      auto session = b->make(*pool, n, 100);
      REQUIRE(session.forward(part(0, n)));
      CHECK(b->matches(session));
    }
}

TEST_CASE("several calls of uneven size, verification of several tokens, rewinding") {
  const auto pool = value(ThreadPool::create(3));
  for (const auto& b : baselines()) {
    CAPTURE(b->kernels()->name, name_of(b->form()));
    auto session = b->make(*pool, length, 32, 8);
    for (const std::size_t n : {250u, 1u, 8u, 3u, 5u, 95u, 149u, 2u, 1u}) {
      if (session.position() + n > length) break;
      const std::size_t rows = n < 8 ? n : 8;
      REQUIRE(session.forward(part(session.position(), n), rows));
      CHECK(b->matches(session, rows));
    }
    REQUIRE(session.position() + 3 >= length);
    // Other tokens over the old ones, as after rejected proposals, must leave no trace.
    for (const std::size_t back : {512u, 257u, 256u, 0u}) {
      if (back > length) continue;
      REQUIRE(session.rewind(back));
      const std::size_t wrong = length - back < 40 ? length - back : 40;
      REQUIRE(session.forward(std::vector<std::int32_t>(wrong, 5)));
      REQUIRE(session.rewind(back));
      REQUIRE(session.forward(part(back, 1)));
      CHECK(b->matches(session));
      const std::size_t rest = length - back - 1, rows = rest < 8 ? rest : 8;
      REQUIRE(session.forward(part(back + 1, rest), rows));
      CHECK(b->matches(session, rows));
    }
    REQUIRE(session.rewind(0));
    REQUIRE(session.forward(part(0, 40), 0));  // no logits wanted
    CHECK(session.position() == 40);
    REQUIRE(session.forward(part(40, 1)));
    CHECK(b->matches(session));
  }
}

TEST_CASE("an executor may run iterations in any order, under any worker's number") {
  for (const auto& b : baselines())
    for (const bool reverse : {true, false}) {
      CAPTURE(b->kernels()->name, name_of(b->form()), reverse);
      Disorderly executor(5, reverse);
      check_prefill(*b, executor, 100, 270);
      check_decode(*b, executor, 250, 260);
    }
}

TEST_CASE("more threads than there is work") {
  const auto pool = value(ThreadPool::create(64));
  for (const auto& b : baselines()) {
    CAPTURE(b->kernels()->name, name_of(b->form()));
    auto session = b->make(*pool, length, 64);
    REQUIRE(session.forward(part(0, 65)));
    CHECK(b->matches(session));
    REQUIRE(session.forward(part(65, 1)));
    CHECK(b->matches(session));
  }
}

TEST_CASE("sessions side by side share the weights, and may share a pool") {
  const auto pool = value(ThreadPool::create(3));
  for (const bool one_pool : {true, false})
    for (const auto& b : baselines()) {
      CAPTURE(b->kernels()->name, name_of(b->form()), one_pool);
      std::atomic<int> right{0};
      const auto work = [&](std::size_t batch) {
        SerialExecutor own;
        Executor& executor = one_pool ? static_cast<Executor&>(*pool) : own;
        const SessionShape shape{.context = length, .batch = batch, .activations = b->form()};
        auto session = Session::create(model().spec(), model().weights(), shape, {&executor, b->kernels(), {}});
        bool good = session && session->forward(part(0, 240)) && b->matches(*session);
        for (std::size_t i = 240; good && i < 270; ++i) good = session->forward(part(i, 1)) && b->matches(*session);
        right += good ? 1 : 0;
      };
      std::thread first(work, 31), second(work, 128);
      first.join();
      second.join();
      CHECK(right == 2);
    }
}

TEST_CASE("a spec known at compile time gives the bits of the runtime spec") {
  const auto pool = value(ThreadPool::create(2));
  for (const auto& b : baselines()) {
    CAPTURE(b->kernels()->name, name_of(b->form()));
    const SessionShape shape{.context = length, .batch = 100, .logit_rows = length, .activations = b->form()};
    auto session =
        value(Transformer<SmallSpec>::create(SmallSpec{}, model().weights(), shape, {pool.get(), b->kernels(), {}}));
    REQUIRE(session.forward(part(0, 260), 260));
    bool all = true;
    for (std::size_t i = 0; i < 260; ++i) all = all && same(session.logits(i), b->row(i));
    REQUIRE(session.forward(part(260, 1)));
    CHECK((all && same(session.logits(), b->row(260))));
  }
}
