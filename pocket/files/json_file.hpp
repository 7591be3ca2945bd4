// Small JSON documents beside a model: config.json, generation_config.json, tokenizer_config.json, a shard index. Read
// whole, with a bound on their size; a field that is null counts as absent. Errors: Errc::malformed, "FILE: FIELD: what
// was expected".
#ifndef POCKET_FILES_JSON_FILE_HPP
#define POCKET_FILES_JSON_FILE_HPP

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "../config.hpp"
#include "../core/status.hpp"
#include "mapped_file.hpp"
#include "reader.hpp"

POCKET_NAMESPACE_BEGIN

// One document, whose root is an object.
class JsonFile {
 public:
  // More than any published model's; shard indexes are the largest.
  static constexpr std::size_t most_bytes = std::size_t{16} << 20;

  // Reads the file; it may be closed, moved or changed afterwards.
  static Expected<JsonFile> open(const std::string& path) {
    POCKET_TRY(file, MappedFile::open(path));
    return parse({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path);
  }

  // `name` stands for the file in messages.
  static Expected<JsonFile> parse(std::string_view text, std::string name) {
    if (text.size() > most_bytes)
      return fail(Errc::unsupported,
                  name + ": " + std::to_string(text.size()) + " bytes, expected at most " + std::to_string(most_bytes));
    JsonFile file;
    file.name_ = std::move(name);
    file.root_ = nlohmann::json::parse(text, nullptr, false);
    if (!file.root_.is_object()) return fail(Errc::malformed, file.name_ + ": is not a JSON object");
    return file;
  }

  const std::string& name() const noexcept { return name_; }
  const nlohmann::json& root() const noexcept { return root_; }

  // Null where the field is missing or null.
  const nlohmann::json* find(std::string_view field) const { return find_in(root_, field); }
  // The same in an object inside the document; null as well where `object` is none.
  static const nlohmann::json* find_in(const nlohmann::json& object, std::string_view field) {
    if (!object.is_object()) return nullptr;
    const auto it = object.find(std::string(field));
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }

  // The error for a field that is not what was expected.
  Error wrong(std::string_view field, const std::string& expected) const {
    return fail(Errc::malformed, name_ + ": " + in_quotes(field) + ": expected " + expected);
  }

  // An integer, not negative.
  Expected<std::uint64_t> unsigned_value(std::string_view field) const {
    const nlohmann::json* const value = find(field);
    if (value == nullptr || !value->is_number_unsigned()) return wrong(field, "an integer, not negative");
    return value->get<std::uint64_t>();
  }
  // Any number.
  Expected<double> number(std::string_view field) const {
    const nlohmann::json* const value = find(field);
    if (value == nullptr || !value->is_number()) return wrong(field, "a number");
    return value->get<double>();
  }
  // true or false.
  Expected<bool> boolean(std::string_view field, bool if_absent) const {
    const nlohmann::json* const value = find(field);
    if (value == nullptr) return if_absent;
    if (!value->is_boolean()) return wrong(field, "true or false");
    return value->get<bool>();
  }
  // The view lives as long as this object.
  Expected<std::string_view> text(std::string_view field) const {
    const nlohmann::json* const value = find(field);
    if (value == nullptr || !value->is_string()) return wrong(field, "a string");
    return std::string_view(*value->get_ptr<const nlohmann::json::string_t*>());
  }

 private:
  std::string name_;
  nlohmann::json root_;
};

POCKET_NAMESPACE_END

#endif
