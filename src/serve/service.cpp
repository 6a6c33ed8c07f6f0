#include "serve/service.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "serve/api/fields.h"
#include "serve/http/printable.h"

namespace levin::serve {
namespace {

using api::ApiError;
using http::printable;
using Json = nlohmann::ordered_json;

constexpr int kWorkers = 2;
constexpr std::size_t kHeavyBody = std::size_t{64} << 10;
constexpr std::size_t kMostWaitingJobs = 4096;
constexpr std::size_t kMostUnknownFields = 1000;  // remembered
constexpr std::string_view kUnknownFieldsHeader = "X-Levin-Unknown-Fields";
constexpr std::string_view kTimeoutHeader = "X-Request-Timeout";
constexpr double kLongestTimeout = 1e6;  // seconds

bool same_secret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;  // takes the same time wherever they differ
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

std::string random_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

void check_content_type(const http::Request& request) {
  const std::string_view type = request.header("Content-Type");
  if (type.empty() || type.starts_with("application/json") || type.starts_with("text/json")) return;
  throw ApiError(415,
                 fmt::format("the body must be application/json; found {}", printable(type, 100)));
}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Deadline deadline_of(const http::Request& request, std::chrono::milliseconds longest) {
  using namespace std::chrono;
  milliseconds patience = longest;
  const std::string_view asked = request.header(kTimeoutHeader);
  if (!asked.empty()) {
    double seconds = 0;
    const auto [end, error] = std::from_chars(asked.data(), asked.data() + asked.size(), seconds);
    if (error != std::errc() || end != asked.data() + asked.size() ||
        !(seconds > 0 && seconds <= kLongestTimeout)) {
      throw ApiError(400,
                     fmt::format("{} must be a number of seconds above 0, at most {}; found {}",
                                 kTimeoutHeader, kLongestTimeout, printable(asked, 64)),
                     std::string(kTimeoutHeader));
    }
    const auto wanted = duration_cast<milliseconds>(duration<double>(seconds));
    patience = longest.count() > 0 ? std::min(longest, wanted) : wanted;
    patience = std::max(patience, milliseconds(1));
  }
  if (patience.count() == 0) return std::nullopt;
  return request.received + patience;
}

bool matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('/') || pattern.size() == 1) return pattern == path;
  return path.starts_with(pattern) && path.size() > pattern.size();
}

}  // namespace

std::span<const Service::Route> Service::routes() {
  using enum Access;
  static constexpr Route kRoutes[] = {
      {"GET", "/", &Service::get_page, kOpen},
      {"GET", "/health", &Service::get_health, kOpen},
      {"GET", "/ping", &Service::get_health, kOpen},
      {"GET", "/version", &Service::get_version, kOpen},
      {"GET", "/metrics", &Service::get_metrics, kOpen},
      {"GET", "/v1/models", &Service::get_models, kKey},
      {"GET", "/v1/models/", &Service::get_model, kKey},
      {"POST", "/v1/chat/completions", &Service::post_chat},
      {"POST", "/v1/chat/completions/input_tokens", &Service::post_input_tokens},
      {"POST", "/v1/completions", &Service::post_completion},
      {"POST", "/v1/responses", &Service::post_responses},
      {"POST", "/v1/messages", &Service::post_messages},
      {"POST", "/v1/messages/count_tokens", &Service::post_count_tokens},
      {"POST", "/tokenize", &Service::post_tokenize},
      {"POST", "/detokenize", &Service::post_detokenize},
      {"POST", "/apply-template", &Service::post_apply_template},
  };
  return kRoutes;
}

Service::Service(const ServeOptions& options, std::function<void(std::function<void()>)> post,
                 std::function<http::Counts()> counts)
    : options_(options),
      cors_(options.allowed_origins),
      post_(std::move(post)),
      counts_(std::move(counts)),
      workers_(std::make_unique<Workers>(kWorkers, kMostWaitingJobs)),
      heavy_workers_(std::make_unique<Workers>(1, kMostWaitingJobs)),
      created_(unix_time()) {}

