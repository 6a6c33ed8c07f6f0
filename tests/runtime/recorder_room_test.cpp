#include "runtime/recorder_room.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace levin::runtime {
namespace {

TEST(RecorderRoom, IsThatOfRoundedRings) {
  EXPECT_DOUBLE_EQ(recorder_bytes({.threads = 3, .phases = 5, .steps = 3}),
                   3.0 * 8 * sizeof(PhaseRecord) + 4.0 * sizeof(StepRecord));
}

TEST(RecorderRoom, IsAtMostHalfOfTheMemory) {
  const RecorderSize size = {.threads = 2, .phases = 1024, .steps = 16};
  const auto bytes = static_cast<int64_t>(recorder_bytes(size));
  EXPECT_EQ(recorder_within(2 * bytes, size, "--trace-steps").threads(), 2);
  EXPECT_EQ(recorder_within(0, size, "--trace-steps").threads(), 2);  // nobody tells
  try {
    recorder_within(2 * bytes - 2, size, "--trace-steps");
    FAIL() << "it took more than half";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::kMachine);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--trace-steps"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("2 threads"));
  }
}

// More than any machine has, which no multiplication may wrap around.
TEST(RecorderRoom, RefusesWhatNobodyHas) {
  const RecorderSize size = {
      .threads = 1024, .phases = std::size_t{1} << 61, .steps = std::size_t{1} << 61};
  EXPECT_THROW(recorder_within(int64_t{1} << 45, size, "--rounds"), Error);
}

}  // namespace
}  // namespace levin::runtime
