#include "bench/client/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <utility>

#include "bench/client/answer.h"
#include "bench/client/curl_handle.h"
#include "bench/client/sse.h"
#include "bench/neighbours.h"

namespace levin::bench::client {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kKeptErrorBytes = 4096;
constexpr int kOk = 200;
constexpr long kMostConnections = 65536;

struct MultiDeleter {
  void operator()(CURLM* multi) const { curl_multi_cleanup(multi); }
};

// A request on its way.
class Flight {
 public:
  Flight(RequestRecord& record, CurlEasy easy, Clock::time_point start)
      : record_(record),
        easy_(std::move(easy)),
        start_(start),
        reader_(record),
        parser_([this](std::string_view data) { reader_.on_event(data, now()); }) {
    curl_easy_setopt(easy_.get(), CURLOPT_WRITEFUNCTION, &Flight::on_bytes);
    curl_easy_setopt(easy_.get(), CURLOPT_WRITEDATA, this);
    curl_easy_setopt(easy_.get(), CURLOPT_PRIVATE, this);
  }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  CURL* easy() const { return easy_.get(); }
  CurlEasy take_handle() { return std::move(easy_); }

  void finish(CURLcode code, const Target& target) {
    record_.ended = now();
    record_.status = status();
    if (code != CURLE_OK && record_.error.empty()) record_.error = transfer_error(code, target);
    if (record_.status != kOk && record_.error.empty()) record_.error = refusal();
    if (!parser_.between_events() && record_.error.empty()) {
      record_.error = "the stream ended in the middle of an event";
    }
    if (record_.error.empty()) reader_.on_end();
  }

 private:
  static std::size_t on_bytes(char* data, std::size_t /*one*/, std::size_t size, void* self) {
    return static_cast<Flight*>(self)->take({data, size}) ? size : 0;
  }

  bool take(std::string_view bytes) {
    if (status() == kOk) {
      if (!parser_.feed(bytes)) {
        record_.error = fmt::format("an event is larger than {} bytes", SseParser::kMostBytes);
      }
      return record_.error.empty();  // what comes behind an error is of no use, and may never end
    }
    body_ += bytes.substr(0, kKeptErrorBytes - std::min(body_.size(), kKeptErrorBytes));
    return true;
  }

  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  int status() const {
    long status = 0;
    curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
    return static_cast<int>(status);
  }

  std::string refusal() const {
    curl_off_t retry_after = 0;
    curl_easy_getinfo(easy_.get(), CURLINFO_RETRY_AFTER, &retry_after);
    return fmt::format("HTTP {}{}: {}", record_.status,
                       retry_after > 0 ? fmt::format(" (Retry-After {} s)", retry_after) : "",
                       error_message(body_));
  }

  RequestRecord& record_;
  CurlEasy easy_;
  Clock::time_point start_;
  AnswerReader reader_;
  SseParser parser_;
  std::string body_;  // of a refusal
};

}  // namespace

struct LoadClient::Connections {
  Connections(const Target& server, std::string api_path)
      : target(server), path(std::move(api_path)), headers(make_headers(target)) {
    spare.push_back(make_easy(target, path, headers.get()));  // sets up libcurl
    multi.reset(curl_multi_init());
    if (!multi) throw std::bad_alloc();
    curl_multi_setopt(multi.get(), CURLMOPT_MAXCONNECTS, kMostConnections);
  }

  CurlEasy take_handle() {
    if (spare.empty()) return make_easy(target, path, headers.get());
    CurlEasy handle = std::move(spare.back());
    spare.pop_back();
    return handle;
  }

  Target target;
  std::string path;
  CurlHeaders headers;
  std::vector<CurlEasy> spare;
  std::unique_ptr<CURLM, MultiDeleter> multi;
};

