#include "core/space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "support/tiny_checkpoint.h"

namespace levin {
namespace {

using testing::HasSubstr;

TEST(Space, MissingIsToldBeforeTheWork) {
  const test::TempFolder folder;
  const std::filesystem::path path = folder / "not/there/yet";
  EXPECT_NO_THROW(require_space(path, kResultBytes));
  EXPECT_NO_THROW(require_space("not-there-yet", 1));
  const Error error = test::error_of([&] { require_space(path, uint64_t{1} << 60); });
  EXPECT_EQ(error.exit_code(), ExitCode::kMachine);
  EXPECT_EQ(error.parts().where, path.string());
  EXPECT_THAT(error.parts().expected, HasSubstr("1152921504606.8 MB"));
  EXPECT_THAT(error.parts().found, HasSubstr(" MB free"));
}

}  // namespace
}  // namespace levin
