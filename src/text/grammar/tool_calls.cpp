#include "text/grammar/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/regex.h"
#include "text/grammar/text_until.h"
#include "text/tool_arguments.h"

namespace levin::text::grammar {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kValueEnd = "\n</parameter>";
constexpr std::array<std::string_view, 4> kTags = {"</parameter>", "<parameter=", "</function>",
                                                   "</tool_call>"};
constexpr int kMaxReferences = 32;

FreeText value_text() {
  return {.end = std::string(kValueEnd), .never = {kTags.begin(), kTags.end()}};
}

// Whether a name survives between "=" and ">".
bool is_usable_name(std::string_view name) {
  constexpr std::string_view kAround = " \t\r\n\"'";
  return !name.empty() && name.size() <= 256 && name.find_first_of("<>\n") == name.npos &&
         kAround.find(name.front()) == kAround.npos && kAround.find(name.back()) == kAround.npos;
}

// One of the forms a value may have: listed constants, or a type.
struct Form {
  bool constants;
  std::string type;
  const Json* schema;
  std::string pointer;
};

// The parameters of one tool.
class ParameterCompiler {
 public:
  ParameterCompiler(JsonRules& rules, const Json& parameters, const std::string& where)
      : rules_(rules),
        builder_(rules.builder()),
        root_(parameters),
        where_(where),
        schema_(rules, parameters, where) {}

  State compile(State from) {
    if (root_.is_boolean() && root_.get<bool>()) return consume_others(from);
    const Json& schema = target_of(root_, {});
    if (!schema.is_object()) schema_.refuse({}, schema.type_name(), "parameters are an object");
    schema_.check_keywords(schema, {});
    const auto types = schema_types(schema);
    if (!types.empty() && types != std::vector<std::string>{"object"}) {
      schema_.refuse("/type", "type", "parameters are an object");
    }
    const auto properties = schema.find("properties");
    if (properties != schema.end()) {
      if (!properties->is_object()) schema_.refuse("/properties", "properties", "not an object");
      for (const auto& [key, value] : properties->items()) {
        const State next = builder_.add_state();
        builder_.jump(consume_parameter(key, value, "/properties/" + key, from), next);
        if (!is_required(schema, key)) builder_.jump(from, next);
        from = next;
      }
    }
    check_required(schema, properties == schema.end() ? Json::object() : *properties);
    return allows_others(schema) ? consume_others(from) : from;
  }

 private:
  // Follows $ref and an allOf of one.
  const Json& target_of(const Json& schema, const std::string& pointer) const {
    const Json* at = &schema;
    for (int i = 0; at->is_object() && (at->contains("$ref") || at->contains("allOf")); ++i) {
      if (i == kMaxReferences) schema_.refuse(pointer, "$ref", "a long chain of references");
      schema_.check_keywords(*at, pointer);
      if (at->contains("$ref")) {
        at = &schema_.resolve(at->at("$ref"), pointer + "/$ref");
      } else {
        const Json& all = at->at("allOf");
        if (!all.is_array() || all.size() != 1) {
          schema_.refuse(pointer + "/allOf", "allOf", "more than one branch");
        }
        at = &all[0];
      }
    }
    return *at;
  }

  static bool is_required(const Json& schema, const std::string& key) {
    const auto required = schema.find("required");
    return required != schema.end() && required->is_array() &&
           std::ranges::find(*required, Json(key)) != required->end();
  }

  void check_required(const Json& schema, const Json& properties) const {
    const auto required = schema.find("required");
    if (required == schema.end()) return;
    if (!required->is_array()) schema_.refuse("/required", "required", "not a list");
    for (const Json& name : *required) {
      if (!name.is_string()) schema_.refuse("/required", "required", "not a list of names");
      if (!properties.contains(name.get_ref<const std::string&>())) {
        schema_.refuse(
            "/required", "required",
            fmt::format("\"{}\" is no property", name.get<std::string>().substr(0, 100)));
      }
    }
  }

  bool allows_others(const Json& schema) const {
    const auto other = schema.find("additionalProperties");
    if (other == schema.end()) return !schema.contains("properties");
    if (other->is_boolean()) return other->get<bool>();
    if (*other == Json::object() || *other == Json({{"type", "string"}})) return true;
    schema_.refuse("/additionalProperties", "additionalProperties",
                   "of a tool they are true, false or any string");
  }

