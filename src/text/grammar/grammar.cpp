#include "text/grammar/grammar.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/text_until.h"

namespace levin::text::grammar {
namespace {

void check_prefix(const FreePrefix& prefix) {
  const auto usable = [](const std::string& text) {
    return text.starts_with('<') && text.size() <= 100 &&
           std::ranges::all_of(text, [](char c) { return c > 0; });
  };
  bool good = usable(prefix.until);
  for (const std::string& text : prefix.never) good = good && usable(text);
  if (good) return;
  throw Error({.what = "markers around reasoning are not usable",
               .where = {},
               .expected = "ASCII texts that begin with <",
               .found = {},
               .hint = {}});
}

// prefix, white space, then what `consume_document` consumes.
template <typename Consume>
std::shared_ptr<const Grammar> compile(const FreePrefix& prefix, Spelling spelling,
                                       Consume&& consume_document) {
  AutomatonBuilder builder;
  const Rule root = builder.add_rule("the whole output");
  JsonRules rules(builder, spelling);
  State state = root.start;
  if (!prefix.until.empty()) {
    check_prefix(prefix);
    state = consume_text_until(
        builder, rules.sets(), state,
        {.end = prefix.until, .never = prefix.never, .any_bytes = true, .end_is_marker = true});
  }
  state = consume_document(builder, rules, rules.white_space(state));
  builder.jump(state, root.end);
  return std::make_shared<const Grammar>(Automaton(builder, root));
}

}  // namespace

std::shared_ptr<const Grammar> Grammar::json_object(const FreePrefix& prefix) {
  return compile(prefix, Spelling::kJson, [](AutomatonBuilder&, JsonRules& rules, State from) {
    return rules.object(from);
  });
}

std::shared_ptr<const Grammar> Grammar::json_schema(const nlohmann::ordered_json& schema,
                                                    const FreePrefix& prefix,
                                                    const std::string& where) {
  return compile(prefix, Spelling::kJson, [&](AutomatonBuilder&, JsonRules& rules, State from) {
    return JsonSchemaCompiler(rules, schema, where).compile(schema, {}, from);
  });
}

std::shared_ptr<const Grammar> Grammar::tool_calls(const nlohmann::ordered_json& tools,
                                                   const ToolChoice& choice,
                                                   const FreePrefix& prefix) {
  return compile(prefix, Spelling::kJsonInTags,
                 [&](AutomatonBuilder& builder, JsonRules& rules, State from) {
                   return consume_tool_calls(builder, rules, from, tools, choice);
                 });
}

}  // namespace levin::text::grammar