void Service::attach(engine::Engine& engine, engine::Scheduler& scheduler,
                     const EngineSettings& settings) {
  backend_.reset(new Backend{
      .engine = engine,
      .scheduler = scheduler,
      .settings = settings,
      .preparer = Preparer(engine, options_, settings.speculation),
      .host = {.scheduler = scheduler,
               .tokenizer = *engine.tokenizer,
               .post = post_,
               .on_done = [this](const GenerationReport& report) { done(report); },
               .on_piece = [this](double seconds,
                                  int64_t tokens) { metrics_.add_piece(seconds, tokens); }}});
}

void Service::join() {
  workers_.reset();
  heavy_workers_.reset();
  generations_.clear();
}

void Service::handle(const Exchange& plain) {
  if (cors_.answer_preflight(plain)) return;
  const Exchange exchange = cors_.admit(plain);
  try {
    dispatch(exchange);
  } catch (const std::exception& error) {
    fail(exchange, api::to_api_error(error));
  }
}

void Service::dispatch(const Exchange& exchange) {
  const http::Request& request = exchange->request();
  const std::string_view method =
      request.method == "HEAD" ? std::string_view("GET") : request.method;
  const Route* found = nullptr;
  bool path_known = false;
  for (const Route& route : routes()) {
    if (!matches(route.path, request.path)) continue;
    path_known = true;
    if (route.method == method) found = &route;
  }
  if (!path_known) throw ApiError(404, fmt::format("there is no {}", printable(request.path)));
  if (found == nullptr) {
    throw ApiError(405, fmt::format("{} does not take {}", printable(request.path),
                                    printable(request.method, 16)));
  }
  if (found->access != Access::kOpen) check_key(request);
  if (found->access == Access::kKeyAndModel) {
    check_phase();
    check_content_type(request);
  }
  (this->*found->handle)(exchange);
}

void Service::check_key(const http::Request& request) const {
  if (options_.api_keys.empty()) return;
  std::string_view key = request.header("Authorization");
  if (key.starts_with("Bearer ")) key.remove_prefix(7);
  if (key.empty()) key = request.header("x-api-key");  // Anthropic's clients
  const bool known = std::any_of(options_.api_keys.begin(), options_.api_keys.end(),
                                 [&](const std::string& each) { return same_secret(each, key); });
  if (!known) throw ApiError(401, "the API key is missing or wrong");
}

void Service::check_phase() const {
  if (phase_ == Phase::kLoading) throw ApiError(503, "the model is loading");
  if (phase_ == Phase::kDraining) throw ApiError(503, "the server is shutting down");
}

void Service::check_model(const std::string& name) const {
  const auto& names = options_.served_model_names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return;
  throw ApiError(404,
                 fmt::format("there is no model {}; this server has {}", printable(name),
                             fmt::join(names, ", ")),
                 "model");
}

void Service::send(const Exchange& exchange, std::string body) {
  exchange->respond({.body = std::move(body)});
  if (options_.log_requests) log_access(exchange->request(), 200);
}

