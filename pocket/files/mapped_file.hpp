// A regular file's bytes, mapped read-only: pages come from the page cache when they are touched, and several programs
// share them. POSIX. As with every mapping, a file that someone else shortens while it is mapped raises SIGBUS on
// access beyond its new end: replace model files by renaming (as OutputFile does), do not rewrite them in place.
//
// Errors: Errc::io with the system's own text (missing, no permission), Errc::invalid_argument for what is not a
// regular file, Errc::malformed for an empty one.
#ifndef POCKET_FILES_MAPPED_FILE_HPP
#define POCKET_FILES_MAPPED_FILE_HPP

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "../config.hpp"
#include "../core/status.hpp"

POCKET_NAMESPACE_BEGIN

// "PATH: what: No such file or directory"
inline Error io_error(const std::string& path, const char* what, int error_number) {
  return fail(Errc::io, path + ": " + what + ": " + std::generic_category().message(error_number));
}

// Movable; unmaps when it is destroyed.
class MappedFile {
 public:
  MappedFile() noexcept = default;  // no file, no bytes
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, std::span<const std::byte>{})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile() {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }

  // Maps the whole file.
  static Expected<MappedFile> open(const std::string& path) {
    if (path.find('\0') != std::string::npos)
      return fail(Errc::invalid_argument, "path: holds a zero byte, which no file name can");
    // O_NONBLOCK: opening a named pipe must fail below, not wait for a writer.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return io_error(path, "cannot open", errno);
    auto mapped = map(descriptor, path);
    ::close(descriptor);  // the mapping stays
    return mapped;
  }

  // Valid, at the same address, until this object or the one that it is moved to is destroyed.
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  const std::string& path() const noexcept { return path_; }

 private:
  static Expected<MappedFile> map(int descriptor, const std::string& path) {
    struct stat about{};
    if (::fstat(descriptor, &about) != 0) return io_error(path, "cannot query", errno);
    if (S_ISDIR(about.st_mode)) return fail(Errc::invalid_argument, path + ": is a directory, expected a file");
    if (!S_ISREG(about.st_mode)) return fail(Errc::invalid_argument, path + ": is not a regular file");
    if (about.st_size <= 0) return fail(Errc::malformed, path + ": is empty");
    const auto size = static_cast<std::uint64_t>(about.st_size);
    if (size > SIZE_MAX) return fail(Errc::unsupported, path + ": is larger than this program's address space");
    void* const address = ::mmap(nullptr, static_cast<std::size_t>(size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) return io_error(path, "cannot map", errno);
    MappedFile file;
    file.path_ = path;
    file.bytes_ = {static_cast<const std::byte*>(address), static_cast<std::size_t>(size)};
    return file;
  }

  std::string path_;
  std::span<const std::byte> bytes_;
};

POCKET_NAMESPACE_END

#endif
