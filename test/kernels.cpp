// Every instruction set that this program holds and this CPU has, against the double-precision oracle.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <vector>

#include "emulated_vnni.hpp"
#include "kernels/isa.hpp"
#include "kernels/reference.hpp"
#include "pocket/quant/pack.hpp"
#include "support.hpp"

using namespace pocket;
using test::Guarded;
using test::Random;

namespace {

std::vector<const Kernels*> runnable() {
  std::vector<const Kernels*> all;
  for (const IsaEntry& e : isa_list()) {
    if (e.runs_here())
      all.push_back(e.kernels);
    else
      std::cout << "skipped: instruction set " << e.kernels->name << ", which this CPU does not have\n";
  }
#if POCKET_ARCH_X86
  if (x86_features().avx2) all.push_back(&emulated_avxvnni_kernels);
  if (x86_features().avx512) all.push_back(&emulated_avx512vnni_kernels);
#endif
  return all;
}

// A random matrix with every code, scales of both signs, zeros and subnormals, packed; and the same as exact numbers.
struct Case {
  Case(WeightFormat format, std::size_t n, std::size_t k, float offset, std::uint64_t seed, bool at_front)
      : tiles(packed_bytes(format, n, k), at_front), packed{tiles.data(), n, k, format, offset} {
    Random random(seed);
    with_format(format, [&](auto f) {
      using F = decltype(f);
      exact = {n, k, F::group, static_cast<double>(offset), std::vector<int>(n * k), {}, {}};
      exact.scale.assign(n * exact.groups(), 0);
      exact.minimum.assign(n * exact.groups(), 0);
      RowBlock block(format, k);
      for (std::size_t n0 = 0; n0 < n; n0 += tile_rows) {
        block.clear();
        for (std::size_t r = 0; r < tile_rows && n0 + r < n; ++r) {
          for (std::size_t g = 0; g < exact.groups(); ++g) {
            const f16 s = to_f16(random.below(9) == 0 ? 0.0f : random.below(9) == 0 ? 1e-7f : random.normal() * 0.01f);
            const f16 m = F::has_minimum ? to_f16(random.normal() * 0.05f) : f16{};
            block.scales(r)[g] = s;
            block.minima(r)[g] = m;
            exact.scale[(n0 + r) * exact.groups() + g] = static_cast<double>(to_float(s));
            exact.minimum[(n0 + r) * exact.groups() + g] = static_cast<double>(to_float(m));
          }
          for (std::size_t c = 0; c < k; ++c) {
            // One row in five holds only the largest codes, where the integer sums are largest.
            const int q = F::bits == 4 ? (r % 5 == 4 ? 15 : static_cast<int>(random.below(16)))
                                       : (r % 5 == 4 ? -128 : static_cast<int>(random.below(256)) - 128);
            exact.codes[(n0 + r) * k + c] = q;
            block.codes(r)[c] = static_cast<std::uint8_t>(q);
          }
        }
        pack_block(block, tiles.data() + n0 / tile_rows * packed.block_bytes());
      }
    });
  }

  Guarded<std::byte> tiles;
  PackedMatrix packed;
  reference::Weights exact;
};

struct Prepared {
  Prepared(const Kernels& kernels, const float* x, std::size_t m, std::size_t k, std::size_t stride,
           ActivationForm form, bool at_front = false)
      : view{nullptr, nullptr, m, k, form}, codes(view.code_bytes(), at_front), scales(view.scale_count(), at_front) {
    view.codes = codes.data();
    view.scales = scales.data();
    kernels.prepare(x, stride, view);
  }
  Activations view;
  Guarded<std::int8_t> codes;
  Guarded<GroupScale> scales;
};

std::vector<float> random_tokens(std::size_t m, std::size_t k, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> x(m * k);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = random.normal();
    if (random.below(200) == 0) x[i] *= 100;  // outliers, as real activations have
    if (random.below(1500) == 0) x[i] = random.below(2) == 0 ? 1e30f : -1e-30f;
    if (i / 64 % 7 == 3) x[i] = i % 2 != 0 ? 3.0f : -3.0f;  // all codes at the range's end
    if (i / 64 % 11 == 5) x[i] = 0;
  }
  return x;
}

float range_of(ActivationForm form) { return form == ActivationForm::a16 ? A16::range : A8::range; }

