// GGUF files, versions 2 and 3, little-endian: metadata and tensors, as views into the file's bytes. No tensor data is
// copied or touched; what is allocated is two tables, whose sizes the file's own length bounds.
//
// The file is taken for hostile. Everything is checked when it is opened, in checked 64-bit arithmetic (reader.hpp):
// counts and lengths against the bytes that are left, duplicate keys and tensors, alignment, dimensions, and that each
// tensor lies inside the file and on no other. Later calls then fail only for a missing name or a wrong type. Values
// are not judged: a NaN epsilon is for the code that uses it to refuse.
//
// Errors: Errc::malformed and Errc::unsupported, "FILE: PLACE: what was wrong, what was expected".
// Layout: u32 "GGUF", u32 version, u64 tensors, u64 entries; entries {string key, u32 type, value}; tensors {string
// name, u32 n_dims, u64 dims[], u32 type, u64 offset}; padding to general.alignment; data. Strings have a u64 length in
// front, arrays u32 element type and u64 count. Source: the GGUF specification (docs/gguf.md of the ggml project).
#ifndef POCKET_FILES_GGUF_HPP
#define POCKET_FILES_GGUF_HPP

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "gguf_types.hpp"
#include "mapped_file.hpp"
#include "reader.hpp"

POCKET_NAMESPACE_BEGIN

// A GGUF file: its metadata and where its tensors lie, all of it checked when it is opened.
class GgufFile {
 public:
  // Maps the file; everything returned by this object is valid as long as it, or the object it is moved to, lives.
  static Expected<GgufFile> open(const std::string& path) {
    POCKET_TRY(mapped, MappedFile::open(path));
    const auto bytes = mapped.bytes();
    POCKET_TRY(file, parse(bytes, path));
    file.mapped_ = std::move(mapped);
    return std::move(file);
  }

  // The caller's memory, which outlives this object. `name` stands for the file in messages.
  static Expected<GgufFile> parse(std::span<const std::byte> bytes, std::string name) {
    GgufFile file;
    file.name_ = std::move(name);
    ByteReader reader(bytes, file.name_);
    POCKET_CHECK(file.parse_all(reader));
    return file;
  }

  const std::string& name() const noexcept { return name_; }
  unsigned version() const noexcept { return version_; }
  std::uint64_t alignment() const noexcept { return alignment_; }

  std::span<const GgufTensor> tensors() const noexcept { return tensors_; }  // in the file's order
  std::span<const GgufEntry> entries() const noexcept { return entries_; }   // in the file's order

  // Null if there is none of that name. The type may be one that Pocket does not read.
  const GgufTensor* find(std::string_view name) const {
    const auto at = tensor_names_.find(name, [this](std::size_t i) { return tensors_[i].name; });
    return at ? &tensors_[*at] : nullptr;
  }

  // A tensor that is there and of a type that Pocket reads.
  Expected<const GgufTensor*> require(std::string_view name) const {
    const GgufTensor* const tensor = find(name);
    if (tensor == nullptr) return fail(Errc::malformed, name_ + ": tensor " + in_quotes(name) + ": is missing");
    const GgufTypeInfo* const info = gguf_type_info(tensor->type);
    if (info == nullptr || !info->readable)
      return fail(Errc::unsupported, name_ + ": tensor " + in_quotes(name) + ": element type " +
                                         gguf_type_name(tensor->type) +
                                         " is not supported, expected F32, F16, BF16, Q8_0, Q4_0 or Q4_1");
    return tensor;
  }

  // Is there a metadata entry of this name?
  bool has(std::string_view key) const { return entry(key) != nullptr; }

  // Any integer type, not negative.
  Expected<std::uint64_t> unsigned_value(std::string_view key) const {
    POCKET_TRY(found, require_entry(key, "an integer, not negative"));
    const auto integer = as_integer(found->type, found->value.data());
    if (!integer || integer->negative) return wrong_value(*found, "an integer, not negative");
    return integer->bits;
  }

  // f32 or f64, any value.
  Expected<double> float_value(std::string_view key) const {
    POCKET_TRY(found, require_entry(key, "a floating-point number"));
    if (found->type == GgufValueType::f32) return static_cast<double>(load_unaligned<float>(found->value.data()));
    if (found->type == GgufValueType::f64) return load_unaligned<double>(found->value.data());
    return wrong_value(*found, "a floating-point number");
  }

  // A bool, stored as 0 or 1.
  Expected<bool> bool_value(std::string_view key) const {
    POCKET_TRY(found, require_entry(key, "a bool"));
    if (found->type != GgufValueType::boolean) return wrong_value(*found, "a bool");
    const auto byte = load_unaligned<std::uint8_t>(found->value.data());
    if (byte > 1) return wrong_value(*found, "a bool, 0 or 1");
    return byte == 1;
  }

