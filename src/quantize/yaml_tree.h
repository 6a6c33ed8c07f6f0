// YAML as recipes need it: plain immutable trees with line numbers for messages, bounded in size.
// Built from yaml-cpp's events; its own node type shares and overwrites state behind assignments,
// and its loader of several documents does not end on some malformed inputs.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::quantize {

struct YamlTree {
  enum class Kind : uint8_t { kNull, kScalar, kList, kMapping };
  Kind kind = Kind::kNull;
  int line = 0;  // from 1
  std::string scalar;
  std::vector<std::shared_ptr<const YamlTree>> items;
  // In order of appearance; keys may be anything until check_mapping() has looked.
  std::vector<std::pair<std::shared_ptr<const YamlTree>, std::shared_ptr<const YamlTree>>> entries;
};

// A node and the file it came from; imports make trees of several files. Never without a tree.
struct YamlNode {
  std::shared_ptr<const YamlTree> tree;
  std::string file;

  bool is_null() const { return tree->kind == YamlTree::Kind::kNull; }
  bool is_scalar() const { return tree->kind == YamlTree::Kind::kScalar; }
  bool is_list() const { return tree->kind == YamlTree::Kind::kList; }
  bool is_mapping() const { return tree->kind == YamlTree::Kind::kMapping; }
  // Items of a list, entries of a mapping, else 0.
  std::size_t size() const { return tree->items.size() + tree->entries.size(); }

  // "recipe.yaml:12"
  std::string where() const;
  YamlNode item(std::size_t index) const { return {tree->items.at(index), file}; }
  // Entries of a mapping whose keys are scalars.
  YamlNode key(std::size_t index) const { return {tree->entries.at(index).first, file}; }
  YamlNode value(std::size_t index) const { return {tree->entries.at(index).second, file}; }
  // The value of the first entry with that key; a null node when there is none.
  YamlNode find(std::string_view key) const;
  bool has(std::string_view key) const;
};

// The one or two documents of `text`. Throws Error for malformed YAML, aliases that refer to
// themselves, more documents, bytes that are not UTF-8, deep nesting and anything beyond a
// megabyte.
std::vector<YamlNode> parse_yaml(std::string_view text, const std::string& file);

// Throws Error unless `node` is a mapping whose keys are scalars without duplicates and, when
// `known` is not empty, among it. `what` describes the mapping.
void check_mapping(const YamlNode& node, std::string_view what,
                   std::initializer_list<std::string_view> known);

// Throws Error unless `node` is a list.
void check_list(const YamlNode& node, std::string_view what);

// Scalars; `key` describes the value in errors. Throw Error for another type or unreadable text.
std::string as_string(const YamlNode& node, std::string_view key);
bool as_bool(const YamlNode& node, std::string_view key);
int64_t as_integer(const YamlNode& node, std::string_view key);
double as_number(const YamlNode& node, std::string_view key);

[[noreturn]] void fail(const YamlNode& node, const std::string& what, const std::string& expected,
                       const std::string& found, const std::string& hint = {});

}  // namespace levin::quantize
