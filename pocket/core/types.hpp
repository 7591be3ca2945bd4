// bf16 and f16 as storage: 16 bits, and conversions that round to nearest even, keep NaN a NaN, signed zeros,
// infinities and subnormals. No arithmetic on them: compute in float.
//
// Builtins here and in other headers of the hot path stand for std::bit_cast, std::sqrt and the like where these are
// inline functions: the linker keeps one copy for a whole program, perhaps one compiled for a newer CPU.
#ifndef POCKET_CORE_TYPES_HPP
#define POCKET_CORE_TYPES_HPP

#include <cstdint>

#include "../config.hpp"

POCKET_NAMESPACE_BEGIN

// The upper half of a float: 8 bits of exponent, 7 of fraction.
struct bf16 {
  std::uint16_t bits = 0;
};
// IEEE binary16: 5 bits of exponent, 10 of fraction; the greatest is 65504.
struct f16 {
  std::uint16_t bits = 0;
};
static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2);

// Exact.
constexpr float to_float(bf16 v) noexcept {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(v.bits) << 16);
}

// Rounds to nearest even.
constexpr bf16 to_bf16(float v) noexcept {
  const auto u = __builtin_bit_cast(std::uint32_t, v);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40u)};  // quiet NaN, same sign
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// Exact.
constexpr float to_float(f16 v) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(v.bits & 0x8000u) << 16;
  const std::uint32_t rest = v.bits & 0x7fffu;
  if (rest >= 0x7c00u) return __builtin_bit_cast(float, sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  if (rest < 0x0400u) {  // zero and subnormals: rest * 2^-24, exact in float
    const float magnitude = static_cast<float>(rest) * 0x1p-24f;
    return __builtin_bit_cast(float, sign | __builtin_bit_cast(std::uint32_t, magnitude));
  }
  return __builtin_bit_cast(float, sign | ((rest << 13) + ((127u - 15u) << 23)));
}

// Rounds to nearest even; from 65520 on that is infinity, up to 2^-25 it is zero.
constexpr f16 to_f16(float v) noexcept {
  const auto u = __builtin_bit_cast(std::uint32_t, v);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t a = u & 0x7fffffffu;
  const auto pack = [sign](std::uint32_t b) { return f16{static_cast<std::uint16_t>(sign | b)}; };
  if (a > 0x7f800000u) return pack(0x7e00u | ((a >> 13) & 0x1ffu));  // quiet NaN, payload's top bits
  if (a >= 0x477ff000u) return pack(0x7c00u);                        // 65520 and above round to infinity
  if (a < 0x38800000u) {                                             // below 2^-14: subnormal, in steps of 2^-24
    if (a < 0x33000000u) return pack(0);                             // below 2^-25
    const std::uint32_t shift = 126u - (a >> 23);                    // 14..24 bits of the 24-bit significand go
    const std::uint32_t m = (a & 0x7fffffu) | 0x800000u;
    const std::uint32_t half = 1u << (shift - 1u);
    return pack((m + half - 1u + ((m >> shift) & 1u)) >> shift);
  }
  return pack((a - ((127u - 15u) << 23) + 0xfffu + ((a >> 13) & 1u)) >> 13);
}

POCKET_NAMESPACE_END

#endif
