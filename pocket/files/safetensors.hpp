// safetensors files: a reader that maps, and a writer that streams. Layout: u64 length of the header, the header (JSON,
// safetensors_header.hpp), the data. Little-endian.
//
// The reader takes the file for hostile: all of it is checked when it is opened, in checked 64-bit arithmetic, and what
// is allocated is a small multiple of the header. Tensor data is neither copied nor touched, and has no alignment.
// Errors: Errc::malformed and Errc::unsupported, "FILE: PLACE: what was wrong, what was expected".
//
// The writer needs no memory for the data: declare everything, begin, append each tensor's bytes in the order of
// declaration, finish. Its output depends on the calls alone: no time stamp, no order but theirs.
#ifndef POCKET_FILES_SAFETENSORS_HPP
#define POCKET_FILES_SAFETENSORS_HPP

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
#include "mapped_file.hpp"
#include "output_file.hpp"
#include "reader.hpp"
#include "safetensors_header.hpp"

POCKET_NAMESPACE_BEGIN

// A file of tensors, mapped or in the caller's memory.
class SafetensorsFile {
 public:
  // Maps the file; everything returned by this object is valid as long as it, or the object it is moved to, lives.
  static Expected<SafetensorsFile> open(const std::string& path) {
    POCKET_TRY(mapped, MappedFile::open(path));
    const auto bytes = mapped.bytes();
    POCKET_TRY(file, parse(bytes, path));
    file.mapped_ = std::move(mapped);
    return std::move(file);
  }

  // The caller's memory, which outlives this object. `name` stands for the file in messages.
  static Expected<SafetensorsFile> parse(std::span<const std::byte> bytes, std::string name) {
    SafetensorsFile file;
    file.name_ = std::move(name);
    ByteReader reader(bytes, file.name_);
    POCKET_TRY(length, reader.read<std::uint64_t>("the header's length"));
    if (length > safetensors_most_header_bytes)
      return reader.malformed("the header's length is " + std::to_string(length) + ", expected at most " +
                              std::to_string(safetensors_most_header_bytes));
    POCKET_TRY(text, reader.take(length, "the header"));
    const std::uint64_t start = reader.position();
    POCKET_TRY(header, parse_safetensors_header({reinterpret_cast<const char*>(text.data()), text.size()},
                                                reader.remaining(), file.name_));
    file.header_ = std::move(header);
    for (SafetensorsTensor& t : file.header_.tensors) t.data = reader.between(start + t.begin, start + t.end);
    return file;
  }

  const std::string& name() const noexcept { return name_; }
  std::span<const SafetensorsTensor> tensors() const noexcept { return header_.tensors; }  // in the header's order

  // Null if there is none of that name. The dtype may be one that Pocket does not read.
  const SafetensorsTensor* find(std::string_view name) const {
    const auto at = header_.tensor_names.find(name, header_.tensor_name());
    return at ? &header_.tensors[*at] : nullptr;
  }

  // A tensor that is there and of a dtype that Pocket reads.
  Expected<const SafetensorsTensor*> require(std::string_view name) const {
    const SafetensorsTensor* const tensor = find(name);
    if (tensor == nullptr) return fail(Errc::malformed, name_ + ": tensor " + in_quotes(name) + ": is missing");
    if (tensor->dtype == Dtype::other)
      return fail(Errc::unsupported, name_ + ": tensor " + in_quotes(name) + ": dtype " +
                                         in_quotes(tensor->dtype_name) +
                                         " is not supported, expected F32, F16, BF16, U8, I8, I32 or I64");
    return tensor;
  }

  // Keys and values of "__metadata__", in the header's order.
  std::span<const std::pair<std::string, std::string>> metadata() const noexcept { return header_.metadata; }

  // The value of one key; empty where there is none.
  std::optional<std::string_view> metadata_value(std::string_view key) const {
    const auto at = header_.metadata_keys.find(key, header_.metadata_key());
    if (!at) return std::nullopt;
    return std::string_view(header_.metadata[*at].second);
  }

 private:
  MappedFile mapped_;  // no file if the memory is the caller's
  std::string name_;
  SafetensorsHeader header_;
};

// Order of calls: add_metadata and add_tensor any number of times, begin, append for each tensor, finish. A call out of
// order, or one that would break the format, is refused with Errc::invalid_argument and changes nothing; after a failed
// write (Errc::io) the temporary file is gone, and so it is when the writer is destroyed before finish has succeeded.
// The data starts at a multiple of 64 bytes in the file. The format allows no gaps: a tensor lies at a multiple of 64
// if all tensors before it have sizes that are.
class SafetensorsWriter {
 public:
  static constexpr std::size_t alignment = 64;  // bytes, of the data's start in the file

  // Both UTF-8; a key only once.
  Expected<void> add_metadata(std::string key, std::string value) {
    POCKET_CHECK(check_undeclared("metadata " + in_quotes(key)));
    metadata_.emplace_back(std::move(key), std::move(value));
    return {};
  }

  // The name UTF-8 and used once; shape slowest index first, zeros allowed.
  Expected<void> add_tensor(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
    const std::string place = "tensor " + in_quotes(name);
    POCKET_CHECK(check_undeclared(place));
    const DtypeInfo* const info = dtype_info(dtype);
    if (info == nullptr) return fail(Errc::invalid_argument, place + ": dtype: expected one that Pocket can name");
    if (name == safetensors_metadata_key)
      return fail(Errc::invalid_argument, place + ": the format reserves this name");
    const auto elements = checked_product(shape);
    const auto bytes = elements ? checked_mul(*elements, info->bytes) : std::nullopt;
    const auto end = bytes ? checked_add(data_bytes_, *bytes) : std::nullopt;
    if (!end) return fail(Errc::invalid_argument, place + ": shape: the size in bytes exceeds 64 bits");
    declared_.push_back({std::move(name), dtype, std::string(info->name), std::move(shape), data_bytes_, *end, {}});
    data_bytes_ = *end;
    return {};
  }

