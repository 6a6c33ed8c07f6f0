// POST /v1/chat/completions.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "serve/api/api_error.h"
#include "serve/api/messages.h"
#include "serve/api/sampling_fields.h"

namespace levin::serve::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kUseTools = "use tools and tool_choice";
constexpr std::string_view kTextOnly = "this server makes text";

constexpr Field kChatFields[] = {
    {"messages"},
    {"max_completion_tokens"},
    {"top_logprobs"},
    {"tools"},
    {"tool_choice"},
    {"parallel_tool_calls"},
    {"reasoning_effort"},
    {"include_reasoning"},
    {"chat_template_kwargs"},
    {"documents"},
    {"store", Support::kNoEffect},  // nothing is kept
    {"service_tier", Support::kNoEffect},
    {"prompt_cache_key", Support::kNoEffect},  // prefixes are found by their tokens
    {"prompt_cache_retention", Support::kNoEffect},
    {"safety_identifier", Support::kNoEffect},
    {"modalities", Support::kRefused, R"(["text"])", kTextOnly},
    {"audio", Support::kRefused, "", kTextOnly},
    {"mm_processor_kwargs", Support::kRefused, "{}", kTextOnly},
    {"media_io_kwargs", Support::kRefused, "{}", kTextOnly},
    {"functions", Support::kRefused, "[]", kUseTools},
    {"function_call", Support::kRefused, "", kUseTools},
    {"prediction", Support::kRefused, "", "drafts come from the model's own head"},
    {"verbosity", Support::kRefused, R"("medium")"},
    {"web_search_options", Support::kRefused},
    {"add_generation_prompt", Support::kRefused, "true"},
    {"continue_final_message", Support::kRefused, "false"},
    {"echo", Support::kRefused, "false"},
    {"chat_template", Support::kRefused, "", "start the server with --chat-template"},
};

void read_tool_choice(const FieldReader& fields, GenerationRequest& request) {
  const Json* choice = fields.find("tool_choice");
  const bool has_tools = request.tools != nullptr && !request.tools->empty();
  request.tool_mode = has_tools ? ToolMode::kAuto : ToolMode::kNone;
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    request.tool_mode = ToolMode::kNone;
    return;
  }
  if (!has_tools) throw ApiError(400, "tool_choice needs tools", "tool_choice");
  if (*choice == "required") {
    request.tool_mode = ToolMode::kRequired;
    return;
  }
  const Json* function =
      choice->is_object() ? FieldReader(*choice, "tool_choice.").object("function") : nullptr;
  if (function == nullptr) {
    fields.fail("tool_choice",
                R"(none, auto, required or {"type": "function", "function": {...}})");
  }
  const auto name = FieldReader(*function, "tool_choice.function.").string("name");
  request.tool_mode = ToolMode::kNamed;
  request.tool_name = name.value_or("");
  for (const Json& tool : *request.tools) {
    if (tool["function"]["name"] == request.tool_name) return;
  }
  throw ApiError(
      400, fmt::format("tool_choice names {}, which is not among the tools", request.tool_name),
      "tool_choice");
}

// reasoning_effort and chat_template_kwargs become variables of the template.
void read_template_variables(const FieldReader& fields, GenerationRequest& request,
                             Json& variables) {
  if (const Json* documents = fields.array("documents")) variables["documents"] = *documents;
  const auto effort =
      fields.one_of("reasoning_effort", {"none", "minimal", "low", "medium", "high", "xhigh"});
  if (effort == "none") {
    variables["enable_thinking"] = false;
  } else if (effort) {
    variables["reasoning_effort"] = *effort;
    // Nemotron 3.5's template has one lower effort.
    if (*effort != "high" && *effort != "xhigh") variables["medium_effort"] = true;
  }
  if (const Json* arguments = fields.object("chat_template_kwargs")) {
    for (const auto& [name, value] : arguments->items()) {
      if (name == "messages" || name == "tools" || name == "add_generation_prompt") {
        throw ApiError(400, fmt::format("chat_template_kwargs.{} cannot be set", name),
                       "chat_template_kwargs");
      }
      variables[name] = value;
    }
    const FieldReader reader(*arguments, "chat_template_kwargs.");
    request.force_nonempty_content = reader.boolean("force_nonempty_content").value_or(false);
  }
  const FieldReader reader(variables, "chat_template_kwargs.");
  request.enable_thinking = reader.boolean("enable_thinking");
}

void read_tools(const FieldReader& fields, GenerationRequest& request, Json& variables) {
  const Json* tools = fields.array("tools");
  if (tools != nullptr && !tools->empty()) {
    check_tools(*tools);
    request.tools = std::make_shared<const Json>(*tools);
  }
  read_tool_choice(fields, request);
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  if (request.tools && request.tool_mode != ToolMode::kNone) variables["tools"] = *request.tools;
  if (request.forces_calls() && request.shape != OutputShape::kText) {
    throw ApiError(400, "response_format and a forced tool_choice exclude each other",
                   "response_format");
  }
}

}  // namespace

std::span<const Field> chat_fields() {
  static const std::vector<Field> fields = with_common_fields(kChatFields);
  return fields;
}

GenerationRequest parse_chat(std::string_view body, const ModelFacts& facts) {
  const Json object = parse_body(body);
  GenerationRequest request;
  request.dialect = Dialect::kChat;
  request.unknown_fields = check_fields(object, chat_fields());
  const FieldReader fields(object);
  read_common_fields(fields, facts, request);
  const auto newer =
      fields.integer("max_completion_tokens", 1, std::numeric_limits<int64_t>::max());
  if (newer) request.max_tokens = newer;

  const Json* messages = fields.find("messages");
  if (messages == nullptr) throw ApiError(400, "messages is missing", "messages");
  Json variables = {{"messages", normalize_messages(*messages)}};
  read_template_variables(fields, request, variables);
  read_tools(fields, request, variables);
  check_grammar(fields, request);
  request.variables = std::make_shared<const Json>(std::move(variables));
  request.include_reasoning = fields.boolean("include_reasoning").value_or(true);

  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, 20);
  if (top.value_or(0) > 0 && !logprobs) {
    throw ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs");
  }
  if (logprobs) request.sampling.logprobs = static_cast<int>(top.value_or(0));

  check_sampling(request);
  return request;
}

}  // namespace levin::serve::api
