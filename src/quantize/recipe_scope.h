// `imports:` and `$import` of recipes: named pieces of YAML from other files.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quantize/yaml_tree.h"

namespace levin::quantize {

class Scope;

// A node together with the imports that its `$import` keys refer to.
struct ScopedNode {
  YamlNode yaml;
  std::shared_ptr<const Scope> scope;
};

// The aliases that one file declares.
class Scope {
 public:
  // Loads everything that the `imports` mapping names, and what that imports. Files are looked up
  // relative to `folder` (unless empty), then among the shipped configs. `loading` holds the files
  // being read, to find cycles.
  static std::shared_ptr<const Scope> load(const YamlNode& imports,
                                           const std::filesystem::path& folder,
                                           std::set<std::string> loading);

  // What a `$import` refers to. Throws Error naming the known aliases.
  const ScopedNode& find(const YamlNode& reference) const;

  // Throws Error for an alias, here or in what was imported, that no find() has asked for: nobody
  // has looked whether it is right.
  void require_all_used() const;

 private:
  struct Alias {
    YamlNode declared;  // the key under `imports`
    ScopedNode node;
  };
  std::map<std::string, Alias> aliases_;
  mutable std::set<std::string> used_;
};

// The body of a file of one document (a mapping, perhaps with `imports`) or two (a mapping with
// `imports`, then the body).
ScopedNode body_of(std::string_view text, const std::string& file,
                   const std::filesystem::path& folder, std::set<std::string> loading);

// A mapping with its `$import`s replaced by what they name; keys beside them override. In order of
// appearance, each key once.
using Entries = std::vector<std::pair<std::string, ScopedNode>>;
Entries merged_mapping(const ScopedNode& node, std::string_view what,
                       std::initializer_list<std::string_view> known);

// A list with every item that is only an `$import` replaced by the imported list or mapping.
std::vector<ScopedNode> spliced_list(const ScopedNode& node, std::string_view what);

}  // namespace levin::quantize
