#include "quantize/recipe_scope.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "quantize/shipped.h"

namespace levin::quantize {
namespace fs = std::filesystem;
namespace {

constexpr const char* kImport = "$import";
constexpr std::size_t kMaxRecipeBytes = std::size_t{1} << 20;
// Chains of imports are two or three deep.
constexpr std::size_t kMaxImportDepth = 16;

std::string known_configs() {
  std::vector<std::string_view> names;
  for (const ShippedFile& file : shipped_files()) {
    if (file.path.starts_with("configs/")) names.push_back(file.path);
  }
  return fmt::format("a file beside the recipe, or one of {}", fmt::join(names, ", "));
}

ScopedNode load_import(const YamlNode& path_node, const fs::path& folder,
                       std::set<std::string> loading) {
  const std::string path = as_string(path_node, "imports");
  fs::path file;
  if (!folder.empty()) {
    for (const char* suffix : {"", ".yaml", ".yml"}) {
      const fs::path candidate = folder / (path + suffix);
      std::error_code ignored;
      if (file.empty() && fs::is_regular_file(candidate, ignored)) file = candidate;
    }
  }
  const ShippedFile* shipped = file.empty() ? find_shipped(path) : nullptr;
  if (file.empty() && shipped == nullptr) {
    fail(path_node, "import names a file that does not exist", known_configs(), path);
  }
  const std::string name =
      file.empty() ? std::string(shipped->path) : file.lexically_normal().string();
  if (!loading.insert(name).second || loading.size() > kMaxImportDepth) {
    fail(path_node, "imports form a cycle", {}, path);
  }
  if (shipped != nullptr) return body_of(shipped->text, name + ".yaml", {}, std::move(loading));
  return body_of(read_text(file, kMaxRecipeBytes), name, file.parent_path(), std::move(loading));
}

void insert(Entries& entries, std::string key, ScopedNode value) {
  const auto same = std::find_if(entries.begin(), entries.end(),
                                 [&](const auto& entry) { return entry.first == key; });
  if (same == entries.end()) {
    entries.emplace_back(std::move(key), std::move(value));
  } else {
    same->second = std::move(value);
  }
}

}  // namespace

std::shared_ptr<const Scope> Scope::load(const YamlNode& imports, const fs::path& folder,
                                         std::set<std::string> loading) {
  auto scope = std::make_shared<Scope>();
  if (imports.is_null()) return scope;
  check_mapping(imports, "imports", {});
  for (std::size_t i = 0; i < imports.size(); ++i) {
    const YamlNode name = imports.key(i);
    scope->aliases_.emplace(name.tree->scalar,
                            Alias{name, load_import(imports.value(i), folder, loading)});
  }
  return scope;
}

const ScopedNode& Scope::find(const YamlNode& reference) const {
  const std::string name = as_string(reference, kImport);
  const auto alias = aliases_.find(name);
  if (alias != aliases_.end()) {
    used_.insert(name);
    return alias->second.node;
  }
  std::vector<std::string> known;
  for (const auto& [key, entry] : aliases_) known.push_back(key);
  fail(reference, "$import names nothing under \"imports\"",
       known.empty() ? "an \"imports\" mapping" : fmt::format("{}", fmt::join(known, ", ")), name);
}

void Scope::require_all_used() const {
  for (const auto& [name, alias] : aliases_) {
    if (!used_.contains(name)) {
      fail(alias.declared, "import is used by nothing", fmt::format("{{$import: {}}}", name), {},
           "put it where it belongs, or take the line out");
    }
    alias.node.scope->require_all_used();
  }
}

ScopedNode body_of(std::string_view text, const std::string& file, const fs::path& folder,
                   std::set<std::string> loading) {
  const std::vector<YamlNode> documents = parse_yaml(text, file);
  const YamlNode& header = documents.front();
  if (documents.size() == 2) check_mapping(header, "the first document", {"imports"});
  return {documents.back(), Scope::load(header.find("imports"), folder, std::move(loading))};
}

Entries merged_mapping(const ScopedNode& node, std::string_view what,
                       std::initializer_list<std::string_view> known) {
  check_mapping(node.yaml, what, {});
  Entries entries;
  if (node.yaml.has(kImport)) {
    const YamlNode reference = node.yaml.find(kImport);
    const std::size_t count = reference.is_list() ? reference.size() : 1;
    for (std::size_t i = 0; i < count; ++i) {
      const ScopedNode& imported =
          node.scope->find(reference.is_list() ? reference.item(i) : reference);
      for (auto& [key, value] : merged_mapping(imported, what, known)) {
        insert(entries, key, std::move(value));
      }
    }
  }
  for (std::size_t i = 0; i < node.yaml.size(); ++i) {
    const std::string& key = node.yaml.key(i).tree->scalar;
    if (key == kImport || key == "imports") continue;
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      fail(node.yaml.key(i), fmt::format("unknown key in {}", what),
           fmt::format("{}", fmt::join(known, ", ")), key);
    }
    insert(entries, key, {node.yaml.value(i), node.scope});
  }
  return entries;
}

std::vector<ScopedNode> spliced_list(const ScopedNode& node, std::string_view what) {
  check_list(node.yaml, what);
  std::vector<ScopedNode> items;
  for (std::size_t i = 0; i < node.yaml.size(); ++i) {
    const YamlNode item = node.yaml.item(i);
    if (!item.has(kImport) || item.size() != 1) {
      items.push_back({item, node.scope});
      continue;
    }
    const ScopedNode& imported = node.scope->find(item.find(kImport));
    if (!imported.yaml.is_list()) {
      items.push_back(imported);
      continue;
    }
    for (ScopedNode& inner : spliced_list(imported, what)) items.push_back(std::move(inner));
  }
  return items;
}

}  // namespace levin::quantize
