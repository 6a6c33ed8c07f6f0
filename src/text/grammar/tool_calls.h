// Forced tool calls, in the text form of qwen3_coder (assistant_parser.h reads it):
//
//    <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n...</function>\n</tool_call>
//
// Parameters come in the order of their schema, those not required may be left out. A value is such
// that the parser, which types it by the schema, gets a value that satisfies the schema: strings
// stand as they are, booleans also as True and False, null also as None, objects and arrays as JSON
// without '<' in it. Refused, besides what json_schema.h refuses: a parameter that may be a string
// or something else that has constraints, since the text does not say which of them it is; names
// and constants that the markup cannot hold; additionalProperties other than true, false or any
// string.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "text/grammar/json_rules.h"

namespace levin::text::grammar {

struct ToolChoice {
  std::string name = {};  // the tool to call; empty: any
  bool parallel = true;   // more than one call
};

// Consumes a call, or several. The state behind them. `tools` as for ToolParameters. Throws Error
// for what is refused, and when no tool has the name. `rules` spell kJsonInTags.
State consume_tool_calls(AutomatonBuilder& builder, JsonRules& rules, State from,
                         const nlohmann::ordered_json& tools, const ToolChoice& choice);

}  // namespace levin::text::grammar
