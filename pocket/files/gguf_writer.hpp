// Writes GGUF files, version 3: metadata and tensors as gguf.hpp reads them, some bytes at a time, to a temporary file
// that takes the name when it is whole (output_file.hpp). The same calls give the same bytes.
#ifndef POCKET_FILES_GGUF_WRITER_HPP
#define POCKET_FILES_GGUF_WRITER_HPP

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../config.hpp"
#include "../core/status.hpp"
#include "../core/view.hpp"
#include "gguf_types.hpp"
#include "output_file.hpp"
#include "reader.hpp"

POCKET_NAMESPACE_BEGIN

// Order of calls: add_value, add_string, add_array and add_tensor any number of times, begin, append for each tensor,
// finish. A call out of order, or one that would break the format, is refused with Errc::invalid_argument; after a
// failed write (Errc::io) the temporary file is gone, and so it is when the writer is destroyed before finish.
class GgufWriter {
 public:
  static constexpr std::size_t alignment = 32;  // bytes, of every tensor in the file: the format's default

  // Metadata; a key only once. T: std::uint32_t, std::int32_t, float or bool.
  template <class T>
  void add_value(std::string_view key, T value) {
    add_key(key, value_type<T>());
    put(value);
  }
  // UTF-8.
  void add_string(std::string_view key, std::string_view value) {
    add_key(key, GgufValueType::string);
    put_string(value);
  }
  // Of std::string_view or of the types above.
  template <class T>
  void add_array(std::string_view key, std::span<const T> values) {
    add_key(key, GgufValueType::array);
    put(static_cast<std::uint32_t>(value_type<T>()));
    put(static_cast<std::uint64_t>(values.size()));
    for (const T& value : values) {
      if constexpr (std::is_same_v<T, std::string_view>)
        put_string(value);
      else
        put(value);
    }
  }

  // dims[0] is the row length. A type of gguf_type_table; rows are whole blocks, no dimension is 0.
  Expected<void> add_tensor(std::string name, GgufType type, std::span<const std::uint64_t> dims) {
    const std::string place = "tensor " + in_quotes(name);
    if (begun_) return fail(Errc::invalid_argument, place + ": declared after begin");
    const GgufTypeInfo* const info = gguf_type_info(type);
    const auto elements = checked_product(dims);
    if (name.empty() || info == nullptr || dims.empty() || dims.size() > 4 || elements.value_or(0) == 0)
      return fail(Errc::invalid_argument, place + ": expected a name, a type of known size, and 1 to 4 dimensions");
    if (dims[0] % info->block != 0)
      return fail(Errc::invalid_argument, place + ": the row length is " + std::to_string(dims[0]) +
                                              ", expected a multiple of " + std::to_string(info->block) + " for type " +
                                              info->name);
    const auto bytes = checked_mul(*elements / info->block, info->block_bytes);
    const auto end = bytes ? checked_add(data_bytes_, *bytes) : std::nullopt;
    if (!end || *end > UINT64_MAX - alignment)
      return fail(Errc::invalid_argument, place + ": the size in bytes exceeds 64 bits");
    tensors_.push_back({std::move(name), type, {dims.begin(), dims.end()}, data_bytes_, *end});
    data_bytes_ = *end + padding(*end);
    return {};
  }

