// From observed activations to a static input scale.
//
// max:          amax is the largest magnitude seen.
// act_headroom: NVIDIA ModelOpt's nvfp4_act_headroom
//               (modelopt/torch/quantization/calib/nvfp4_act_headroom.py). The amax is raised,
//               often by orders of magnitude, until a block of the 1st percentile gets a block
//               scale near the low end of normal E4M3 numbers: all calibrated blocks then sit low
//               in the scale range, and larger activations than any seen do not clip. Meant for
//               NVFP4 inputs only, whose block scales are computed at run time.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace levin::codec {

struct HeadroomOptions {
  double upper_percentile = 99.99;  // 100: the literal maximum
  double anchor_percentile = 1.0;
  double rho = 16384.0;       // amax is at least rho * anchor; below 28672 = 448 / 2^-6
  double floor_ratio = 1e-6;  // blocks below upper * this do not count for the anchor
};

struct Headroom {
  double upper = 0;
  double anchor = 0;
  double amax = 0;
};

// What was seen at the input of one linear. Fixed size; add() allocates nothing.
class ActivationStats {
 public:
  // Adds one row, cut into blocks of 16 (a shorter last block counts as padded with zeros). Zero
  // blocks are left out of the histogram. Values are finite.
  void add(std::span<const float> row);
  // Adds one block by its largest magnitude.
  void add_block(double amax);
  // Adds what another one saw.
  void merge(const ActivationStats& other);

  // Rows seen by add().
  int64_t rows() const { return rows_; }
  // Largest magnitude seen; 0 when nothing was.
  double amax() const { return amax_; }
  // The act_headroom rule; all zero when every block seen was zero.
  Headroom headroom(const HeadroomOptions& options = {}) const;

 private:
  // Of log2(block amax) in [-40, 40].
  static constexpr int kBins = 512;
  std::array<int64_t, kBins> counts_{};
  int64_t rows_ = 0;
  double amax_ = 0;
};

// input_scale of an NVFP4 linear: amax / 2688. Of an FP8 linear: amax / 448. `amax` > 0.
float nvfp4_input_scale(double amax);
float fp8_input_scale(double amax);

}  // namespace levin::codec
