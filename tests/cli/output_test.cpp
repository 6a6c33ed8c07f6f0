// What goes to a terminal must not steer it.
#include "cli/output.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/logging.h"
#include "core/error.h"

namespace levin::cli {
namespace {

const std::string kHostile = "a\x1b[31m\x7f\xc2\x80\xc2\x9b\xc2\x9f\xc2\xa0\xc3\x9b\tz";

bool steers(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto before = static_cast<unsigned char>(i > 0 ? text[i - 1] : 0);
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) return true;
    if (before == 0xc2 && byte < 0xa0) return true;
  }
  return false;
}

TEST(Output, JsonHoldsNoControlCharacters) {
  const nlohmann::ordered_json json = {{"text", kHostile}, {kHostile, 1}};
  for (const int indent : {2, -1}) {
    ::testing::internal::CaptureStdout();
    print_json(json, indent);
    const std::string printed = ::testing::internal::GetCapturedStdout();
    EXPECT_FALSE(steers(printed)) << printed;
    EXPECT_EQ(nlohmann::ordered_json::parse(printed), json);
  }
}

void fail() {
  throw Error({.what = "the disk is full", .where = {}, .expected = {}, .found = {}, .hint = {}});
}

TEST(Output, IsPrintedEvenWhereItCannotBeWritten) {
  bool printed = false;
  EXPECT_THROW(write_and_print(fail, [&] { printed = true; }), Error);
  EXPECT_TRUE(printed);
}

TEST(Output, IsWrittenEvenWhereItCannotBePrinted) {
  bool written = false;
  EXPECT_THROW(write_and_print([&] { written = true; }, fail), Error);
  EXPECT_TRUE(written);
}

TEST(Output, LogHoldsNoControlCharacters) {
  std::ostringstream out;
  spdlog::logger logger("test", std::make_shared<spdlog::sinks::ostream_sink_st>(out));
  logger.set_formatter(make_log_formatter());
  logger.warn("no file {}\n  hint: none, ö", kHostile);
  EXPECT_FALSE(steers(out.str())) << out.str();
  EXPECT_NE(out.str().find(" warning no file a\\x1b[31m\\x7f\\x80\\x9b\\x9f"), std::string::npos);
  EXPECT_NE(out.str().find("\n  hint: none, ö"), std::string::npos);
}

}  // namespace
}  // namespace levin::cli
