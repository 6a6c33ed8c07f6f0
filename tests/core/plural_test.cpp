#include "core/plural.h"

#include <gtest/gtest.h>

namespace levin {
namespace {

TEST(Plural, NounFollowsItsNumber) {
  EXPECT_EQ(counted(int64_t{0}, "round"), "0 rounds");
  EXPECT_EQ(counted(int64_t{1}, "round"), "1 round");
  EXPECT_EQ(counted(std::size_t{2}, "round"), "2 rounds");
  EXPECT_EQ(counted(int64_t{1}, "matrix", "matrices"), "1 matrix");
  EXPECT_EQ(counted(int64_t{12}, "matrix", "matrices"), "12 matrices");
}

}  // namespace
}  // namespace levin
