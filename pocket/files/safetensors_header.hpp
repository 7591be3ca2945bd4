// The JSON header of a safetensors file, and what it must satisfy; safetensors.hpp holds the file around it. The only
// file of pocket/files that sees nlohmann-json, of which it uses the SAX side: no document is built, nesting costs no
// stack, and each value is refused at once where the format has no place for it.
//
//   {"__metadata__": {"key": "value", ...},
//    "NAME": {"dtype": "F16", "shape": [rows, cols], "data_offsets": [begin, end]}, ...}
//
// Offsets are bytes from the start of the data, which follows the header. The tensors, in any order, cover the data
// from its first byte to its last without a gap or an overlap. Source: the format's README (safetensors project).
// Errors: Errc::malformed, or Errc::unsupported for a rank above safetensors_most_dims.
#ifndef POCKET_FILES_SAFETENSORS_HEADER_HPP
#define POCKET_FILES_SAFETENSORS_HEADER_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "reader.hpp"

POCKET_NAMESPACE_BEGIN

// The element types that Pocket reads and writes, and `other`: the tensor's dtype_name tells which.
enum class Dtype : unsigned char { F32, F16, BF16, U8, I8, I32, I64, other };

// A row of the table below.
struct DtypeInfo {
  std::string_view name;
  std::uint64_t bytes;
  Dtype dtype;
};

inline constexpr DtypeInfo dtype_table[] = {
    {"F32", 4, Dtype::F32},    {"F16", 2, Dtype::F16},   {"BF16", 2, Dtype::BF16},     {"U8", 1, Dtype::U8},
    {"I8", 1, Dtype::I8},      {"I32", 4, Dtype::I32},   {"I64", 8, Dtype::I64},       {"F64", 8, Dtype::other},
    {"BOOL", 1, Dtype::other}, {"I16", 2, Dtype::other}, {"U16", 2, Dtype::other},     {"U32", 4, Dtype::other},
    {"U64", 8, Dtype::other},  {"C64", 8, Dtype::other}, {"F8_E4M3", 1, Dtype::other}, {"F8_E5M2", 1, Dtype::other},
};

// Null for a name that is not in the table: its size is unknown.
constexpr const DtypeInfo* dtype_info(std::string_view name) noexcept {
  for (const DtypeInfo& info : dtype_table)
    if (info.name == name) return &info;
  return nullptr;
}

// Null for Dtype::other.
constexpr const DtypeInfo* dtype_info(Dtype dtype) noexcept {
  for (const DtypeInfo& info : dtype_table)
    if (info.dtype == dtype && dtype != Dtype::other) return &info;
  return nullptr;
}

inline constexpr std::size_t safetensors_most_dims = 8;
inline constexpr std::uint64_t safetensors_most_header_bytes = 100'000'000;  // the format's own limit
inline constexpr std::string_view safetensors_metadata_key = "__metadata__";

// One tensor as the header has it, and its bytes.
struct SafetensorsTensor {
  std::string name;
  Dtype dtype = Dtype::other;
  std::string dtype_name;
  std::vector<std::uint64_t> shape;  // slowest index first; empty for a scalar; zeros are legal
  std::uint64_t begin = 0, end = 0;  // bytes from the start of the data
  std::span<const std::byte> data;   // of any alignment: load_unaligned, or copy
};

// The header, parsed and checked.
struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the header's order
  std::vector<std::pair<std::string, std::string>> metadata;
  NameIndex tensor_names, metadata_keys;

  // For NameIndex: an item's name.
  auto tensor_name() const {
    return [this](std::size_t i) { return std::string_view(tensors[i].name); };
  }
  // For NameIndex: an entry's key.
  auto metadata_key() const {
    return [this](std::size_t i) { return std::string_view(metadata[i].first); };
  }
};

