#include "serve/access_log.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "serve/http/printable.h"

namespace levin::serve {

using http::printable;

void log_access(const http::Request& request, int status) {
  spdlog::info("request client={} method={} path={} status={}", request.remote,
               printable(request.method, 16), printable(request.path), status);
}

void log_access(const GenerationReport& report) {
  const auto& choices = *report.choices;
  int64_t drafted = 0;
  int64_t accepted = 0;
  double queue_seconds = 0;
  for (const auto& choice : choices) {
    if (!choice->finished()) continue;
    drafted += choice->result().speculation.num_draft_tokens;
    accepted += choice->result().speculation.num_accepted_tokens;
    queue_seconds = std::max(queue_seconds, choice->result().timings.queue_seconds);
  }
  spdlog::info(
      "request client={} method={} path={} status={} id={} stream={} n={} outcome={} "
      "prompt_tokens={} cached_tokens={} completion_tokens={} drafted={} accepted={} "
      "queue_ms={:.1f} ttft_ms={:.1f} total_ms={:.1f}",
      report.http->remote, report.http->method, printable(report.http->path), report.status,
      report.id, report.request->stream, choices.size(), report.outcome, report.usage.prompt_tokens,
      report.usage.cached_tokens, report.usage.completion_tokens, drafted, accepted,
      queue_seconds * 1e3, report.first_token_seconds * 1e3, report.seconds * 1e3);
}

}  // namespace levin::serve
