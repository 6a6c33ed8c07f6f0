// levin serve: answers OpenAI clients.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generation.h"
#include "cli/interruption.h"
#include "cli/profile_flags.h"
#include "cli/sampling_flags.h"
#include "cli/trace_flags.h"
#include "cli/validators.h"
#include "core/error.h"
#include "core/files.h"
#include "core/plural.h"
#include "engine/admission.h"
#include "engine/self_test.h"
#include "serve/server.h"

namespace levin::cli {
namespace {

constexpr const char* kDescription =
    "Serves a model to OpenAI clients: chat and text completions, responses, Anthropic messages,\n"
    "tool calls, JSON schemas, Prometheus metrics. Batches requests as they come, drafts as many\n"
    "tokens as pay, and keeps prefixes of prompts.\n\n"
    "  levin serve models/tiny --port 8000\n"
    "  curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
    "    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is 384 + 257?\"}]}'\n\n"
    "SIGTERM and Ctrl-C finish what was accepted; a second one stops at once.\n";

constexpr int kDefaultSequences = 16;
constexpr std::size_t kMaxTemplateBytes = std::size_t{4} << 20;

struct ServeFlags {
  EngineFlags engine;
  serve::ServeOptions options;
  TraceFlags trace;
  std::string profile;
  uint64_t prefix_cache_memory = uint64_t{1} << 30;
  uint64_t slot_memory = 0;
  int max_batched_tokens = 0;  // 0: by device
  std::string reasoning_parser = "nemotron_v3";
  std::string tool_call_parser = "qwen3_coder";
  std::string chat_template;
  bool no_request_log = false;
  bool auto_tool_choice = false;
  std::string allowed_origins;
  double request_timeout = 0;
};

std::vector<std::string> parse_origins(const std::string& text) {
  if (text.empty()) return {};
  const auto refuse = [&](std::string found) {
    throw Error({.what = "origins cannot be read",
                 .where = "--allowed-origins",
                 .expected = R"(a JSON array of origins, like ["https://chat.example"] or ["*"])",
                 .found = std::move(found),
                 .hint = "an origin is scheme://host:port, without a path"});
  };
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_array()) refuse(text);
  std::vector<std::string> origins;
  for (const auto& each : json) {
    const std::string origin = each.is_string() ? each.get<std::string>() : std::string();
    const std::size_t host = origin.find("://");
    const bool whole = host != origin.npos && host > 0 && host + 3 < origin.size() &&
                       origin.find('/', host + 3) == origin.npos;
    const bool plain = std::all_of(origin.begin(), origin.end(),
                                   [](unsigned char c) { return c > 0x20 && c < 0x7f; });
    if (!plain || (origin != "*" && !whole)) refuse(each.dump());
    origins.push_back(origin);
  }
  return origins;
}

// Flags go before the environment.
void complete_api_keys(std::vector<std::string>& keys) {
  const char* from_environment = std::getenv("LEVIN_API_KEY");
  if (keys.empty() && from_environment != nullptr) keys.emplace_back(from_environment);
  for (const std::string& key : keys) {
    const char* where = from_environment != nullptr ? "--api-key or LEVIN_API_KEY" : "--api-key";
    if (!key.empty()) {
      check_api_key(key, where);
      continue;
    }
    throw Error({.what = "an API key is empty",
                 .where = where,
                 .expected = "a key that nobody guesses",
                 .found = "nothing",
                 .hint = "to let everybody in, leave the flag out and unset the variable"});
  }
}

// Every metric's name begins with it, and names are made of these only.
std::string check_metrics_prefix(const std::string& prefix) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':';
  };
  const auto part = [&](char c) { return letter(c) || (c >= '0' && c <= '9'); };
  if (!prefix.empty() && letter(prefix.front()) && std::all_of(prefix.begin(), prefix.end(), part))
    return {};
  return fmt::format("{} begins no Prometheus name, which has letters, digits, _ and :", prefix);
}

// Less than a millisecond would be rounded to 0, which is no limit.
std::string check_timeout(const std::string& text) {
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  const bool number = !text.empty() && *end == '\0';
  if (number && (seconds == 0 || (seconds >= 0.001 && seconds <= 1e6))) return {};
  return fmt::format("{} is neither 0, for no limit, nor from 0.001 to 1000000", text);
}

// A body that may come must also fit.
void check_body_limits(const serve::http::Limits& limits) {
  if (limits.held_bytes >= limits.body_bytes) return;
  throw Error({.what = "no request as large as it may be could ever be read",
               .where = "--request-memory",
               .expected = fmt::format("at least --max-request-bytes, {}", limits.body_bytes),
               .found = fmt::format("{}", limits.held_bytes),
               .hint = {}});
}