  // The bytes as they are, not necessarily UTF-8.
  Expected<std::string_view> string_value(std::string_view key) const {
    POCKET_TRY(found, require_entry(key, "a string"));
    if (found->type != GgufValueType::string) return wrong_value(*found, "a string");
    return std::string_view(reinterpret_cast<const char*>(found->value.data()), found->value.size());
  }

  // An array of strings, which point into the file.
  Expected<std::vector<std::string_view>> string_array(std::string_view key) const {
    POCKET_TRY(found, require_entry(key, "an array of strings"));
    if (found->type != GgufValueType::array || found->element != GgufValueType::string)
      return wrong_value(*found, "an array of strings");
    std::vector<std::string_view> out;
    out.reserve(static_cast<std::size_t>(found->count));
    ByteReader reader(found->value, name_);
    for (std::uint64_t i = 0; i < found->count; ++i) {
      POCKET_TRY(text, reader.read_string("string"));
      out.push_back(text);
    }
    return out;
  }

  // Of any integer type; a u64 of 2^63 and above is an error.
  Expected<std::vector<std::int64_t>> integer_array(std::string_view key) const {
    POCKET_TRY(found, require_entry(key, "an array of integers"));
    if (found->type != GgufValueType::array || !is_integer(found->element))
      return wrong_value(*found, "an array of integers");
    std::vector<std::int64_t> out;
    out.reserve(static_cast<std::size_t>(found->count));
    const auto step = static_cast<std::size_t>(gguf_value_bytes(found->element));
    for (std::size_t i = 0; i < found->count; ++i) {
      const auto integer = as_integer(found->element, found->value.data() + i * step);
      if (!integer->negative && integer->bits > INT64_MAX) return wrong_value(*found, "integers below 2^63");
      out.push_back(static_cast<std::int64_t>(integer->bits));
    }
    return out;
  }

 private:
  // The least that the format needs for one of each: bounds every count by the bytes that are left.
  static constexpr std::uint64_t least_entry_bytes = 8 + 1 + 4 + 1;           // one-letter key, one-byte value
  static constexpr std::uint64_t least_tensor_bytes = 8 + 1 + 4 + 8 + 4 + 8;  // one-letter name, one dimension
  static constexpr std::uint64_t least_array_bytes = 4 + 8;                   // an empty array
  static constexpr unsigned most_nesting = 4;                                 // arrays in arrays

  struct Integer {
    std::uint64_t bits;  // two's complement if negative
    bool negative;
  };

  template <class T>
  static Integer widen(const std::byte* from) noexcept {
    const T value = load_unaligned<T>(from);
    return {static_cast<std::uint64_t>(value), value < T{0}};
  }

  static std::optional<Integer> as_integer(GgufValueType type, const std::byte* from) noexcept {
    switch (type) {
      case GgufValueType::u8: return widen<std::uint8_t>(from);
      case GgufValueType::i8: return widen<std::int8_t>(from);
      case GgufValueType::u16: return widen<std::uint16_t>(from);
      case GgufValueType::i16: return widen<std::int16_t>(from);
      case GgufValueType::u32: return widen<std::uint32_t>(from);
      case GgufValueType::i32: return widen<std::int32_t>(from);
      case GgufValueType::u64: return widen<std::uint64_t>(from);
      case GgufValueType::i64: return widen<std::int64_t>(from);
      default: return std::nullopt;
    }
  }

  static bool is_integer(GgufValueType type) noexcept {
    return gguf_value_bytes(type) != 0 && type != GgufValueType::boolean && type != GgufValueType::f32 &&
           type != GgufValueType::f64;
  }

  const GgufEntry* entry(std::string_view key) const {
    const auto at = keys_.find(key, [this](std::size_t i) { return entries_[i].key; });
    return at ? &entries_[*at] : nullptr;
  }

  Expected<const GgufEntry*> require_entry(std::string_view key, const char* expected) const {
    const GgufEntry* const found = entry(key);
    if (found == nullptr)
      return fail(Errc::malformed, name_ + ": metadata " + in_quotes(key) + ": is missing, expected " + expected);
    return found;
  }

  Error wrong_value(const GgufEntry& found, const char* expected) const {
    std::string type = gguf_value_name(found.type);
    if (found.type == GgufValueType::array) type += std::string(" of ") + gguf_value_name(found.element);
    return fail(Errc::malformed, name_ + ": metadata " + in_quotes(found.key) + ": expected " + expected +
                                     ", the file has another value, of type " + type);
  }

