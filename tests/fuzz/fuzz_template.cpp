// Parses the input as a chat template and renders it. Behind a zero byte the input may go on with
// the template's variables as JSON; otherwise it gets a small conversation.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"
#include "text/chat_template.h"
#include "text/utf8.h"

namespace {

nlohmann::ordered_json conversation() {
  return nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": "Be brief."},
                 {"role": "user", "content": "Hi <b>\u00e9\u4e16"},
                 {"role": "assistant", "content": null, "reasoning_content": "hm",
                  "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": [true]}}}]},
                 {"role": "tool", "content": "42"}],
    "tools": [{"function": {"name": "f", "description": " d ", "parameters": {
                "properties": {"a": {"type": "integer", "enum": [1, 2.5]}}, "required": ["a"]}}}],
    "add_generation_prompt": true, "enable_thinking": false, "n": -7, "x": 2.5, "s": "a b"})");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  nlohmann::ordered_json variables = conversation();
  if (zero != std::string_view::npos) {
    auto given = nlohmann::ordered_json::parse(input.substr(zero + 1), nullptr, false);
    if (!given.is_discarded()) variables = std::move(given);
  }
  try {
    const auto chat = levin::text::ChatTemplate::parse(input.substr(0, zero), "fuzz");
    const std::string text = chat.render(variables);
    if (levin::text::find_invalid_utf8(text)) __builtin_trap();
  } catch (const levin::Error&) {
    // Refusing is right; crashing, hanging and other exceptions are not.
  }
  return 0;
}