  State consume_others(State from) {
    const State again = builder_.add_state();
    builder_.jump(from, again);
    State state = builder_.literal(again, "<parameter=");
    state = consume_pattern(builder_, rules_.sets(), state, "^[A-Za-z_][A-Za-z0-9_.-]{0,63}$",
                            Spelling::kPlain, {});
    state =
        consume_text_until(builder_, rules_.sets(), builder_.literal(state, ">\n"), value_text());
    builder_.jump(builder_.literal(state, "\n"), again);
    return again;
  }

  State consume_parameter(const std::string& key, const Json& schema, const std::string& pointer,
                          State from) {
    if (!is_usable_name(key)) schema_.refuse(pointer, "properties", "a name that tags cannot hold");
    builder_.set_place(where_ + "#" + pointer);
    const State begin = builder_.literal(from, fmt::format("<parameter={}>\n", key));
    std::vector<Form> forms;
    collect_forms(schema, pointer, 0, forms);
    const JsonTypes types = types_of_schema(schema, root_);
    check_clear(forms, pointer);
    const State end = builder_.add_state();
    for (const Form& form : forms) builder_.jump(consume_value(form, types, begin), end);
    return builder_.literal(end, "\n");
  }

  void collect_forms(const Json& given, const std::string& pointer, int depth,
                     std::vector<Form>& forms) const {
    if (depth > kMaxReferences) schema_.refuse(pointer, "anyOf", "a long chain of branches");
    const Json& schema = target_of(given, pointer);
    if (schema == true || schema == Json::object()) {
      static const Json kAnyString = {{"type", "string"}};
      forms.push_back({false, "string", &kAnyString, pointer});
      return;
    }
    if (!schema.is_object())
      schema_.refuse(pointer, schema.dump().substr(0, 100), "as a parameter");
    schema_.check_keywords(schema, pointer);
    if (schema.contains("enum") || schema.contains("const")) {
      forms.push_back({true, {}, &schema, pointer});
      return;
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      const auto branches = schema.find(key);
      if (branches == schema.end()) continue;
      const std::string inside = fmt::format("{}/{}", pointer, key);
      if (!branches->is_array()) schema_.refuse(inside, key, "not a list of schemas");
      if (key == std::string_view("oneOf")) schema_.check_disjoint(*branches, inside);
      if (forms.size() > kMaxBranches) schema_.refuse(inside, key, "too many branches");
      for (const Json& branch : *branches) collect_forms(branch, inside, depth + 1, forms);
      return;
    }
    const auto types = schema_types(schema);
    if (types.empty()) {  // nothing but annotations
      forms.push_back({false, "string", &schema, pointer});
      return;
    }
    if (!schema.contains("type")) schema_.refuse(pointer, "a parameter without a type");
    for (const std::string& type : types) forms.push_back({false, type, &schema, pointer});
  }