  Expected<void> parse_all(ByteReader& reader) {
    reader.set_place("header");
    POCKET_TRY(magic, reader.take(4, "the magic number"));
    if (std::string_view(reinterpret_cast<const char*>(magic.data()), 4) != "GGUF")
      return reader.malformed("is not a GGUF file: the first four bytes are not 'GGUF'");
    POCKET_CHECK(parse_version(reader));
    POCKET_TRY(tensor_count, reader.read_count(least_tensor_bytes, "the tensor count"));
    POCKET_TRY(entry_count, reader.read_count(least_entry_bytes, "the metadata count"));
    for (std::uint64_t i = 0; i < entry_count; ++i) POCKET_CHECK(parse_entry(reader, i));
    reader.set_place("header");
    if (const auto twice = keys_.build(entries_.size(), [this](std::size_t i) { return entries_[i].key; }))
      return reader.malformed("metadata " + in_quotes(*twice) + " occurs twice");
    POCKET_CHECK(parse_alignment());
    for (std::uint64_t i = 0; i < tensor_count; ++i) POCKET_CHECK(parse_tensor(reader, i));
    reader.set_place("header");
    if (const auto twice = tensor_names_.build(tensors_.size(), [this](std::size_t i) { return tensors_[i].name; }))
      return reader.malformed("tensor " + in_quotes(*twice) + " occurs twice");
    POCKET_CHECK(place_tensors(reader));
    return check_overlap(reader);
  }

  Expected<void> parse_version(ByteReader& reader) {
    POCKET_TRY(version, reader.read<std::uint32_t>("the version"));
    if (version == 2 || version == 3) {
      version_ = version;
      return {};
    }
    if ((version & 0xffffu) == 0 && version != 0)
      return fail(Errc::unsupported, name_ + ": header: the file is big-endian; Pocket reads little-endian GGUF only");
    return fail(Errc::unsupported,
                name_ + ": header: GGUF version " + std::to_string(version) + " is not supported, expected 2 or 3");
  }

  Expected<void> parse_entry(ByteReader& reader, std::uint64_t index) {
    reader.set_place("metadata number " + std::to_string(index));
    GgufEntry e;
    POCKET_TRY(key, reader.read_string("the key"));
    if (key.empty()) return reader.malformed("the key is empty");
    e.key = key;
    reader.set_place("metadata " + in_quotes(key));
    POCKET_TRY(type, reader.read<std::uint32_t>("the type"));
    e.type = e.element = static_cast<GgufValueType>(type);
    if (e.type == GgufValueType::string) {
      POCKET_TRY(length, reader.read<std::uint64_t>("the string's length"));
      POCKET_TRY(text, reader.take(length, "the string"));
      e.value = text;
    } else if (e.type == GgufValueType::array) {
      POCKET_CHECK(parse_array(reader, e));
    } else {
      const std::uint64_t size = gguf_value_bytes(e.type);
      if (size == 0) return reader.malformed("the type is " + std::to_string(type) + ", expected 0 to 12");
      POCKET_TRY(value, reader.take(size, "the value"));
      e.value = value;
    }
    entries_.push_back(e);
    return {};
  }

  static Expected<void> parse_array(ByteReader& reader, GgufEntry& e) {
    POCKET_TRY(header, read_array_header(reader));
    e.element = header.element;
    e.count = header.count;
    const std::uint64_t begin = reader.position();
    POCKET_CHECK(skip_elements(reader, header, 1));
    e.value = reader.between(begin, reader.position());
    return {};
  }

  struct ArrayHeader {
    GgufValueType element;
    std::uint64_t count;
  };

  static Expected<ArrayHeader> read_array_header(ByteReader& reader) {
    POCKET_TRY(type, reader.read<std::uint32_t>("the array's element type"));
    const auto element = static_cast<GgufValueType>(type);
    std::uint64_t least = gguf_value_bytes(element);
    if (element == GgufValueType::string) least = 8;
    if (element == GgufValueType::array) least = least_array_bytes;
    if (least == 0)
      return reader.malformed("the array's element type is " + std::to_string(type) + ", expected 0 to 12");
    POCKET_TRY(count, reader.read_count(least, "the array's length"));
    return ArrayHeader{element, count};
  }

  // Recurses as deep as most_nesting; every element takes bytes of the file, so the work is linear in its size.
  static Expected<void> skip_elements(ByteReader& reader, ArrayHeader header, unsigned depth) {
    if (header.element == GgufValueType::string) {
      for (std::uint64_t i = 0; i < header.count; ++i) POCKET_CHECK(reader.read_string("an array's string"));
    } else if (header.element == GgufValueType::array) {
      if (depth == most_nesting)
        return reader.malformed("arrays are nested deeper than " + std::to_string(most_nesting) + " levels");
      for (std::uint64_t i = 0; i < header.count; ++i) {
        POCKET_TRY(inner, read_array_header(reader));
        POCKET_CHECK(skip_elements(reader, inner, depth + 1));
      }
    } else {  // read_count has bounded the product
      POCKET_CHECK(reader.take(header.count * gguf_value_bytes(header.element), "the array"));
    }
    return {};
  }

