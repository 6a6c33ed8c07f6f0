// What an output may be, as something that can be followed token by token (matcher.h). Compiled
// once for a request, never changed, shared by whoever needs it.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "text/grammar/automaton.h"
#include "text/grammar/tool_calls.h"

namespace levin::text::grammar {

// Text in front of what the grammar is about: reasoning, which ends with `until`.
struct FreePrefix {
  std::string until = {};               // "</think>"; empty: there is none
  std::vector<std::string> never = {};  // must not occur in it: "<tool_call>"
};

class Grammar {
 public:
  // Any JSON object.
  static std::shared_ptr<const Grammar> json_object(const FreePrefix& prefix = {});
  // Documents that satisfy `schema`. json_schema.h says what is understood; the rest is an Error
  // naming the keyword and its JSON pointer. `where` goes in front of the pointer.
  static std::shared_ptr<const Grammar> json_schema(const nlohmann::ordered_json& schema,
                                                    const FreePrefix& prefix = {},
                                                    const std::string& where = "schema");
  // One or more calls of the tools (tool_choice required, or a named one).
  static std::shared_ptr<const Grammar> tool_calls(const nlohmann::ordered_json& tools,
                                                   const ToolChoice& choice,
                                                   const FreePrefix& prefix = {});

  explicit Grammar(Automaton automaton) : automaton_(std::move(automaton)) {}
  const Automaton& automaton() const { return automaton_; }

 private:
  Automaton automaton_;
};

}  // namespace levin::text::grammar