  // Writes the header to a temporary file beside `path`. A file of that name is left alone unless `overwrite` is set,
  // and until finish.
  Expected<void> begin(const std::string& path, bool overwrite = false) {
    if (begun_) return fail(Errc::invalid_argument, path + ": begin: the writer has begun a file already");
    std::string text = header_text();
    // The reader's own checks: what it would refuse is not written (a name twice, text that is not UTF-8).
    if (auto checked = parse_safetensors_header(text, data_bytes_, path); !checked)
      return fail(Errc::invalid_argument, std::move(checked).error().message);
    text.append((alignment - (sizeof(std::uint64_t) + text.size()) % alignment) % alignment, ' ');
    if (text.size() > safetensors_most_header_bytes)
      return fail(Errc::invalid_argument, path + ": header: is " + std::to_string(text.size()) +
                                              " bytes long, expected at most " +
                                              std::to_string(safetensors_most_header_bytes));
    POCKET_TRY(file, OutputFile::create(path, overwrite));
    const std::uint64_t length = text.size();
    POCKET_CHECK(file.write(std::as_bytes(std::span(&length, 1))));
    POCKET_CHECK(file.write(std::as_bytes(std::span(text))));
    file_ = std::move(file);
    begun_ = true;
    return {};
  }

  // The next bytes of a tensor, in pieces of any size. A tensor is complete before the next one's bytes come; tensors
  // without elements need no call.
  Expected<void> append(std::string_view tensor, std::span<const std::byte> bytes) {
    POCKET_CHECK(check_open("append"));
    std::size_t at = current_;
    while (at < declared_.size() && declared_[at].name != tensor && position_ == declared_[at].end) ++at;
    const std::string place = file_.path() + ": tensor " + in_quotes(tensor);
    if (at == declared_.size()) return fail(Errc::invalid_argument, place + ": all declared tensors are complete");
    const SafetensorsTensor& next = declared_[at];
    const std::uint64_t missing = next.end - position_;
    if (next.name != tensor)
      return fail(Errc::invalid_argument, place + ": out of order, expected " + std::to_string(missing) +
                                              " more bytes of tensor " + in_quotes(next.name));
    if (bytes.size() > missing)
      return fail(Errc::invalid_argument, place + ": " + std::to_string(bytes.size()) + " bytes, expected at most " +
                                              std::to_string(missing) + " more");
    POCKET_CHECK(file_.write(bytes));
    current_ = at;
    position_ += bytes.size();
    return {};
  }

  // Syncs the file and moves it into place.
  Expected<void> finish() {
    POCKET_CHECK(check_open("finish"));
    std::size_t at = current_;
    while (at < declared_.size() && position_ == declared_[at].end) ++at;
    if (at < declared_.size())
      return fail(Errc::invalid_argument, file_.path() + ": tensor " + in_quotes(declared_[at].name) + ": " +
                                              std::to_string(declared_[at].end - position_) + " bytes are missing");
    return file_.commit();
  }

 private:
  Expected<void> check_undeclared(const std::string& place) const {
    if (begun_) return fail(Errc::invalid_argument, place + ": declared after begin");
    return {};
  }
  Expected<void> check_open(const char* call) const {
    if (!file_.is_open())
      return fail(Errc::invalid_argument, std::string(call) +
                                              ": no file is being written: begin was not called, or "
                                              "the file is finished or has failed");
    return {};
  }

  static void add_json_string(std::string& out, std::string_view text) {
    constexpr const char* digits = "0123456789abcdef";
    out += '"';
    for (const char c : text) {
      const auto code = static_cast<unsigned char>(c);
      if (code < 0x20)
        out.append("\\u00").append(1, digits[code >> 4]).append(1, digits[code & 15u]);
      else if (c == '"' || c == '\\')
        out.append(1, '\\').append(1, c);
      else
        out += c;
    }
    out += '"';
  }

  std::string header_text() const {
    std::string out = "{";
    const auto separate = [&out] {
      if (out.back() != '{') out += ',';
    };
    if (!metadata_.empty()) {
      add_json_string(out, safetensors_metadata_key);
      out += ":{";
      for (const auto& [key, value] : metadata_) {
        separate();
        add_json_string(out, key);
        out += ':';
        add_json_string(out, value);
      }
      out += '}';
    }
    for (const SafetensorsTensor& t : declared_) {
      separate();
      add_json_string(out, t.name);
      out.append(":{\"dtype\":\"").append(t.dtype_name).append("\",\"shape\":[");
      for (std::size_t d = 0; d < t.shape.size(); ++d) out.append(d == 0 ? "" : ",").append(std::to_string(t.shape[d]));
      out.append("],\"data_offsets\":[").append(std::to_string(t.begin)).append(",");
      out.append(std::to_string(t.end)).append("]}");
    }
    return out += '}';
  }

  std::vector<std::pair<std::string, std::string>> metadata_;
  std::vector<SafetensorsTensor> declared_;
  std::uint64_t data_bytes_ = 0;  // of all declared tensors
  OutputFile file_;
  bool begun_ = false;
  std::size_t current_ = 0;     // the tensor that the last bytes went to
  std::uint64_t position_ = 0;  // bytes of data written
};

POCKET_NAMESPACE_END

#endif