  Expected<void> parse_alignment() {
    constexpr std::string_view key = "general.alignment";
    if (!has(key)) return {};
    POCKET_TRY(value, unsigned_value(key));
    if (value < 8 || value > 65536 || !std::has_single_bit(value))
      return fail(Errc::malformed, name_ + ": metadata 'general.alignment': is " + std::to_string(value) +
                                       ", expected a power of two from 8 to 65536");
    alignment_ = value;
    return {};
  }

  Expected<void> parse_tensor(ByteReader& reader, std::uint64_t index) {
    reader.set_place("tensor number " + std::to_string(index));
    GgufTensor t;
    POCKET_TRY(name, reader.read_string("the name"));
    if (name.empty()) return reader.malformed("the name is empty");
    t.name = name;
    reader.set_place("tensor " + in_quotes(name));
    POCKET_TRY(n_dims, reader.read<std::uint32_t>("n_dims"));
    if (n_dims < 1 || n_dims > t.dims.size())
      return reader.malformed("n_dims is " + std::to_string(n_dims) + ", expected 1 to 4");
    t.n_dims = n_dims;
    for (unsigned d = 0; d < n_dims; ++d) {
      POCKET_TRY(dim, reader.read<std::uint64_t>("a dimension"));
      if (dim == 0) return reader.malformed("dimension " + std::to_string(d) + " is 0");
      t.dims[d] = dim;
    }
    POCKET_TRY(type, reader.read<std::uint32_t>("the element type"));
    t.type = static_cast<GgufType>(type);
    POCKET_TRY(offset, reader.read<std::uint64_t>("the offset"));
    if (offset % alignment_ != 0)
      return reader.malformed("the offset is " + std::to_string(offset) + ", expected a multiple of " +
                              std::to_string(alignment_));
    t.offset = offset;
    tensors_.push_back(t);
    return {};
  }

  // Bytes of a tensor's data, 0 if its type's block size is unknown.
  static Expected<std::uint64_t> data_bytes(const ByteReader& reader, const GgufTensor& t) {
    const auto elements = checked_product(t.dims);
    if (!elements) return reader.malformed("the product of the dimensions exceeds 64 bits");
    const GgufTypeInfo* const info = gguf_type_info(t.type);
    if (info == nullptr) return std::uint64_t{0};
    if (t.dims[0] % info->block != 0)
      return reader.malformed("the row length is " + std::to_string(t.dims[0]) + ", expected a multiple of " +
                              std::to_string(info->block) + " for type " + info->name);
    const auto bytes = checked_mul(*elements / info->block, info->block_bytes);
    if (!bytes) return reader.malformed("the size in bytes exceeds 64 bits");
    return *bytes;
  }

  // Gives every tensor its bytes. The reader stands behind the last tensor's description.
  Expected<void> place_tensors(ByteReader& reader) {
    const std::uint64_t past = reader.position() % alignment_;
    const std::uint64_t padding = past == 0 ? 0 : alignment_ - past;
    if (!tensors_.empty()) POCKET_CHECK(reader.take(padding, "padding before the data"));
    const std::uint64_t start = reader.position(), available = reader.remaining();
    for (GgufTensor& t : tensors_) {
      reader.set_place("tensor " + in_quotes(t.name));
      POCKET_TRY(bytes, data_bytes(reader, t));
      const auto end = checked_add(t.offset, bytes);
      if (!end || *end > available)
        return reader.malformed("needs " + std::to_string(bytes) + " bytes at offset " + std::to_string(t.offset) +
                                ", the file has " + std::to_string(available) + " bytes of data");
      t.data = reader.between(start + t.offset, start + *end);
    }
    return {};
  }

  Expected<void> check_overlap(ByteReader& reader) const {
    std::vector<const GgufTensor*> order(tensors_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = &tensors_[i];
    std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) {
      return a->offset != b->offset ? a->offset < b->offset : a->data.size() < b->data.size();
    });
    for (std::size_t i = 1; i < order.size(); ++i) {
      if (order[i - 1]->offset + order[i - 1]->data.size() <= order[i]->offset) continue;
      reader.set_place("tensor " + in_quotes(order[i]->name));
      return reader.malformed("its data overlaps that of tensor " + in_quotes(order[i - 1]->name));
    }
    return {};
  }

  MappedFile mapped_;  // no file if the memory is the caller's
  std::string name_;
  unsigned version_ = 0;
  std::uint64_t alignment_ = 32;
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
  NameIndex keys_;
  NameIndex tensor_names_;
};

POCKET_NAMESPACE_END

#endif
