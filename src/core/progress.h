// Progress of anything that takes more than two seconds: a bar with rate and time left on a
// terminal, a plain line now and then elsewhere. Always on stderr; stdout belongs to results.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace levin {

class Progress {
 public:
  // `unit` is "B" for bytes (shown as MB or GB) or any countable noun ("windows", "items").
  Progress(std::string title, int64_t total, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t amount);

  // Silences every bar of the process (tests).
  static void set_enabled(bool enabled);

 private:
  void draw(bool final);

  std::string title_;
  std::string unit_;
  int64_t total_;
  int64_t done_ = 0;
  bool terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_draw_;
};

}  // namespace levin
