// What a pass costs, learnt while serving.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace levin::engine {

// The lower third of the last few samples: a hiccup of the machine only ever makes it slower.
class RecentTypical {
 public:
  static constexpr std::size_t kMost = 9;

  void add(double sample);
  std::size_t count() const { return count_; }  // at most kMost
  // 0 before the first sample.
  double value() const { return value_; }

 private:
  std::array<double, kMost> samples_ = {};
  std::size_t count_ = 0;
  std::size_t next_ = 0;
  double value_ = 0;
};

// Seconds as a function of rows and sequences. A row has its arithmetic; a sequence has its state,
// read and written however few its rows are; and a pass reads its weights once. So it is near any
// point about
//   a + b rows + c sequences,  a, b, c >= 0,
// fitted to what was measured, those with about as many sequences counting most; times
// how much a pass of as many rows a sequence was off that plane. Hence it follows a machine that is
// not linear where it was measured, and elsewhere guesses soberly. Nothing is allocated after the
// constructor, and a look takes a microsecond or two.
class PassCost {
 public:
  // The function near a number of sequences.
  class Near {
   public:
    // 0 before the first sample.
    double seconds(double rows) const;
    // Samples of passes like that.
    std::size_t samples(double rows) const;

   private:
    friend class PassCost;
    double on_plane(double rows, double sequences) const {
      return plane_[0] + plane_[1] * rows + plane_[2] * sequences;
    }

    const PassCost* cost_ = nullptr;
    double sequences_ = 0;
    std::array<double, 3> plane_ = {};
  };

  // Expects up to so many rows a sequence; more are taken for as many.
  explicit PassCost(int64_t most_rows_per_sequence);
  void add(int64_t rows, int64_t sequences, double seconds);
  bool empty() const { return used_.empty(); }
  Near near(double sequences) const;

 private:
  // All passes with about as many sequences, and about as many rows for each.
  struct Cell {
    int line = 0;  // by sequences
    double rows = 0, sequences = 0;
    RecentTypical seconds;
  };
  std::size_t column(double rows_per_sequence) const;

  std::size_t columns_;
  std::vector<Cell> cells_;        // [lines, columns_]
  std::vector<std::size_t> used_;  // those with samples
};

// Seconds that tokens of prompts add to a round: a fixed part and a price each, fitted to the last
// rounds that read some. What they leave open (all of one size, say) is the price of the tokens.
class PromptCost {
 public:
  // Tokens took so many seconds, of a round of so many: the longer that was, the less it tells.
  void add(int64_t tokens, double seconds, double round_seconds);
  bool empty() const { return price_ <= 0; }
  double fixed() const { return fixed_; }
  double price() const { return price_; }
  double seconds(int64_t tokens) const { return fixed_ + price_ * static_cast<double>(tokens); }

 private:
  double a00_ = 0, a01_ = 0, a11_ = 0, y0_ = 0, y1_ = 0;  // normal equations, fading
  double fixed_ = 0;
  double price_ = 0;
};

}  // namespace levin::engine
