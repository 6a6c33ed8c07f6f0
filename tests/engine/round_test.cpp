// What the limits of a round do.
#include "engine/round.h"

#include <gtest/gtest.h>

#include "fake_runtime.h"

namespace levin::engine {
namespace {

using testing::fake_engine;
using testing::random_logits;
using testing::Tokens;

TEST(Rounds, PromptsWaitWhileOthersDecode) {
  const auto engine = fake_engine(24, random_logits(4), nullptr);
  const Request running = {.prompt = Tokens(3, 7), .sampling = {.max_tokens = 50}};
  const Request waiting = {.prompt = Tokens(40, 7), .sampling = {.max_tokens = 50}};
  Sequence first(*engine, running, 0, 1);
  Sequence second(*engine, waiting, 1, 1);
  const std::array<Sequence*, 2> both = {&first, &second};
  Rounds rounds(*engine->runtime);
  rounds.run(std::span(both).first(1));
  ASSERT_TRUE(first.prefilled());

  const std::size_t before = first.output().size();
  rounds.run(both, {.prompt_tokens = 0});
  EXPECT_EQ(first.output().size(), before + 1);
  EXPECT_EQ(second.consumed(), 0);
  EXPECT_EQ(rounds.report().prompt_rows, 0);
  EXPECT_EQ(rounds.report().decoding, 1);

  rounds.run(both, {.prompt_tokens = 9});
  EXPECT_EQ(first.output().size(), before + 2);
  EXPECT_EQ(second.consumed(), 9);
  EXPECT_EQ(rounds.report().prompt_rows, 9);
}

}  // namespace
}  // namespace levin::engine
