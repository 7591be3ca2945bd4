// pocket/files: valid files read back, hostile ones refused. Hostile means: cut anywhere, any byte changed, sizes and
// counts that wrap 64 bits or promise more than the file holds. Run under ASan and UBSan these tests also show that no
// byte outside the file is read; the counting allocator below shows that no count is believed before it is checked.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>

#include "count_new.hpp"
#include "pocket/core/types.hpp"
#include "pocket/core/view.hpp"
#include "pocket/files/gguf.hpp"
#include "pocket/files/mapped_file.hpp"
#include "pocket/files/safetensors.hpp"

using namespace pocket;
using test::new_bytes;

namespace {

using Bytes = std::vector<std::byte>;

// Appends numbers and texts as the formats store them.
struct Builder {
  Bytes bytes;

  Builder& raw(const void* from, std::size_t size) {
    const std::size_t at = bytes.size();
    bytes.resize(at + size);
    if (size != 0) std::memcpy(bytes.data() + at, from, size);
    return *this;
  }
  Builder& text(std::string_view s) { return raw(s.data(), s.size()); }
  template <class T>
  Builder& number(T value) {
    return raw(&value, sizeof value);
  }
  Builder& u32(std::uint64_t v) { return number(static_cast<std::uint32_t>(v)); }
  Builder& u64(std::uint64_t v) { return number(v); }
  Builder& string(std::string_view s) { return u64(s.size()).text(s); }
  Builder& pad(std::size_t alignment) {
    bytes.resize(round_up(bytes.size(), alignment));
    return *this;
  }
};

// A GGUF header with its counts; what follows is the caller's.
Builder gguf_header(std::uint64_t tensors, std::uint64_t entries, std::uint32_t version = 3) {
  return Builder{}.text("GGUF").u32(version).u64(tensors).u64(entries);
}

struct TensorSpec {
  std::string name;
  std::vector<std::uint64_t> dims;
  std::uint64_t type, offset;
};

Builder& add(Builder& b, const TensorSpec& t) {
  b.string(t.name).u32(t.dims.size());
  for (const auto d : t.dims) b.u64(d);
  return b.u32(t.type).u64(t.offset);
}

// Tensors alone, and `data` bytes behind them, each byte its own position modulo 251.
Bytes gguf_with(const std::vector<TensorSpec>& tensors, std::size_t data) {
  Builder b = gguf_header(tensors.size(), 0);
  for (const auto& t : tensors) add(b, t);
  b.pad(32);
  for (std::size_t i = 0; i < data; ++i) b.number(static_cast<std::uint8_t>(i % 251));
  return b.bytes;
}

Bytes gguf_with_entry(const Builder& value, std::string_view key = "k") {
  Builder b = gguf_header(0, 1);
  b.string(key);
  return b.raw(value.bytes.data(), value.bytes.size()).bytes;
}

// One of everything. `header_bytes` is where the data begins.
Bytes full_gguf(std::size_t& header_bytes, std::uint32_t version = 3) {
  Builder b = gguf_header(4, 11, version);
  b.string("general.architecture").u32(8).string("qwen3");
  b.string("general.alignment").u32(4).u32(64);
  b.string("a.i8").u32(1).number(std::int8_t{-3});
  b.string("a.u16").u32(2).number(std::uint16_t{65535});
  b.string("a.u64").u32(10).u64(UINT64_MAX);
  b.string("a.f32").u32(6).number(1e-6f);
  b.string("a.f64").u32(12).number(0.1);
  b.string("a.bool").u32(7).number(std::uint8_t{1});
  b.string("a.strings").u32(9).u32(8).u64(3).string("one").string("").string({"th\0ree", 6});
  b.string("a.integers").u32(9).u32(5).u64(2).number(std::int32_t{-7}).number(std::int32_t{7});
  b.string("a.nested").u32(9).u32(9).u64(2).u32(0).u64(1).number(std::uint8_t{9}).u32(8).u64(1).string("x");
  add(b, {"f32", {3, 2}, 0, 64});
  add(b, {"q4_1", {64, 2}, 3, 128});
  add(b, {"bf16", {5}, 30, 0});
  add(b, {"q4_k", {256}, 12, 256});
  b.pad(64);
  header_bytes = b.bytes.size();
  for (std::size_t i = 0; i < 256 + 144; ++i) b.number(static_cast<std::uint8_t>(i % 251));
  return b.bytes;
}

// Parses a copy of exactly these bytes, so that ASan sees a read past the end.
template <class File>
Expected<File> parse_exact(std::span<const std::byte> bytes, std::unique_ptr<std::byte[]>& memory) {
  memory.reset(new std::byte[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), memory.get());
  return File::parse({memory.get(), bytes.size()}, "test.file");
}

// Whether parsing fails, with all of `words` and the file's name in the message, and allocating little for it.
template <class File>
void require_refused(std::span<const std::byte> bytes, std::initializer_list<const char*> words,
                     Errc code = Errc::malformed) {
  std::unique_ptr<std::byte[]> memory(new std::byte[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), memory.get());
  new_bytes = 0;
  const auto file = File::parse({memory.get(), bytes.size()}, "test.file");
  const std::size_t used = new_bytes;
  REQUIRE_FALSE(file);
  INFO(file.error().message);
  for (const char* word : words) REQUIRE(file.error().message.find(word) != std::string::npos);
  REQUIRE(file.error().message.find("test.file: ") == 0);
  REQUIRE(file.error().code == code);
  REQUIRE(used <= 4096 + 32 * bytes.size());
}

// Every name can be looked up and every byte of every tensor read: whatever parse lets through must be safe to use.
std::uint64_t use_all(const GgufFile& file) {
  std::uint64_t sum = 0;
  for (const GgufTensor& t : file.tensors()) {
    for (const std::byte b : t.data) sum += static_cast<std::uint64_t>(b);
    sum += file.require(t.name).has_value() ? 1u : 0u;
  }
  for (const GgufEntry& e : file.entries()) {
    sum += file.unsigned_value(e.key).has_value() ? 1u : 0u;
    sum += file.float_value(e.key).has_value() ? 1u : 0u;
    sum += file.bool_value(e.key).has_value() ? 1u : 0u;
    if (const auto s = file.string_value(e.key)) sum += s->size();
    if (const auto a = file.string_array(e.key))
      for (const auto s : *a) sum += std::string(s).size();
    if (const auto a = file.integer_array(e.key)) sum += a->size();
  }
  return sum;
}

std::uint64_t use_all(const SafetensorsFile& file) {
  std::uint64_t sum = file.metadata().size();
  for (const SafetensorsTensor& t : file.tensors()) {
    for (const std::byte b : t.data) sum += static_cast<std::uint64_t>(b);
    sum += file.require(t.name).has_value() ? 1u : 0u;
  }
  return sum;
}

template <class File>
void require_safe_with_any_byte_changed(const Bytes& good, std::size_t header_bytes) {
  std::size_t refused = 0, accepted = 0;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < header_bytes; ++i)
    for (const unsigned change : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 128u, 255u}) {
      Bytes bad = good;
      bad[i] ^= static_cast<std::byte>(change);
      std::unique_ptr<std::byte[]> memory;
      new_bytes = 0;
      const auto file = parse_exact<File>(bad, memory);
      REQUIRE(new_bytes <= 65536 + 32 * bad.size());
      if (!file) REQUIRE(file.error().message.find("test.file") == 0);
      if (file) sum += use_all(*file);
      ++(file ? accepted : refused);
    }
  REQUIRE(refused > header_bytes);  // and both happened: names may change, sizes may not
  REQUIRE(accepted > 0);
  REQUIRE(sum > 0);
}

