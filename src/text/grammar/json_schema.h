// JSON schemas as grammars. What follows is all that is understood; anything else is refused with
// its name and JSON pointer, since a grammar that ignored it would let invalid documents pass.
//
//   any schema   true, false, {} (any value), type (a name or a list), enum, const, anyOf, oneOf
//   when
//                its branches cannot overlap (other types, or objects that require a property with
//                other constants), allOf with one branch, $ref to "#" or "#/..." (also recursive),
//                $defs, definitions
//   object       properties, required, additionalProperties (true, false or a schema)
//   array        items (a schema or a boolean), minItems, maxItems
//   string       minLength, maxLength, pattern (regex.h), format: date-time, date, time, uuid,
//   ipv4,
//                email, hostname, uri; one of length, pattern and format at a time
//   number       minimum, maximum, exclusiveMinimum, exclusiveMaximum as numbers, also for integer
//   ignored      title, description, default, examples, example, deprecated, readOnly, writeOnly,
//                $schema, $id, $comment, $anchor, strict, contentMediaType, contentEncoding
//
// Beside enum, const, anyOf, oneOf, allOf and $ref only what is ignored may stand, and type beside
// enum and const. A schema without a type that has keywords of one type is of that type.
//
// The grammar may be narrower than the schema, never wider:
//  - The properties of an object come in the order of the schema; those that are not required may
//  be
//    left out. Further ones come behind them, with keys without escapes. Without
//    additionalProperties there are none, unless there are no properties either.
//  - Between tokens stand up to kMaxWhiteSpace characters of white space, inside the texts of enum
//    and const none.
//  - Numbers have no exponent when they are bounded; digits are limited (decimal_range.h).
//  - Characters that a pattern asks for are not escaped unless they must be.
//  - Further keys may repeat: JSON schema judges objects, in which the last one counts.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "text/grammar/json_rules.h"

namespace levin::text::grammar {

inline constexpr int kMaxSchemaNesting = 200;
inline constexpr std::size_t kMaxProperties = 1000;
inline constexpr std::size_t kMaxEnumValues = 20000;
inline constexpr std::size_t kMaxBranches = 500;

class JsonSchemaCompiler {
 public:
  // `root` is what $ref refers to; it must outlive the compiler. `where` names it in errors, in
  // front of JSON pointers.
  JsonSchemaCompiler(JsonRules& rules, const nlohmann::ordered_json& root, std::string where);

  // Consumes a document that satisfies `schema`, which is part of the root and stands at `pointer`
  // in it. The state behind it.
  State compile(const nlohmann::ordered_json& schema, const std::string& pointer, State from);

  // The schema that a $ref names.
  const nlohmann::ordered_json& resolve(const nlohmann::ordered_json& ref,
                                        const std::string& pointer) const;
  // Throws the Error for `keyword` of the schema at `pointer`.
  [[noreturn]] void refuse(const std::string& pointer, const std::string& keyword,
                           const std::string& why = {}) const;

  // The same for one of the schema's types.
  State compile_type(const nlohmann::ordered_json& schema, const std::string& type,
                     const std::string& pointer, State from);
  State compile_number(const nlohmann::ordered_json& schema, const std::string& pointer,
                       bool integer, State from);
  // The pattern of a string, from `pattern` or `format`; empty when it has none.
  std::string pattern_of(const nlohmann::ordered_json& schema, const std::string& pointer) const;
  // minLength and maxLength.
  struct Lengths {
    int32_t least = 0;
    int32_t most = kUnlimited;
    bool given() const { return least != 0 || most != kUnlimited; }
  };
  Lengths lengths_of(const nlohmann::ordered_json& schema, const std::string& pointer,
                     const char* least, const char* most) const;
  // Throws Error for keywords that are not understood, and for keywords that stand beside others
  // they may not stand beside.
  void check_keywords(const nlohmann::ordered_json& schema, const std::string& pointer) const;
  // Throws Error unless no document can satisfy two of the branches of a oneOf.
  void check_disjoint(const nlohmann::ordered_json& branches, const std::string& pointer) const;

 private:
  using Json = nlohmann::ordered_json;

  State compile_inside(const Json& schema, const std::string& pointer, State from);
  State compile_enum(const Json& schema, const std::string& pointer, State from);
  State compile_branches(const Json& branches, const std::string& pointer, State from);
  State compile_ref(const Json& ref, const std::string& pointer, State from);
  State compile_object(const Json& schema, const std::string& pointer, State from);
  State compile_array(const Json& schema, const std::string& pointer, State from);
  State compile_string(const Json& schema, const std::string& pointer, State from);
  State key_and_value(const std::string& key, const Json& value, const std::string& pointer,
                      State from);
  // Refuses texts that the rules cannot spell.
  const std::string& spelled(const std::string& text, const std::string& pointer) const;

  JsonRules& rules_;
  AutomatonBuilder& builder_;
  const Json& root_;
  std::string where_;
  std::map<std::string, Rule> refs_;  // by pointer
  int nesting_ = 0;
};

// The types of a schema by its `type`, or by its keywords when it has none. Empty: any.
std::vector<std::string> schema_types(const nlohmann::ordered_json& schema);

}  // namespace levin::text::grammar
