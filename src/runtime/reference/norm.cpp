#include "runtime/reference/norm.h"

#include <cmath>

#include "runtime/reference/math.h"
#include "runtime/reference/parallel.h"

namespace levin::runtime::reference {

void rms_norm(std::span<const float> x, std::span<const float> weight, double eps,
              std::span<float> out) {
  const auto n = static_cast<int64_t>(x.size());
  const float mean_square = dot(x.data(), x.data(), n) / static_cast<float>(n);
  const float scale = 1.0F / std::sqrt(mean_square + static_cast<float>(eps));
  for (std::size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weight[i];
}

void rms_norm_rows(ThreadTeam& team, std::span<const float> x, int rows,
                   std::span<const float> weight, double eps, std::span<float> out) {
  const std::size_t width = weight.size();
  parallel_for(team, rows, static_cast<int64_t>(width), [&](int64_t row) {
    const std::size_t begin = static_cast<std::size_t>(row) * width;
    rms_norm(x.subspan(begin, width), weight, eps, out.subspan(begin, width));
  });
}

void gated_group_norm(std::span<float> y, std::span<const float> z, std::span<const float> weight,
                      int64_t groups, double eps) {
  for (std::size_t i = 0; i < y.size(); ++i) y[i] *= silu(z[i]);
  const std::size_t width = y.size() / static_cast<std::size_t>(groups);
  for (std::size_t begin = 0; begin < y.size(); begin += width) {
    const std::span<float> group = y.subspan(begin, width);
    rms_norm(group, weight.subspan(begin, width), eps, group);
  }
}

}  // namespace levin::runtime::reference