// What the user did not fix is chosen round by round, up to what the runtime can rewind.
engine::SpeculativeConfig speculation_of(const ServeFlags& flags, const engine::Engine& engine) {
  if (flags.engine.speculative_config) return speculative_config(flags.engine);
  const runtime::Options& options = engine.runtime->options();
  if (!options.mtp) return speculative_config(flags.engine);
  return {.num_speculative_tokens = options.max_rewind - 1,
          .adaptive = true,
          .draft_vocab_size = options.max_rewind > 1 ? flags.engine.draft_vocab_size : 0,
          .device_rounds = !flags.engine.host_rounds};
}

int64_t prefix_cache_bytes(const ServeFlags& flags, const engine::Engine& engine) {
  if (flags.engine.no_prefix_caching) return 0;
  const auto wanted = static_cast<int64_t>(flags.prefix_cache_memory);
  const std::optional<int64_t> free = engine.runtime->free_snapshot_bytes();
  // The driver needs some, too.
  constexpr int64_t kLeft = int64_t{256} << 20;
  const int64_t most = free ? std::max<int64_t>(*free - kLeft, 0) : wanted;
  if (wanted <= most) return wanted;
  spdlog::warn("--prefix-cache-memory {} is clamped to the {} bytes that the device has left",
               wanted, most);
  return most;
}

std::unique_ptr<engine::Engine> load(const ServeFlags& flags) {
  std::optional<text::ChatTemplate> chat_template;
  if (!flags.chat_template.empty()) {
    chat_template = text::ChatTemplate::parse(read_text(flags.chat_template, kMaxTemplateBytes),
                                              flags.chat_template, flags.engine.model);
  }
  engine::LoadOptions options = load_options(flags.engine);
  size_steps(options, flags.max_batched_tokens);
  options.slot_memory_bytes = static_cast<int64_t>(flags.slot_memory);
  options.slots_from_free_memory = options.slot_memory_bytes == 0 && !options.make_runtime;
  int64_t draft_vocab = flags.engine.draft_vocab_size;
  if (flags.engine.speculative_config) {
    const engine::SpeculativeConfig speculation = speculative_config(flags.engine);
    options.runtime.mtp = speculation.num_speculative_tokens > 0;
    draft_vocab = speculation.draft_vocab_size;
  }
  auto engine =
      load_generating_engine(flags.engine.model, options, {.draft_vocab_size = draft_vocab});
  if (chat_template) engine->chat_template = std::move(chat_template);
  return engine;
}

void log_plan(const engine::Engine& engine, const serve::EngineSettings& settings) {
  const runtime::Options& runtime = engine.runtime->options();
  const auto mebibytes = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  spdlog::info("memory: {:.1f} MiB taken by weights, {} and work space; slots of {}, {}",
               mebibytes(engine.runtime->memory_bytes()),
               counted(int64_t{runtime.max_num_seqs}, "slot"),
               counted(runtime.max_model_len, "token"),
               engine::slot_bytes(engine.model->config, runtime).message());
  spdlog::info("prefix cache: {}",
               settings.scheduler.prefix_cache_bytes == 0
                   ? std::string("off")
                   : fmt::format("up to {:.1f} MiB of the {}'s memory",
                                 mebibytes(settings.scheduler.prefix_cache_bytes),
                                 engine.runtime->free_snapshot_bytes() ? "device" : "machine"));
  const engine::SpeculativeConfig& speculation = settings.speculation;
  spdlog::info(
      "speculation: {}",
      speculation.num_speculative_tokens == 0 ? std::string("off")
      : speculation.adaptive
          ? fmt::format("as many drafts as pay, up to {}", speculation.num_speculative_tokens)
          : counted(int64_t{speculation.num_speculative_tokens}, "draft"));
}