int code_at(const Activations& a, std::size_t token, std::size_t col) {
  const std::int8_t* row = a.codes + token * a.code_stride();
  if (a.form == ActivationForm::a8) return row[col];
  return 256 * row[col / 8 * 16 + col % 8] + row[col / 8 * 16 + 8 + col % 8];
}

}  // namespace

TEST_CASE("activations have exactly the codes of the definition") {
  std::size_t cells = 0;
  for (const Kernels* kernels : runnable())
    for (ActivationForm form : {ActivationForm::a16, ActivationForm::a8})
      for (std::size_t k : {1u, 63u, 64u, 65u, 127u, 128u, 576u, 2560u})
        for (std::size_t m : {1u, 3u}) {
          INFO(kernels->name << " " << name_of(form) << " k=" << k << " m=" << m);
          const std::vector<float> x = random_tokens(m, k, k * 10 + m);
          Prepared p(*kernels, x.data(), m, k, k, form);
          for (std::size_t i = 0; i < m; ++i) {
            const reference::Token t = reference::quantize(x.data() + i * k, k, range_of(form));
            for (std::size_t g = 0; g < p.view.groups(); ++g) {
              const GroupScale& s = p.scales[i * p.view.groups() + g];
              REQUIRE(static_cast<double>(s.t) == t.scale[g]);
              int half[2] = {0, 0};
              for (std::size_t c = g * 64; c < g * 64 + 64; ++c) {
                REQUIRE(code_at(p.view, i, c) == (c < k ? t.codes[c] : 0));
                if (c < k) half[c % 64 / 32] += t.codes[c];
              }
              REQUIRE(s.half[0] == s.t * static_cast<float>(half[0]));
              REQUIRE(s.half[1] == s.t * static_cast<float>(half[1]));
              REQUIRE(s.sum == s.t * static_cast<float>(half[0] + half[1]));
            }
          }
          ++cells;
        }
  REQUIRE(cells >= 32);
}

TEST_CASE("activations keep what they promise of accuracy") {
  for (const Kernels* kernels : runnable()) {
    const std::vector<float> x = random_tokens(1, 896, 7);
    for (ActivationForm form : {ActivationForm::a16, ActivationForm::a8}) {
      Prepared p(*kernels, x.data(), 1, 896, 896, form);
      for (std::size_t c = 0; c < 896; ++c) {
        const float t = p.scales[c / 64].t;
        // Half a step, and the roundings of the factor, of the product with it, and of t, each of a code up to `range`.
        const double steps = 0.5 + 3 * static_cast<double>(range_of(form)) * reference::unit;
        const double is = static_cast<double>(t) * code_at(p.view, 0, c);
        REQUIRE(std::fabs(is - static_cast<double>(x[c])) <= steps * static_cast<double>(t));
      }
    }
  }
}

TEST_CASE("NaN, infinity and vanishing groups") {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Kernels* kernels : runnable())
    for (ActivationForm form : {ActivationForm::a16, ActivationForm::a8}) {
      Case c(WeightFormat::w4_g64, 17, 128, 0, 5, false);
      for (float bad : {nan, -nan, inf, -inf}) {
        std::vector<float> x(256, 1.0f);
        x[70] = bad;
        Prepared p(*kernels, x.data(), 2, 128, 128, form);
        std::vector<float> y(34, 7.0f);
        kernels->matmul({c.packed, p.view, y.data(), 17, false}, 0, 2);
        for (std::size_t i = 0; i < 17; ++i) REQUIRE(std::isnan(y[i]));
        for (std::size_t i = 17; i < 34; ++i) REQUIRE(std::isfinite(y[i]));  // the other token is untouched
      }
      for (float tiny : {0.0f, -0.0f, 1e-45f, 1e-40f, 1e-34f}) {
        std::vector<float> x(128, tiny);
        Prepared p(*kernels, x.data(), 1, 128, 128, form);
        std::vector<float> y(17, 7.0f);
        kernels->matmul({c.packed, p.view, y.data(), 17, false}, 0, 2);
        for (float v : y) REQUIRE(std::fabs(v) <= 1e-30f);
      }
    }
}

