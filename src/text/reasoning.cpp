#include "text/reasoning.h"

#include <fmt/format.h>

#include "core/error.h"

namespace levin::text {

ReasoningFormat parse_reasoning_format(std::string_view name) {
  if (name == "nemotron_v3") return ReasoningFormat::kNemotronV3;
  if (name == "none") return ReasoningFormat::kNone;
  throw Error({.what = "unknown reasoning parser",
               .where = "--reasoning-parser",
               .expected = "nemotron_v3 or none",
               .found = fmt::format("\"{}\"", name.substr(0, 100)),
               .hint = {}});
}

PromptReasoning reasoning_of_prompt(std::string_view prompt) {
  const std::size_t turn = prompt.rfind("<|im_start|>assistant");
  if (turn != prompt.npos) prompt.remove_prefix(turn);
  const std::size_t open = prompt.rfind("<think>");
  const std::size_t close = prompt.rfind("</think>");
  if (open == prompt.npos && close == prompt.npos) return PromptReasoning::kAbsent;
  if (close == prompt.npos) return PromptReasoning::kOpen;
  if (open == prompt.npos) return PromptReasoning::kClosed;
  return open > close ? PromptReasoning::kOpen : PromptReasoning::kClosed;
}

}  // namespace levin::text
