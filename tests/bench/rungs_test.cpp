#include "bench/rungs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "quantize/recipe.h"
#include "support/tiny_checkpoint.h"

namespace levin::bench {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> ids(const std::vector<Rung>& rungs) {
  std::vector<std::string> result;
  for (const Rung& rung : rungs) result.push_back(rung.id);
  return result;
}

TEST(Rungs, AllInOrder) {
  EXPECT_THAT(ids(all_rungs(true, false)),
              ElementsAre("0", "1", "2", "3", "4", "5", "6", "7", "int4-g64",
                          "nvfp4-aggressive-mse", "tiny-smallest-pass"));
  EXPECT_THAT(choose_rungs(all_rungs(true, false), ""), testing::SizeIs(11));
}

TEST(Rungs, NoLabelSaysANameTwice) {
  const std::vector<Rung> rungs = all_rungs(true, false);
  EXPECT_EQ(label(rungs[3]), "3 w4a4");
  EXPECT_EQ(label(rungs[8]), "int4-g64");
}

TEST(Rungs, OnlyTheFusedRungIsOutOfReachWithAHead) {
  for (const Rung& rung : all_rungs(true, false)) EXPECT_EQ(rung.skipped.empty(), rung.id != "7");
  for (const Rung& rung : all_rungs(true, true)) {
    EXPECT_EQ(rung.skipped, "");
    EXPECT_EQ(rung.device_rounds, rung.id == "7");
  }
}

TEST(Rungs, WithoutAHeadNothingSpeculates) {
  for (const bool device : {false, true}) {
    for (const Rung& rung : all_rungs(false, device)) EXPECT_EQ(rung.skipped.empty(), rung.k == 0);
  }
}

TEST(Rungs, BaselineIsAlwaysFirst) {
  const auto all = all_rungs(true, false);
  EXPECT_THAT(ids(choose_rungs(all, "3,1")), ElementsAre("0", "3", "1"));
  EXPECT_THAT(ids(choose_rungs(all, "3,0")), ElementsAre("0", "3"));
  EXPECT_THAT(ids(choose_rungs(all, "0")), ElementsAre("0"));
  EXPECT_THAT(ids(choose_rungs(all, "int4-g64")), ElementsAre("0", "int4-g64"));
}

TEST(Rungs, OtherWordsAreRecipes) {
  const auto chosen = choose_rungs(all_rungs(true, false), "fp8,mine/best.yaml");
  ASSERT_EQ(chosen.size(), 3u);
  EXPECT_EQ(chosen[1].recipe, "fp8");
  EXPECT_EQ(chosen[2].recipe, "mine/best.yaml");
  EXPECT_EQ(chosen[2].title, "best");
}

TEST(Rungs, RecipesAreAllShippedOnesOnce) {
  const auto chosen = choose_rungs(all_rungs(true, false), "recipes");
  ASSERT_EQ(chosen.size(), 1 + quantize::shipped_recipes().size());
  EXPECT_EQ(chosen[0].id, "0");
  for (std::size_t i = 1; i < chosen.size(); ++i) {
    EXPECT_EQ(chosen[i].recipe, quantize::shipped_recipes()[i - 1]);
    EXPECT_EQ(chosen[i].k, 0);
  }
  const auto more = choose_rungs(all_rungs(true, false), "int4-g64,mine.yaml,recipes");
  EXPECT_EQ(more.size(), chosen.size() + 1);
  EXPECT_EQ(more[1].id, "int4-g64");
}

TEST(Rungs, RefusesNonsense) {
  const auto all = all_rungs(true, false);
  for (const char* list : {"12", "1,,2", ",", "1,1", "0,0", "1,"}) {
    EXPECT_THROW(choose_rungs(all, list), Error) << list;
  }
}

TEST(Rungs, UnknownOnesListTheLegalOnes) {
  for (const char* word : {"99", "w4a5"}) {
    const Error error = test::error_of([&] { choose_rungs(all_rungs(true, false), word); });
    EXPECT_THAT(error.what(), AllOf(HasSubstr(word), HasSubstr("0, 1, 2, 3, 4, 5, 6, 7"),
                                    HasSubstr("w4a4-full"), HasSubstr("recipes")));
  }
}

}  // namespace
}  // namespace levin::bench
