#include "runtime/recorder_room.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "core/plural.h"

namespace levin::runtime {

// As PhaseRecorder rounds them up.
double recorder_bytes(const RecorderSize& size) {
  const auto ring = [](std::size_t count, std::size_t bytes) {
    return static_cast<double>(std::bit_ceil(std::max<std::size_t>(count, 1))) *
           static_cast<double>(bytes);
  };
  return std::max(size.threads, 1) * ring(size.phases, sizeof(PhaseRecord)) +
         ring(size.steps, sizeof(StepRecord));
}

PhaseRecorder recorder_within(int64_t available, const RecorderSize& size,
                              const std::string& flags) {
  const double bytes = recorder_bytes(size);
  if (available > 0 && bytes > static_cast<double>(available) / 2) {
    throw Error({.what = "there is no memory for the records of so many steps",
                 .where = flags,
                 .expected = fmt::format("at most {:.2f} GB, half of what is available",
                                         static_cast<double>(available) / 2e9),
                 .found = fmt::format("{:.2f} GB on {}", bytes * 1e-9,
                                      counted(int64_t{size.threads}, "thread")),
                 .hint = "ask for less, or for fewer --threads",
                 .exit_code = ExitCode::kMachine});
  }
  return {size.threads, size.phases, size.steps};
}

}  // namespace levin::runtime
