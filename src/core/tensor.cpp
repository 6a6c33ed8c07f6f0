#include "core/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/small_floats.h"

namespace levin {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::size_t size;
};

constexpr std::array<DTypeRow, 12> kDTypes = {{{DType::kF64, "F64", 8},
                                               {DType::kF32, "F32", 4},
                                               {DType::kF16, "F16", 2},
                                               {DType::kBF16, "BF16", 2},
                                               {DType::kF8E4M3, "F8_E4M3", 1},
                                               {DType::kF8E5M2, "F8_E5M2", 1},
                                               {DType::kI64, "I64", 8},
                                               {DType::kI32, "I32", 4},
                                               {DType::kI16, "I16", 2},
                                               {DType::kI8, "I8", 1},
                                               {DType::kU8, "U8", 1},
                                               {DType::kBool, "BOOL", 1}}};

const DTypeRow& row_of(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)];
}

// Element i of possibly unaligned storage.
template <typename T>
T load(std::span<const std::byte> bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

std::size_t size_of(DType dtype) {
  return row_of(dtype).size;
}

std::string_view name_of(DType dtype) {
  return row_of(dtype).name;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::optional<int64_t> element_count(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (dimension != 0 && count > std::numeric_limits<int64_t>::max() / dimension) {
      return std::nullopt;
    }
    count *= dimension;
  }
  return count;
}

std::vector<float> to_float(const TensorView& tensor, std::string_view name) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  auto convert = [&]<typename T>(T /*storage*/, auto&& widen) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = widen(load<T>(tensor.bytes, i));
  };
  switch (tensor.dtype) {
    case DType::kF32:
      convert(float{}, [](float v) { return v; });
      break;
    case DType::kF16:
      convert(uint16_t{}, f16_to_float);
      break;
    case DType::kBF16:
      convert(uint16_t{}, bf16_to_float);
      break;
    case DType::kF8E4M3:
      convert(uint8_t{}, e4m3_to_float);
      break;
    default:
      throw Error({.what = "tensor has a type that cannot be read as float",
                   .where = std::string(name),
                   .expected = "F32, F16, BF16 or F8_E4M3",
                   .found = std::string(name_of(tensor.dtype)),
                   .hint = {}});
  }
  return values;
}

}  // namespace levin
