// How a model marks its reasoning, and where in it a prompt ends.
#pragma once

#include <cstdint>
#include <string_view>

namespace levin::text {

// kNemotronV3: vLLM's --reasoning-parser of that name. Reasoning stands between <think> and
// </think>; the prompt usually opens it already.
enum class ReasoningFormat : uint8_t { kNone, kNemotronV3 };

// The value of --reasoning-parser: "nemotron_v3" or "none". Throws Error naming these for others.
ReasoningFormat parse_reasoning_format(std::string_view name);

// What the prompt leaves behind: an open <think>, a closed one, or no tag in the turn that the
// model goes on with. kUnknown when nobody has looked.
enum class PromptReasoning : uint8_t { kUnknown, kOpen, kClosed, kAbsent };

// Looks at the last turn of a rendered prompt ("<|im_start|>assistant ..."), or at the whole prompt
// when it has no such turn. Tags in earlier turns, which users can write, do not count.
PromptReasoning reasoning_of_prompt(std::string_view prompt);

}  // namespace levin::text
