// A file that appears whole or not at all: bytes go to a temporary beside the target, commit() syncs it and moves it
// into place. Whoever has the old file mapped keeps the old bytes. POSIX.
//
// The temporary is TARGET.part-PID-N; it is removed when the object is destroyed uncommitted, or when a write or the
// commit fails (a killed program leaves it behind). A target that is a symbolic link is replaced, not followed.
// Errors: Errc::io with the system's text (disk full, no permission), Errc::invalid_argument for a target that exists
// and may not be overwritten, or that is not a regular file.
#ifndef POCKET_FILES_OUTPUT_FILE_HPP
#define POCKET_FILES_OUTPUT_FILE_HPP

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <utility>

#include "../config.hpp"
#include "../core/status.hpp"
#include "mapped_file.hpp"

POCKET_NAMESPACE_BEGIN

// Movable; an uncommitted file is removed when it is destroyed.
class OutputFile {
 public:
  OutputFile() noexcept = default;  // no file
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  OutputFile(OutputFile&& other) noexcept { swap(other); }
  OutputFile& operator=(OutputFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~OutputFile() { discard(); }

  // Opens the temporary. With overwrite == false a target that exists is an error now, and again in commit().
  static Expected<OutputFile> create(const std::string& path, bool overwrite) {
    if (path.empty() || path.find('\0') != std::string::npos)
      return fail(Errc::invalid_argument, "path: is empty or holds a zero byte, which no file name can");
    POCKET_CHECK(check_target(path, overwrite));
    OutputFile file;
    file.path_ = path;
    file.overwrite_ = overwrite;
    const std::string stem = path + ".part-" + std::to_string(::getpid()) + "-";
    constexpr int tries = 100;  // several writers of one process, and leftovers of a dead one with the same number
    for (int i = 0; i < tries && file.descriptor_ < 0; ++i) {
      const std::string temporary = stem + std::to_string(i);
      file.descriptor_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (file.descriptor_ >= 0)
        file.temporary_ = temporary;
      else if (errno != EEXIST)
        return io_error(temporary, "cannot create", errno);
    }
    if (file.descriptor_ < 0) return io_error(stem + "*", "cannot create", EEXIST);
    return file;
  }

  bool is_open() const noexcept { return descriptor_ >= 0; }
  const std::string& path() const noexcept { return path_; }

  // Not buffered: hand over some 64 kB or more at a time.
  Expected<void> write(std::span<const std::byte> bytes) {
    if (!is_open()) return fail(Errc::invalid_argument, "write: the output file is not open");
    constexpr std::size_t most = std::size_t{1} << 30;  // some systems refuse more in one call
    while (!bytes.empty()) {
      const auto written = ::write(descriptor_, bytes.data(), (std::min)(bytes.size(), most));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return give_up("cannot write", written < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return {};
  }

  // Syncs the file and gives it its name. The object holds no file afterwards, whatever the outcome.
  Expected<void> commit() {
    if (!is_open()) return fail(Errc::invalid_argument, "commit: the output file is not open");
    if (::fsync(descriptor_) != 0) return give_up("cannot sync", errno);
    if (::close(std::exchange(descriptor_, -1)) != 0) return give_up("cannot close", errno);
    if (!move_into_place()) {
      const int why = errno;
      if (why == EEXIST) {
        discard();
        return exists(path_);
      }
      return give_up("cannot move the finished file into place", why);
    }
    temporary_.clear();
    sync_directory();
    return {};
  }

 private:
  static Error exists(const std::string& path) {
    return fail(Errc::invalid_argument, path + ": exists already, and overwriting was not asked for");
  }

  static Expected<void> check_target(const std::string& path, bool overwrite) {
    struct stat about{};
    if (::lstat(path.c_str(), &about) != 0) return {};  // not there; another trouble shows when the temporary is made
    if (S_ISDIR(about.st_mode)) return fail(Errc::invalid_argument, path + ": is a directory, expected a file");
    if (!S_ISREG(about.st_mode) && !S_ISLNK(about.st_mode))
      return fail(Errc::invalid_argument, path + ": is not a regular file, and is not replaced by one");
    if (!overwrite) return exists(path);
    return {};
  }

  // With errno as the failing call left it.
  bool move_into_place() const {
    if (overwrite_) return std::rename(temporary_.c_str(), path_.c_str()) == 0;
    // A hard link, unlike rename, fails where a target has appeared meanwhile.
    if (::link(temporary_.c_str(), path_.c_str()) == 0) {
      ::unlink(temporary_.c_str());
      return true;
    }
    // So it has, or the file system has no hard links: look, then rename, with the race that this implies.
    struct stat about{};
    if (::lstat(path_.c_str(), &about) == 0) {
      errno = EEXIST;
      return false;
    }
    return std::rename(temporary_.c_str(), path_.c_str()) == 0;
  }

  // So that the new name survives a power cut too. The content is safe already; a file system that cannot sync a
  // directory is no reason to call the write failed.
  void sync_directory() const {
    const auto slash = path_.rfind('/');
    const std::string directory = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    const int descriptor = ::open(directory.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    ::fsync(descriptor);
    ::close(descriptor);
  }

  Error give_up(const char* what, int error_number) {
    discard();
    return io_error(path_, what, error_number);
  }

  void discard() noexcept {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    temporary_.clear();
  }

  void swap(OutputFile& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(temporary_, other.temporary_);
    std::swap(descriptor_, other.descriptor_);
    std::swap(overwrite_, other.overwrite_);
  }

  std::string path_;
  std::string temporary_;  // empty once it is renamed or removed
  int descriptor_ = -1;
  bool overwrite_ = false;
};

POCKET_NAMESPACE_END

#endif
