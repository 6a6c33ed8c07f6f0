#include "serve/api/api_error.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace levin::serve::api {

std::string_view error_type(int status) {
  switch (status) {
    case 400:
      return "BadRequestError";
    case 401:
      return "AuthenticationError";
    case 404:
      return "NotFoundError";
    case 405:
      return "MethodNotAllowedError";
    case 413:
      return "RequestEntityTooLargeError";
    case 415:
      return "UnsupportedMediaTypeError";
    case 429:
      return "RateLimitError";
    case 501:
      return "NotImplementedError";
    case 503:
      return "ServiceUnavailableError";
    case 504:
      return "TimeoutError";
    default:
      return "InternalServerError";
  }
}

std::string error_body(const ApiError& error) {
  const nlohmann::ordered_json param =
      error.param().empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(error.param());
  const nlohmann::ordered_json body = {{"error",
                                        {{"message", error.message()},
                                         {"type", error_type(error.status())},
                                         {"param", param},
                                         {"code", error.status()}}}};
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string messages_error_body(const ApiError& error) {
  const auto type = [&] {
    switch (error.status()) {
      case 401:
        return "authentication_error";
      case 404:
        return "not_found_error";
      case 413:
        return "request_too_large";
      case 429:
        return "rate_limit_error";
      case 503:
        return "overloaded_error";
      case 504:
        return "timeout_error";
      default:
        return error.status() < 500 ? "invalid_request_error" : "api_error";
    }
  }();
  const nlohmann::ordered_json body = {{"type", "error"},
                                       {"error", {{"type", type}, {"message", error.message()}}}};
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

ApiError to_api_error(const std::exception& error) {
  if (const auto* api = dynamic_cast<const ApiError*>(&error)) return *api;
  const auto* levin = dynamic_cast<const Error*>(&error);
  if (levin == nullptr) return {500, fmt::format("internal error: {}", error.what())};
  const ErrorParts& parts = levin->parts();
  std::string message = parts.what;
  if (!parts.where.empty()) message += fmt::format(" ({})", parts.where);
  if (!parts.expected.empty()) message += fmt::format("; expected {}", parts.expected);
  if (!parts.found.empty()) message += fmt::format("; found {}", parts.found);
  if (!parts.hint.empty()) message += fmt::format("; {}", parts.hint);
  return {levin->exit_code() == ExitCode::kMachine ? 500 : 400, std::move(message)};
}

}  // namespace levin::serve::api