template <class File>
void require_refused_when_cut(const Bytes& good, std::size_t header_bytes) {
  const std::span<const std::byte> all(good);
  for (std::size_t n = 0; n < header_bytes; ++n) require_refused<File>(all.first(n), {});
  require_refused<File>(all.first(good.size() - 1), {});
}

Bytes safetensors(std::string_view header, std::size_t data) {
  Builder b;
  b.string(header);
  for (std::size_t i = 0; i < data; ++i) b.number(static_cast<std::uint8_t>(i % 251));
  return b.bytes;
}

void require_header_refused(std::string_view header, std::size_t data, std::initializer_list<const char*> words,
                            Errc code = Errc::malformed) {
  INFO(header.substr(0, 300));
  require_refused<SafetensorsFile>(safetensors(header, data), words, code);
}

// A directory of the test's own, gone at the end.
struct Scratch {
  std::filesystem::path path;
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "pocket-files-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Scratch() { std::filesystem::remove_all(path); }
  std::string operator/(const char* name) const { return (path / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path), {}));
  }
};

void write_file(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(out.good());
}

Bytes read_file(const std::string& path) {
  const auto file = MappedFile::open(path);
  REQUIRE(file);
  return {file->bytes().begin(), file->bytes().end()};
}

}  // namespace

// --- mapped files

TEST_CASE("a mapped file has the file's bytes, and keeps them when it is moved") {
  const Scratch scratch;
  write_file(scratch / "a", std::as_bytes(std::span("hello", 5)));
  auto file = MappedFile::open(scratch / "a");
  REQUIRE(file);
  REQUIRE(file->path() == scratch / "a");
  const std::byte* const address = file->bytes().data();
  MappedFile moved = std::move(*file);
  REQUIRE(file->bytes().empty());
  REQUIRE(moved.bytes().data() == address);
  REQUIRE(moved.bytes().size() == 5);
  REQUIRE(std::memcmp(moved.bytes().data(), "hello", 5) == 0);
  static_assert(!std::is_copy_constructible_v<MappedFile> && !std::is_copy_assignable_v<MappedFile>);
}

TEST_CASE("what cannot be mapped is an error that says why") {
  const Scratch scratch;
  const auto message = [](const std::string& path, Errc code) {
    const auto file = MappedFile::open(path);
    REQUIRE_FALSE(file);
    REQUIRE(file.error().code == code);
    return file.error().message;
  };
  REQUIRE(message(scratch / "absent", Errc::io) == (scratch / "absent") + ": cannot open: No such file or directory");
  REQUIRE(message(scratch.path.string(), Errc::invalid_argument).find("is a directory") != std::string::npos);
  write_file(scratch / "empty", {});
  REQUIRE(message(scratch / "empty", Errc::malformed).find("is empty") != std::string::npos);
  REQUIRE(::mkfifo((scratch / "pipe").c_str(), 0600) == 0);  // must not wait for a writer
  REQUIRE(message(scratch / "pipe", Errc::invalid_argument).find("not a regular file") != std::string::npos);
  REQUIRE(message("", Errc::io).find("cannot open") != std::string::npos);
  REQUIRE(message(std::string("a\0b", 3), Errc::invalid_argument).find("zero byte") != std::string::npos);
  write_file(scratch / "secret", std::as_bytes(std::span("x", 1)));
  ::chmod((scratch / "secret").c_str(), 0);
  if (::geteuid() != 0)  // root may read everything
    REQUIRE(message(scratch / "secret", Errc::io).find("Permission denied") != std::string::npos);
}

