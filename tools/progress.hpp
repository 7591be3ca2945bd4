// One line on the terminal that says how far long work has come. It comes when the work has taken a third of a second,
// and not at all where standard error is no terminal.
#ifndef POCKET_TOOLS_PROGRESS_HPP
#define POCKET_TOOLS_PROGRESS_HPP

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>

namespace tools {

class ProgressLine {
 public:
  explicit ProgressLine(std::string what) : what_(std::move(what)), terminal_(isatty(STDERR_FILENO) != 0) {}
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() {
    if (shown_ >= 0) std::fprintf(stderr, "\r\033[K");
  }
  void show(std::size_t done, std::size_t total) const {
    const int percent = total == 0 ? 100 : static_cast<int>(done * 100 / total);
    if (!terminal_ || percent == shown_) return;
    if (shown_ < 0 && std::chrono::steady_clock::now() - begin_ < std::chrono::milliseconds(333)) return;
    shown_ = percent;
    std::fprintf(stderr, "\r%s: %d %%", what_.c_str(), percent);
  }

 private:
  std::string what_;
  bool terminal_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  mutable int shown_ = -1;
};

}  // namespace tools

#endif
