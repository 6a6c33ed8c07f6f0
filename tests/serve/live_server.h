// A server with the bundled model, on a port of this machine.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <thread>

#include "engine/engine.h"
#include "http_client.h"
#include "serve/server.h"

namespace levin::serve::testing {

inline constexpr int kSlots = 4;

inline std::unique_ptr<engine::Engine> load_tiny(int slots = kSlots) {
  engine::LoadOptions options;
  options.runtime.max_model_len = 512;
  options.runtime.max_num_seqs = slots;
  options.runtime.max_extend_tokens = 128;
  options.runtime.threads = 1;
  return engine::load_engine(std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny", options);
}

inline ServeOptions test_options() {
  ServeOptions options;
  options.port = 0;
  options.served_model_names = {"tiny", "another-name"};
  options.log_requests = false;
  options.version = "test";
  return options;
}

inline EngineSettings test_settings() {
  EngineSettings settings;
  settings.scheduler.max_waiting = 1024;
  settings.scheduler.prefix_cache_bytes = int64_t{16} << 20;
  settings.speculation = {.num_speculative_tokens = 3};
  return settings;
}

class LiveServer {
 public:
  explicit LiveServer(engine::Engine& engine, const ServeOptions& options = test_options(),
                      const EngineSettings& settings = test_settings())
      : server_(options), thread_([this, &engine, settings] { server_.run(engine, settings); }) {
    while (get("/health").status != 200) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  ~LiveServer() {
    server_.stop();
    join();
  }

  Server& server() { return server_; }
  uint16_t port() const { return server_.port(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  Answer get(std::string_view path, std::string_view headers = "") const {
    Client client(port());
    client.send_request("GET", path, {}, headers);
    return client.read();
  }
  Answer post(std::string_view path, const Json& body) const {
    return post_text(path, body.dump());
  }
  Answer post_text(std::string_view path, std::string_view body,
                   std::string_view headers = "Content-Type: application/json\r\n") const {
    Client client(port());
    client.send_request("POST", path, body, headers);
    return client.read();
  }
  // A number of /metrics by the beginning of its line.
  double metric(const std::string& name) const {
    const std::string text = get("/metrics").body;
    const std::size_t at = text.find("\nlevin:" + name);
    if (at == text.npos) return -1;
    const std::size_t end = text.find('\n', at + 1);
    return std::stod(text.substr(text.rfind(' ', end)));
  }

 private:
  Server server_;
  std::thread thread_;
};

// Time limits are for a build that users run; sanitizers are slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr double kTimeFactor = 20;
#else
inline constexpr double kTimeFactor = 1;
#endif

inline Json chat(std::string_view text, Json more = Json::object()) {
  Json body = {{"model", "tiny"},
               {"messages", Json::array({{{"role", "user"}, {"content", text}}})},
               {"temperature", 0},
               {"max_tokens", 24}};
  body.update(more);
  return body;
}

// A tool with a bounded text and a bounded number, both required.
inline Json weather_tool() {
  return {{"type", "function"},
          {"function",
           {{"name", "get_weather"},
            {"parameters",
             {{"type", "object"},
              {"properties",
               {{"city", {{"type", "string"}, {"maxLength", 12}}},
                {"days", {{"type", "integer"}, {"minimum", 1}, {"maximum", 9}}}}},
              {"required", Json::array({"city", "days"})}}}}}};
}

}  // namespace levin::serve::testing
