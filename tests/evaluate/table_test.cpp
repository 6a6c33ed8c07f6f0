#include "evaluate/table.h"

#include <gtest/gtest.h>

namespace levin::evaluate {
namespace {

TEST(Table, AlignsColumns) {
  Table table({"name", "value", "more"});
  EXPECT_TRUE(table.empty());
  table.add_row({"a", "1.5"});
  table.add_rule();
  table.add_row({"longer", "10.25", "x"});
  EXPECT_FALSE(table.empty());
  EXPECT_EQ(table.to_string(),
            "name    value  more\n"
            "a         1.5\n"
            "-------------------\n"
            "longer  10.25     x\n");
}

TEST(Table, CountsCharactersNotBytes) {
  Table table({"µ", "b"});
  table.add_row({"ab", "±1"});
  EXPECT_EQ(table.to_string(), "µ    b\nab  ±1\n");
}

}  // namespace
}  // namespace levin::evaluate
