#include "codec/modelopt_int4.h"

#include <algorithm>
#include <cmath>

#include "codec/matrix.h"

namespace levin::codec {

void encode_modelopt_int4_row(std::span<const float> row, int64_t group, int8_t* codes,
                              float* scales) {
  const auto size = static_cast<std::size_t>(group);
  for (std::size_t g = 0; g < row.size() / size; ++g) {
    const auto values = row.subspan(g * size, size);
    const float amax = absolute_max(values);
    scales[g] = amax == 0.0F ? 1.0F : amax / 7.0F;
    for (std::size_t i = 0; i < size; ++i) {
      const float code = std::nearbyint(values[i] / scales[g]);
      codes[g * size + i] = static_cast<int8_t>(std::clamp(code, -8.0F, 7.0F));
    }
  }
}

void pack_modelopt_int4_rows(std::span<const int8_t> even, std::span<const int8_t> odd,
                             uint8_t* packed) {
  for (std::size_t i = 0; i < even.size(); ++i) {
    packed[i] = static_cast<uint8_t>((even[i] & 0xf) | ((odd[i] & 0xf) << 4));
  }
}

}  // namespace levin::codec
