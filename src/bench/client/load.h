// Sends streaming requests to a server and records what comes back: one thread, as many connections
// as there are requests at a time. Nothing of this waits for one request because of another.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/client/http.h"
#include "bench/client/record.h"

namespace levin::bench::client {

struct LoadRequest {
  std::string body;   // JSON
  double at = 0;      // open loop: seconds from the start
  int64_t asked = 0;  // output tokens at most; 0: not known
};

struct LoadPlan {
  std::vector<LoadRequest> requests;
  int max_concurrency = 0;  // requests at a time; 0: any number
};

struct LoadResult {
  std::vector<RequestRecord> records;  // in the order of the plan
  double client_cpu_seconds = 0;       // that this program took meanwhile
  int most_at_once = 0;

  // From the first request sent to the end of the last one.
  double seconds() const;
};

// Keeps its connections from one run to the next.
class LoadClient {
 public:
  // `path` is the API's.
  LoadClient(const Target& target, std::string path);
  ~LoadClient();
  LoadClient(const LoadClient&) = delete;
  LoadClient& operator=(const LoadClient&) = delete;

  // Sends the requests in the order of the plan: each when its time has come and there is a place.
  // `on_done` is told of every one that is over.
  LoadResult run(const LoadPlan& plan, const std::function<void()>& on_done = {});

 private:
  struct Connections;
  class Run;
  std::unique_ptr<Connections> connections_;
};

}  // namespace levin::bench::client
