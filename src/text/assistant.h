// What an assistant turn consists of once the generated text has been taken apart.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace levin::text {

struct ToolCall {
  std::string id;         // "call_" and 24 hexadecimal digits
  std::string name;       // as the model wrote it, which need not be a tool of the request
  std::string arguments;  // always a JSON object
  // False when the output ended, or the next call began, before the call was closed: the last
  // argument may be cut short.
  bool closed = false;
};

// All text is valid UTF-8. Empty reasoning or content stands for null.
struct AssistantMessage {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> tool_calls;
  // The content is a copy of the reasoning, because the request asked for content and the model
  // gave none. A response that is not streamed leaves the reasoning out then, as vLLM does.
  bool content_from_reasoning = false;
  // Places where the markup of a tool call was not as it should be: text that was dropped or closed
  // tags that were supplied. For the log.
  int malformed = 0;
};

// What an AssistantMessage has gained. `id` and `name` come with the first delta of a call only.
struct ToolCallDelta {
  std::size_t index = 0;
  std::string id;
  std::string name;
  std::string arguments;
};

struct AssistantDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallDelta> tool_calls;
  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

}  // namespace levin::text
