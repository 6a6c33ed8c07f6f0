#include "model/values.h"

#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "checkpoint/names.h"
#include "core/error.h"
#include "core/small_floats.h"

namespace levin::model {
namespace {

// No weight or activation of a model that works needs less or more; products with codes and with
// each other stay finite in float32.
constexpr float kLeastScale = 0x1p-126F;
constexpr float kGreatestScale = 0x1p60F;

// Looks for elements whose exponent bits are all ones. A whole chunk is reduced before anything is
// decided, so that the loop vectorizes.
template <typename T>
int64_t first_with_exponent(std::span<const std::byte> bytes, T exponent) {
  constexpr std::size_t kChunk = 4096 / sizeof(T);
  const std::size_t count = bytes.size() / sizeof(T);
  T chunk[kChunk];
  for (std::size_t begin = 0; begin < count; begin += kChunk) {
    const std::size_t size = std::min(kChunk, count - begin);
    std::memcpy(chunk, bytes.data() + begin * sizeof(T), size * sizeof(T));
    unsigned bad = 0;
    for (std::size_t i = 0; i < size; ++i) {
      bad |= static_cast<unsigned>((chunk[i] & exponent) == exponent);
    }
    if (bad == 0) continue;
    for (std::size_t i = 0; i < size; ++i) {
      if ((chunk[i] & exponent) == exponent) return static_cast<int64_t>(begin + i);
    }
  }
  return -1;
}

float element(const TensorView& tensor, int64_t index) {
  const auto size = size_of(tensor.dtype);
  const TensorView one = {
      tensor.dtype, {1}, tensor.bytes.subspan(static_cast<std::size_t>(index) * size, size)};
  return to_float(one, "element").front();
}

}  // namespace

int64_t first_non_finite(const TensorView& tensor) {
  switch (tensor.dtype) {
    case DType::kF32:
      return first_with_exponent<uint32_t>(tensor.bytes, 0x7f800000u);
    case DType::kF16:
      return first_with_exponent<uint16_t>(tensor.bytes, 0x7c00u);
    case DType::kBF16:
      return first_with_exponent<uint16_t>(tensor.bytes, 0x7f80u);
    case DType::kF8E4M3:
      return first_with_exponent<uint8_t>(tensor.bytes, 0x7fu);
    default:
      return -1;
  }
}

void check_finite(const TensorView& tensor, std::string_view name) {
  const int64_t index = first_non_finite(tensor);
  if (index < 0) return;
  throw Error({.what = "tensor holds a value that is not finite",
               .where = checkpoint::printable(name),
               .expected = "finite numbers",
               .found = fmt::format("{} at element {} of {}", element(tensor, index), index,
                                    to_string(tensor.shape)),
               .hint = "the checkpoint is damaged"});
}

void check_scales(std::span<const float> scales, std::string_view name) {
  for (std::size_t i = 0; i < scales.size(); ++i) {
    if (scales[i] >= kLeastScale && scales[i] <= kGreatestScale) continue;
    throw Error({.what = "scale is out of range",
                 .where = checkpoint::printable(name),
                 .expected = fmt::format("{:.3g} to {:.3g}", kLeastScale, kGreatestScale),
                 .found = fmt::format("{} at element {}", scales[i], i),
                 .hint = "the checkpoint was calibrated or converted wrongly; quantize it again"});
  }
}

void check_block_scales(const TensorView& scales, std::string_view name) {
  const auto codes = scales.as<uint8_t>();
  unsigned bad = 0;
  for (const uint8_t code : codes) bad |= static_cast<unsigned>(code >= 0x7f);
  if (bad == 0) return;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    if (codes[i] < 0x7f) continue;
    throw Error({.what = "block scale is out of range",
                 .where = checkpoint::printable(name),
                 .expected = "E4M3 codes 0x00 to 0x7E",
                 .found = fmt::format("0x{:02X} ({}) at element {} of {}", codes[i],
                                      e4m3_to_float(codes[i]), i, to_string(scales.shape)),
                 .hint = "some exporters cast scales without clamping; quantize it again"});
  }
}

void check_weights(const std::vector<const Linear*>& linears, ThreadTeam& team) {
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> first_bad{linears.size()};
  team.run([&](int /*thread*/) {
    for (std::size_t i = next.fetch_add(1); i < linears.size(); i = next.fetch_add(1)) {
      if (i > first_bad.load() || first_non_finite(linears[i]->weight) < 0) continue;
      std::size_t bad = first_bad.load();
      while (i < bad && !first_bad.compare_exchange_weak(bad, i)) {
      }
    }
  });
  if (first_bad < linears.size()) {
    const Linear& linear = *linears[first_bad];
    check_finite(linear.weight, linear.name + ".weight");
  }
}

}  // namespace levin::model
