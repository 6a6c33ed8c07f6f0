// Sentences that the text and the page of a report share.
#pragma once

#include <string>
#include <vector>

#include "bench/client/client_bench.h"

namespace levin::bench::client {

// What the figures mean.
std::string definitions();

// What was asked of whom.
std::string describe_work(const ClientReport& report);

// Empty when the server counts no drafts.
std::string describe_speculation(const PointSummary& summary);

// Whatever a reader should know before believing: failures, unknown tokens, cached prompts, other
// users, a busy client.
std::vector<std::string> notes_of(const ClientReport& report);

}  // namespace levin::bench::client
