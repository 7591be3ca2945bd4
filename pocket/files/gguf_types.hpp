// GGUF's numbers: element types of tensors with their block sizes, value types of metadata. Source: the GGUF
// specification (docs/gguf.md of the ggml project); nothing here reads a file.
#ifndef POCKET_FILES_GGUF_TYPES_HPP
#define POCKET_FILES_GGUF_TYPES_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "../config.hpp"

POCKET_NAMESPACE_BEGIN

// The element types that Pocket reads. Any other number of a file is kept as it is in a GgufType.
//   Q4_0  32 weights in 18 bytes: f16 d, 16 bytes q; w = d * (q - 8)
//   Q4_1  32 weights in 20 bytes: f16 d, f16 m, 16 bytes q; w = d * q + m
//   Q8_0  32 weights in 34 bytes: f16 d, 32 signed bytes q; w = d * q
// Byte j of a Q4 block holds weight j in its low nibble and weight j + 16 in its high one.
enum class GgufType : std::uint32_t { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q8_0 = 8, BF16 = 30 };

// A row of the table below.
struct GgufTypeInfo {
  std::uint32_t number;
  const char* name;
  std::uint32_t block;        // elements in a block; a row is a whole number of blocks
  std::uint32_t block_bytes;  // bytes of a block
  bool readable;              // Pocket computes with it
};

inline constexpr GgufTypeInfo gguf_type_table[] = {
    {0, "F32", 1, 4, true},          {1, "F16", 1, 2, true},          {2, "Q4_0", 32, 18, true},
    {3, "Q4_1", 32, 20, true},       {6, "Q5_0", 32, 22, false},      {7, "Q5_1", 32, 24, false},
    {8, "Q8_0", 32, 34, true},       {10, "Q2_K", 256, 84, false},    {11, "Q3_K", 256, 110, false},
    {12, "Q4_K", 256, 144, false},   {13, "Q5_K", 256, 176, false},   {14, "Q6_K", 256, 210, false},
    {16, "IQ2_XXS", 256, 66, false}, {17, "IQ2_XS", 256, 74, false},  {18, "IQ3_XXS", 256, 98, false},
    {19, "IQ1_S", 256, 50, false},   {20, "IQ4_NL", 32, 18, false},   {21, "IQ3_S", 256, 110, false},
    {22, "IQ2_S", 256, 82, false},   {23, "IQ4_XS", 256, 136, false}, {24, "I8", 1, 1, false},
    {25, "I16", 1, 2, false},        {26, "I32", 1, 4, false},        {27, "I64", 1, 8, false},
    {28, "F64", 1, 8, false},        {29, "IQ1_M", 256, 56, false},   {30, "BF16", 1, 2, true},
};

// Null for a number that is not in the table: its block size is unknown.
constexpr const GgufTypeInfo* gguf_type_info(GgufType type) noexcept {
  for (const GgufTypeInfo& info : gguf_type_table)
    if (info.number == static_cast<std::uint32_t>(type)) return &info;
  return nullptr;
}

// "Q4_K", or "number 77"
inline std::string gguf_type_name(GgufType type) {
  const GgufTypeInfo* const info = gguf_type_info(type);
  return info != nullptr ? info->name : "number " + std::to_string(static_cast<std::uint32_t>(type));
}

// A tensor as the file has it. dims[0] is the row length (the fastest index), unused dims are 1.
struct GgufTensor {
  std::string_view name;
  GgufType type{};
  std::array<std::uint64_t, 4> dims{1, 1, 1, 1};
  unsigned n_dims = 0;
  std::uint64_t offset = 0;         // bytes from the start of the file's data part
  std::span<const std::byte> data;  // empty for a type of unknown block size; aligned only as far as the memory is
};

// Types of metadata values, by their numbers in the file.
enum class GgufValueType : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

// Bytes of a value of fixed size; 0 for strings, arrays and numbers that are no type.
constexpr std::uint64_t gguf_value_bytes(GgufValueType type) noexcept {
  switch (type) {
    case GgufValueType::u8:
    case GgufValueType::i8:
    case GgufValueType::boolean: return 1;
    case GgufValueType::u16:
    case GgufValueType::i16: return 2;
    case GgufValueType::u32:
    case GgufValueType::i32:
    case GgufValueType::f32: return 4;
    case GgufValueType::u64:
    case GgufValueType::i64:
    case GgufValueType::f64: return 8;
    case GgufValueType::string:
    case GgufValueType::array: break;
  }
  return 0;
}

// "u32", "string"; "unknown" for a number that is no type.
constexpr const char* gguf_value_name(GgufValueType type) noexcept {
  constexpr const char* names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                   "bool", "string", "array", "u64", "i64", "f64"};
  const auto number = static_cast<std::uint32_t>(type);
  return number < std::size(names) ? names[number] : "unknown";
}

// A key and its value, still as bytes of the file.
struct GgufEntry {
  std::string_view key;
  GgufValueType type{};
  GgufValueType element{};           // of an array; else the same as type
  std::uint64_t count = 1;           // of an array's elements; else 1
  std::span<const std::byte> value;  // a scalar's bytes, a string's characters, an array's elements as stored
};

POCKET_NAMESPACE_END

#endif
