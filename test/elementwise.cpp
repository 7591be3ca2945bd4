// kernels/elementwise.hpp against double precision, and at the ends of the range.
#include "kernels/elementwise.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "support.hpp"

using namespace pocket;
using test::Guarded;
using test::Random;

namespace {
constexpr float inf = std::numeric_limits<float>::infinity();
}

TEST_CASE("rms_norm") {
  for (std::size_t n : {1u, 3u, 16u, 64u, 576u, 897u}) {
    Random random(n);
    Guarded<float> x(n), gamma(n), y(n);
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = random.normal() * 3;
      gamma[i] = random.normal();
      squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    elementwise::rms_norm(x.data(), gamma.data(), n, 1e-6f, y.data());
    const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-6);
    for (std::size_t i = 0; i < n; ++i) {
      const double want = static_cast<double>(x[i]) * scale * static_cast<double>(gamma[i]);
      // half the relative error of the sum (at most n roundings), the division, root, and two products
      REQUIRE(std::fabs(static_cast<double>(y[i]) - want) <=
              (static_cast<double>(n) / 2 + 6) * 0x1p-24 * std::fabs(want));
    }
  }
}

TEST_CASE("chunks joined in order equal one softmax") {
  Random random(3);
  const std::size_t n = 100, width = 7;
  std::vector<float> score(n), value(n * width);
  for (float& s : score) s = random.normal() * 5;
  for (float& v : value) v = random.normal();
  float max = -inf, sum = 0;
  std::vector<float> out(width, 0.0f);
  for (std::size_t begin = 0; begin < n; begin += 30) {
    const std::size_t count = std::min<std::size_t>(30, n - begin);
    std::vector<float> p(score.begin() + static_cast<std::ptrdiff_t>(begin),
                         score.begin() + static_cast<std::ptrdiff_t>(begin + count));
    const float m = *std::max_element(p.begin(), p.end());
    float s = 0;
    for (float& v : p) s += v = std::exp(v - m);
    std::vector<float> o(width, 0.0f);
    for (std::size_t j = 0; j < count; ++j)
      for (std::size_t d = 0; d < width; ++d) o[d] += p[j] * value[(begin + j) * width + d];
    elementwise::merge_partial(max, sum, out.data(), m, s, o.data(), width);
  }
  elementwise::scale(out.data(), width, 1 / sum);
  double total = 0;
  std::vector<double> want(width, 0.0);
  for (std::size_t j = 0; j < n; ++j) {
    const double e = std::exp(static_cast<double>(score[j]) - static_cast<double>(max));
    total += e;
    for (std::size_t d = 0; d < width; ++d) want[d] += e * static_cast<double>(value[j * width + d]);
  }
  for (std::size_t d = 0; d < width; ++d) REQUIRE(std::fabs(static_cast<double>(out[d]) - want[d] / total) < 1e-5);
}

TEST_CASE("rotate_half turns the first half with the second") {
  const std::size_t half = 32;
  Random random(2);
  std::vector<float> x(64), c(half), s(half);
  for (float& v : x) v = random.normal();
  for (std::size_t i = 0; i < half; ++i) {
    c[i] = static_cast<float>(std::cos(static_cast<double>(i)));
    s[i] = static_cast<float>(std::sin(static_cast<double>(i)));
  }
  std::vector<float> y = x;
  elementwise::rotate_half(y.data(), c.data(), s.data(), half);
  for (std::size_t i = 0; i < half; ++i) {
    REQUIRE(std::fabs(y[i] - (x[i] * c[i] - x[i + half] * s[i])) <= 1e-6f);
    REQUIRE(std::fabs(y[i + half] - (x[i + half] * c[i] + x[i] * s[i])) <= 1e-6f);
  }
}