TEST_CASE("products stay within the bound: every format, form, M, tail") {
  std::size_t cells = 0;
  double worst = 0;
  const std::vector<const Kernels*> all = runnable();
  for (WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32})
    for (std::size_t n : {1u, 15u, 16u, 17u, 152u})
      for (std::size_t k : {5u, 64u, 65u, 96u, 127u, 256u, 576u}) {
        const float offset = format == WeightFormat::w4_g32 && n % 2 == 0 ? 8.0f : 0.0f;
        Case c(format, n, k, offset, n * 1000 + k, k % 2 == 0);
        for (ActivationForm form : {ActivationForm::a16, ActivationForm::a8})
          for (std::size_t m : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 23u}) {
            const std::vector<float> x = random_tokens(m, k, m * 31 + k);
            std::vector<reference::Value> want;
            for (std::size_t i = 0; i < m; ++i) {
              const reference::Token t = reference::quantize(x.data() + i * k, k, range_of(form));
              for (std::size_t r = 0; r < n; ++r) want.push_back(reference::dot(c.exact, r, t));
            }
            for (const Kernels* kernels : all) {
              INFO(kernels->name << " " << name_of(format) << " " << name_of(form) << " n=" << n << " k=" << k
                                 << " m=" << m);
              Prepared p(*kernels, x.data(), m, k, k, form, k % 2 == 0);
              Guarded<float> y(m * n, k % 2 == 0);
              for (float& v : y) v = -123.0f;
              kernels->matmul({c.packed, p.view, y.data(), n, false}, 0, c.packed.row_blocks());
              for (std::size_t i = 0; i < m * n; ++i) {
                const double error = std::fabs(static_cast<double>(y[i]) - want[i].value);
                if (!(error <= want[i].bound + 1e-40))
                  FAIL("row " << i % n << " token " << i / n << ": " << y[i] << ", not " << want[i].value << " within "
                              << want[i].bound);
                if (want[i].bound > 0) worst = std::fmax(worst, error / want[i].bound);
              }
              ++cells;
            }
          }
      }
  std::cout << "products: " << cells << " cells, largest error " << worst << " of its bound\n";
  REQUIRE(cells >= 3 * 5 * 7 * 2 * 10);
  REQUIRE(worst > 0.001);  // a bound that nothing comes near would test nothing
}

TEST_CASE("one token's outputs do not depend on its neighbours or on how the rows are shared out") {
  for (const Kernels* kernels : runnable())
    for (WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32})
      for (ActivationForm form : {ActivationForm::a16, ActivationForm::a8}) {
        const std::size_t n = 164, k = 320;
        Case c(format, n, k, 0, 99, false);
        const std::vector<float> one = random_tokens(1, k, 3);
        Prepared p1(*kernels, one.data(), 1, k, k, form);
        std::vector<float> want(n), part(n);
        kernels->matmul({c.packed, p1.view, want.data(), n, false}, 0, 11);
        for (std::size_t b = 0; b < 11; ++b)
          kernels->matmul({c.packed, p1.view, part.data() + 16 * b, n, false}, b, b + 1);
        REQUIRE(part == want);
        for (std::size_t m : {2u, 3u, 4u, 5u, 9u, 16u, 17u, 31u, 64u, 71u}) {
          std::vector<float> x = random_tokens(m, k, m), y(m * n);
          for (std::size_t i = 0; i < m; i += 2)
            std::copy(one.begin(), one.end(), x.begin() + static_cast<std::ptrdiff_t>(i * k));
          Prepared p(*kernels, x.data(), m, k, k, form);
          kernels->matmul({c.packed, p.view, y.data(), n, false}, 0, 3);
          kernels->matmul({c.packed, p.view, y.data() + 48, n, false}, 3, 11);
          for (std::size_t i = 0; i < m; i += 2)
            REQUIRE(std::memcmp(y.data() + i * n, want.data(), n * sizeof(float)) == 0);
        }
      }
}

