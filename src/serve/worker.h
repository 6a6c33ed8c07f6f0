// Threads for what must hold up neither the network nor the engine: parsing, templates, tokenizing,
// compiling grammars.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace levin::serve {

class Workers {
 public:
  Workers(int threads, std::size_t most_waiting);
  // Finishes what was accepted.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // From any thread. False when too many jobs wait. A job must not throw.
  bool post(std::function<void()> job);

 private:
  void run();

  const std::size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace levin::serve