  // Refuses forms that a string could be mistaken for and then not satisfy.
  void check_clear(const std::vector<Form>& forms, const std::string& pointer) const {
    if (std::ranges::none_of(forms, [](const Form& form) { return form.type == "string"; })) return;
    const auto unclear = [](const Form& form) {
      if (form.type == "string" || form.type == "null" || form.type == "boolean") return false;
      if (form.type == "integer" || form.type == "number") {
        return std::ranges::any_of(
            std::array{"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
            [&](const char* keyword) { return form.schema->contains(keyword); });
      }
      if (!form.constants) return true;
      const Json values = form.schema->contains("const") ? Json::array({form.schema->at("const")})
                                                         : form.schema->at("enum");
      return std::ranges::any_of(
          values, [](const Json& value) { return !value.is_string() && !value.is_null(); });
    };
    if (std::ranges::any_of(forms, unclear)) {
      schema_.refuse(pointer, "type", "a string, or something else with constraints");
    }
  }

  State consume_value(const Form& form, JsonTypes types, State from) {
    const auto ended = [&](State state) { return builder_.literal(state, kValueEnd); };
    if (form.constants) return ended(consume_constant(form, types, from));
    if (form.type == "string") return consume_string(form, from);
    if (form.type == "boolean") {
      return ended(rules_.one_of(from, {"true", "false", "True", "False"}));
    }
    if (form.type == "null") return ended(rules_.one_of(from, {"null", "None"}));
    return ended(schema_.compile_type(*form.schema, form.type, form.pointer, from));
  }

  State consume_string(const Form& form, State from) {
    const std::string pattern = schema_.pattern_of(*form.schema, form.pointer);
    if (!pattern.empty()) {
      const State text =
          consume_pattern(builder_, rules_.sets(), from, pattern, Spelling::kPlain, form.pointer);
      return builder_.literal(text, kValueEnd);
    }
    const auto lengths = schema_.lengths_of(*form.schema, form.pointer, "minLength", "maxLength");
    FreeText text = value_text();
    text.min_length = lengths.least;
    text.max_length = lengths.most;
    return consume_text_until(builder_, rules_.sets(), from, text);
  }

  State consume_constant(const Form& form, JsonTypes types, State from) {
    const Json& schema = *form.schema;
    const Json values =
        schema.contains("const") ? Json::array({schema.at("const")}) : schema.at("enum");
    if (!values.is_array()) schema_.refuse(form.pointer + "/enum", "enum", "not a list");
    if (values.size() > kMaxEnumValues) {
      schema_.refuse(form.pointer + "/enum", "enum",
                     fmt::format("more than {} values", kMaxEnumValues));
    }
    const auto allowed = schema.contains("type")
                             ? types_of_schema({{"type", schema.at("type")}}, {})
                             : static_cast<JsonTypes>(~0);
    std::vector<std::string> texts;
    for (const Json& value : values) {
      if ((types_of_schema({{"const", value}}, {}) & allowed) == 0) continue;
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      const bool has_tag = std::ranges::any_of(
          kTags, [&](std::string_view tag) { return text.find(tag) != std::string::npos; });
      if (has_tag || Json::parse(argument_to_json(text, types)) != value) {
        schema_.refuse(form.pointer, value.dump().substr(0, 100),
                       "the text of a tool call cannot tell this value");
      }
      texts.push_back(text);
    }
    if (texts.empty()) return builder_.add_state();
    return rules_.one_of(from, std::move(texts));
  }

  JsonRules& rules_;
  AutomatonBuilder& builder_;
  const Json& root_;
  std::string where_;
  JsonSchemaCompiler schema_;
};

// A tag that is one special token in most vocabularies.
State consume_tag(AutomatonBuilder& builder, State from, std::string_view tag) {
  const State end = builder.literal(from, tag);
  builder.marker(from, tag, end);
  return end;
}

[[noreturn]] void refuse_tools(const std::string& where, const std::string& expected,
                               const std::string& found) {
  throw Error({.what = "tool cannot be called by force",
               .where = where,
               .expected = expected,
               .found = found,
               .hint = {}});
}

}  // namespace

State consume_tool_calls(AutomatonBuilder& builder, JsonRules& rules, State from, const Json& tools,
                         const ToolChoice& choice) {
  static const Json kNoParameters = {{"type", "object"}, {"properties", Json::object()}};
  (void)ToolParameters(tools);  // checks their form
  const State begin = builder.add_state();
  builder.jump(from, begin);
  const State function =
      builder.literal(consume_tag(builder, begin, "<tool_call>"), "\n<function=");
  const State done = builder.add_state();
  bool found = false;
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const Json& tool = tools[i].contains("function") ? tools[i]["function"] : tools[i];
    const std::string name = tool["name"];
    if (!choice.name.empty() && name != choice.name) continue;
    if (!is_usable_name(name)) {
      refuse_tools(fmt::format("tools[{}]", i), "a name without <, > and line breaks",
                   fmt::format("\"{}\"", name.substr(0, 100)));
    }
    found = true;
    const State body = builder.literal(function, name + ">\n");
    const auto parameters = tool.find("parameters");
    const bool has = parameters != tool.end() && !parameters->is_null();
    ParameterCompiler compiler(rules, has ? *parameters : kNoParameters,
                               fmt::format("tools[{}].parameters", i));
    builder.jump(builder.literal(compiler.compile(body), "</function>\n"), done);
  }
  if (!found) {
    refuse_tools(
        "tool_choice", "the name of a tool of the request",
        choice.name.empty() ? "no tools" : fmt::format("\"{}\"", choice.name.substr(0, 100)));
  }
  // Templates put a line break behind every call, so models do behind the last one, too; it must
  // not oblige them to a further call.
  const State end = consume_tag(builder, done, "</tool_call>");
  const State behind = builder.add_state();
  builder.jump(end, behind);
  builder.jump(builder.literal(end, "\n"), behind);
  if (choice.parallel) builder.jump(behind, begin);
  return behind;
}

}  // namespace levin::text::grammar
