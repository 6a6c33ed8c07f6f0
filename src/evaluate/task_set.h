// Tasks with one right answer each, as JSONL. A line holds
//   id, task              strings; the id is unique over all files
//   messages              the turns, as for the chat template
//   tools                 list or null
//   enable_thinking       true or false; default true
//   expected_completion   all text that the model must produce, the end-of-turn token included
// and may hold answer, tool_calls, reasoning and prompt_tokens, which describe it. Any other key is
// an error, since it may be a misspelled one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace levin::evaluate {

struct TaskItem {
  std::string id;
  std::string task;
  bool thinking = true;
  std::string where;                  // file:line
  std::string expected;               // expected_completion
  std::vector<int32_t> prompt_ids;    // rendered with the generation prompt, tokenized
  std::vector<int32_t> expected_ids;  // tokenized
};

// Files as they are, folders as the *.jsonl files in them by name. Throws Error when a path does
// not exist or a folder holds none.
std::vector<std::filesystem::path> task_files(std::span<const std::filesystem::path> paths);

// How many items each task has in the files.
using TaskSizes = std::map<std::string, int64_t>;

// The first `limit` items (0: all) of every task in the files, rendered and tokenized; `sizes` gets
// what a limit left out, too. Throws Error with file and line for anything malformed, duplicate
// ids, and messages that the template refuses.
std::vector<TaskItem> load_tasks(std::span<const std::filesystem::path> files,
                                 const text::Tokenizer& tokenizer,
                                 const text::ChatTemplate& chat_template, int64_t limit,
                                 TaskSizes* sizes = nullptr);

}  // namespace levin::evaluate