#if POCKET_ARCH_ARM64
TEST_CASE("all of AArch64's instruction sets agree bit for bit") {
  const std::size_t n = 50, k = 200, m = 13;
  const std::vector<float> x = random_tokens(m, k, 1);
  const std::vector<const Kernels*> all = runnable();
  REQUIRE(all.size() >= 2);  // neon and portable
  for (WeightFormat format : {WeightFormat::w4_g64, WeightFormat::w4_g32, WeightFormat::w8_g32})
    for (ActivationForm form : {ActivationForm::a16, ActivationForm::a8}) {
      Case c(format, n, k, format == WeightFormat::w4_g32 ? 8.0f : 0.0f, 7, false);
      std::vector<float> want;
      for (const Kernels* kernels : all) {
        INFO(kernels->name << " " << name_of(format) << " " << name_of(form));
        Prepared p(*kernels, x.data(), m, k, k, form);
        std::vector<float> y(m * n);
        kernels->matmul({c.packed, p.view, y.data(), n, false}, 0, c.packed.row_blocks());
        if (want.empty()) want = y;
        REQUIRE(std::memcmp(y.data(), want.data(), y.size() * sizeof(float)) == 0);
      }
    }
}
#endif

TEST_CASE("a product added to what is there") {
  for (const Kernels* kernels : runnable()) {
    Case c(WeightFormat::w4_g64, 23, 64, 0, 1, false);
    for (std::size_t m : {1u, 2u}) {
      const std::vector<float> x = random_tokens(m, 64, 4);
      Prepared p(*kernels, x.data(), m, 64, 64, ActivationForm::a16);
      std::vector<float> y(m * 23), sum(m * 23, 2.5f);
      kernels->matmul({c.packed, p.view, y.data(), 23, false}, 0, 2);
      kernels->matmul({c.packed, p.view, sum.data(), 23, true}, 0, 2);
      for (std::size_t i = 0; i < y.size(); ++i) REQUIRE(sum[i] == 2.5f + y[i]);
    }
  }
}

TEST_CASE("a changed nibble, scale or minimum shows, in its own row") {
  for (const Kernels* kernels : runnable())
    for (std::size_t m : {1u, 2u, 23u}) {
      constexpr std::size_t n = 32;
      Case c(WeightFormat::w4_g64, n, 64, 0, 77, false);
      std::vector<float> x(m * 64);  // no activation so small that its weight does not matter
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = (i % 2 != 0 ? -1.0f : 1.0f) + 0.01f * static_cast<float>(i % 64);
      Prepared p(*kernels, x.data(), m, 64, 64, ActivationForm::a16);
      std::vector<float> y(m * n), broken(m * n);
      kernels->matmul({c.packed, p.view, y.data(), n, false}, 0, 2);
      for (std::size_t at = 0; at < 2 * W4G64::bytes; ++at) {
        const std::byte old = c.tiles[at];
        c.tiles[at] = old ^ std::byte{0x12};
        kernels->matmul({c.packed, p.view, broken.data(), n, false}, 0, 2);
        c.tiles[at] = old;
        const std::size_t byte = at % W4G64::bytes;
        const std::size_t row =
            at / W4G64::bytes * 16 + (byte < 64 ? byte % 32 / 2 : (byte - 64) / 256 * 8 + (byte - 64) % 64 / 8);
        for (std::size_t i = 0; i < m * n; ++i) {
          // A code changes nothing where its scale is zero.
          const bool silent = byte >= 64 && c.exact.scale[i % n] == 0;
          const bool changed = broken[i] != y[i];
          if (i % n == row ? !changed && !silent : changed)
            FAIL(kernels->name << ": byte " << at << " of " << m << " tokens' product, output " << i);
        }
      }
    }
}

