// What is learnt of a machine that costs by rows, by sequences, and not in straight lines.
#include "engine/pass_cost.h"

#include <gtest/gtest.h>

#include <cmath>

namespace levin::engine {
namespace {

double plane(double rows, double sequences) {
  return 1e-3 + 1e-4 * rows + 3e-4 * sequences;
}

TEST(PassCost, HiccupsChangeNothing) {
  RecentTypical typical;
  EXPECT_EQ(typical.value(), 0);
  for (const double sample : {4.0, 4.0, 400.0, 4.0, 400.0}) typical.add(sample);
  EXPECT_EQ(typical.value(), 4);
  for (int i = 0; i < 9; ++i) typical.add(5);
  EXPECT_EQ(typical.value(), 5);
}

TEST(PassCost, TellsRowsFromSequences) {
  PassCost cost(8);
  EXPECT_EQ(cost.near(3).seconds(3), 0);
  for (const int sequences : {1, 2, 3, 4, 6}) {
    for (const int rows_each : {1, 2, 4}) {
      const int rows = sequences * rows_each;
      for (int i = 0; i < 5; ++i) cost.add(rows, sequences, plane(rows, sequences));
    }
  }
  // The same rows of many sequences cost more than of few, and so it is beyond what was seen.
  for (const int sequences : {1, 4, 8, 16, 64}) {
    for (const int rows_each : {1, 2, 3, 4, 8}) {
      const int rows = sequences * rows_each;
      EXPECT_NEAR(cost.near(sequences).seconds(rows) / plane(rows, sequences), 1, 0.05)
          << rows << " rows of " << sequences;
    }
  }
}

TEST(PassCost, FollowsWhatIsNotLinear) {
  // Rows come in tiles of 8, and a machine is full from 32 on.
  const auto seconds = [](int rows, int sequences) {
    const double tiles = std::ceil(rows / 8.0);
    return 1e-3 + 2e-4 * tiles + (rows > 32 ? 1e-4 * (rows - 32) : 0.0) + 1e-5 * sequences;
  };
  PassCost cost(8);
  for (int round = 0; round < 9; ++round) {
    for (const int sequences : {1, 3, 7, 16, 40}) {
      for (int rows_each = 1; rows_each <= 8; ++rows_each) {
        const int rows = sequences * rows_each;
        cost.add(rows, sequences, seconds(rows, sequences));
      }
    }
  }
  for (const int sequences : {1, 3, 7, 16, 40}) {
    for (int rows_each = 1; rows_each <= 8; ++rows_each) {
      const int rows = sequences * rows_each;
      EXPECT_NEAR(cost.near(sequences).seconds(rows) / seconds(rows, sequences), 1, 0.06)
          << rows << " rows of " << sequences;
    }
  }
}

TEST(PassCost, IsNeverBelowNothing) {
  // What falls with rows and with sequences has to be something else.
  PassCost cost(8);
  for (const int sequences : {1, 2, 4, 8}) {
    for (const int rows_each : {1, 8}) {
      cost.add(sequences * rows_each, sequences, 1e-2 / (sequences * rows_each));
    }
  }
  for (const int sequences : {1, 4, 64, 100000}) {
    for (const int rows_each : {1, 8, 100}) {
      EXPECT_GT(cost.near(sequences).seconds(sequences * rows_each), 0);
    }
  }
  PassCost one(8);
  one.add(3, 1, 2e-3);
  one.add(3, 0, 1.0);  // no pass at all
  one.add(0, 1, 1.0);
  one.add(3, 1, 0.0);
  EXPECT_NEAR(one.near(1).seconds(3), 2e-3, 1e-5);
}

TEST(PromptCost, TellsChunksFromTokens) {
  PromptCost cost;
  EXPECT_TRUE(cost.empty());
  const auto seconds = [](int64_t tokens) { return 4e-3 + 2e-4 * static_cast<double>(tokens); };
  // Of one size only: all of it is the tokens'.
  for (int i = 0; i < 5; ++i) cost.add(32, seconds(32), 1e-2);
  EXPECT_NEAR(cost.seconds(32), seconds(32), 1e-5);
  EXPECT_NEAR(cost.seconds(64), 2 * seconds(32), 1e-5);
  for (const int64_t tokens : {16, 48, 64, 96, 32, 16}) cost.add(tokens, seconds(tokens), 1e-2);
  EXPECT_NEAR(cost.fixed(), 4e-3, 4e-4);
  EXPECT_NEAR(cost.price(), 2e-4, 1e-5);
  cost.add(64, 1, 1);  // a hiccup
  EXPECT_NEAR(cost.seconds(64), seconds(64), 0.05 * seconds(64));
  // Nonsense stays above nothing.
  PromptCost falling;
  falling.add(8, 1e-2, 1e-2);
  falling.add(64, 1e-3, 1e-2);
  EXPECT_GE(falling.fixed(), 0);
  EXPECT_GT(falling.price(), 0);
}

}  // namespace
}  // namespace levin::engine