namespace detail {

// Takes the parser's events, one state per place in the header; every function returns whether to go on.
class SafetensorsEvents {
 public:
  SafetensorsHeader header;
  Error error;  // of the first event that was refused

  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(std::int64_t) { return unexpected("a negative number"); }
  bool number_float(double, const std::string&) { return unexpected("a number that is no unsigned 64-bit integer"); }
  bool binary(nlohmann::json::binary_t&) { return unexpected("binary data"); }

  bool number_unsigned(std::uint64_t value) {
    if (place_ == Place::shape) {
      if (tensor().shape.size() == safetensors_most_dims)
        return refuse(Errc::unsupported, "more than " + std::to_string(safetensors_most_dims) + " dimensions");
      tensor().shape.push_back(value);
      return true;
    }
    if (place_ != Place::offsets) return unexpected("a number");
    if (offsets_ == 2) return refuse(Errc::malformed, "more than two numbers, expected [begin, end]");
    (offsets_++ == 0 ? tensor().begin : tensor().end) = value;
    return true;
  }

  bool string(std::string& value) {
    if (place_ == Place::metadata) {
      header.metadata.emplace_back(std::move(key_), std::move(value));
      return true;
    }
    if (place_ != Place::tensor || field_ != Field::dtype) return unexpected("a string");
    const DtypeInfo* const info = dtype_info(value);
    tensor().dtype = info != nullptr ? info->dtype : Dtype::other;
    tensor().dtype_name = std::move(value);
    return true;
  }

  bool key(std::string& text) {
    key_ = std::move(text);
    if (place_ != Place::tensor) return true;
    field_ = key_ == "dtype" ? Field::dtype : key_ == "shape" ? Field::shape : Field::offsets;
    if (field_ == Field::offsets && key_ != "data_offsets")
      return refuse(Errc::malformed, "unknown, expected dtype, shape or data_offsets");
    const unsigned bit = 1u << static_cast<unsigned>(field_);
    if ((seen_ & bit) != 0) return refuse(Errc::malformed, "occurs twice");
    seen_ |= bit;
    return true;
  }