TEST_CASE("the gate, also where exp leaves its range") {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> gates = {-87.3f, -88.1f, -88.5f, -104, -1e4f, -inf, inf,   nan,    89,
                              -0.0f,  0,      1,      -1,   20,    -20,  3e38f, -3e38f, 88.7f};
  Random random(1);
  while (gates.size() % 16 != 0 || gates.size() < 50000) gates.push_back(random.normal() * 20);
  for (const Kernels* kernels : runnable())
    for (std::size_t stride : {16u, 48u}) {
      const std::size_t m = gates.size() / 16;
      Guarded<float> both(2 * gates.size()), y((m - 1) * stride + 16);
      for (std::size_t i = 0; i < gates.size(); ++i) {
        both[i / 16 * 32 + i % 16] = gates[i];
        both[i / 16 * 32 + 16 + i % 16] = i % 2 != 0 ? 1.0f : -2.0f;
      }
      for (float& v : y) v = 77.0f;
      kernels->gate(both.data(), m, y.data(), stride);
      for (std::size_t i = 0; i < gates.size(); ++i) {
        const double g = static_cast<double>(gates[i]), up = i % 2 != 0 ? 1 : -2;
        const float got = y[i / 16 * stride + i % 16];
        INFO(kernels->name << ": gate " << g << " gives " << got);
        if (std::isnan(g)) {
          REQUIRE(std::isnan(got));
        } else if (std::isinf(g)) {
          REQUIRE(static_cast<double>(got) == (g > 0 ? g * up : 0.0));
        } else {
          // exp's three units, the sum's, the quotient's and the product's half; e^88.37 stands for all beyond
          const double want = g / (1 + std::exp(-g)) * up;
          if (!(std::fabs(static_cast<double>(got) - want) <= 6 * reference::unit * std::fabs(want) + 1e-36)) FAIL();
        }
      }
      for (std::size_t i = 0; stride > 16 && i + 1 < m; ++i) REQUIRE(y[i * stride + 16] == 77.0f);
    }
}

// A head of one dimension is what its query and key multiply to: keys are the scores.
TEST_CASE("softmax with scores far below zero, masked ones and NaN") {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const Kernels* kernels : runnable()) {
    struct Result {
      float max, sum;
      std::vector<float> out;  // column d of the values is 1 at position d, else 0: the exponentials of 16 positions
    };
    const auto softmax = [&](const std::vector<float>& scores, float query) {
      const std::size_t n = scores.size();
      std::vector<float> q(16, 0.0f), scratch(attention_chunk);
      q[0] = query;
      std::vector<f16> k(div_up(n, key_block) * key_block * 16, f16{0}), v(n * 16, f16{0});
      for (std::size_t j = 0; j < n; ++j) k[j / 16 * 256 + j % 16] = to_f16(scores[j]);
      for (std::size_t j = 0; j < n && j < 16; ++j) v[j * 16 + j] = to_f16(1.0f);
      Result r{0, 0, std::vector<float>(16)};
      kernels->attention(
          {q.data(), k.data(), v.data(), k.data(), n, 1, 16, scratch.data(), r.out.data(), &r.max, &r.sum});
      return r;
    };
    INFO(kernels->name);
    for (std::size_t n : {1u, 2u, 5u, 16u, 255u, 256u}) {
      Random random(n);
      std::vector<float> scores(n);
      for (float& s : scores) s = to_float(to_f16(-600 + 3 * random.normal()));
      const Result r = softmax(scores, 100);
      const double top = static_cast<double>(100 * *std::max_element(scores.begin(), scores.end()));
      double total = 0;
      REQUIRE(static_cast<double>(r.max) == top);
      for (float s : scores) total += std::exp(static_cast<double>(100 * s) - top);
      REQUIRE(std::fabs(static_cast<double>(r.sum) - total) <= (static_cast<double>(n) + 4) * reference::unit * total);
      for (std::size_t j = 0; j < n && j < 16; ++j) {
        const double want = std::exp(static_cast<double>(100 * scores[j]) - top);
        REQUIRE(std::fabs(static_cast<double>(r.out[j]) - want) <= 3 * reference::unit * want + 1.2e-38);
      }
    }
    const Result masked = softmax(std::vector<float>(9, -inf), 1);
    REQUIRE(masked.max == -inf);
    REQUIRE(masked.sum == 0.0f);
    REQUIRE(masked.out == std::vector<float>(16, 0.0f));
    for (std::size_t at : {0u, 4u, 8u}) {
      std::vector<float> bad(9, 1.0f);
      bad[at] = nan;
      const Result r = softmax(bad, 1);
      REQUIRE(std::isnan(r.sum));
      REQUIRE(std::isnan(r.max));
    }
    const Result wide = softmax({-87.0f, -88.125f, -104, -1e4f, -inf, 0}, 1);
    REQUIRE(wide.out[0] > 0.0f);
    for (std::size_t j : {1u, 2u, 3u, 4u}) REQUIRE(wide.out[j] == 0.0f);
    REQUIRE(wide.out[5] == 1.0f);
  }
}