// --- GGUF

TEST_CASE("a GGUF file of either version reads back, from memory and mapped") {
  const Scratch scratch;
  for (const unsigned version : {2u, 3u}) {
    std::size_t start = 0;
    const Bytes bytes = full_gguf(start, version);
    write_file(scratch / "model.gguf", bytes);
    auto opened = GgufFile::open(scratch / "model.gguf");
    REQUIRE(opened);
    const GgufFile mapped = std::move(*opened);
    const auto parsed = GgufFile::parse(bytes, "memory");
    REQUIRE(parsed);
    for (const GgufFile* file : {&mapped, &*parsed}) {
      REQUIRE(file->version() == version);
      REQUIRE(file->alignment() == 64);
      REQUIRE(file->tensors().size() == 4);
      REQUIRE(file->entries().size() == 11);
      REQUIRE(file->tensors()[0].name == "f32");
      const auto q = file->require("q4_1");
      REQUIRE(q);
      REQUIRE((*q)->type == GgufType::Q4_1);
      REQUIRE((*q)->n_dims == 2);
      REQUIRE((*q)->dims == std::array<std::uint64_t, 4>{64, 2, 1, 1});
      REQUIRE((*q)->data.size() == 4 * 20);
      REQUIRE((*q)->data.front() == std::byte{128});
      REQUIRE((*file->require("bf16"))->data.size() == 10);
      REQUIRE((*file->require("f32"))->data.size() == 24);
      REQUIRE(file->find("absent") == nullptr);
    }
    REQUIRE(mapped.name() == scratch / "model.gguf");
    REQUIRE(parsed->tensors()[2].data.data() == bytes.data() + start);  // a view, not a copy
  }
}

TEST_CASE("GGUF metadata comes back by type") {
  std::size_t start = 0;
  const Bytes bytes = full_gguf(start);
  const auto file = GgufFile::parse(bytes, "m.gguf");
  REQUIRE(file);
  REQUIRE(*file->string_value("general.architecture") == "qwen3");
  REQUIRE(*file->unsigned_value("a.u16") == 65535);
  REQUIRE(*file->unsigned_value("a.u64") == UINT64_MAX);
  REQUIRE(*file->float_value("a.f32") == static_cast<double>(1e-6f));
  REQUIRE(*file->float_value("a.f64") == 0.1);
  REQUIRE(*file->bool_value("a.bool"));
  REQUIRE(*file->string_array("a.strings") == std::vector<std::string_view>{"one", "", {"th\0ree", 6}});
  REQUIRE(*file->integer_array("a.integers") == std::vector<std::int64_t>{-7, 7});
  REQUIRE(file->has("a.nested"));
  REQUIRE_FALSE(file->has("a.nest"));
  REQUIRE(file->entries()[10].count == 2);
  REQUIRE(file->entries()[10].element == GgufValueType::array);

  REQUIRE(file->unsigned_value("a.i8").error().message ==
          "m.gguf: metadata 'a.i8': expected an integer, not negative, the file has another value, of type i8");
  REQUIRE_FALSE(file->unsigned_value("a.bool"));
  REQUIRE_FALSE(file->float_value("a.u16"));
  REQUIRE_FALSE(file->bool_value("a.i8"));
  REQUIRE_FALSE(file->string_value("a.strings"));
  REQUIRE_FALSE(file->string_array("a.integers"));
  REQUIRE_FALSE(file->integer_array("a.strings"));
  REQUIRE_FALSE(file->integer_array("a.nested"));
  REQUIRE(file->float_value("absent").error().message ==
          "m.gguf: metadata 'absent': is missing, expected a floating-point number");
  const Bytes two = gguf_with_entry(Builder{}.u32(7).number(std::uint8_t{2}));
  REQUIRE_FALSE(GgufFile::parse(two, "m")->bool_value("k"));
  const Bytes big = gguf_with_entry(Builder{}.u32(9).u32(10).u64(1).u64(std::uint64_t{1} << 63));
  REQUIRE_FALSE(GgufFile::parse(big, "m")->integer_array("k"));
}

TEST_CASE("a GGUF tensor of another type is refused when it is asked for, by name") {
  std::size_t start = 0;
  const Bytes bytes = full_gguf(start);
  const auto file = GgufFile::parse(bytes, "m.gguf");
  REQUIRE(file);
  const auto k = file->require("q4_k");
  REQUIRE_FALSE(k);
  REQUIRE(k.error().code == Errc::unsupported);
  REQUIRE(k.error().message.find("m.gguf: tensor 'q4_k': element type Q4_K is not supported") == 0);
  REQUIRE(file->find("q4_k")->data.size() == 144);
  REQUIRE(file->require("no").error().message == "m.gguf: tensor 'no': is missing");

  const Bytes unknown = gguf_with({{"t", {7}, 4711, 0}}, 3);
  const auto odd = GgufFile::parse(unknown, "m.gguf");
  REQUIRE(odd);
  REQUIRE(odd->find("t")->data.empty());
  REQUIRE(odd->require("t").error().message.find("number 4711") != std::string::npos);
}

TEST_CASE("a GGUF file cut anywhere is refused") {
  std::size_t start = 0;
  const Bytes good = full_gguf(start);
  require_refused_when_cut<GgufFile>(good, start);
}

