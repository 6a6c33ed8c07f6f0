// The scalar functions of the model and the one reduction everything is built on.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace levin::runtime::reference {

// A float array that is not initialized: pages that are never used cost no memory.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size)
      : data_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(size))),
        size_(size) {}

  int64_t size() const { return size_; }
  float* data() { return data_.get(); }
  const float* data() const { return data_.get(); }
  // Row `index` of an array of rows that are `width` wide.
  std::span<float> row(int64_t index, int64_t width) {
    return {data_.get() + index * width, static_cast<std::size_t>(width)};
  }
  std::span<const float> row(int64_t index, int64_t width) const {
    return {data_.get() + index * width, static_cast<std::size_t>(width)};
  }
  // The first `rows` rows.
  std::span<float> rows(int64_t rows, int64_t width) {
    return {data_.get(), static_cast<std::size_t>(rows * width)};
  }
  int64_t bytes() const { return size_ * static_cast<int64_t>(sizeof(float)); }

 private:
  std::unique_ptr<float[]> data_;
  int64_t size_ = 0;
};

// Sum of a[i] * b[i], in an order that depends on n alone: 16 interleaved partial sums, then a
// fixed tree. Every reduction of this runtime goes through here, which is why results do not
// depend on how tokens are batched.
float dot(const float* a, const float* b, int64_t n);

// Index of the largest value, the lowest index among equals.
int32_t argmax(std::span<const float> values);

inline float sigmoid(float x) {
  return 1.0F / (1.0F + std::exp(-x));
}

inline float silu(float x) {
  return x / (1.0F + std::exp(-x));
}

// log(1 + e^x), the identity above 20 (as PyTorch and the Mamba kernels do).
inline float softplus(float x) {
  return x > 20.0F ? x : std::log1p(std::exp(x));
}

// max(x, 0)^2, the activation of NemotronH's feed-forward layers.
inline float relu_squared(float x) {
  const float positive = x > 0.0F ? x : 0.0F;
  return positive * positive;
}

}  // namespace levin::runtime::reference