// One run of a plan over the connections.
class LoadClient::Run {
 public:
  Run(Connections& connections, const LoadPlan& plan, const std::function<void()>& on_done)
      : connections_(connections), plan_(plan), on_done_(on_done) {}
  ~Run() {
    for (const auto& flight : flights_) {
      curl_multi_remove_handle(connections_.multi.get(), flight->easy());
    }
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  LoadResult run() {
    result_.records.resize(plan_.requests.size());
    const double cpu_before = own_cpu_seconds();
    while (next_ < plan_.requests.size() || !flights_.empty()) {
      send_due();
      int running = 0;
      curl_multi_perform(connections_.multi.get(), &running);
      if (collect()) continue;  // their places are free
      curl_multi_poll(connections_.multi.get(), nullptr, 0, patience(), nullptr);
    }
    result_.client_cpu_seconds = own_cpu_seconds() - cpu_before;
    return std::move(result_);
  }

 private:
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  bool has_place() const {
    return plan_.max_concurrency <= 0 ||
           flights_.size() < static_cast<std::size_t>(plan_.max_concurrency);
  }

  void send_due() {
    while (next_ < plan_.requests.size() && has_place() && plan_.requests[next_].at <= now()) {
      const LoadRequest& request = plan_.requests[next_];
      RequestRecord& record = result_.records[next_];
      record.index = static_cast<int64_t>(next_++);
      record.due = request.at;
      record.asked = request.asked;
      CurlEasy handle = connections_.take_handle();
      curl_easy_setopt(handle.get(), CURLOPT_POSTFIELDSIZE_LARGE,
                       static_cast<curl_off_t>(request.body.size()));
      curl_easy_setopt(handle.get(), CURLOPT_POSTFIELDS, request.body.data());
      flights_.push_back(std::make_unique<Flight>(record, std::move(handle), start_));
      record.sent = now();
      curl_multi_add_handle(connections_.multi.get(), flights_.back()->easy());
      result_.most_at_once = std::max(result_.most_at_once, static_cast<int>(flights_.size()));
    }
  }

  // Whether any request is over.
  bool collect() {
    bool any = false;
    int left = 0;
    while (const CURLMsg* message = curl_multi_info_read(connections_.multi.get(), &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      CURL* easy = message->easy_handle;
      const CURLcode code = message->data.result;
      void* done = nullptr;
      curl_easy_getinfo(easy, CURLINFO_PRIVATE, &done);
      curl_multi_remove_handle(connections_.multi.get(), easy);
      const auto place = std::find_if(flights_.begin(), flights_.end(),
                                      [&](const auto& flight) { return flight.get() == done; });
      (*place)->finish(code, connections_.target);
      connections_.spare.push_back((*place)->take_handle());
      std::iter_swap(place, flights_.end() - 1);
      flights_.pop_back();
      any = true;
      if (on_done_) on_done_();
    }
    return any;
  }

  // Milliseconds until something is due.
  int patience() const {
    constexpr double kMost = 1000;
    if (next_ == plan_.requests.size() || !has_place()) return static_cast<int>(kMost);
    const double wait = (plan_.requests[next_].at - now()) * 1000;
    return static_cast<int>(std::clamp(wait, 0.0, kMost));
  }

  Connections& connections_;
  const LoadPlan& plan_;
  const std::function<void()>& on_done_;
  std::vector<std::unique_ptr<Flight>> flights_;
  LoadResult result_;
  std::size_t next_ = 0;
  Clock::time_point start_ = Clock::now();
};

double LoadResult::seconds() const {
  if (records.empty()) return 0;
  const auto sent = [](const RequestRecord& a, const RequestRecord& b) { return a.sent < b.sent; };
  const auto end = [](const RequestRecord& a, const RequestRecord& b) { return a.ended < b.ended; };
  return std::max_element(records.begin(), records.end(), end)->ended -
         std::min_element(records.begin(), records.end(), sent)->sent;
}

LoadClient::LoadClient(const Target& target, std::string path)
    : connections_(std::make_unique<Connections>(target, std::move(path))) {}

LoadClient::~LoadClient() = default;

LoadResult LoadClient::run(const LoadPlan& plan, const std::function<void()>& on_done) {
  return Run(*connections_, plan, on_done).run();
}

}  // namespace levin::bench::client
