// Any bytes as the output of a model, in any pieces. The first four bytes say how it is parsed and
// where it is cut. The message must not depend on the cuts, the deltas must add up to it, and
// arguments must be JSON objects.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "text/assistant_parser.h"
#include "text/utf8.h"

namespace {

using namespace levin::text;

const ToolParameters& tools() {
  static const ToolParameters parameters(nlohmann::ordered_json::parse(R"([
      {"name": "f", "parameters": {"properties": {"s": {"type": "string"}, "i": {"type": "integer"},
       "o": {"type": "object"}, "b": {"type": ["boolean", "null"]}, "n": {"type": "number"}}}},
      {"name": "get_weather"}])"));
  return parameters;
}

AssistantFormat format_of(uint8_t choice) {
  AssistantFormat format;
  format.reasoning = (choice & 1) != 0 ? ReasoningFormat::kNone : ReasoningFormat::kNemotronV3;
  format.tool_calls = (choice & 2) != 0 ? ToolCallFormat::kNone : ToolCallFormat::kQwen3Coder;
  format.prompt = static_cast<PromptReasoning>((choice >> 2) & 3);
  if ((choice & 16) != 0) format.enable_thinking = (choice & 32) != 0;
  format.force_nonempty_content = (choice & 64) != 0;
  format.tools = tools();
  return format;
}

void require(bool condition) {
  if (!condition) std::abort();
}

void add(AssistantMessage& message, const AssistantDelta& delta) {
  require(!find_invalid_utf8(delta.reasoning) && !find_invalid_utf8(delta.content));
  message.reasoning += delta.reasoning;
  message.content += delta.content;
  for (const ToolCallDelta& call : delta.tool_calls) {
    require(!find_invalid_utf8(call.arguments));
    if (call.index == message.tool_calls.size()) {
      message.tool_calls.push_back(
          {.id = call.id, .name = call.name, .arguments = {}, .closed = false});
    }
    require(call.index + 1 == message.tool_calls.size());
    message.tool_calls.back().arguments += call.arguments;
  }
}

void require_equal(const AssistantMessage& a, const AssistantMessage& b) {
  require(a.reasoning == b.reasoning && a.content == b.content);
  require(a.tool_calls.size() == b.tool_calls.size());
  for (std::size_t i = 0; i < a.tool_calls.size(); ++i) {
    require(a.tool_calls[i].id == b.tool_calls[i].id);
    require(a.tool_calls[i].name == b.tool_calls[i].name);
    require(a.tool_calls[i].arguments == b.tool_calls[i].arguments);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const AssistantFormat format = format_of(data[0]);
  uint32_t random = data[1] + 256u * data[2] + 65536u * data[3] + 1;
  const std::string_view text(reinterpret_cast<const char*>(data) + 4, size - 4);

  AssistantParser whole(format);
  whole.push(text);
  whole.finish();
  for (const ToolCall& call : whole.message().tool_calls) {
    require(!call.name.empty());
    require(nlohmann::json::parse(call.arguments).is_object());
  }

  AssistantParser pieces(format);
  AssistantMessage sum;
  for (std::size_t at = 0; at < text.size();) {
    random = random * 1664525u + 1013904223u;
    const std::size_t length = 1 + (random >> 24) % 16;
    add(sum, pieces.push(text.substr(at, length)));
    at += length;
  }
  add(sum, pieces.finish());
  require_equal(sum, pieces.message());
  require_equal(whole.message(), pieces.message());
  require(whole.message().malformed == pieces.message().malformed);
  require(whole.message().content_from_reasoning == pieces.message().content_from_reasoning);
  return 0;
}
