#include "text/chat_template.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"
#include "text/utf8.h"

namespace levin::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::size_t kMaxTemplateBytes = std::size_t{4} << 20;
constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};

// Runs `work`; what fails inside a template becomes an Error with the template's name and line.
template <typename Work>
auto with_errors_at(const std::string& where, Work&& work) {
  try {
    return work();
  } catch (const jinja::Failure& failure) {
    throw Error({.what = failure.what(),
                 .where = failure.line() > 0 ? fmt::format("{}:{}", where, failure.line()) : where,
                 .expected = {},
                 .found = {},
                 .hint = {}});
  }
}

void check_utf8(std::string_view text, const std::string& where, const std::string& what) {
  if (const auto offset = find_invalid_utf8(text)) {
    throw Error({.what = what + " is not UTF-8",
                 .where = fmt::format("{}, byte {}", where, *offset),
                 .expected = {},
                 .found = {},
                 .hint = {}});
  }
}

// A token is written as a string, or as an object with its content.
ordered_json special_tokens(const json& config, const std::string& where) {
  ordered_json tokens = ordered_json::object();
  for (const char* name : kSpecialTokens) {
    const json token = config.value(name, json());
    const json content = token.is_object() ? token.value("content", json()) : token;
    if (content.is_string()) {
      tokens[name] = content.get<std::string>();
    } else if (!token.is_null()) {
      throw Error({.what = "special token is not a token",
                   .where = fmt::format("{}, {}", where, name),
                   .expected = "a string, or an object with a string \"content\"",
                   .found = token.dump().substr(0, 200),
                   .hint = {}});
    }
  }
  return tokens;
}

json read_tokenizer_config(const fs::path& folder) {
  const fs::path path = folder / "tokenizer_config.json";
  if (!file_exists(path)) return json::object();
  json config = read_json(path);
  if (!config.is_object()) {
    throw Error({.what = "not a JSON object",
                 .where = path.string(),
                 .expected = {},
                 .found = {},
                 .hint = {}});
  }
  return config;
}

// The template inside tokenizer_config.json: a string, or a list with the one named "default".
std::string template_of(const json& config, const fs::path& folder) {
  const std::string where = (folder / "tokenizer_config.json").string() + ": chat_template";
  json found = config.value("chat_template", json());
  if (found.is_array() && found.size() == 1 && found[0].is_object() &&
      found[0].value("name", json()) == "default") {
    found = found[0].value("template", json());
  }
  if (found.is_string()) return found.get<std::string>();
  const bool absent = found.is_null();
  throw Error(
      {.what = absent ? "the folder has no chat template" : "chat template is not usable",
       .where = absent ? folder.string() : where,
       .expected = "chat_template.jinja, or a string chat_template in tokenizer_config.json",
       .found = absent             ? ""
                : found.is_array() ? "several templates"
                                   : "another type",
       .hint = "--chat-template FILE names one"});
}

}  // namespace

struct ChatTemplate::Impl {
  std::string where;
  jinja::Block body;
  ordered_json defaults;  // variables that are there unless the caller gives others
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

ChatTemplate ChatTemplate::load(const fs::path& folder) {
  const fs::path path = folder / "chat_template.jinja";
  if (file_exists(path)) return parse(read_text(path, kMaxTemplateBytes), path.string(), folder);
  const std::string where = (folder / "tokenizer_config.json").string() + ": chat_template";
  return parse(template_of(read_tokenizer_config(folder), folder), where, folder);
}

ChatTemplate ChatTemplate::parse(std::string_view source, const std::string& where,
                                 const fs::path& folder) {
  ChatTemplate result = parse(source, where);
  result.impl_->defaults.update(
      special_tokens(read_tokenizer_config(folder), (folder / "tokenizer_config.json").string()));
  return result;
}

ChatTemplate ChatTemplate::parse(std::string_view source, const std::string& where) {
  if (source.size() > kMaxTemplateBytes) {
    throw Error({.what = "chat template is too large",
                 .where = where,
                 .expected = fmt::format("at most {} bytes", kMaxTemplateBytes),
                 .found = fmt::format("{} bytes", source.size()),
                 .hint = {}});
  }
  check_utf8(source, where, "chat template");
  auto impl = std::make_unique<Impl>();
  impl->where = where;
  impl->body = with_errors_at(where, [&] { return jinja::parse(source); });
  impl->defaults = {{"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", false}};
  return ChatTemplate(std::move(impl));
}

std::string ChatTemplate::render(const ordered_json& variables, const Interrupt& interrupt) const {
  if (!variables.is_object()) {
    throw Error({.what = "the variables of a chat template are not a JSON object",
                 .where = impl_->where,
                 .expected = {},
                 .found = {},
                 .hint = {}});
  }
  return with_errors_at(impl_->where, [&] {
    jinja::Budget budget(interrupt);
    const jinja::Value defaults = jinja::from_json(impl_->defaults, budget);
    const jinja::Value given = jinja::from_json(variables, budget);
    auto entries = defaults.dict()->entries;  // of two values for one name the later one counts
    entries.insert(entries.end(), given.dict()->entries.begin(), given.dict()->entries.end());
    const jinja::Value context = jinja::make_dict(std::move(entries), budget);
    return jinja::render(impl_->body, *context.dict(), budget);
  });
}

}  // namespace levin::text