TEST_CASE("a GGUF file with any header byte changed is read or refused, never worse") {
  std::size_t start = 0;
  const Bytes good = full_gguf(start);
  require_safe_with_any_byte_changed<GgufFile>(good, start);
}

TEST_CASE("GGUF: magic and version") {
  Bytes bytes = gguf_header(0, 0).bytes;
  REQUIRE(GgufFile::parse(bytes, "empty but valid"));
  require_refused<GgufFile>(gguf_header(0, 0, 1).bytes, {"version 1"}, Errc::unsupported);
  require_refused<GgufFile>(gguf_header(0, 0, 4).bytes, {"version 4"}, Errc::unsupported);
  require_refused<GgufFile>(gguf_header(0, 0, 0).bytes, {"version 0"}, Errc::unsupported);
  require_refused<GgufFile>(gguf_header(0, 0, 0x03000000).bytes, {"big-endian"}, Errc::unsupported);
  bytes[0] = std::byte{'g'};
  require_refused<GgufFile>(bytes, {"not a GGUF file"});
}

TEST_CASE("GGUF: counts and lengths that the file cannot hold") {
  for (const std::uint64_t n : {std::uint64_t{1}, std::uint64_t{1} << 60, std::uint64_t{1} << 63, UINT64_MAX}) {
    require_refused<GgufFile>(gguf_header(n, 0).pad(32).bytes, {"tensor count"});
    require_refused<GgufFile>(gguf_header(0, n).bytes, {"metadata count"});
    require_refused<GgufFile>(gguf_header(0, 1).u64(n == 1 ? 100 : n).pad(64).bytes, {"key"});
    require_refused<GgufFile>(gguf_with_entry(Builder{}.u32(8).u64(n)), {"metadata 'k'", "string"});
    for (const std::uint64_t element : {0u, 5u, 7u, 8u, 9u, 10u, 12u})
      require_refused<GgufFile>(gguf_with_entry(Builder{}.u32(9).u32(element).u64(n)), {"metadata 'k'", "array"});
    Builder name = gguf_header(1, 0);
    require_refused<GgufFile>(name.u64(n == 1 ? 100 : n).pad(64).bytes, {"tensor number 0", "name"});
  }
  // Counts that the rest of the file could just hold, but does not: the tables grow no faster than what was read.
  Builder many = gguf_header(0, 70'000);
  many.bytes.resize(1'000'000);
  require_refused<GgufFile>(many.bytes, {"key is empty"});
  Builder tensors = gguf_header(30'000, 0);
  tensors.bytes.resize(1'000'000);
  require_refused<GgufFile>(tensors.bytes, {"name is empty"});
}

TEST_CASE("GGUF: value types and nesting") {
  require_refused<GgufFile>(gguf_with_entry(Builder{}.u32(13).u64(0)), {"metadata 'k'", "type is 13"});
  require_refused<GgufFile>(gguf_with_entry(Builder{}.u32(UINT32_MAX).u64(0)), {"metadata 'k'", "type"});
  require_refused<GgufFile>(gguf_with_entry(Builder{}.u32(9).u32(13).u64(0)), {"metadata 'k'", "element type is 13"});
  const auto nested = [](unsigned levels) {
    Builder b;
    b.u32(9);
    for (unsigned i = 1; i < levels; ++i) b.u32(9).u64(1);
    return gguf_with_entry(b.u32(0).u64(0));
  };
  REQUIRE(GgufFile::parse(nested(4), "m"));
  require_refused<GgufFile>(nested(5), {"nested"});
  require_refused<GgufFile>(nested(100'000), {"nested"});
}

TEST_CASE("GGUF: names that occur twice") {
  Builder keys = gguf_header(0, 3);
  for (const char* key : {"x", "y", "x"}) keys.string(key).u32(0).number(std::uint8_t{0});
  require_refused<GgufFile>(keys.bytes, {"metadata 'x' occurs twice"});
  require_refused<GgufFile>(gguf_with({{"x", {1}, 0, 0}, {"y", {1}, 0, 32}, {"x", {1}, 0, 64}}, 96),
                            {"tensor 'x' occurs twice"});
  // A name is the file's text: it reaches a message without control characters, and not at any length.
  const std::string evil = "\x1b[2J" + std::string(5000, 'a');
  require_refused<GgufFile>(gguf_with({{evil, {0}, 0, 0}}, 0), {"tensor '?[2Jaaa", "aaa...'"});
}

TEST_CASE("GGUF: alignment") {
  for (const std::uint64_t a : {0u, 1u, 4u, 24u, 33u, 131072u, 0x80000000u}) {
    const Bytes bytes = gguf_with_entry(Builder{}.u32(4).u32(a), "general.alignment");
    require_refused<GgufFile>(bytes, {"general.alignment", "power of two"});
  }
  require_refused<GgufFile>(gguf_with_entry(Builder{}.u32(8).string("32"), "general.alignment"),
                            {"general.alignment", "integer"});
  for (const std::uint64_t a : {8u, 64u, 65536u})
    REQUIRE(GgufFile::parse(gguf_with_entry(Builder{}.u32(4).u32(a), "general.alignment"), "m")->alignment() == a);
  require_refused<GgufFile>(gguf_with({{"t", {1}, 0, 16}}, 96), {"tensor 't'", "offset is 16", "multiple of 32"});
}

TEST_CASE("GGUF: dimensions") {
  const auto refused = [](std::vector<std::uint64_t> dims, std::uint64_t type,
                          std::initializer_list<const char*> words) {
    require_refused<GgufFile>(gguf_with({{"t", std::move(dims), type, 0}}, 256), words);
  };
  const std::uint64_t one = 1;
  refused({one << 32, one << 32}, 0, {"tensor 't'", "product", "64 bits"});
  refused({one << 32, one << 32}, 3, {"tensor 't'", "64 bits"});
  refused({one << 42, (one << 22) + 1}, 0, {"tensor 't'"});
  refused({(one << 42) + 1, one << 22}, 0, {"tensor 't'"});  // wraps to 2^22 elements
  refused({one << 62}, 0, {"tensor 't'", "64 bits"});        // 2^62 elements, 2^64 bytes
  refused({(one << 42) + 1}, 0, {"tensor 't'", "the file has 256 bytes"});
  refused({one << 63, 2, 1, 1}, 1, {"tensor 't'", "64 bits"});
  refused({UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}, 4711, {"tensor 't'", "64 bits"});
  refused({0}, 0, {"tensor 't'", "dimension 0 is 0"});
  refused({32, 0}, 3, {"tensor 't'", "dimension 1 is 0"});
  refused({48}, 3, {"tensor 't'", "row length is 48", "multiple of 32", "Q4_1"});
  refused({16, 2}, 8, {"tensor 't'", "row length is 16"});
  refused({65}, 0, {"tensor 't'", "260 bytes"});
  refused({}, 0, {"tensor 't'", "n_dims is 0"});
  refused({1, 1, 1, 1, 1}, 0, {"tensor 't'", "n_dims is 5"});
  for (const std::uint64_t n : {std::uint64_t{1} << 31, std::uint64_t{UINT32_MAX}}) {
    Builder b = gguf_header(1, 0);
    b.string("t").u32(n).pad(256);
    require_refused<GgufFile>(b.bytes, {"tensor 't'", "n_dims"});
  }
  REQUIRE(GgufFile::parse(gguf_with({{"t", {64}, 0, 0}}, 256), "m"));
}

TEST_CASE("GGUF: where tensors lie") {
  for (const std::uint64_t offset : {std::uint64_t{0} - 32, std::uint64_t{1} << 63, std::uint64_t{256}})
    require_refused<GgufFile>(gguf_with({{"t", {8}, 0, offset}}, 256), {"tensor 't'", "needs 32 bytes", "256"});
  require_refused<GgufFile>(gguf_with({{"t", {8}, 4711, 288}}, 256), {"tensor 't'"});
  require_refused<GgufFile>(gguf_with({{"a", {9}, 0, 0}, {"b", {8}, 0, 32}}, 256), {"'b'", "overlaps", "'a'"});
  require_refused<GgufFile>(gguf_with({{"b", {8}, 0, 64}, {"a", {64}, 0, 0}}, 256), {"'b'", "overlaps", "'a'"});
  require_refused<GgufFile>(gguf_with({{"a", {8}, 0, 32}, {"b", {8}, 0, 32}}, 256), {"overlaps"});
  REQUIRE(GgufFile::parse(gguf_with({{"b", {8}, 0, 64}, {"a", {8}, 0, 0}}, 96), "m"));
  // A description that ends with the file: not even the padding is there.
  Builder b = gguf_header(1, 0);
  require_refused<GgufFile>(add(b, {"t", {1}, 0, 0}).bytes, {"padding"});
}

// --- safetensors, reading

TEST_CASE("a safetensors file reads back, from memory and mapped") {
  const Scratch scratch;
  const Bytes bytes = safetensors(
      R"({"__metadata__":{"format":"pt","é\n":""}, "w":{"dtype":"F16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("scalar":{"data_offsets":[0,4],"dtype":"F32","shape":[]},"none":{"dtype":"I64","shape":[5,0],"data_offsets":[16,16]},)"
      R"("odd":{"dtype":"F64","shape":[1],"data_offsets":[16,24]}}   )",
      24);
  write_file(scratch / "m.safetensors", bytes);
  const auto mapped = SafetensorsFile::open(scratch / "m.safetensors");
  const auto parsed = SafetensorsFile::parse(bytes, "memory");
  REQUIRE(mapped);
  REQUIRE(parsed);
  for (const SafetensorsFile* file : {&*mapped, &*parsed}) {
    REQUIRE(file->tensors().size() == 4);
    const auto w = file->require("w");
    REQUIRE(w);
    REQUIRE((*w)->dtype == Dtype::F16);
    REQUIRE((*w)->dtype_name == "F16");
    REQUIRE((*w)->shape == std::vector<std::uint64_t>{2, 3});
    REQUIRE((*w)->data.size() == 12);
    REQUIRE((*w)->data[0] == std::byte{4});
    REQUIRE((*file->require("scalar"))->data.size() == 4);
    REQUIRE((*file->require("none"))->data.empty());
    REQUIRE(file->find("odd")->data.size() == 8);
    REQUIRE(file->require("odd").error().code == Errc::unsupported);
    REQUIRE(file->require("odd").error().message.find("tensor 'odd': dtype 'F64'") != std::string::npos);
    REQUIRE(file->require("absent").error().message.find("tensor 'absent': is missing") != std::string::npos);
    REQUIRE(file->metadata().size() == 2);
    REQUIRE(file->metadata_value("format") == "pt");
    REQUIRE(file->metadata_value("é\n") == "");
    REQUIRE_FALSE(file->metadata_value("w"));
  }
  REQUIRE(SafetensorsFile::parse(safetensors("{}", 0), "no tensors"));
}

TEST_CASE("BF16 data at an odd offset loads exactly") {
  Builder b;
  b.string(
      R"({"one":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"BF16","shape":[3],"data_offsets":[1,7]}})");
  b.number(std::uint8_t{7});
  for (const float v : {1.0f, -0.5f, 3.0e38f}) b.number(to_bf16(v).bits);
  const auto file = SafetensorsFile::parse(b.bytes, "m");
  REQUIRE(file);
  const auto w = file->require("w");
  REQUIRE(w);
  const std::byte* const data = (*w)->data.data();
  REQUIRE(to_float(load_unaligned<bf16>(data)) == 1.0f);
  REQUIRE(to_float(load_unaligned<bf16>(data + 2)) == -0.5f);
  REQUIRE(load_unaligned<bf16>(data + 4).bits == to_bf16(3.0e38f).bits);
}

TEST_CASE("a safetensors file cut anywhere, or with any header byte changed, is read or refused") {
  const std::string header =
      R"({"__metadata__":{"a":"b"},"w":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]},"v":{"dtype":"I8","shape":[4],"data_offsets":[12,16]}} )";
  const Bytes good = safetensors(header, 16);
  REQUIRE(SafetensorsFile::parse(good, "m"));
  require_refused_when_cut<SafetensorsFile>(good, good.size());
  require_safe_with_any_byte_changed<SafetensorsFile>(good, good.size() - 16);
}

TEST_CASE("safetensors: the header's length") {
  for (const std::uint64_t n : {UINT64_MAX, UINT64_MAX - 7, std::uint64_t{1} << 63, std::uint64_t{100'000'001}})
    require_refused<SafetensorsFile>(Builder{}.u64(n).text("{}").bytes, {"header's length"});
  require_refused<SafetensorsFile>(Builder{}.u64(3).text("{}").bytes, {"header"});
  require_refused<SafetensorsFile>(Builder{}.u64(0).text("{}").bytes, {"header"});
}

TEST_CASE("safetensors: text that is not the format's") {
  for (const char* bad : {"", " {}", "[]", "{", "{}{}", "{\"a\":}", "\xEF\xBB\xBF{}", "{\"a\xff\":{}}", "{'a':1}"})
    require_header_refused(bad, 0, {"header"});
  require_header_refused(std::string_view("{}\0{", 4), 0, {"zero byte"});
  for (const char* bad :
       {R"({"w":1})", R"({"w":[]})", R"({"w":null})", R"({"w":"x"})", R"({"w":true})", R"({"w":-1})", R"({"w":0.5})"})
    require_header_refused(bad, 0, {"'w'"});
  require_header_refused(R"({"__metadata__":{"a":1}})", 0, {"'a'", "number"});
  require_header_refused(R"({"__metadata__":{"a":{}}})", 0, {"'a'", "object"});
  require_header_refused(R"({"__metadata__":[]})", 0, {"'__metadata__'", "array"});
}

TEST_CASE("safetensors: deep nesting costs no stack") {
  const std::string deep(100'000, '[');
  require_header_refused(deep, 0, {"header"});
  require_header_refused("{\"w\":" + deep, 0, {"'w'"});
  require_header_refused(R"({"w":{"shape":)" + deep, 0, {"'w'", "'shape'"});
  std::string objects = "{";
  for (int i = 0; i < 100'000; ++i) objects += "\"a\":{";
  require_header_refused(objects, 0, {"'a'", "unknown"});
}

TEST_CASE("safetensors: a tensor's fields") {
  const auto refused = [](std::string_view fields, std::initializer_list<const char*> words,
                          Errc code = Errc::malformed) {
    require_header_refused("{\"w\":{" + std::string(fields) + "}}", 8, words, code);
  };
  REQUIRE(SafetensorsFile::parse(safetensors(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8), "m"));
  refused("", {"'w'", "missing"});
  refused(R"("dtype":"F32","shape":[2])", {"'w'", "missing"});
  refused(R"("dtype":"F32","data_offsets":[0,8])", {"'w'", "missing"});
  refused(R"("shape":[2],"data_offsets":[0,8])", {"'w'", "missing"});
  refused(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"dtype":"F32")", {"'w'", "'dtype'", "twice"});
  refused(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"colour":"red")", {"'w'", "'colour'", "unknown"});
  refused(R"("dtype":1,"shape":[2],"data_offsets":[0,8])", {"'w'", "'dtype'", "number"});
  refused(R"("dtype":"F32","shape":2,"data_offsets":[0,8])", {"'w'", "'shape'", "number"});
  refused(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])", {"'w'", "'shape'", "array"});
  refused(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])", {"'w'", "'shape'"});
  refused(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])", {"'w'", "'shape'", "negative"});
  refused(R"("dtype":"F32","shape":["2"],"data_offsets":[0,8])", {"'w'", "'shape'", "string"});
  refused(R"("dtype":"F32","shape":[18446744073709551618],"data_offsets":[0,8])", {"'w'", "'shape'"});
  refused(R"("dtype":"F32","shape":[1e999],"data_offsets":[0,8])", {"JSON"});
  refused(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])", {"'w'", "dimensions"},
          Errc::unsupported);
  refused(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])", {"'w'", "shape", "3 elements", "8 bytes"});
  refused(R"("dtype":"F16","shape":[2],"data_offsets":[0,8])", {"'w'", "shape"});
  refused(R"("dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8])", {"'w'", "shape"});  // * 4 wraps to 8
  refused(R"("dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8])", {"'w'", "shape", "64 bits"});
  refused(R"("dtype":"F32","shape":[2],"data_offsets":[8])", {"'w'", "'data_offsets'"});
  refused(R"("dtype":"F32","shape":[2],"data_offsets":[])", {"'w'", "'data_offsets'"});
  refused(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])", {"'w'", "'data_offsets'"});
  refused(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])", {"'w'", "begin 8", "end 0"});
  refused(R"("dtype":"F32","shape":[0],"data_offsets":[18446744073709551608,0])", {"'w'", "begin"});
  refused(R"("dtype":"ODD","shape":[2],"data_offsets":[0,18446744073709551615])", {"'w'", "end"});
}

