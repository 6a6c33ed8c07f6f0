#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "core/files.h"
#include "support/tiny_checkpoint.h"
#include "text/byte_level.h"
#include "text/jinja/format.h"
#include "text/jinja/text_algorithms.h"
#include "text/tiny_tokenizer.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace levin::text {
namespace {

TEST(Unicode, DoesWhatPythonDoes) {
  const nlohmann::json cases = read_json(test_data() / "text/unicode_cases.json");
  ASSERT_EQ(cases.size(), 240U);
  for (const auto& golden : cases) {
    const std::string text = golden["text"];
    EXPECT_EQ(to_upper(text), golden["upper"].get<std::string>()) << text;
    EXPECT_EQ(to_lower(text), golden["lower"].get<std::string>()) << text;
    EXPECT_EQ(jinja::title(text), golden["title"].get<std::string>()) << text;
    EXPECT_EQ(jinja::capitalize(text), golden["capitalize"].get<std::string>()) << text;
    EXPECT_EQ(to_nfc(text), golden["nfc"].get<std::string>()) << text;
    EXPECT_EQ(jinja::strip(text, std::nullopt), golden["strip"].get<std::string>()) << text;
    const Interrupt none;
    jinja::Budget budget(none);
    const jinja::Value list = jinja::make_list({text}, budget);
    EXPECT_EQ(jinja::to_text(list, budget), golden["repr"].get<std::string>()) << text;
  }
}

TEST(Utf8, WhatIsNotNamesSourceAndLine) {
  EXPECT_NO_THROW(require_utf8("h\u00e9\n", "a.txt"));
  const Error lines = test::error_of([] { require_utf8("one\ntwo\xc3", "a.txt"); });
  EXPECT_EQ(lines.parts().where, "a.txt:2");
  EXPECT_EQ(lines.parts().found, "byte 0xc3 at offset 7");
  EXPECT_EQ(test::error_of([] { require_utf8("\xff", "--prompt"); }).parts().where, "--prompt");
}

TEST(Unicode, NormalizesOnce) {
  for (const char* text : {"e\u0301", "\u1100\u1161\u11A8", "a\u0323\u0307", "\u212B", "\u0344"}) {
    const std::string once = to_nfc(text);
    EXPECT_NE(once, text);
    EXPECT_EQ(to_nfc(once), once);
  }
  EXPECT_EQ(to_nfc("plain"), "plain");
  EXPECT_EQ(to_nfc(""), "");
}

TEST(Unicode, KnowsBothWhiteSpaces) {
  EXPECT_TRUE(is_python_space(0x1C));
  EXPECT_FALSE(is_white_space(0x1C));
  EXPECT_FALSE(is_white_space(0x180E));
  EXPECT_TRUE(is_white_space(0x3000));
}

TEST(Utf8, WritesWhatItReads) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Step step = decode_utf8(text, 0);
    ASSERT_EQ(step.value, c);
    ASSERT_EQ(step.length, text.size());
    ASSERT_EQ(step.status, Utf8Status::kValid);
  }
}

TEST(Utf8, FindsTheFirstBadByte) {
  EXPECT_EQ(find_invalid_utf8("abc"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("abcdefghijklmnop\x80"), 16U);
  EXPECT_EQ(find_invalid_utf8("é\xC3"), 2U);
  EXPECT_EQ(find_invalid_utf8(std::string_view("\0\0", 2)), std::nullopt);
}

// Examples of the Unicode standard, section 3.9 (table 3-8 and after).
TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string bad = "\uFFFD";
  EXPECT_EQ(to_valid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            bad + bad + bad + bad + bad + bad + bad + bad + "A");
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            bad + bad + bad + bad + bad + bad + bad + bad + "A");
  EXPECT_EQ(to_valid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), bad + bad + bad + bad + "A");
  EXPECT_EQ(to_valid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            bad + bad + bad + bad + bad + "A" + bad + bad + "B");
}

TEST(ByteLevel, SpellsEveryByteOnce) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    append_utf8(spelling, byte_to_character(static_cast<uint8_t>(byte)));
    EXPECT_EQ(bytes_from_spelling(spelling), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(bytes_from_spelling("Ġthe"), " the");
  EXPECT_EQ(bytes_from_spelling(" the"), std::nullopt);
  EXPECT_EQ(bytes_from_spelling("世"), std::nullopt);
}

}  // namespace
}  // namespace levin::text
