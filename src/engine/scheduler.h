// Serves requests that come and go: continuous batching over the slots of a runtime.
//
//    Scheduler scheduler(engine, {.max_waiting = 100, .prefix_cache_bytes = int64_t{4} << 30});
//    std::thread thread([&] { scheduler.run(); });         // the engine thread
//    ...
//    Submission submission{.request = request};            // any thread
//    const auto stream = Stream::attach(submission);       // stream.h
//    const auto [id, refusal] = scheduler.submit(std::move(submission));
//    ...
//    scheduler.drain();                                    // finishes what was accepted
//    thread.join();
//
// Requests get slots in the order of priority, then arrival. Each step is one round (round.h) of
// all running ones: prompts are read in chunks beside them, so small that their tokens keep coming
// (step_policy.h). A request of higher priority takes the slot of a running one of lower priority
// when there is no free one; that one keeps its tokens and goes on later, from the prefix cache or
// by reading them again. What a request puts out depends on nothing but the request and its seed.
//
// Threads: submit, cancel, drain, stop and metrics from any; step and run from one, the engine
// thread, which alone touches the runtime and calls all callbacks. A callback must not wait: it
// holds up everybody's tokens.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/generate.h"
#include "engine/prefix_cache.h"
#include "engine/prompt_cuts.h"
#include "engine/round.h"
#include "engine/sequence.h"
#include "engine/step_policy.h"

namespace levin::engine {

struct SchedulerConfig {
  int max_num_seqs = 0;  // running at the same time; 0: one for each slot of the runtime
  // Requests accepted beyond those that can run; more are refused. Negative: any number.
  int64_t max_waiting = -1;
  // Memory for snapshots (prefix_cache.h); 0: prompts are always read. The runtime must have
  // snapshots.
  int64_t prefix_cache_bytes = 0;
  int64_t snapshot_stride = 512;  // tokens of a prompt between snapshots; 0: none between turns
  int64_t snapshot_gap = 32;      // least tokens between snapshots of a prompt
  bool snapshot_outputs = true;   // also where an output ends, for the next turn of a conversation
  // See StepPolicyOptions.
  double decode_slowdown = 2;
};

struct Completion {
  uint64_t id = 0;
  // kAbort has a stop_reason: "cancelled", "deadline", "stopped", "callback" (it returned false)
  // or "error".
  Result result;
  std::exception_ptr error;  // what went wrong: with it, in the step, or in a callback
};

struct Submission {
  Request request;   // its callbacks are called by the engine thread
  int priority = 0;  // the lower, the sooner, as in vLLM
  std::optional<Sequence::Clock::time_point> deadline = {};
  std::vector<int64_t> turn_ends = {};  // lengths of the prompt at which snapshots are worth most
  bool use_prefix_cache = true;
  // Called once for every submission that was accepted.
  std::function<void(Completion&&)> on_finish = {};
};

enum class Refusal : uint8_t { kNone, kQueueFull, kDraining };

struct Submitted {
  uint64_t id = 0;
  Refusal refusal = Refusal::kNone;
};

// Counts of durations up to each bound, in seconds, as Prometheus has them.
struct DurationHistogram {
  static constexpr std::array<double, 16> kBounds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                                     0.01,   0.025,   0.05,   0.1,   0.25,   0.5,
                                                     1,      2.5,     5,      10};
  std::array<int64_t, kBounds.size() + 1> counts = {};  // of each bound's own range; the rest
  double sum = 0;
  int64_t count = 0;

  void add(double seconds);
};

// Counters since the start unless said otherwise.
struct SchedulerMetrics {
  int running = 0;          // now
  int64_t waiting = 0;      // now; those that lost their slot included
  int max_num_seqs = 0;     // after clamping
  int64_t kv_tokens = 0;    // now; positions in use of the running requests' attention caches
  int64_t kv_capacity = 0;  // positions that all slots have
  int64_t submitted = 0;
  int64_t refused_queue_full = 0;
  int64_t refused_draining = 0;
  int64_t finished_stop = 0;
  int64_t finished_length = 0;
  int64_t finished_abort = 0;
  int64_t failed = 0;             // of the aborted ones: by an error
  int64_t failed_steps = 0;       // that took all running requests with them
  int failed_steps_in_a_row = 0;  // now
  int64_t preemptions = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;     // of requests that got a slot
  int64_t cached_tokens = 0;     // of those, restored
  int64_t prefilled_tokens = 0;  // read, after preemption again
  int64_t generated_tokens = 0;
  int adaptive_drafts = 0;  // last choice of the policy
  SpeculationStats speculation;
  DurationHistogram step_seconds;
  PrefixCacheStats prefix_cache;
};

class Scheduler {
 public:
  // Warns and goes on with fewer when the runtime has fewer slots than max_num_seqs. Throws Error
  // when a prefix cache is asked of a runtime without snapshots. The engine must outlive it, and
  // nobody else may use its runtime.
  Scheduler(Engine& engine, const SchedulerConfig& config);
  // Ends what is left ("stopped"). No other thread may use it any more.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Throws Error as check_request() does, and for turn ends outside the prompt.
  Submitted submit(Submission submission);
  // Takes effect before the next step. An id that is not there any more is ignored.
  void cancel(uint64_t id);
  // From now on nothing is accepted; run() returns when everything accepted has finished.
  void drain();
  // drain(), and cancels everything ("stopped").
  void stop();
  // As of the end of the last step.
  SchedulerMetrics metrics() const;

  // One round of all running requests. False when there was nothing to do.
  bool step();
  // Steps, and sleeps while there is nothing to do, until drained.
  void run();

 private:
  struct Job;
  using Order = std::pair<int, uint64_t>;  // priority, id

  void take_news();
  void take_cancellations(const std::vector<uint64_t>& ids);
  void abort_expired();
  void admit();
  bool make_way_for(const Job& job);
  void settle();
  void give_up_step();
  void preempt(Job& job);
  void start(std::unique_ptr<Job> job);
  void fill_slot(Job& job, int slot);
  bool may_save(const Job& job) const;
  void save(const Job& job);
  bool round();
  void save_snapshots();
  void report();
  void retire();
  void finish(std::unique_ptr<Job> job);
  void abort(Job& job, std::string_view reason);
  void abort_all(std::string_view reason, const std::exception_ptr& error);
  void publish();
  // For Engine::timeline.
  void record_step(std::chrono::steady_clock::time_point begin);
  void record_slot(const Job& job, std::string_view outcome);

  Engine& engine_;
  SchedulerConfig config_;

  // Shared with other threads.
  mutable std::mutex mutex_;
  std::condition_variable news_arrived_;
  std::vector<std::unique_ptr<Job>> arrivals_;
  std::vector<uint64_t> cancellations_;
  bool draining_ = false;
  bool stopping_ = false;
  int64_t open_ = 0;  // accepted and not finished
  uint64_t next_id_ = 1;
  SchedulerMetrics published_;

  // Of the engine thread.
  runtime::ExtendCuts cuts_;
  std::optional<Rounds> rounds_;
  StepPolicy policy_;
  std::optional<PrefixCache> cache_;
  std::vector<int> free_slots_;
  std::map<Order, std::unique_ptr<Job>> waiting_;
  std::vector<std::unique_ptr<Job>> running_;  // in the order in which they got their slots
  std::vector<Sequence*> views_;
  int64_t with_deadline_ = 0;  // requests that have one
  bool some_aborted_ = false;  // since the last retire()
  SchedulerMetrics metrics_;
  TimelineStep step_;  // the current one, when there is a timeline
};

}  // namespace levin::engine
