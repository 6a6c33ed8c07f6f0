// Each field of the APIs against a live server, as tests/serve/conformance.json lists them; and the
// table of docs/serve_conformance.md, which must say the same.
#include <map>

#include "core/files.h"
#include "live_server.h"
#include "serve/api/generation_request.h"

namespace levin::serve::testing {
namespace {

std::filesystem::path source(const char* path) {
  return std::filesystem::path(LEVIN_SOURCE_DIR) / path;
}

Json conformance() {
  return parse_ordered_json(read_text(source("tests/serve/conformance.json")), "conformance.json");
}

void check(const LiveServer& server, const Json& row, Json body) {
  const std::string route = row["route"];
  const std::string field = row["field"];
  SCOPED_TRACE(route + " " + field);
  body.update(row["set"]);
  const Answer answer = server.post(route, body);
  EXPECT_EQ(answer.header("X-Levin-Unknown-Fields"), "");
  if (row["support"] == "refused") {
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_NE(answer.body.find(field + " is not supported"), std::string::npos) << answer.body;
    return;
  }
  ASSERT_EQ(answer.status, 200) << answer.body;
  for (const auto& [pointer, value] : row["expect"].items()) {
    if (pointer == "[DONE]") {
      EXPECT_EQ(answer.events().back(), "[DONE]");
      continue;
    }
    const Json json = answer.json();
    const Json::json_pointer place(pointer);
    ASSERT_TRUE(json.contains(place)) << pointer << " in " << answer.body;
    EXPECT_EQ(json[place], value) << pointer;
  }
}

TEST(Conformance, EveryFieldDoesWhatTheTableSays) {
  const auto engine = load_tiny();
  const LiveServer server(*engine);
  const Json data = conformance();
  for (const Json& row : data["rows"]) check(server, row, data["base"][row["route"]]);
}

TEST(Conformance, TheTableHasEveryFieldThatIsKnown) {
  const Json data = conformance();
  std::map<std::string, Json> rows;
  for (const Json& row : data["rows"]) {
    const std::string name =
        fmt::format("{} {}", row["route"].get<std::string>(), row["field"].get<std::string>());
    EXPECT_TRUE(rows.emplace(name, row["support"]).second) << name << " is there twice";
  }
  std::size_t known = 0;
  for (const auto& [route, fields] : {std::pair{"/v1/chat/completions", api::chat_fields()},
                                      std::pair{"/v1/completions", api::completion_fields()},
                                      std::pair{"/v1/responses", api::responses_fields()},
                                      std::pair{"/v1/messages", api::messages_fields()}}) {
    for (const api::Field& field : fields) {
      const char* support = field.support == api::Support::kDone       ? "done"
                            : field.support == api::Support::kNoEffect ? "no effect"
                                                                       : "refused";
      EXPECT_EQ(rows[fmt::format("{} {}", route, field.name)], support) << route << field.name;
      ++known;
    }
  }
  EXPECT_EQ(rows.size(), known) << "a row is of a field that nobody knows";
}

TEST(Conformance, TheTableInTheDocumentationIsThatOfTheData) {
  std::string table = "| route | field | support |\n|---|---|---|\n";
  const Json data = conformance();
  for (const Json& row : data["rows"]) {
    table += fmt::format("| `{}` | `{}` | {} |\n", row["route"].get<std::string>(),
                         row["field"].get<std::string>(), row["support"].get<std::string>());
  }
  const std::string page = read_text(source("docs/serve_conformance.md"));
  EXPECT_TRUE(page.ends_with(table)) << "the table should be\n" << table;
}

}  // namespace
}  // namespace levin::serve::testing
