// What an engine and its runtime did lately, for a timeline that Perfetto and Chrome can show: the
// scheduler's steps, requests by slot, the runtime's calls and phases by thread. Everything goes to
// rings that were allocated before; a step neither locks nor allocates for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/files.h"
#include "runtime/phases.h"
#include "runtime/runtime.h"

namespace levin::engine {

// The last `capacity` entries.
template <typename Entry>
class Ring {
 public:
  explicit Ring(std::size_t capacity) : entries_(capacity) {}
  void add(const Entry& entry) { entries_[next_++ % entries_.size()] = entry; }
  std::size_t size() const { return next_ < entries_.size() ? next_ : entries_.size(); }
  // `index` 0 is the oldest.
  const Entry& operator[](std::size_t index) const {
    return entries_[(next_ - size() + index) % entries_.size()];
  }

 private:
  std::vector<Entry> entries_;
  std::size_t next_ = 0;
};

using TimePoint = std::chrono::steady_clock::time_point;

// A step of the scheduler: what came and went, around one round.
struct TimelineStep {
  TimePoint begin, round_begin, round_end, end;
  double draft_seconds = 0, extend_seconds = 0;  // within the round, one after the other
  bool device_rounds = false;                    // the seconds are those of another round then
  int decoding = 0;                              // sequences behind their prompt
  int decode_rows = 0;
  int64_t prompt_rows = 0;
  int64_t drafts = 0, accepted = 0;  // tokens
  int running = 0;
  int64_t waiting = 0;
};

// A request while it had a slot.
struct TimelineRequest {
  uint64_t id = 0;
  int slot = 0;
  TimePoint submitted, slot_begin, first_token, end;
  bool first_slot = true;  // false: it lost one before
  bool has_first_token = false;
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  std::string_view outcome;  // literals: "stop", "length", "abort", "preempted"
};

class Timeline {
 public:
  // Keeps the last `steps` steps, and records the runtime's phases if it can; that ends with this.
  Timeline(runtime::Runtime& runtime, int steps);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // By the thread that runs the engine.
  void add(const TimelineStep& step) { steps_.add(step); }
  void add(const TimelineRequest& request) { requests_.add(request); }

  const Ring<TimelineStep>& steps() const { return steps_; }
  const Ring<TimelineRequest>& requests() const { return requests_; }
  // Null: the runtime records none.
  const runtime::PhaseRecorder* phases() const { return has_phases_ ? &recorder_ : nullptr; }
  const runtime::Runtime& runtime() const { return runtime_; }

 private:
  runtime::Runtime& runtime_;
  Ring<TimelineStep> steps_;
  Ring<TimelineRequest> requests_;
  runtime::PhaseRecorder recorder_;
  bool has_phases_;
};

// The JSON object format of the Trace Event Format, times in microseconds from the first event.
// Processes: the engine (scheduler, counters), requests (a track for each slot), the runtime (its
// calls and a track for each thread).
std::string trace_json(const Timeline& timeline, const std::string& model);
// Writes it, atomically. Throws Error as write_text does.
void write_trace(const Timeline& timeline, const std::string& model,
                 const std::filesystem::path& file, Existing existing);

// How long threads waited at barriers, and in front of which phases most: lines for a terminal.
// Empty when nothing was recorded.
std::string waiting_text(const runtime::PhaseRecorder& recorder);

}  // namespace levin::engine
