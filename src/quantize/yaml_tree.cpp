#include "quantize/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "core/error.h"
#include "text/utf8.h"

namespace levin::quantize {
namespace {

using Kind = YamlTree::Kind;

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxDocuments = 2;
constexpr std::size_t kShown = 60;
// Recipes are five or six deep. yaml-cpp gives up at 500, and calls it a bad file.
constexpr std::size_t kMaxDepth = 64;

std::string kind_of(const YamlNode& node) {
  switch (node.tree->kind) {
    case Kind::kScalar:
      return fmt::format("\"{}\"", node.tree->scalar.substr(0, kShown));
    case Kind::kList:
      return "a list";
    case Kind::kMapping:
      return "a mapping";
    case Kind::kNull:
      break;
  }
  return "nothing";
}

// Puts the events of one document together. A collection is open from its start to its end; what
// ends becomes part of the innermost open one.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& file) : file_(file) {}

  std::shared_ptr<const YamlTree> root() const { return root_; }

  void OnDocumentStart(const YAML::Mark& /*mark*/) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    close(make(Kind::kNull, mark), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto target = anchors_.find(anchor);
    if (target == anchors_.end()) {
      throw Error({.what = "alias refers to itself",
                   .where = fmt::format("{}:{}", file_, mark.line + 1),
                   .expected = {},
                   .found = {},
                   .hint = {}});
    }
    place(target->second);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                const std::string& value) override {
    auto tree = make(Kind::kScalar, mark);
    tree->scalar = value;
    close(tree, anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    open(Kind::kList, mark, anchor);
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    open(Kind::kMapping, mark, anchor);
  }
  void OnMapEnd() override { end(); }

 private:
  struct Open {
    std::shared_ptr<YamlTree> tree;
    YAML::anchor_t anchor;
    std::shared_ptr<const YamlTree> key;  // of a mapping, waiting for its value
  };

  static std::shared_ptr<YamlTree> make(Kind kind, const YAML::Mark& mark) {
    auto tree = std::make_shared<YamlTree>();
    tree->kind = kind;
    tree->line = mark.line + 1;
    return tree;
  }

  void open(Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (open_.size() == kMaxDepth) {
      throw Error({.what = "recipe is nested too deeply",
                   .where = fmt::format("{}:{}", file_, mark.line + 1),
                   .expected = fmt::format("at most {} levels", kMaxDepth),
                   .found = {},
                   .hint = {}});
    }
    open_.push_back({make(kind, mark), anchor, nullptr});
  }

  void end() {
    const Open finished = std::move(open_.back());
    open_.pop_back();
    close(finished.tree, finished.anchor);
  }

  void close(std::shared_ptr<const YamlTree> tree, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) anchors_[anchor] = tree;
    place(std::move(tree));
  }

  void place(std::shared_ptr<const YamlTree> tree) {
    if (open_.empty()) {
      root_ = std::move(tree);
      return;
    }
    Open& parent = open_.back();
    if (parent.tree->kind == Kind::kList) {
      parent.tree->items.push_back(std::move(tree));
    } else if (parent.key == nullptr) {
      parent.key = std::move(tree);
    } else {
      parent.tree->entries.emplace_back(std::move(parent.key), std::move(tree));
      parent.key = nullptr;
    }
  }

  const std::string& file_;
  std::shared_ptr<const YamlTree> root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, std::shared_ptr<const YamlTree>> anchors_;
};

}  // namespace

std::string YamlNode::where() const {
  return tree->line > 0 ? fmt::format("{}:{}", file, tree->line) : file;
}

YamlNode YamlNode::find(std::string_view key) const {
  for (const auto& [name, value] : tree->entries) {
    if (name->kind == Kind::kScalar && name->scalar == key) return {value, file};
  }
  return {std::make_shared<YamlTree>(), file};
}

