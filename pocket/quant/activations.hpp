// Activations, quantised per token and group of 64 columns. One kernel serves both forms:
//
//   A16   a ~ t * (256*hi + lo)   t = max|a| / 32639, hi and lo signed bytes   error at most 1.6e-5 of max|a|
//   A8    a ~ t * q               t = max|a| / 127, q a signed byte            error at most 4e-3 of max|a|
//
// (32639 = 127*256 + 127: one more and hi would wrap.) Codes are nearest-even of a * (32639 / max) in float32; every
// instruction set gives the same bits. A group whose maximum is below 2^-110 becomes zeros; one that holds a NaN or an
// infinity gets t = NaN, which makes every output of its token NaN.
//
// Layout of one token's codes, columns padded with zeros to a multiple of 64:
//   A16   for each 8 columns: 8 bytes hi, then 8 bytes lo     (16 bytes: the two rows of an i8mm operand)
//   A8    the columns in order
#ifndef POCKET_QUANT_ACTIVATIONS_HPP
#define POCKET_QUANT_ACTIVATIONS_HPP

#include <cstddef>
#include <cstdint>

#include "../config.hpp"
#include "../core/view.hpp"
#include "format.hpp"

POCKET_NAMESPACE_BEGIN

// How many bits an activation keeps: A16 or A8, one form per session.
enum class ActivationForm : std::uint8_t { a16, a8 };

// "a16" or "a8".
constexpr const char* name_of(ActivationForm form) noexcept { return form == ActivationForm::a16 ? "a16" : "a8"; }

// The forms as types, for kernels that are made once for each.
struct A16 {
  static constexpr float range = 32639.0f;
  static constexpr std::size_t bytes_per_code = 2;
};
// As A16.
struct A8 {
  static constexpr float range = 127.0f;
  static constexpr std::size_t bytes_per_code = 1;
};
inline constexpr float smallest_activation = 0x1p-110f;  // a group's maximum below this is zero

// What a kernel needs of one token's group beside the codes. The sums are over the *quantised* activations, so that a
// weight's error meets the same value in both terms.
struct GroupScale {
  float t;        // a ~ t * code
  float sum;      // t * (sum of the group's 64 codes)
  float half[2];  // t * (sum of its first 32 codes), of its last 32
};
static_assert(sizeof(GroupScale) == 16);

// m tokens of k columns, prepared: from token to token codes are code_stride bytes apart and scales `groups`.
struct Activations {
  std::int8_t* codes = nullptr;
  GroupScale* scales = nullptr;
  std::size_t m = 0;
  std::size_t k = 0;
  ActivationForm form = ActivationForm::a16;

  constexpr std::size_t groups() const noexcept { return div_up(k, tile_cols); }  // per token
  // Bytes of one token's codes.
  constexpr std::size_t code_stride() const noexcept {
    return groups() * tile_cols * (form == ActivationForm::a16 ? A16::bytes_per_code : A8::bytes_per_code);
  }
  constexpr std::size_t code_bytes() const noexcept { return m * code_stride(); }  // what `codes` holds
  constexpr std::size_t scale_count() const noexcept { return m * groups(); }      // what `scales` holds
};

POCKET_NAMESPACE_END

#endif
