// What a tensor is: an element type, a shape and somebody else's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

// Element types of the safetensors format that levin reads or writes.
enum class DType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool
};

// Bytes of one element.
std::size_t size_of(DType dtype);
// The safetensors spelling: "F32", "BF16", "F8_E4M3", ...
std::string_view name_of(DType dtype);
// Inverse of name_of; nothing for an unknown name.
std::optional<DType> dtype_from_name(std::string_view name);

using Shape = std::vector<int64_t>;

// "[4096, 2688]"
std::string to_string(const Shape& shape);
// Product of the dimensions (1 for a scalar), or nothing when one is negative or the product does
// not fit in 63 bits: a shape that comes from outside is checked with this before use.
std::optional<int64_t> element_count(const Shape& shape);

// A view of a contiguous row-major tensor. Does not own its bytes: whoever hands it out says how
// long they live.
struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;

  int64_t elements() const { return element_count(shape).value_or(0); }
  bool empty() const { return bytes.data() == nullptr; }
  // The bytes as elements of T; the caller has checked the dtype. Safetensors aligns tensors to 8
  // bytes at best, so T must not need more.
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

// All elements of a F32, F16, BF16 or F8_E4M3 tensor as float32; any other dtype is an Error naming
// `name`.
std::vector<float> to_float(const TensorView& tensor, std::string_view name);

}  // namespace levin
