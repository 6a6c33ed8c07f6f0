// POST /v1/responses.
#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "serve/api/api_error.h"
#include "serve/api/messages.h"
#include "serve/api/sampling_fields.h"
#include "serve/api/tool_fields.h"

namespace levin::serve::api {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kNothingKept = "responses are not kept; send the whole input";

constexpr Field kFields[] = {
    {"model"},
    {"input"},
    {"instructions"},
    {"max_output_tokens"},
    {"temperature"},
    {"top_p"},
    {"top_k"},
    {"stream"},
    {"tools"},
    {"tool_choice"},
    {"parallel_tool_calls"},
    {"reasoning"},
    {"text"},
    {"priority"},
    {"request_id"},
    {"seed"},
    {"store", Support::kNoEffect},  // nothing is kept
    {"metadata", Support::kNoEffect},
    {"user", Support::kNoEffect},
    {"safety_identifier", Support::kNoEffect},
    {"service_tier", Support::kNoEffect},
    {"prompt_cache_key", Support::kNoEffect},
    {"prompt_cache_retention", Support::kNoEffect},
    {"stream_options", Support::kRefused, R"({"include_obfuscation":false})"},
    {"include", Support::kRefused, "[]"},
    {"truncation", Support::kRefused, R"("disabled")"},
    {"background", Support::kRefused, "false"},
    {"previous_response_id", Support::kRefused, "", kNothingKept},
    {"conversation", Support::kRefused, "", kNothingKept},
    {"prompt", Support::kRefused, "", "templates of prompts are not kept"},
    {"top_logprobs", Support::kRefused, "0", "use /v1/chat/completions"},
    {"max_tool_calls", Support::kRefused, "", "this server calls no tools itself"},
    {"context_management", Support::kRefused, "[]"},
};

// Turns items into messages: calls and reasoning belong to the assistant's message around them.
class Conversation {
 public:
  void add(const Json& item, const std::string& path) {
    if (!item.is_object()) throw ApiError(400, path + " must be an object", path);
    const FieldReader fields(item, path + ".");
    const std::string type = fields.string("type").value_or("message");
    if (type == "message") {
      add_message(fields, path);
    } else if (type == "reasoning") {
      reasoning_ += reasoning_of(fields);
    } else if (type == "function_call") {
      add_call(fields);
    } else if (type == "function_call_output") {
      add_output(fields, path);
    } else {
      throw ApiError(400, fmt::format("{} has type {}, which is not supported", path, type), path);
    }
  }

  void add(Json message) { messages_.push_back(std::move(message)); }
  Json take() { return std::move(messages_); }

 private:
  void add_message(const FieldReader& fields, const std::string& path) {
    const auto role = fields.one_of("role", {"system", "developer", "user", "assistant"});
    const Json* content = fields.find("content");
    if (!role) fields.fail("role", "one of system, developer, user, assistant");
    if (content == nullptr) fields.fail("content", "a string or an array of parts");
    Json message = {{"role", *role == "developer" ? "system" : *role},
                    {"content", content_text(*content, path + ".content")}};
    if (*role == "assistant") take_reasoning(message);
    add(std::move(message));
  }

  void add_call(const FieldReader& fields) {
    const auto name = fields.string("name");
    const Json* arguments = fields.find("arguments");
    if (!name) fields.fail("name", "a string");
    if (arguments == nullptr) fields.fail("arguments", "a string that holds a JSON object");
    if (messages_.empty() || messages_.back()["role"] != "assistant" || !reasoning_.empty()) {
      Json message = {{"role", "assistant"}, {"content", ""}};
      take_reasoning(message);
      add(std::move(message));
    }
    messages_.back()["tool_calls"].push_back(
        {{"type", "function"},
         {"id", fields.string("call_id").value_or("")},
         {"function",
          {{"name", *name},
           {"arguments", arguments_object(*arguments, fields.path_of("arguments"))}}}});
  }

  void add_output(const FieldReader& fields, const std::string& path) {
    const Json* output = fields.find("output");
    if (output == nullptr) fields.fail("output", "a string");
    add({{"role", "tool"},
         {"tool_call_id", fields.string("call_id").value_or("")},
         {"content", content_text(*output, path + ".output")}});
  }

  static std::string reasoning_of(const FieldReader& fields) {
    std::string text;
    for (const char* name : {"content", "summary"}) {
      const Json* parts = fields.array(name);
      if (parts == nullptr || !text.empty()) continue;
      for (const Json& part : *parts) {
        if (part.is_object() && part.contains("text") && part["text"].is_string()) {
          text += part["text"].get<std::string>();
        }
      }
    }
    return text;
  }