void Service::fail(const Exchange& exchange, const ApiError& error) {
  http::Response response{.status = error.status(), .body = api::error_body(error)};
  const std::string_view path = exchange->request().path;
  if (path.starts_with("/v1/messages")) response.body = api::messages_error_body(error);
  if (error.status() == 503) response.headers.push_back({"Retry-After", "1"});
  if (error.status() == 429) response.headers.push_back({"Retry-After", "1"});
  if (error.status() == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  exchange->respond(std::move(response));
  if (error.status() == http::kClientGone) metrics_.add_abort();
  if (options_.log_requests) log_access(exchange->request(), error.status());
}

void Service::run_job(const Exchange& exchange, Job job) {
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  const auto deadline = deadline_of(exchange->request(), options_.request_timeout);
  const text::Interrupt interrupt = [gone, deadline] {
    if (*gone) throw ApiError(http::kClientGone, "the client has gone");
    if (deadline && std::chrono::steady_clock::now() >= *deadline) {
      throw ApiError(504, "the request took longer than it may");
    }
  };
  auto run = [this, held = exchange, interrupt, deadline, job = std::move(job)]() mutable {
    std::function<void()> then;
    try {
      interrupt();
      then = job(interrupt, deadline);
    } catch (const std::exception& error) {
      then = [this, held, failure = api::to_api_error(error)] { fail(held, failure); };
    }
    // Exchanges end where connections live.
    post_([then = std::move(then), job = std::move(job), held = std::move(held)] { then(); });
  };
  const bool heavy = exchange->request().body.size() > kHeavyBody;
  if (!(heavy ? heavy_workers_ : workers_)->post(std::move(run))) {
    throw ApiError(429, "too many requests are waiting; try again later");
  }
  exchange->on_disconnect([gone] { *gone = true; });
}

void Service::answer(const Exchange& exchange, Make make) {
  run_job(exchange, [this, exchange, make = std::move(make)](const text::Interrupt& interrupt,
                                                             const Deadline&) {
    return [this, exchange, body = api::dump(make(interrupt))] { send(exchange, body); };
  });
}

void Service::generate(const Exchange& exchange, Parse parse, std::string_view id_prefix) {
  run_job(exchange, [this, exchange, parse, id_prefix](const text::Interrupt& interrupt,
                                                       const Deadline& deadline) {
    api::GenerationRequest request = parse(exchange->request().body, backend_->preparer.facts());
    check_model(request.model);
    auto prepared =
        std::make_shared<Prepared>(backend_->preparer.prepare(std::move(request), interrupt));
    for (auto& submission : prepared->submissions) submission.deadline = deadline;
    return [this, exchange, prepared, id_prefix] {
      start_generation(exchange, std::move(*prepared), id_prefix);
    };
  });
}

void Service::start_generation(const Exchange& exchange, Prepared&& prepared,
                               std::string_view id_prefix) {
  const std::string& own = prepared.request.request_id;
  std::string id(id_prefix);
  id += own.empty() ? random_id() : printable(own, 128);
  std::vector<http::Header> headers = {{"X-Request-Id", id}};
  report_unknown(prepared.request.unknown_fields, headers);
  api::ReplyHead head{
      .id = std::move(id), .created = unix_time(), .model = options_.served_model_names.front()};
  if (!prepared.request.model.empty()) head.model = prepared.request.model;
  const auto generation = std::make_shared<Generation>(
      backend_->host, exchange, std::move(prepared), std::move(head), std::move(headers));
  generations_.insert(generation);
  generation->start();
}

void Service::done(const GenerationReport& report) {
  metrics_.add(report);
  if (options_.log_requests) log_access(report);
  std::erase_if(generations_,
                [&](const auto& generation) { return generation.get() == report.generation; });
}

void Service::report_unknown(const std::vector<std::string>& fields,
                             std::vector<http::Header>& headers) {
  if (fields.empty()) return;
  std::string names;
  for (const std::string& field : fields) {
    const std::string name = printable(field, 64);
    if (names.size() < 512) names += (names.empty() ? "" : ", ") + name;
    if (unknown_fields_.size() >= kMostUnknownFields) continue;
    if (unknown_fields_.insert(name).second) {
      spdlog::warn("request field {} is not known and has no effect (said once)", name);
    }
  }
  headers.push_back({std::string(kUnknownFieldsHeader), std::move(names)});
}

void Service::keep_alive() {
  const std::vector<std::shared_ptr<Generation>> all(generations_.begin(), generations_.end());
  for (const auto& generation : all) generation->keep_alive();
}

}  // namespace levin::serve
