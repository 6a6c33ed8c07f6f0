// What a client is told when its request is refused, in OpenAI's envelope.
#pragma once

#include <exception>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace levin::serve::api {

class ApiError : public std::exception {
 public:
  // `param`: the field in question; empty when it is none.
  ApiError(int status, std::string message, std::string param = {})
      : status_(status), message_(std::move(message)), param_(std::move(param)) {}

  const char* what() const noexcept override { return message_.c_str(); }
  int status() const { return status_; }
  const std::string& message() const { return message_; }
  const std::string& param() const { return param_; }

 private:
  int status_;
  std::string message_;
  std::string param_;
};

// "BadRequestError" for 400, and so on, as vLLM names them.
std::string_view error_type(int status);

// {"error": {"message", "type", "param", "code"}}
std::string error_body(const ApiError& error);
// The same in Anthropic's envelope: {"type": "error", "error": {"type", "message"}}
std::string messages_error_body(const ApiError& error);
// The same for an Error of the engine, which is a 400 unless the machine is to blame.
ApiError to_api_error(const std::exception& error);

}  // namespace levin::serve::api