TEST_CASE("safetensors: gaps, overlaps and names that occur twice") {
  const auto file = [](std::string_view a, std::string_view b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(a) +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(b) + "}}";
  };
  REQUIRE(SafetensorsFile::parse(safetensors(file("[4,8]", "[0,4]"), 8), "m"));
  require_header_refused(file("[0,4]", "[3,7]"), 8, {"'b'", "overlaps"});
  require_header_refused(file("[0,4]", "[0,4]"), 8, {"overlaps"});
  require_header_refused(file("[0,4]", "[5,9]"), 9, {"'b'", "belong to no tensor"});
  require_header_refused(file("[1,5]", "[5,9]"), 9, {"'a'", "belong to no tensor"});
  require_header_refused(file("[0,4]", "[4,8]"), 7, {"'b'", "7 bytes"});
  require_header_refused(file("[0,4]", "[4,8]"), 9, {"8 of 9"});
  require_header_refused(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                         R"("\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                         2, {"tensor 'a'", "twice"});
  require_header_refused(R"({"__metadata__":{"x":"1","x":"2"}})", 0, {"metadata 'x'", "twice"});
  require_header_refused(R"({"__metadata__":{},"__metadata__":{}})", 0, {"'__metadata__'", "twice"});
}

TEST_CASE("safetensors: many tiny entries cost a small multiple of the header") {
  std::string metadata = R"({"__metadata__":{"a":"")", shape = R"({"w":{"shape":[0)";
  for (int i = 0; i < 100'000; ++i) metadata += R"(,"":"")";
  for (int i = 0; i < 100'000; ++i) shape += ",0";
  require_header_refused(metadata + "}}", 0, {"metadata ''", "twice"});
  require_header_refused(shape + "]}}", 0, {"'w'", "dimensions"}, Errc::unsupported);
}

// --- safetensors, writing

TEST_CASE("the safetensors writer's file reads back, aligned and the same every time") {
  const Scratch scratch;
  Bytes data(300'000);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i % 251);
  const std::span<const std::byte> all(data);
  const auto write = [&](const std::string& path, std::size_t piece) {
    SafetensorsWriter writer;
    REQUIRE(writer.add_metadata("quotes \" \\ \n \x01", "π"));
    REQUIRE(writer.add_tensor("nothing", Dtype::F32, {0, 7}));
    REQUIRE(writer.add_tensor("model.w", Dtype::F16, {500, 300}));
    REQUIRE(writer.add_tensor("scalar", Dtype::I64, {}));
    REQUIRE(writer.begin(path));
    for (std::size_t i = 0; i < all.size(); i += piece)
      REQUIRE(writer.append("model.w", all.subspan(i, std::min(piece, all.size() - i))));
    REQUIRE(writer.append("scalar", all.first(8)));
    REQUIRE_FALSE(std::filesystem::exists(path));
    REQUIRE(writer.finish());
    REQUIRE_FALSE(writer.finish());
  };
  write(scratch / "a", 300'000);
  write(scratch / "b", 7'777);
  REQUIRE(scratch.files() == 2);  // and no temporaries
  REQUIRE(read_file(scratch / "a") == read_file(scratch / "b"));
  const auto file = SafetensorsFile::open(scratch / "a");
  REQUIRE(file);
  REQUIRE(file->metadata_value("quotes \" \\ \n \x01") == "π");
  const auto w = file->require("model.w");
  REQUIRE(w);
  REQUIRE((*w)->shape == std::vector<std::uint64_t>{500, 300});
  REQUIRE(std::equal(all.begin(), all.end(), (*w)->data.begin(), (*w)->data.end()));
  REQUIRE(reinterpret_cast<std::uintptr_t>((*w)->data.data()) % 64 == 0);
  REQUIRE((*file->require("nothing"))->shape == std::vector<std::uint64_t>{0, 7});
}

TEST_CASE("the safetensors writer refuses what would not read back") {
  const Scratch scratch;
  SafetensorsWriter names;
  REQUIRE(names.add_tensor("w", Dtype::F32, {1}));
  REQUIRE(names.add_tensor("w", Dtype::F32, {1}));
  REQUIRE(names.begin(scratch / "a").error().message.find("tensor 'w': occurs twice") != std::string::npos);
  SafetensorsWriter utf8;
  REQUIRE(utf8.add_tensor("\xff", Dtype::F32, {1}));
  REQUIRE(utf8.begin(scratch / "a").error().code == Errc::invalid_argument);
  SafetensorsWriter other;
  REQUIRE_FALSE(other.add_tensor("w", Dtype::other, {1}));
  REQUIRE_FALSE(other.add_tensor("__metadata__", Dtype::U8, {1}));
  REQUIRE_FALSE(other.add_tensor("w", Dtype::F32, {std::uint64_t{1} << 62}));
  REQUIRE_FALSE(other.add_tensor("w", Dtype::F32, {std::uint64_t{1} << 32, std::uint64_t{1} << 32}));
  REQUIRE(other.add_tensor("w", Dtype::U8, {UINT64_MAX}));
  REQUIRE_FALSE(other.add_tensor("v", Dtype::U8, {1}));
  SafetensorsWriter deep;
  REQUIRE(deep.add_tensor("w", Dtype::U8, std::vector<std::uint64_t>(9, 1)));
  REQUIRE_FALSE(deep.begin(scratch / "a"));
  REQUIRE(scratch.files() == 0);
}

TEST_CASE("the safetensors writer counts bytes and keeps the order") {
  const Scratch scratch;
  const Bytes data(16);
  const std::span<const std::byte> all(data);
  SafetensorsWriter writer;
  REQUIRE(writer.add_tensor("a", Dtype::F32, {2}));
  REQUIRE(writer.add_tensor("b", Dtype::U8, {3}));
  REQUIRE_FALSE(writer.append("a", all.first(8)));
  REQUIRE_FALSE(writer.finish());
  REQUIRE(writer.begin(scratch / "out"));
  REQUIRE_FALSE(writer.begin(scratch / "out"));
  REQUIRE_FALSE(writer.add_tensor("c", Dtype::U8, {1}));
  REQUIRE_FALSE(writer.add_metadata("c", "d"));
  REQUIRE(writer.append("b", all.first(3))
              .error()
              .message.find("tensor 'b': out of order, expected 8 more bytes of "
                            "tensor 'a'") != std::string::npos);
  REQUIRE(writer.append("a", all.first(9)).error().message.find("9 bytes, expected at most 8") != std::string::npos);
  REQUIRE(writer.append("a", all.first(5)));
  REQUIRE_FALSE(writer.append("a", all.first(4)));
  REQUIRE_FALSE(writer.append("b", all.first(3)));
  REQUIRE(writer.append("a", all.first(3)));
  REQUIRE(writer.finish().error().message.find("tensor 'b': 3 bytes are missing") != std::string::npos);
  REQUIRE_FALSE(writer.append("x", all.first(1)));
  REQUIRE(writer.append("b", all.first(3)));  // the refusals have changed nothing
  REQUIRE_FALSE(writer.append("b", all.first(1)));
  REQUIRE_FALSE(writer.append("a", all.first(1)));
  REQUIRE(writer.finish());
  REQUIRE(SafetensorsFile::open(scratch / "out"));
}

TEST_CASE("an existing file is overwritten only when asked to, and only by a finished one") {
  const Scratch scratch;
  write_file(scratch / "out", std::as_bytes(std::span("old", 3)));
  const auto begin = [&](bool overwrite) {
    SafetensorsWriter writer;
    REQUIRE(writer.add_tensor("a", Dtype::U8, {1}));
    const auto begun = writer.begin(scratch / "out", overwrite);
    if (overwrite) REQUIRE(begun);
    if (!overwrite) REQUIRE(begun.error().message.find("exists already") != std::string::npos);
    return writer;
  };
  begin(false);
  REQUIRE(scratch.files() == 1);
  {
    const SafetensorsWriter abandoned = begin(true);
    REQUIRE(scratch.files() == 2);  // the temporary
  }
  REQUIRE(scratch.files() == 1);
  REQUIRE(read_file(scratch / "out").size() == 3);
  SafetensorsWriter finished = begin(true);
  REQUIRE(finished.append("a", Bytes(1)));
  REQUIRE(finished.finish());
  REQUIRE(scratch.files() == 1);
  REQUIRE(SafetensorsFile::open(scratch / "out"));

  // A file that appears while another is written is not lost either.
  SafetensorsWriter late;
  REQUIRE(late.begin(scratch / "late"));
  write_file(scratch / "late", std::as_bytes(std::span("new", 3)));
  REQUIRE(late.finish().error().message.find("exists already") != std::string::npos);
  REQUIRE(read_file(scratch / "late").size() == 3);
  REQUIRE(scratch.files() == 2);
}

TEST_CASE("places that cannot be written to are errors") {
  const Scratch scratch;
  REQUIRE(SafetensorsWriter{}.begin(scratch / "no/dir").error().code == Errc::io);
  REQUIRE(SafetensorsWriter{}.begin(scratch.path.string(), true).error().message.find("is a directory") !=
          std::string::npos);
  REQUIRE(SafetensorsWriter{}.begin("/dev/null", true).error().message.find("not a regular file") != std::string::npos);
  REQUIRE_FALSE(SafetensorsWriter{}.begin(""));
}

TEST_CASE("a write that the system refuses is an error, and leaves nothing behind") {
  const Scratch scratch;
  SafetensorsWriter writer;
  REQUIRE(writer.add_tensor("a", Dtype::U8, {1'000'000}));
  REQUIRE(writer.begin(scratch / "out"));
  // A full disk, as near as a test gets: files may not grow beyond 64 kB.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  rlimit limit = old_limit;
  limit.rlim_cur = 65536;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  const auto appended = writer.append("a", Bytes(1'000'000));
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  REQUIRE_FALSE(appended);
  REQUIRE(appended.error().code == Errc::io);
  REQUIRE(appended.error().message.find("cannot write: File too large") != std::string::npos);
  REQUIRE(scratch.files() == 0);
  REQUIRE_FALSE(writer.append("a", Bytes(1)));
  REQUIRE_FALSE(writer.finish());
}
