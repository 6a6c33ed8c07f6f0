// engine/timeline.h in the Trace Event Format of Chrome and Perfetto: complete
// events X with ts and dur, counters C, async pairs b and e, metadata M. Slices of a track nest.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/timeline.h"

namespace levin::engine {
namespace {

constexpr int kEngine = 1, kRequests = 2, kRuntime = 3;  // processes

int64_t ns_of(TimePoint time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

int64_t ns_of(double seconds) {
  return static_cast<int64_t>(seconds * 1e9);
}

struct Event {
  int64_t begin = 0;  // ns
  int64_t length = 0;
  std::string text;  // the fields after "ts"
};

// Microseconds without rounding.
std::string microseconds(int64_t ns) {
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

class Writer {
 public:
  Writer(const Timeline& timeline, std::string model)
      : timeline_(timeline), model_(std::move(model)) {}
  std::string run();

 private:
  // `args` and `name` are JSON text, without braces and quotes.
  void slice(int process, int track, std::string_view name, std::string_view category,
             int64_t begin, int64_t end, const std::string& args = {});
  void counter(std::string_view name, int64_t at, const std::string& args);
  void queued(const TimelineRequest& request, int64_t begin, int64_t end);
  void name_process(int process, const std::string& name);
  void name_track(int process, int track, const std::string& name);

  void add_steps();
  void add_requests();
  void add_phases();
  void add_phases_of(const runtime::PhaseRecorder& recorder, const runtime::StepRecord& step,
                     int thread, const TickScale::Line& scale);

  const Timeline& timeline_;
  std::string model_;
  std::string metadata_;
  std::vector<Event> events_;
  int64_t first_ = std::numeric_limits<int64_t>::max();  // of the recorded steps
};

void Writer::slice(int process, int track, std::string_view name, std::string_view category,
                   int64_t begin, int64_t end, const std::string& args) {
  events_.push_back({begin, end - begin,
                     fmt::format(R"("dur":{},"ph":"X","pid":{},"tid":{},"cat":"{}","name":"{}",)"
                                 R"("args":{{{}}})",
                                 microseconds(end - begin), process, track, category, name, args)});
}

void Writer::counter(std::string_view name, int64_t at, const std::string& args) {
  events_.push_back(
      {at, 0,
       fmt::format(R"("ph":"C","pid":{},"tid":0,"name":"{}","args":{{{}}})", kEngine, name, args)});
}

// Many requests may wait at once, so they get tracks of their own by id.
void Writer::queued(const TimelineRequest& request, int64_t begin, int64_t end) {
  for (const auto& [phase, at] : {std::pair{'b', begin}, std::pair{'e', end}}) {
    events_.push_back({at, 0,
                       fmt::format(R"("ph":"{}","pid":{},"tid":0,"id":{},"cat":"queue",)"
                                   R"("name":"queued","args":{{"request":{}}})",
                                   phase, kRequests, request.id, request.id)});
  }
}

void Writer::name_process(int process, const std::string& name) {
  metadata_ += fmt::format(
      "{{\"ph\":\"M\",\"pid\":{0},\"tid\":0,\"ts\":0,\"name\":\"process_name\",\"args\":"
      "{{\"name\":{1}}}}},\n"
      "{{\"ph\":\"M\",\"pid\":{0},\"tid\":0,\"ts\":0,\"name\":\"process_sort_index\",\"args\":"
      "{{\"sort_index\":{0}}}}},\n",
      process, nlohmann::json(name).dump());
}

void Writer::name_track(int process, int track, const std::string& name) {
  metadata_ += fmt::format(
      "{{\"ph\":\"M\",\"pid\":{0},\"tid\":{1},\"ts\":0,\"name\":\"thread_name\",\"args\":"
      "{{\"name\":{2}}}}},\n"
      "{{\"ph\":\"M\",\"pid\":{0},\"tid\":{1},\"ts\":0,\"name\":\"thread_sort_index\",\"args\":"
      "{{\"sort_index\":{1}}}}},\n",
      process, track, nlohmann::json(name).dump());
}

void Writer::add_steps() {
  name_process(kEngine, "engine");
  name_track(kEngine, 1, "scheduler");
  for (std::size_t i = 0; i < timeline_.steps().size(); ++i) {
    const TimelineStep& step = timeline_.steps()[i];
    const int64_t begin = ns_of(step.begin);
    const int64_t round = ns_of(step.round_begin);
    const int64_t round_end = ns_of(step.round_end);
    first_ = std::min(first_, begin);
    slice(kEngine, 1, "step", "step", begin, ns_of(step.end),
          fmt::format(R"("running":{},"waiting":{})", step.running, step.waiting));
    slice(
        kEngine, 1, "round", "step", round, round_end,
        fmt::format(R"("decoding":{},"decode_rows":{},"prompt_rows":{},"drafts":{},)"
                    R"("accepted":{})",
                    step.decoding, step.decode_rows, step.prompt_rows, step.drafts, step.accepted));
    if (!step.device_rounds) {
      const int64_t drafted = std::min(round + ns_of(step.draft_seconds), round_end);
      const int64_t extended = std::min(drafted + ns_of(step.extend_seconds), round_end);
      if (step.drafts > 0) slice(kEngine, 1, "draft", "step", round, drafted);
      slice(kEngine, 1, "extend and sample", "step", drafted, extended);
    }
    counter(
        "drafts", round_end,
        fmt::format(R"("accepted":{},"rejected":{})", step.accepted, step.drafts - step.accepted));
    counter("requests", round_end,
            fmt::format(R"("running":{},"waiting":{})", step.running, step.waiting));
    counter("rows", round_end,
            fmt::format(R"("decode":{},"prompt":{})", step.decode_rows, step.prompt_rows));
  }
}

// What was before the recorded steps is cut off.
void Writer::add_requests() {
  name_process(kRequests, "requests");
  for (int slot = 0; slot < timeline_.runtime().options().max_num_seqs; ++slot) {
    name_track(kRequests, slot + 1, fmt::format("slot {}", slot));
  }
  for (std::size_t i = 0; i < timeline_.requests().size(); ++i) {
    const TimelineRequest& request = timeline_.requests()[i];
    const int64_t end = ns_of(request.end);
    if (end < first_) continue;
    const int64_t begin = std::max(ns_of(request.slot_begin), first_);
    if (request.first_slot) {
      const int64_t submitted = std::max(ns_of(request.submitted), first_);
      if (submitted < begin) queued(request, submitted, begin);
    }
    const int track = request.slot + 1;
    slice(
        kRequests, track, fmt::format("request {}", request.id), "request", begin, end,
        fmt::format(R"("prompt_tokens":{},"cached_tokens":{},"output_tokens":{},)"
                    R"("outcome":"{}","seconds":{:.6f})",
                    request.prompt_tokens, request.cached_tokens, request.output_tokens,
                    request.outcome, static_cast<double>(end - ns_of(request.slot_begin)) * 1e-9));
    if (!request.has_first_token) continue;
    const int64_t token = std::clamp(ns_of(request.first_token), begin, end);
    if (begin < token) slice(kRequests, track, "prompt", "request", begin, token);
    if (token < end) slice(kRequests, track, "output", "request", token, end);
  }
}

void Writer::add_phases_of(const runtime::PhaseRecorder& recorder, const runtime::StepRecord& step,
                           int thread, const TickScale::Line& scale) {
  for (uint64_t i = step.first_phase; i < step.first_phase + step.phases; ++i) {
    const runtime::PhaseRecord& record = recorder.phase(thread, i);
    const auto begin = static_cast<int64_t>(scale.ns(record.begin));
    const auto arrived = std::max(static_cast<int64_t>(scale.ns(record.arrived)), begin);
    const double seconds = scale.seconds(record.begin, record.arrived);
    std::string args =
        fmt::format(R"("bytes":{},"gb_per_s":{:.2f},"rows":{},"waited_us":{:.3f})", record.bytes,
                    seconds > 0 ? static_cast<double>(record.bytes) / seconds * 1e-9 : 0.0,
                    record.rows, scale.seconds(record.arrived, record.end) * 1e6);
    if (record.layer >= 0) args += fmt::format(R"(,"layer":{})", record.layer);
    if (record.experts > 0) args += fmt::format(R"(,"experts":{})", record.experts);
    slice(kRuntime, thread + 2,
          fmt::format("{}{}", record.draft ? "draft: " : "", name_of(record.phase)), "phase", begin,
          arrived, args);
  }
}

void Writer::add_phases() {
  const runtime::PhaseRecorder* recorder = timeline_.phases();
  name_process(kRuntime, timeline_.runtime().description());
  if (recorder == nullptr) return;
  name_track(kRuntime, 1, "calls");
  for (int thread = 0; thread < recorder->threads(); ++thread) {
    name_track(kRuntime, thread + 2, fmt::format("thread {}", thread));
  }
  const TickScale::Line scale = recorder->scale();
  for (const runtime::StepRecord& step : recorder->steps()) {
    const auto begin = static_cast<int64_t>(scale.ns(step.begin));
    const bool draft = step.kind == runtime::StepKind::kDraft;
    slice(kRuntime, 1, draft ? "draft" : "extend", "call", begin,
          std::max(static_cast<int64_t>(scale.ns(step.end)), begin),
          fmt::format(R"("sequences":{},"{}":{},"barriers":{})", step.sequences,
                      draft ? "proposals" : "rows", step.rows, step.phases));
    for (int thread = 0; thread < recorder->threads(); ++thread) {
      add_phases_of(*recorder, step, thread, scale);
    }
  }
}

std::string Writer::run() {
  add_steps();
  add_requests();
  add_phases();
  // A parent before what it holds.
  std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.length > b.length;
  });
  const int64_t origin = events_.empty() ? 0 : events_.front().begin;
  std::string json = "{\"displayTimeUnit\":\"ns\",\"otherData\":";
  json += nlohmann::ordered_json{{"model", model_},
                                 {"runtime", timeline_.runtime().description()},
                                 {"steps", timeline_.steps().size()}}
              .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  json += ",\"traceEvents\":[\n" + metadata_;
  for (const Event& event : events_) {
    json += fmt::format("{{\"ts\":{},{}}},\n", microseconds(event.begin - origin), event.text);
  }
  json.resize(json.size() - 2);  // the last comma; there is metadata always
  return json + "\n]}\n";
}

}  // namespace

std::string trace_json(const Timeline& timeline, const std::string& model) {
  return Writer(timeline, model).run();
}

void write_trace(const Timeline& timeline, const std::string& model,
                 const std::filesystem::path& file, Existing existing) {
  write_text(file, trace_json(timeline, model), existing);
}

}  // namespace levin::engine