ExitCode run_serve(ServeFlags& flags, const CLI::App& command) {
  serve::ServeOptions& options = flags.options;
  options.version = LEVIN_VERSION;
  options.log_requests = !flags.no_request_log;
  options.reasoning = text::parse_reasoning_format(flags.reasoning_parser);
  options.allowed_origins = parse_origins(flags.allowed_origins);
  options.request_timeout = std::chrono::milliseconds(std::llround(flags.request_timeout * 1000));
  complete_api_keys(options.api_keys);
  check_body_limits(options.limits);
  options.tool_calls = text::parse_tool_call_format(flags.tool_call_parser);
  if (options.served_model_names.empty()) {
    const std::filesystem::path folder = std::filesystem::path(flags.engine.model) / "";
    options.served_model_names.push_back(folder.parent_path().filename().string());
  }
  check_trace(flags.trace, std::array<std::filesystem::path, 3>{
                               flags.engine.model, flags.chat_template, flags.profile});
  const auto profile = apply_profile(flags.profile, command, flags.engine, false);
  // The port is taken before the model is loaded, so that a mistake shows at once and a load
  // balancer sees that something is coming.
  serve::Server server(options);
  spdlog::info("listening on {} while {} loads", server.url(), flags.engine.model);
  const auto engine = load(flags);
  check_device(profile, *engine);
  start_trace(flags.trace, *engine);
  serve::EngineSettings settings;
  settings.speculation = speculation_of(flags, *engine);
  engine::require_drafts(*engine, settings.speculation.num_speculative_tokens, kDraftsPlace);
  if (settings.speculation.num_speculative_tokens > 0) engine::check_drafter(*engine);
  settings.scheduler.max_waiting = options.max_waiting;
  settings.scheduler.prefix_cache_bytes = prefix_cache_bytes(flags, *engine);
  log_plan(*engine, settings);
  tell_sampling({}, *engine);
  server.handle_signals();
  when_interrupted("requests that were running are lost; SIGTERM and Ctrl-C finish them first");
  server.run(*engine, settings);
  spdlog::info("all requests are finished");
  finish_trace(flags.trace, *engine);
  return ExitCode::kDone;
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("serve", kDescription);
  auto flags = std::make_shared<ServeFlags>();
  flags->engine.max_num_seqs = kDefaultSequences;
  add_engine_flags(*command, flags->engine);
  add_host_rounds_flag(*command, flags->engine);
  add_profile_flag(*command, flags->profile);
  add_trace_flags(*command, flags->trace);
  serve::ServeOptions& options = flags->options;
  command->add_option("--host", options.host, "Address to listen on; 0.0.0.0 for all")
      ->capture_default_str();
  command->add_option("--port", options.port, "Port; 0 for any free one")->capture_default_str();
  command
      ->add_option("--api-key", options.api_keys,
                   "Ask clients for this key; may be repeated (default: the environment variable "
                   "LEVIN_API_KEY, which other users of the machine cannot see)")
      ->allow_extra_args(false);
  command
      ->add_option("--allowed-origins", flags->allowed_origins,
                   "Origins whose web pages may ask, as a JSON array of strings; [\"*\"] for any "
                   "(default: none but the server's own page)")
      ->type_name("JSON");
  command->add_option("--served-model-name", options.served_model_names,
                      "Names that clients may use (default: the folder's)");
  auto* cache = command->add_flag("--enable-prefix-caching")
                    ->description("Keep states of prompts for those that begin alike (default)");
  auto* no_cache = command
                       ->add_flag("--no-enable-prefix-caching", flags->engine.no_prefix_caching,
                                  "Read every prompt")
                       ->excludes(cache);
  command
      ->add_option("--prefix-cache-memory", flags->prefix_cache_memory,
                   "Memory for that, e.g. 4G (default 1G)")
      ->transform(CLI::AsSizeValue(false))
      ->excludes(no_cache);
  command
      ->add_option("--slot-memory", flags->slot_memory,
                   "Memory for --max-num-seqs slots of --max-model-len tokens, which are fewer "
                   "when they do not fit (default on the CPU: half of what is free)")
      ->transform(CLI::AsSizeValue(false));
  command
      ->add_option("--max-num-batched-tokens", flags->max_batched_tokens,
                   "Most tokens of one step (default 512, on a CUDA device 8192)")
      ->check(CLI::Range(16, 65536));
  command
      ->add_option("--max-waiting", options.max_waiting,
                   "Requests that may wait for a slot; more get 429")
      ->check(at_least(0))
      ->capture_default_str();
  command
      ->add_option("--request-timeout", flags->request_timeout,
                   "Seconds a request may take from its arrival, waiting included; then it gets "
                   "504. 0: as long as it takes. Clients may ask for less with X-Request-Timeout")
      ->check(CLI::Validator(check_timeout, "0 or [0.001 - 1e+06]"))
      ->capture_default_str();
  command->add_option("--max-connections", options.limits.connections, "Open connections")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  size_at_least(
      command->add_option("--max-request-bytes", options.limits.body_bytes,
                          "Largest body of a request, e.g. 8M; larger ones get 413 (default 8M)"),
      1);
  size_at_least(
      command->add_option("--request-memory", options.limits.held_bytes,
                          "What bodies of all requests may hold together until they are answered; "
                          "the request that would hold more gets 503 (default 256M)"),
      1);
  command->add_option("--reasoning-parser", flags->reasoning_parser, "nemotron_v3 or none")
      ->capture_default_str();
  command->add_flag("--enable-auto-tool-choice", flags->auto_tool_choice,
                    "As with vLLM; always so here");
  command
      ->add_option("--tool-call-parser", flags->tool_call_parser,
                   "qwen3_coder, qwen3_xml (the same) or none")
      ->capture_default_str();
  command->add_option("--chat-template", flags->chat_template,
                      "Jinja file instead of the checkpoint's");
  command
      ->add_option("--metrics-prefix", options.metrics_prefix,
                   "In front of metrics' names; vllm: for existing dashboards")
      ->check(CLI::Validator(check_metrics_prefix, ""))
      ->capture_default_str();
  command->add_flag("--disable-log-requests,--no-enable-log-requests", flags->no_request_log,
                    "Do not log a line for each request");
  command->callback([flags, command, &action] {
    action = [flags, command] { return run_serve(*flags, *command); };
  });
}

}  // namespace levin::cli