bool YamlNode::has(std::string_view key) const {
  return std::any_of(tree->entries.begin(), tree->entries.end(), [&](const auto& entry) {
    return entry.first->kind == Kind::kScalar && entry.first->scalar == key;
  });
}

void fail(const YamlNode& node, const std::string& what, const std::string& expected,
          const std::string& found, const std::string& hint) {
  throw Error(
      {.what = what, .where = node.where(), .expected = expected, .found = found, .hint = hint});
}

std::vector<YamlNode> parse_yaml(std::string_view text, const std::string& file) {
  if (text.size() > kMaxBytes) {
    throw Error({.what = "recipe is too large",
                 .where = file,
                 .expected = fmt::format("at most {} bytes", kMaxBytes),
                 .found = fmt::format("{} bytes", text.size()),
                 .hint = {}});
  }
  text::require_utf8(text, file);
  std::vector<YamlNode> documents;
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (documents.size() <= kMaxDocuments) {
      TreeBuilder builder(file);
      if (!parser.HandleNextDocument(builder)) break;
      if (builder.root() == nullptr) break;
      documents.push_back({builder.root(), file});
    }
  } catch (const YAML::Exception& e) {
    throw Error({.what = "recipe is not YAML",
                 .where = e.mark.is_null() ? file : fmt::format("{}:{}", file, e.mark.line + 1),
                 .expected = {},
                 .found = e.msg,
                 .hint = {}});
  }
  if (documents.empty() || documents.size() > kMaxDocuments) {
    throw Error({.what = "recipe file has the wrong number of YAML documents",
                 .where = file,
                 .expected = "1 or 2",
                 .found = documents.empty() ? "0" : "more",
                 .hint = {}});
  }
  return documents;
}

void check_mapping(const YamlNode& node, std::string_view what,
                   std::initializer_list<std::string_view> known) {
  if (!node.is_mapping()) {
    fail(node, fmt::format("{} has the wrong form", what), "a mapping", kind_of(node));
  }
  std::set<std::string_view> seen;
  for (std::size_t i = 0; i < node.size(); ++i) {
    const YamlNode key = node.key(i);
    if (!key.is_scalar()) fail(key, "a key is not a plain word", {}, kind_of(key));
    const std::string& name = key.tree->scalar;
    if (!seen.insert(name).second) {
      fail(key, fmt::format("{} has the same key twice", what), {}, kind_of(key));
    }
    if (known.size() > 0 && std::find(known.begin(), known.end(), name) == known.end()) {
      fail(key, fmt::format("unknown key in {}", what), fmt::format("{}", fmt::join(known, ", ")),
           kind_of(key));
    }
  }
}

void check_list(const YamlNode& node, std::string_view what) {
  if (!node.is_list()) {
    fail(node, fmt::format("{} has the wrong form", what), "a list", kind_of(node));
  }
}

std::string as_string(const YamlNode& node, std::string_view key) {
  if (!node.is_scalar()) {
    fail(node, fmt::format("\"{}\" has the wrong type", key), "text", kind_of(node));
  }
  return node.tree->scalar;
}

bool as_bool(const YamlNode& node, std::string_view key) {
  const std::string text = as_string(node, key);
  for (const std::string_view yes : {"true", "True", "TRUE"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no : {"false", "False", "FALSE"}) {
    if (text == no) return false;
  }
  fail(node, fmt::format("\"{}\" has the wrong type", key), "true or false", kind_of(node));
}

int64_t as_integer(const YamlNode& node, std::string_view key) {
  const std::string text = as_string(node, key);
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end) {
    fail(node, fmt::format("\"{}\" has the wrong type", key), "an integer", kind_of(node));
  }
  return value;
}

double as_number(const YamlNode& node, std::string_view key) {
  const std::string text = as_string(node, key);
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || !std::isfinite(value)) {
    fail(node, fmt::format("\"{}\" has the wrong type", key), "a number", kind_of(node));
  }
  return value;
}

}  // namespace levin::quantize
