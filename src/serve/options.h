// How a server is set up.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/generate.h"
#include "engine/scheduler.h"
#include "serve/http/server.h"
#include "text/reasoning.h"
#include "text/tool_arguments.h"

namespace levin::serve {

// What depends on the model, and is known once it has been loaded.
struct EngineSettings {
  engine::SchedulerConfig scheduler;
  engine::SpeculativeConfig speculation;  // of every request
};

struct ServeOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;  // 0: any free one
  http::Limits limits;
  std::vector<std::string> api_keys;  // empty: everybody may come
  // Pages of which origins ("https://chat.example") may ask; "*": of any. The server's own page is
  // of no other origin.
  std::vector<std::string> allowed_origins;
  std::vector<std::string> served_model_names;  // the first is shown; at least one
  text::ReasoningFormat reasoning = text::ReasoningFormat::kNemotronV3;
  text::ToolCallFormat tool_calls = text::ToolCallFormat::kQwen3Coder;
  int64_t max_waiting = 1024;  // requests that have no slot; more get 429
  int max_choices = 16;        // n, and prompts of a completion times n
  // From a request's arrival to its end; 0: as long as it takes. A client may ask for less with the
  // header X-Request-Timeout.
  std::chrono::milliseconds request_timeout = std::chrono::milliseconds(0);
  std::string metrics_prefix = "levin:";
  bool log_requests = true;
  std::string version = "0";
  // How long answers may still be on their way to clients when everything has been generated.
  std::chrono::milliseconds send_patience = std::chrono::seconds(10);
};

}  // namespace levin::serve