  bool start_object(std::size_t) {
    if (place_ == Place::outside) {
      place_ = Place::root;
    } else if (place_ == Place::root && key_ == safetensors_metadata_key) {
      if (std::exchange(metadata_seen_, true)) return refuse(Errc::malformed, "occurs twice");
      place_ = Place::metadata;
    } else if (place_ == Place::root) {
      header.tensors.emplace_back().name = std::move(key_);
      key_.clear();
      seen_ = offsets_ = 0;
      place_ = Place::tensor;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool end_object() {
    if (place_ == Place::tensor && !finish_tensor()) return false;
    place_ = place_ == Place::root ? Place::outside : Place::root;
    return true;
  }

  bool start_array(std::size_t) {
    if (place_ != Place::tensor || field_ == Field::dtype) return unexpected("an array");
    place_ = field_ == Field::shape ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() {
    place_ = Place::tensor;
    if (field_ == Field::offsets && offsets_ != 2) return refuse(Errc::malformed, "expected [begin, end]");
    return true;
  }

  template <class Exception>
  bool parse_error(std::size_t position, const std::string&, const Exception&) {
    error = fail(Errc::malformed, "header: not valid JSON at its byte " + std::to_string(position));
    return false;
  }

 private:
  enum class Place : unsigned char { outside, root, metadata, tensor, shape, offsets };
  enum class Field : unsigned char { dtype, shape, offsets };

  SafetensorsTensor& tensor() { return header.tensors.back(); }

  bool refuse(Errc code, const std::string& what) {
    std::string where = "header";
    if (place_ == Place::root || place_ == Place::metadata) where += ": key " + in_quotes(key_);
    if (place_ >= Place::tensor) {
      where = "tensor " + in_quotes(tensor().name);
      if (!key_.empty()) where += ": field " + in_quotes(key_);
    }
    error = fail(code, where + ": " + what);
    return false;
  }
  bool unexpected(const char* what) {
    return refuse(Errc::malformed, std::string(what) + " is not what the format has there");
  }

  bool finish_tensor() {
    key_.clear();  // what follows is about the whole tensor
    SafetensorsTensor& t = tensor();
    if (seen_ != 7) return refuse(Errc::malformed, "one of dtype, shape and data_offsets is missing");
    if (t.begin > t.end)
      return refuse(Errc::malformed,
                    "data_offsets: begin " + std::to_string(t.begin) + " is beyond end " + std::to_string(t.end));
    const auto elements = checked_product(t.shape);
    if (!elements) return refuse(Errc::malformed, "shape: the product of the dimensions exceeds 64 bits");
    const DtypeInfo* const info = dtype_info(t.dtype_name);
    if (info == nullptr) return true;
    const auto bytes = checked_mul(*elements, info->bytes);
    if (!bytes || *bytes != t.end - t.begin)
      return refuse(Errc::malformed, "shape: " + std::to_string(*elements) + " elements of type " + t.dtype_name +
                                         " do not fill the " + std::to_string(t.end - t.begin) +
                                         " bytes of data_offsets");
    return true;
  }

  Place place_ = Place::outside;
  Field field_ = Field::dtype;
  std::string key_;       // the last key
  unsigned seen_ = 0;     // fields of the tensor, one bit each
  unsigned offsets_ = 0;  // numbers in data_offsets so far
  bool metadata_seen_ = false;
};

// That the tensors cover the data once, in whatever order they are declared. The message, or nothing.
inline std::optional<std::string> uncovered(const SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::vector<const SafetensorsTensor*> order;
  order.reserve(header.tensors.size());
  for (const SafetensorsTensor& t : header.tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(), [](const SafetensorsTensor* a, const SafetensorsTensor* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
  });
  const auto place = [](const SafetensorsTensor& t) { return "tensor " + in_quotes(t.name) + ": data_offsets: "; };
  std::uint64_t covered = 0;
  for (const SafetensorsTensor* t : order) {
    if (t->begin != covered)
      return place(*t) + "begin is " + std::to_string(t->begin) + ", expected " + std::to_string(covered) +
             (t->begin < covered ? ": it overlaps another tensor" : ": the bytes between belong to no tensor");
    if (t->end > data_bytes)
      return place(*t) + "end is " + std::to_string(t->end) + ", the file has " + std::to_string(data_bytes) +
             " bytes of data";
    covered = t->end;
  }
  if (covered == data_bytes) return std::nullopt;
  return "data: the tensors cover " + std::to_string(covered) + " of " + std::to_string(data_bytes) + " bytes";
}

}  // namespace detail

// The header's text, and how many bytes of data follow it. `file` is the name for messages; data spans are left empty.
inline Expected<SafetensorsHeader> parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                                            std::string_view file) {
  const auto malformed = [&](std::string_view what) {
    return fail(Errc::malformed, std::string(file).append(": ").append(what));
  };
  if (text.empty() || text.front() != '{') return malformed("header: does not begin with '{'");
  // The parser would take a zero byte for the end, and believe a file that has anything behind it.
  if (text.find('\0') != std::string_view::npos) return malformed("header: holds a zero byte");
  detail::SafetensorsEvents events;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events))
    return fail(events.error.code, std::string(file).append(": ").append(events.error.message));

  SafetensorsHeader header = std::move(events.header);
  if (const auto problem = detail::uncovered(header, data_bytes)) return malformed(*problem);
  if (const auto twice = header.tensor_names.build(header.tensors.size(), header.tensor_name()))
    return malformed("tensor " + in_quotes(*twice) + ": occurs twice");
  if (const auto twice = header.metadata_keys.build(header.metadata.size(), header.metadata_key()))
    return malformed("metadata " + in_quotes(*twice) + ": occurs twice");
  return header;
}

POCKET_NAMESPACE_END

#endif