TEST_CASE("attention over a chunk matches the formula") {
  for (const Kernels* kernels : runnable())
    for (std::size_t head_dim : {16u, 64u, 128u})
      for (std::size_t heads : {1u, 2u, 3u, 4u, 5u, 7u, 8u})
        for (std::size_t count : {1u, 2u, 15u, 16u, 17u, 33u, 48u, 255u, 256u}) {
          INFO(kernels->name << " head_dim " << head_dim << " heads " << heads << " count " << count);
          Random random(heads * 1000 + count);
          const std::size_t blocks = div_up(count, key_block);
          Guarded<float> q(heads * head_dim), out(heads * head_dim), max(heads), sum(heads),
              scores(heads * attention_chunk);
          Guarded<f16> k(blocks * key_block * head_dim), v(count * head_dim);
          for (float& x : q) x = random.normal() * 0.3f;
          for (f16& x : k) x = to_f16(random.normal());
          for (f16& x : v) x = to_f16(random.normal());
          for (std::size_t j = count; j < blocks * key_block; ++j)  // positions not yet written may hold anything
            for (std::size_t d = 0; d < head_dim; ++d) k[(j / 16 * head_dim + d) * 16 + j % 16] = f16{0x7e00};
          kernels->attention({q.data(), k.data(), v.data(), k.data(), count, heads, head_dim, scores.data(), out.data(),
                              max.data(), sum.data()});
          for (std::size_t h = 0; h < heads; ++h) {
            std::vector<double> score(count, 0.0);
            double top = -1e300, magnitude = 0;
            for (std::size_t j = 0; j < count; ++j) {
              double absolute = 0;
              for (std::size_t d = 0; d < head_dim; ++d) {
                const double a = static_cast<double>(q[h * head_dim + d]),
                             b = static_cast<double>(to_float(k[(j / 16 * head_dim + d) * 16 + j % 16]));
                score[j] += a * b;
                absolute += std::fabs(a * b);
              }
              top = std::fmax(top, score[j]);
              magnitude = std::fmax(magnitude, absolute);
            }
            // A score errs by at most head_dim+1 roundings of its magnitude; exp turns that into a relative error, adds
            // its own (2 units of the last place), and the sums add one rounding per term.
            const double score_error = (static_cast<double>(head_dim) + 1) * reference::unit * magnitude;
            const double relative = 2 * score_error + (static_cast<double>(count) + 8) * reference::unit;
            double total = 0;
            for (double& s : score) total += s = std::exp(s - top);
            REQUIRE(std::fabs(static_cast<double>(max[h]) - top) <= score_error);
            REQUIRE(std::fabs(static_cast<double>(sum[h]) - total) <= relative * total);
            for (std::size_t d = 0; d < head_dim; ++d) {
              double want = 0, absolute = 0;
              for (std::size_t j = 0; j < count; ++j) {
                const double b = static_cast<double>(to_float(v[j * head_dim + d]));
                want += score[j] * b;
                absolute += score[j] * std::fabs(b);
              }
              REQUIRE(std::fabs(static_cast<double>(out[h * head_dim + d]) - want) <= relative * absolute);
            }
          }
        }
}

TEST_CASE("an instruction set is found by name, or refused with the list") {
  REQUIRE(kernels_by_name("portable"));
  const auto unknown = kernels_by_name("mmx");
  REQUIRE_FALSE(unknown);
  REQUIRE(unknown.error().message.find("portable") != std::string::npos);
  REQUIRE(best_kernels());
#if POCKET_ARCH_ARM64
  for (const char* name : {"neon_i8mm", "neon_dotprod", "neon"})
    REQUIRE(unknown.error().message.find(name) != std::string::npos);
  REQUIRE(kernels_by_name("neon"));
#endif
}

TEST_CASE("an instruction set that this CPU does not have is an error, and the best is the first that it has") {
  bool better = true;
  for (const IsaEntry& e : isa_list()) {
    const auto found = kernels_by_name(e.kernels->name);
    REQUIRE(static_cast<bool>(found) == e.runs_here());
    if (found) {
      REQUIRE(*found == e.kernels);
      if (better) REQUIRE(*best_kernels() == e.kernels);
      better = false;
    } else {
      REQUIRE(found.error().code == Errc::unsupported);
      REQUIRE(found.error().message.find(e.kernels->name) != std::string::npos);
      REQUIRE(found.error().message.find("does not have it") != std::string::npos);
    }
  }
}
