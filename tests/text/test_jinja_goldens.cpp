// Templates and what Python's Jinja2 makes of them (tools/make_jinja_goldens.py), and the goldens
// of the bundled model's own template.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "core/files.h"
#include "text/chat_template.h"

namespace levin::text {
namespace {

using nlohmann::ordered_json;

const std::filesystem::path kData = std::filesystem::path(LEVIN_SOURCE_DIR) / "tests/data";

ordered_json read_ordered(const std::filesystem::path& path) {
  return ordered_json::parse(read_text(path));
}

// The rendering, or "fails: ..." with the message.
std::string render(const std::string& source, const ordered_json& variables) {
  try {
    return ChatTemplate::parse(source, "case").render(variables);
  } catch (const Error& error) {
    return std::string("fails: ") + error.what();
  }
}

void check(const ordered_json& golden, const std::string& source, const ordered_json& variables) {
  const std::string name = golden["name"];
  const std::string got = render(source, variables);
  if (golden.contains("expected")) {
    EXPECT_EQ(got, golden["expected"].get<std::string>()) << name;
  } else {
    EXPECT_TRUE(got.starts_with("fails: ")) << name << "\nrendered as: " << got;
  }
}

TEST(JinjaGoldens, RendersAsPython) {
  const ordered_json document = read_ordered(kData / "text/jinja_cases.json");
  ASSERT_GT(document["cases"].size(), 900U);
  for (const auto& golden : document["cases"]) {
    check(golden, golden["template"], golden.value("variables", document["variables"]));
  }
}

TEST(JinjaGoldens, RendersConversationsAsPython) {
  const ordered_json document = read_ordered(kData / "text/jinja_cases.json");
  ASSERT_EQ(document["conversations"].size(), 20U);
  for (const auto& golden : document["conversations"]) {
    const std::string file = golden["file"];
    check(golden, read_text(kData / "text/templates" / file), golden["variables"]);
  }
}

TEST(JinjaGoldens, RendersTheBundledTemplate) {
  const ChatTemplate chat =
      ChatTemplate::load(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny");
  const ordered_json goldens = read_ordered(kData / "goldens/chat_template_goldens.json");
  ASSERT_EQ(goldens.size(), 11U);
  for (const auto& golden : goldens) {
    ordered_json variables = golden;
    variables.erase("rendered");
    variables.erase("ids");
    EXPECT_EQ(chat.render(variables), golden["rendered"].get<std::string>());
  }
}

}  // namespace
}  // namespace levin::text
