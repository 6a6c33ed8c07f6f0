#include "evaluate/task_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/names.h"
#include "core/error.h"
#include "evaluate/json_lines.h"
#include "text/conversation.h"

namespace levin::evaluate {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kKeys[] = {
    "id",     "task",       "messages",  "tools",        "enable_thinking", "expected_completion",
    "answer", "tool_calls", "reasoning", "prompt_tokens"};

[[noreturn]] void fail(const std::string& what, const std::string& where, std::string expected,
                       std::string found) {
  throw Error({.what = what,
               .where = where,
               .expected = std::move(expected),
               .found = std::move(found),
               .hint = {}});
}

const Json& member(const Json& object, const char* key, const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) fail(fmt::format("task item has no \"{}\"", key), where, {}, {});
  return *found;
}

std::string text_of(const Json& object, const char* key, const std::string& where) {
  const Json& value = member(object, key, where);
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    fail(fmt::format("\"{}\" is not a text", key), where, "a string that is not empty",
         value.dump().substr(0, 60));
  }
  return value.get<std::string>();
}

// Tasks head the rows of tables.
std::string task_of(const Json& object, const std::string& where) {
  std::string task = text_of(object, "task", where);
  if (checkpoint::printable(task) != task) {
    fail("\"task\" is no name for a row of a table", where,
         "a short text of one line, without control characters", checkpoint::printable(task));
  }
  return task;
}

bool thinking_of(const Json& object, const std::string& where) {
  const auto found = object.find("enable_thinking");
  if (found == object.end()) return true;
  if (!found->is_boolean()) {
    fail("\"enable_thinking\" is not true or false", where, "true or false", found->dump());
  }
  return found->get<bool>();
}

void check_keys(const Json& object, const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys)) {
      fail("unknown key in task item", where, fmt::format("{}", fmt::join(kKeys, ", ")), key);
    }
  }
}

// The template's context. Absent and null tools are the same: none.
Json template_variables(const Json& object, bool thinking, const std::string& where) {
  Json messages = member(object, "messages", where);
  text::normalize_messages(messages, where);
  Json variables = {{"messages", std::move(messages)},
                    {"add_generation_prompt", true},
                    {"enable_thinking", thinking}};
  const auto tools = object.find("tools");
  if (tools != object.end() && !tools->is_null()) {
    if (!tools->is_array()) {
      fail("\"tools\" is not a list", where, "a list or null", tools->dump().substr(0, 60));
    }
    variables["tools"] = *tools;
  } else {
    variables["tools"] = nullptr;
  }
  return variables;
}

// Adds the line to an error of the template or the tokenizer.
template <typename Function>
auto at(const std::string& where, Function&& function) {
  try {
    return function();
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    parts.where = parts.where.empty() ? where : fmt::format("{} ({})", where, parts.where);
    throw Error(std::move(parts));
  }
}

}  // namespace

std::vector<fs::path> task_files(std::span<const fs::path> paths) {
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    if (!fs::is_directory(path)) {
      if (!fs::exists(path)) fail("no such file or folder", path.string(), {}, {});
      files.push_back(path);
      continue;
    }
    const std::size_t before = files.size();
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
    }
    if (files.size() == before) fail("folder holds no tasks", path.string(), "*.jsonl files", {});
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());
  }
  return files;
}

std::vector<TaskItem> load_tasks(std::span<const fs::path> files, const text::Tokenizer& tokenizer,
                                 const text::ChatTemplate& chat_template, int64_t limit,
                                 TaskSizes* sizes) {
  std::vector<TaskItem> items;
  std::set<std::string> ids;
  TaskSizes seen;
  for (const fs::path& file : files) {
    for_each_json_line(file, [&](const Json& object, const std::string& where) {
      check_keys(object, where);
      TaskItem item{.id = text_of(object, "id", where),
                    .task = task_of(object, where),
                    .thinking = thinking_of(object, where),
                    .where = where,
                    .expected = text_of(object, "expected_completion", where),
                    .prompt_ids = {},
                    .expected_ids = {}};
      const Json variables = template_variables(object, item.thinking, where);
      if (!ids.insert(item.id).second) fail("two task items have the same id", where, {}, item.id);
      if (++seen[item.task] > limit && limit > 0) return;
      item.prompt_ids =
          at(where, [&] { return tokenizer.encode(chat_template.render(variables)); });
      item.expected_ids = at(where, [&] { return tokenizer.encode(item.expected); });
      items.push_back(std::move(item));
    });
  }
  if (sizes != nullptr) *sizes = std::move(seen);
  return items;
}

}  // namespace levin::evaluate
