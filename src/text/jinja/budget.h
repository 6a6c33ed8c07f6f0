// Templates come with the checkpoint and messages from users, so a rendering may use only so much
// work, memory and stack. Honest ones stay far below: a step is one node of the syntax tree, of
// which a chat of ten thousand turns takes about two million; its text is copied some ten times.
#pragma once

#include <cstddef>

#include "text/interrupt.h"
#include "text/jinja/failure.h"

namespace levin::text::jinja {

// Nesting of lists and dicts inside each other.
inline constexpr int kMaxValueDepth = 200;

class Budget {
 public:
  // `interrupt` may end the rendering; it must outlive the budget.
  explicit Budget(const Interrupt& interrupt) : interrupt_(interrupt) {}

  // Counts work: evaluated nodes, compared elements.
  void step(std::size_t count = 1) {
    if (count > steps_left_) throw Failure("the template does too much work");
    const std::size_t calls_left = steps_left_ / kStepsPerCall;
    steps_left_ -= count;
    if (interrupt_ && steps_left_ / kStepsPerCall != calls_left) interrupt_();
  }

  // Counts memory before it is allocated; freeing gives nothing back.
  void produce(std::size_t bytes) {
    if (bytes > kMaxValueBytes || bytes > bytes_left_) {
      throw Failure("the template produces too much text");
    }
    bytes_left_ -= bytes;
  }

  // Evaluations inside each other, which bounds the stack. Lives on it:
  //   const Budget::Nesting nesting(budget);
  class Nesting {
   public:
    explicit Nesting(Budget& budget) : budget_(budget) {
      if (budget_.depth_ == kMaxDepth) throw Failure("the template is nested too deeply");
      ++budget_.depth_;
    }
    ~Nesting() { --budget_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    Budget& budget_;
  };

 private:
  static constexpr std::size_t kMaxValueBytes = std::size_t{64} << 20;
  static constexpr int kMaxDepth = 1000;
  static constexpr std::size_t kStepsPerCall = 16384;

  const Interrupt& interrupt_;
  std::size_t steps_left_ = 10'000'000;
  std::size_t bytes_left_ = std::size_t{512} << 20;
  int depth_ = 0;
};

}  // namespace levin::text::jinja
