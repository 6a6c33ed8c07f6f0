// Any bytes as the body of a request to any of the APIs: a request, or an ApiError of the client's.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "serve/api/api_error.h"
#include "serve/api/generation_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace levin::serve::api;
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  constexpr GenerationRequest (*kParsers[])(std::string_view, const ModelFacts&) = {
      parse_chat, parse_completion, parse_responses, parse_messages};
  try {
    const GenerationRequest request =
        kParsers[data[0] % 4](body, {.default_sampling = {}, .vocab_size = 1000});
    if (request.n < 1 || request.max_tokens.value_or(1) < 1) std::abort();
    if (!request.variables && request.prompts.empty()) std::abort();
  } catch (const ApiError& error) {
    if (error.status() != 400) std::abort();
    if (!nlohmann::json::accept(error_body(error))) std::abort();
  }
  return 0;
}
