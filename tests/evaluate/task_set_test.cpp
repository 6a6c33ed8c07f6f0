#include "evaluate/task_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"
#include "evaluate/repetition.h"
#include "temporary_file.h"

namespace levin::evaluate {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::filesystem::path kModel = LEVIN_SOURCE_DIR "/models/tiny";
const std::filesystem::path kTasks = LEVIN_SOURCE_DIR "/evals/tiny/tasks";
constexpr const char* kGood =
    R"({"id": "a-0", "task": "a", "messages": [{"role": "user", "content": "Hi"}], "tools": null, )"
    R"("enable_thinking": false, "expected_completion": "Hello<|im_end|>"})";

class TaskSetTest : public testing::Test {
 protected:
  std::vector<TaskItem> load(const std::filesystem::path& file, int64_t limit = 0) const {
    const std::vector<std::filesystem::path> files = {file};
    return load_tasks(files, tokenizer_, chat_template_, limit);
  }
  std::string refusal(std::string_view content) const {
    const TemporaryFile file("tasks.jsonl", content);
    try {
      load(file.path());
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), ExitCode::kBadInput);
      return error.what();
    }
    return "accepted";
  }
  // kGood with one key replaced by `value` (JSON), or removed when `value` is empty.
  static std::string with(const std::string& key, const std::string& value) {
    auto object = nlohmann::ordered_json::parse(kGood);
    if (value.empty()) {
      object.erase(key);
    } else {
      object[key] = nlohmann::ordered_json::parse(value);
    }
    return object.dump();
  }

  text::Tokenizer tokenizer_ = text::Tokenizer::load(kModel);
  text::ChatTemplate chat_template_ = text::ChatTemplate::load(kModel);
};

TEST_F(TaskSetTest, ShippedTasksTokenizeAsTheirAuthorsDid) {
  const std::vector<std::filesystem::path> folder = {kTasks};
  const auto files = task_files(folder);
  EXPECT_EQ(files.size(), 11u);
  std::size_t count = 0;
  for (const auto& file : files) {
    const std::vector<TaskItem> items = load(file);
    std::ifstream lines(file);
    std::string line;
    for (const TaskItem& item : items) {
      ASSERT_TRUE(std::getline(lines, line));
      const auto object = nlohmann::json::parse(line);
      EXPECT_EQ(item.prompt_ids.size(), object.at("prompt_tokens").get<std::size_t>()) << item.id;
      EXPECT_EQ(item.thinking, object.at("enable_thinking").get<bool>());
      EXPECT_EQ(tokenizer_.decode(item.expected_ids), item.expected);
      EXPECT_FALSE(find_repetition_loop(item.expected_ids)) << item.id;
      ++count;
    }
  }
  EXPECT_EQ(count, 11u * 150);
}

TEST_F(TaskSetTest, LimitIsPerTask) {
  const auto items = load(kTasks / "add.jsonl", 7);
  ASSERT_EQ(items.size(), 7u);
  EXPECT_EQ(items[6].id, "add-6");
  EXPECT_THAT(items[6].where, HasSubstr("add.jsonl:7"));
}

TEST_F(TaskSetTest, ThinkingIsOnUnlessSaidOtherwise) {
  const TemporaryFile file("tasks.jsonl", with("enable_thinking", ""));
  EXPECT_TRUE(load(file.path())[0].thinking);
}

TEST_F(TaskSetTest, RefusesWithFileAndLine) {
  const std::string good = std::string(kGood) + "\n";
  EXPECT_EQ(refusal(good), "accepted");
  EXPECT_THAT(refusal(good + "nonsense"), AllOf(HasSubstr("tasks.jsonl:2"), HasSubstr("JSON")));
  EXPECT_THAT(refusal(good + good), AllOf(HasSubstr("tasks.jsonl:2"), HasSubstr("same id")));
  EXPECT_THAT(refusal(with("enable_thinkng", "true")),
              AllOf(HasSubstr("tasks.jsonl:1"), HasSubstr("enable_thinkng")));
  EXPECT_THAT(refusal("{\"id\": \"\xff\"}"), HasSubstr("not UTF-8"));
  for (const char* key : {"id", "task", "messages", "expected_completion"}) {
    EXPECT_THAT(refusal(with(key, "")), HasSubstr(key)) << key;
    EXPECT_THAT(refusal(with(key, "7")), HasSubstr(key)) << key;
    EXPECT_THAT(refusal(with(key, "null")), HasSubstr(key)) << key;
  }
  for (const std::string& name :
       {std::string("a\\u001b[31m"), std::string("a\\nb"), std::string(999, 'x')}) {
    EXPECT_THAT(refusal(with("task", "\"" + name + "\"")), HasSubstr("row of a table"));
  }
  EXPECT_THAT(refusal(with("messages", "[]")), HasSubstr("messages"));
  EXPECT_THAT(refusal(with("tools", "{}")), HasSubstr("tools"));
  EXPECT_THAT(refusal(with("enable_thinking", "\"yes\"")), HasSubstr("enable_thinking"));
  EXPECT_THAT(refusal(""), HasSubstr("no JSON object"));
}

TEST_F(TaskSetTest, RefusesMissingPathsAndEmptyFolders) {
  const std::vector<std::filesystem::path> missing = {"/nonexistent/tasks"};
  EXPECT_THROW(task_files(missing), Error);
  const auto folder = std::filesystem::path(testing::TempDir()) / "levin_no_tasks";
  std::filesystem::create_directories(folder);
  const std::vector<std::filesystem::path> empty = {folder};
  EXPECT_THROW(task_files(empty), Error);
}

// Whatever a damaged line holds, it is read or refused by name; nothing else happens.
TEST_F(TaskSetTest, DamagedLinesAreRefusedNotCrashedOn) {
  std::ifstream file(kTasks / "tool_answer.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  std::mt19937 random(1);
  std::uniform_int_distribution<int> byte(0, 255);
  int refused = 0;
  for (int trial = 0; trial < 300; ++trial) {
    std::string damaged = line;
    for (int i = 0; i <= trial % 4; ++i) {
      const std::size_t at = random() % damaged.size();
      if (random() % 2 == 0) {
        damaged[at] = static_cast<char>(byte(random));
      } else {
        damaged.erase(at, 1 + random() % 20);
      }
    }
    refused += refusal(damaged) != "accepted";
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace levin::evaluate