  // Writes the header to a temporary file beside `path`. A file of that name is left alone unless `overwrite` is set,
  // and until finish.
  Expected<void> begin(const std::string& path, bool overwrite = false) {
    if (begun_) return fail(Errc::invalid_argument, path + ": begin: the writer has begun a file already");
    NameIndex names;
    if (const auto twice = names.build(keys_.size(), [this](std::size_t i) { return std::string_view(keys_[i]); }))
      return fail(Errc::invalid_argument, path + ": metadata " + in_quotes(*twice) + " occurs twice");
    const auto name = [this](std::size_t i) { return std::string_view(tensors_[i].name); };
    if (const auto twice = names.build(tensors_.size(), name))
      return fail(Errc::invalid_argument, path + ": tensor " + in_quotes(*twice) + " occurs twice");
    POCKET_TRY(file, OutputFile::create(path, overwrite));
    std::string metadata = std::exchange(text_, {});
    text_ = "GGUF";
    put(std::uint32_t{3});
    put(static_cast<std::uint64_t>(tensors_.size()));
    put(static_cast<std::uint64_t>(keys_.size()));
    text_ += metadata;
    for (const Tensor& t : tensors_) {
      put_string(t.name);
      put(static_cast<std::uint32_t>(t.dims.size()));
      for (const std::uint64_t dim : t.dims) put(dim);
      put(static_cast<std::uint32_t>(t.type));
      put(t.begin);
    }
    text_.append(padding(text_.size()), '\0');
    POCKET_CHECK(file.write(std::as_bytes(std::span(text_))));
    file_ = std::move(file);
    begun_ = true;
    return {};
  }

  // The next bytes of a tensor, in pieces of any size; tensors come in the order in which they were declared.
  Expected<void> append(std::string_view tensor, std::span<const std::byte> bytes) {
    if (!file_.is_open() || current_ == tensors_.size())
      return fail(Errc::invalid_argument, "append: no file is being written, or all of its tensors are complete");
    const Tensor& t = tensors_[current_];
    const std::uint64_t missing = t.end - position_;
    if (t.name != tensor || bytes.size() > missing)
      return fail(Errc::invalid_argument, file_.path() + ": tensor " + in_quotes(tensor) + ": " +
                                              std::to_string(bytes.size()) + " bytes, expected at most " +
                                              std::to_string(missing) + " of tensor " + in_quotes(t.name));
    POCKET_CHECK(file_.write(bytes));
    position_ += bytes.size();
    if (position_ < t.end) return {};
    constexpr std::byte zeros[alignment] = {};
    POCKET_CHECK(file_.write(std::span(zeros).first(padding(position_))));
    position_ += padding(position_);
    ++current_;
    return {};
  }

  // Syncs the file and moves it into place.
  Expected<void> finish() {
    if (!file_.is_open()) return fail(Errc::invalid_argument, "finish: no file is being written");
    if (current_ == tensors_.size()) return file_.commit();
    return fail(Errc::invalid_argument, file_.path() + ": tensor " + in_quotes(tensors_[current_].name) + ": " +
                                            std::to_string(tensors_[current_].end - position_) + " bytes are missing");
  }

 private:
  struct Tensor {
    std::string name;
    GgufType type;
    std::vector<std::uint64_t> dims;
    std::uint64_t begin, end;  // bytes from the start of the data
  };

  template <class T>
  static constexpr GgufValueType value_type() noexcept {
    if constexpr (std::is_same_v<T, std::string_view>) return GgufValueType::string;
    if constexpr (std::is_same_v<T, std::uint32_t>) return GgufValueType::u32;
    if constexpr (std::is_same_v<T, std::int32_t>) return GgufValueType::i32;
    if constexpr (std::is_same_v<T, float>) return GgufValueType::f32;
    if constexpr (std::is_same_v<T, bool>) return GgufValueType::boolean;
  }
  static constexpr std::size_t padding(std::uint64_t at) noexcept {
    return static_cast<std::size_t>((alignment - at % alignment) % alignment);
  }

  template <class T>
  void put(T value) {
    static_assert(std::is_arithmetic_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_string(std::string_view value) {
    put(static_cast<std::uint64_t>(value.size()));
    text_.append(value);
  }
  void add_key(std::string_view key, GgufValueType type) {
    keys_.emplace_back(key);
    put_string(key);
    put(static_cast<std::uint32_t>(type));
  }

  std::string text_;  // the metadata's bytes
  std::vector<std::string> keys_;
  std::vector<Tensor> tensors_;
  std::uint64_t data_bytes_ = 0;  // of all declared tensors, with what lies between them
  OutputFile file_;
  bool begun_ = false;
  std::size_t current_ = 0;     // the tensor that comes next
  std::uint64_t position_ = 0;  // bytes of data written
};

POCKET_NAMESPACE_END

#endif