  void take_reasoning(Json& message) {
    if (!reasoning_.empty()) message["reasoning_content"] = std::move(reasoning_);
    reasoning_.clear();
  }

  Json messages_ = Json::array();
  std::string reasoning_;
};

Json read_input(const FieldReader& fields) {
  Conversation conversation;
  if (const auto instructions = fields.string("instructions")) {
    conversation.add({{"role", "system"}, {"content", *instructions}});
  }
  const Json* input = fields.find("input");
  if (input == nullptr) throw ApiError(400, "input is missing", "input");
  if (input->is_string()) {
    conversation.add({{"role", "user"}, {"content", *input}});
    return conversation.take();
  }
  if (!input->is_array() || input->empty()) fields.fail("input", "a string or an array of items");
  for (std::size_t i = 0; i < input->size(); ++i) {
    conversation.add((*input)[i], fmt::format("input[{}]", i));
  }
  return conversation.take();
}

void read_format(const FieldReader& fields, GenerationRequest& request) {
  const Json* text = fields.object("text");
  if (text == nullptr) return;
  const Json* format = FieldReader(*text, "text.").object("format");
  if (format == nullptr) return;
  const FieldReader reader(*format, "text.format.");
  const auto type = reader.one_of("type", {"text", "json_object", "json_schema"});
  if (type == "json_object") request.shape = OutputShape::kJsonObject;
  if (type != "json_schema") return;
  const Json* schema = reader.object("schema");
  if (schema == nullptr) reader.fail("schema", "a JSON schema");
  request.shape = OutputShape::kJsonSchema;
  request.schema = std::make_shared<const Json>(*schema);
}

void read_tools(const FieldReader& fields, GenerationRequest& request, Json& variables) {
  Json tools = Json::array();
  if (const Json* given = fields.array("tools")) {
    for (std::size_t i = 0; i < given->size(); ++i) {
      const std::string path = fmt::format("tools[{}]", i);
      const Json& tool = (*given)[i];
      if (!tool.is_object()) throw ApiError(400, path + " must be an object", path);
      const FieldReader reader(tool, path + ".");
      if (reader.string("type") != "function") reader.fail("type", "function");
      const auto name = reader.string("name");
      if (!name) reader.fail("name", "a string");
      add_tool(tools, *name, reader.find("description"), reader.object("parameters"));
    }
  }
  ToolMode mode = ToolMode::kAuto;
  std::string name;
  const Json* choice = fields.find("tool_choice");
  if (choice != nullptr && choice->is_object()) {
    const FieldReader reader(*choice, "tool_choice.");
    if (reader.string("type") != "function") reader.fail("type", "function");
    mode = ToolMode::kNamed;
    name = reader.string("name").value_or("");
  } else if (choice != nullptr) {
    const auto word = fields.one_of("tool_choice", {"none", "auto", "required"});
    if (word == "none") mode = ToolMode::kNone;
    if (word == "required") mode = ToolMode::kRequired;
  }
  set_tools(std::move(tools), mode, name, request, variables);
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
}

}  // namespace

std::span<const Field> responses_fields() {
  return kFields;
}

GenerationRequest parse_responses(std::string_view body, const ModelFacts& facts) {
  const Json object = parse_body(body);
  GenerationRequest request;
  request.dialect = Dialect::kResponses;
  request.unknown_fields = check_fields(object, responses_fields());
  const FieldReader fields(object);
  request.model = fields.string("model").value_or("");
  request.request_id = fields.string("request_id").value_or("").substr(0, 128);
  request.priority = static_cast<int>(fields.integer("priority", -(1 << 30), 1 << 30).value_or(0));
  request.sampling = facts.default_sampling;
  read_sampling(fields, request.sampling);
  const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(),
                                   std::numeric_limits<int64_t>::max());
  if (seed) request.sampling.seed = static_cast<uint64_t>(*seed);
  request.max_tokens = fields.integer("max_output_tokens", 1, std::numeric_limits<int64_t>::max());
  request.stream = fields.boolean("stream").value_or(false);
  read_format(fields, request);

  Json variables = {{"messages", read_input(fields)}};
  if (const Json* reasoning = fields.object("reasoning")) {
    const auto effort =
        FieldReader(*reasoning, "reasoning.")
            .one_of("effort", {"none", "minimal", "low", "medium", "high", "xhigh"});
    if (effort == "none") request.enable_thinking = false;
    if (effort && *effort != "none" && *effort != "high" && *effort != "xhigh") {
      variables["medium_effort"] = true;
    }
  }
  if (request.enable_thinking) variables["enable_thinking"] = *request.enable_thinking;
  read_tools(fields, request, variables);
  request.variables = std::make_shared<const Json>(std::move(variables));
  check_sampling(request);
  return request;
}

}  // namespace levin::serve::api
