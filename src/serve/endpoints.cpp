// What each route of the service does.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "serve/api/fields.h"
#include "serve/service.h"
#include "serve/web/page.h"
#include "text/utf8.h"

namespace levin::serve {
namespace {

using api::ApiError;
using Json = nlohmann::ordered_json;

// A device that has failed stays so; whoever watches over the server should start another.
constexpr int kFailedStepsToBeIll = 3;

Json model_card(const std::string& name, int64_t created, int64_t max_model_len) {
  Json permission = {{"id", "modelperm-" + name},
                     {"object", "model_permission"},
                     {"created", created},
                     {"allow_create_engine", false},
                     {"allow_sampling", true},
                     {"allow_logprobs", true},
                     {"allow_search_indices", false},
                     {"allow_view", true},
                     {"allow_fine_tuning", false},
                     {"organization", "*"},
                     {"group", nullptr},
                     {"is_blocking", false}};
  return {{"id", name},
          {"object", "model"},
          {"created", created},
          {"owned_by", "levin"},
          {"root", name},
          {"parent", nullptr},
          {"max_model_len", max_model_len == 0 ? Json() : Json(max_model_len)},
          {"permission", Json::array({std::move(permission)})}};
}

// The prompt of a request with "messages" (rendered) or "prompt".
std::string prompt_text(const Preparer& preparer, std::string_view body,
                        const text::Interrupt& interrupt) {
  const Json object = api::parse_body(body);
  if (object.contains("messages")) {
    return preparer.render(*api::parse_chat(body, preparer.facts()).variables, interrupt);
  }
  const auto prompt = api::FieldReader(object).string("prompt");
  if (!prompt) throw ApiError(400, "prompt or messages is missing", "prompt");
  return *prompt;
}

}  // namespace

void Service::get_page(const Exchange& exchange) {
  exchange->respond({.content_type = "text/html; charset=utf-8", .body = std::string(web::page())});
}

void Service::get_health(const Exchange& exchange) {
  const char* status = "ok";
  const char* message = "";
  if (phase_ == Phase::kLoading) {
    status = "loading";
    message = "the model is loading";
  } else if (phase_ == Phase::kDraining) {
    status = "draining";
    message = "the server is shutting down";
  } else if (backend_->scheduler.metrics().failed_steps_in_a_row >= kFailedStepsToBeIll) {
    status = "failing";
    message = "the engine fails step after step";
  } else {
    return exchange->respond({.body = R"({"status":"ok"})"});
  }
  http::Response response{.status = 503, .headers = {{"Retry-After", "1"}}};
  const Json error = {
      {"message", message}, {"type", "ServiceUnavailableError"}, {"param", nullptr}, {"code", 503}};
  response.body = api::dump({{"status", status}, {"error", error}});
  exchange->respond(std::move(response));
}

void Service::get_version(const Exchange& exchange) {
  exchange->respond({.body = api::dump({{"version", options_.version}})});
}

void Service::get_metrics(const Exchange& exchange) {
  Metrics::Facts facts{.prefix = options_.metrics_prefix,
                       .model = options_.served_model_names.front(),
                       .http = counts_()};
  engine::SchedulerMetrics scheduler;
  if (backend_) {
    facts.cache_bytes = backend_->settings.scheduler.prefix_cache_bytes;
    facts.max_model_len = backend_->preparer.max_model_len();
    scheduler = backend_->scheduler.metrics();
  }
  exchange->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8",
                     .body = metrics_.text(scheduler, facts)});
}

void Service::get_models(const Exchange& exchange) {
  const int64_t length = backend_ ? backend_->preparer.max_model_len() : 0;
  Json list = {{"object", "list"}, {"data", Json::array()}};
  for (const std::string& name : options_.served_model_names) {
    list["data"].push_back(model_card(name, created_, length));
  }
  send(exchange, api::dump(list));
}

void Service::get_model(const Exchange& exchange) {
  const std::string name = exchange->request().path.substr(std::string_view("/v1/models/").size());
  check_model(name);
  send(exchange,
       api::dump(model_card(name, created_, backend_ ? backend_->preparer.max_model_len() : 0)));
}

void Service::post_chat(const Exchange& exchange) {
  generate(exchange, api::parse_chat, "chatcmpl-");
}

void Service::post_completion(const Exchange& exchange) {
  generate(exchange, api::parse_completion, "cmpl-");
}

void Service::post_responses(const Exchange& exchange) {
  generate(exchange, api::parse_responses, "resp_");
}

void Service::post_messages(const Exchange& exchange) {
  generate(exchange, api::parse_messages, "msg_");
}

void Service::post_tokenize(const Exchange& exchange) {
  answer(exchange, [this, exchange](const text::Interrupt& interrupt) -> Json {
    const std::string& body = exchange->request().body;
    const Json object = api::parse_body(body);
    const std::vector<int32_t> tokens =
        backend_->preparer.tokenize(prompt_text(backend_->preparer, body, interrupt), interrupt);
    Json strings = nullptr;
    if (api::FieldReader(object).boolean("return_token_strs").value_or(false)) {
      strings = Json::array();
      for (const int32_t token : tokens) {
        strings.push_back(text::to_valid_utf8(backend_->engine.tokenizer->bytes_of(token)));
      }
    }
    return {{"count", tokens.size()},
            {"max_model_len", backend_->preparer.max_model_len()},
            {"tokens", tokens},
            {"token_strs", std::move(strings)}};
  });
}

void Service::post_detokenize(const Exchange& exchange) {
  answer(exchange, [this, exchange](const text::Interrupt&) -> Json {
    const Json object = api::parse_body(exchange->request().body);
    const api::FieldReader fields(object);
    if (fields.find("tokens") == nullptr) throw ApiError(400, "tokens is missing", "tokens");
    const text::Tokenizer& tokenizer = *backend_->engine.tokenizer;
    const auto ids = fields.token_ids("tokens", tokenizer.vocab_size());
    return {{"prompt", text::to_valid_utf8(tokenizer.decode(ids))}};
  });
}

void Service::post_apply_template(const Exchange& exchange) {
  answer(exchange, [this, exchange](const text::Interrupt& interrupt) -> Json {
    const auto request = api::parse_chat(exchange->request().body, backend_->preparer.facts());
    return {{"prompt", backend_->preparer.render(*request.variables, interrupt)}};
  });
}

void Service::post_input_tokens(const Exchange& exchange) {
  answer(exchange, [this, exchange](const text::Interrupt& interrupt) -> Json {
    const auto request = api::parse_chat(exchange->request().body, backend_->preparer.facts());
    check_model(request.model);
    const std::string prompt = backend_->preparer.render(*request.variables, interrupt);
    return {{"input_tokens", backend_->preparer.tokenize(prompt, interrupt).size()}};
  });
}

void Service::post_count_tokens(const Exchange& exchange) {
  answer(exchange, [this, exchange](const text::Interrupt& interrupt) -> Json {
    const auto request = api::parse_messages(exchange->request().body, backend_->preparer.facts());
    check_model(request.model);
    const std::string prompt = backend_->preparer.render(*request.variables, interrupt);
    return {{"input_tokens", backend_->preparer.tokenize(prompt, interrupt).size()}};
  });
}

}  // namespace levin::serve
