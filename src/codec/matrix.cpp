#include "codec/matrix.h"

#include <fmt/format.h>

#include <cmath>

#include "core/error.h"

namespace levin::codec {

void check_matrix(std::size_t elements, int64_t rows, int64_t cols, int64_t block,
                  std::string_view format) {
  if (rows < 0 || cols <= 0 || elements != static_cast<std::size_t>(rows * cols)) {
    throw Error({.what = fmt::format("matrix for {} has the wrong number of elements", format),
                 .where = {},
                 .expected = fmt::format("{} x {}", rows, cols),
                 .found = fmt::format("{} elements", elements),
                 .hint = {}});
  }
  if (cols % block != 0) {
    throw Error({.what = fmt::format("input width cannot be cut into blocks of {}", format),
                 .where = {},
                 .expected = fmt::format("a multiple of {}", block),
                 .found = fmt::format("{}", cols),
                 .hint = {}});
  }
}

float absolute_max(std::span<const float> values) {
  float amax = 0.0F;
  bool nan = false;
  for (const float value : values) {
    const float a = std::fabs(value);
    nan = nan || std::isnan(value);
    amax = a > amax ? a : amax;
  }
  return nan ? std::nanf("") : amax;
}

}  // namespace levin::codec
