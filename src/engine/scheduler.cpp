#include "engine/scheduler.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <random>

#include "core/error.h"
#include "core/plural.h"

namespace levin::engine {
namespace {

using Clock = Sequence::Clock;

uint64_t seed_of(const Request& request) {
  if (request.sampling.seed) return *request.sampling.seed;
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

int clamp_sequences(const runtime::Runtime& runtime, int wanted) {
  const int slots = runtime.options().max_num_seqs;
  if (wanted <= 0) return slots;
  if (wanted > slots) {
    spdlog::warn("max_num_seqs {} is clamped to what the runtime has: {}", wanted,
                 counted(int64_t{slots}, "slot"));
  }
  return std::min(wanted, slots);
}

std::optional<PrefixCache> make_cache(runtime::Runtime& runtime, int64_t bytes) {
  if (bytes <= 0) return std::nullopt;
  if (!runtime.has_snapshots()) {
    throw Error({.what = "no prefix cache with this runtime",
                 .where = runtime.description(),
                 .expected = "a runtime that saves and restores sequences",
                 .found = "none",
                 .hint = "run without prefix cache"});
  }
  return std::optional<PrefixCache>(std::in_place, runtime, bytes);
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "something that is no exception";
  }
}

void check_turn_ends(const Submission& submission) {
  const auto length = static_cast<int64_t>(submission.request.prompt.size());
  for (const int64_t end : submission.turn_ends) {
    if (end >= 0 && end <= length) continue;
    throw Error({.what = "end of a turn is not in the prompt",
                 .where = "turn_ends",
                 .expected = fmt::format("0 to {}", length),
                 .found = fmt::format("{}", end),
                 .hint = {}});
  }
}

}  // namespace

void DurationHistogram::add(double seconds) {
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++counts[static_cast<std::size_t>(bound - kBounds.begin())];
  sum += seconds;
  ++count;
}

struct Scheduler::Job {
  uint64_t id = 0;
  Submission submission;
  uint64_t seed = 0;
  Clock::time_point submitted;
  std::unique_ptr<Sequence> sequence;  // from the first slot on
  std::string_view aborted;            // why, while it has no sequence
  std::exception_ptr error;
  Clock::time_point slot_begin;  // of its current slot
  double queue_seconds = 0;
  int64_t cached_tokens = 0;
  int preemptions = 0;
  std::vector<int64_t> snapshots;  // lengths still to come, the next one last

  Order order() const { return {submission.priority, id}; }
  bool done() const { return !aborted.empty() || (sequence && sequence->finished()); }
  std::span<const int32_t> consumed() const {
    return sequence->tokens().first(static_cast<std::size_t>(sequence->consumed()));
  }
  void pause_at_next_snapshot() {
    if (!snapshots.empty()) sequence->pause_at(snapshots.back());
  }
};

Scheduler::Scheduler(Engine& engine, const SchedulerConfig& config)
    : engine_(engine),
      config_(config),
      cuts_(usable_cuts(*engine.runtime)),
      rounds_(std::in_place, *engine.runtime),
      policy_({.most_drafts = engine.runtime->options().max_rewind - 1,
               .fewest_prompt_tokens = cuts_.alignment,
               .most_prompt_tokens = engine.runtime->options().max_extend_tokens,
               .decode_slowdown = config.decode_slowdown}),
      cache_(make_cache(*engine.runtime, config.prefix_cache_bytes)) {
  metrics_.max_num_seqs = clamp_sequences(*engine.runtime, config.max_num_seqs);
  for (int slot = metrics_.max_num_seqs - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  metrics_.kv_capacity = metrics_.max_num_seqs * engine.runtime->options().max_model_len;
  published_ = metrics_;
}

Scheduler::~Scheduler() {
  stop();
  take_news();
  retire();
}

Submitted Scheduler::submit(Submission submission) {
  check_request(engine_, submission.request, "request");
  check_turn_ends(submission);
  auto job = std::make_unique<Job>();
  job->submission = std::move(submission);
  job->seed = seed_of(job->submission.request);
  job->submitted = Clock::now();
  const std::lock_guard lock(mutex_);
  if (draining_) {
    ++published_.refused_draining;
    return {0, Refusal::kDraining};
  }
  if (config_.max_waiting >= 0 && open_ >= published_.max_num_seqs + config_.max_waiting) {
    ++published_.refused_queue_full;
    return {0, Refusal::kQueueFull};
  }
  ++published_.submitted;
  ++published_.waiting;
  ++open_;
  const uint64_t id = next_id_++;
  job->id = id;
  arrivals_.push_back(std::move(job));
  news_arrived_.notify_one();
  return {id, Refusal::kNone};
}

void Scheduler::cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  cancellations_.push_back(id);
  news_arrived_.notify_one();
}

void Scheduler::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  news_arrived_.notify_one();
}

void Scheduler::stop() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  stopping_ = true;
  news_arrived_.notify_one();
}

SchedulerMetrics Scheduler::metrics() const {
  const std::lock_guard lock(mutex_);
  return published_;
}

void Scheduler::run() {
  while (true) {
    if (step()) continue;
    std::unique_lock lock(mutex_);
    news_arrived_.wait(lock, [&] {
      return !arrivals_.empty() || !cancellations_.empty() || stopping_ || draining_;
    });
    if (draining_ && open_ == 0) return;
  }
}

bool Scheduler::step() {
  const Clock::time_point begin = engine_.timeline == nullptr ? Clock::time_point() : Clock::now();
  take_news();
  abort_expired();
  retire();
  admit();
  const bool worked = round();
  if (worked) {
    report();
    retire();
  }
  publish();
  if (worked && engine_.timeline != nullptr) record_step(begin);
  return worked;
}

// The round's own times are there already.
void Scheduler::record_step(Clock::time_point begin) {
  step_.begin = begin;
  step_.end = Clock::now();
  step_.waiting = metrics_.waiting;
  engine_.timeline->add(step_);
}

void Scheduler::record_slot(const Job& job, std::string_view outcome) {
  if (engine_.timeline == nullptr || job.sequence == nullptr) return;
  const Sequence& sequence = *job.sequence;
  TimelineRequest request;
  request.id = job.id;
  request.slot = sequence.slot();
  request.submitted = job.submitted;
  request.slot_begin = job.slot_begin;
  request.end = Clock::now();
  request.first_slot = job.preemptions == 0;
  request.has_first_token = sequence.first_token_at().has_value();
  if (request.has_first_token) request.first_token = *sequence.first_token_at();
  request.prompt_tokens = static_cast<int64_t>(job.submission.request.prompt.size());
  request.cached_tokens = job.cached_tokens;
  request.output_tokens = static_cast<int64_t>(sequence.output().size());
  request.outcome = outcome;
  engine_.timeline->add(request);
}

void Scheduler::take_news() {
  std::vector<std::unique_ptr<Job>> arrivals;
  std::vector<uint64_t> cancellations;
  bool stopping = false;
  {
    const std::lock_guard lock(mutex_);
    arrivals.swap(arrivals_);
    cancellations.swap(cancellations_);
    stopping = stopping_;
  }
  for (auto& job : arrivals) {
    with_deadline_ += job->submission.deadline ? 1 : 0;
    const Order order = job->order();
    waiting_.emplace(order, std::move(job));
  }
  if (!cancellations.empty()) take_cancellations(cancellations);
  if (stopping) abort_all("stopped", nullptr);
}

void Scheduler::take_cancellations(const std::vector<uint64_t>& ids) {
  const auto cancel_if_meant = [&](Job& job) {
    if (std::find(ids.begin(), ids.end(), job.id) != ids.end()) abort(job, "cancelled");
  };
  for (const auto& [order, job] : waiting_) cancel_if_meant(*job);
  for (const auto& job : running_) cancel_if_meant(*job);
}

void Scheduler::abort(Job& job, std::string_view reason) {
  if (job.done()) return;
  if (job.sequence) {
    rounds_->drop(*job.sequence);
    job.sequence->abort(std::string(reason));
  } else {
    job.aborted = reason;
  }
  some_aborted_ = true;
}

void Scheduler::abort_all(std::string_view reason, const std::exception_ptr& error) {
  for (const auto& [order, job] : waiting_) {
    if (!error) abort(*job, reason);
  }
  for (const auto& job : running_) {
    if (!job->done()) job->error = error;
    abort(*job, reason);
  }
}

void Scheduler::abort_expired() {
  if (with_deadline_ == 0) return;
  const Clock::time_point now = Clock::now();
  const auto abort_if_late = [&](Job& job) {
    if (job.submission.deadline && *job.submission.deadline <= now) abort(job, "deadline");
  };
  for (const auto& [order, job] : waiting_) abort_if_late(*job);
  for (const auto& job : running_) abort_if_late(*job);
}

void Scheduler::admit() {
  while (!waiting_.empty()) {
    const auto first = waiting_.begin();
    if (free_slots_.empty() && !make_way_for(*first->second)) return;
    std::unique_ptr<Job> job = std::move(first->second);
    waiting_.erase(first);
    start(std::move(job));
  }
}

// Takes the slot of the least important request, if it is less important than this one by its
// priority. Among equals whoever came first stays.
bool Scheduler::make_way_for(const Job& job) {
  const auto last =
      std::max_element(running_.begin(), running_.end(),
                       [](const auto& a, const auto& b) { return a->order() < b->order(); });
  if (last == running_.end() || (*last)->submission.priority <= job.submission.priority) {
    return false;
  }
  settle();
  if ((*last)->done()) return false;  // its slot is free in the next step
  std::unique_ptr<Job> victim = std::move(*last);
  running_.erase(last);
  preempt(*victim);
  const Order order = victim->order();
  waiting_.emplace(order, std::move(victim));
  return true;
}

void Scheduler::preempt(Job& job) {
  const int slot = job.sequence->slot();
  record_slot(job, "preempted");
  if (cache_ && job.submission.use_prefix_cache && may_save(job)) save(job);
  free_slots_.push_back(slot);
  ++job.preemptions;
  ++metrics_.preemptions;
}

void Scheduler::start(std::unique_ptr<Job> job) {
  const int slot = free_slots_.back();
  try {
    fill_slot(*job, slot);
  } catch (...) {
    job->error = std::current_exception();
    spdlog::error("request {} did not get into a slot: {}", job->id, message_of(job->error));
    abort(*job, "error");
    return finish(std::move(job));
  }
  free_slots_.pop_back();
  running_.push_back(std::move(job));
}

// A new sequence, or one that had a slot before; with what the cache has of its tokens.
void Scheduler::fill_slot(Job& job, int slot) {
  const bool again = job.sequence != nullptr;
  const Request& request = job.submission.request;
  const Clock::time_point now = Clock::now();
  job.slot_begin = now;
  if (!again) {
    job.sequence = std::make_unique<Sequence>(engine_, request, slot, job.seed, cuts_);
    job.queue_seconds = std::chrono::duration<double>(now - job.submitted).count();
    metrics_.prompt_tokens += static_cast<int64_t>(request.prompt.size());
  }
  Sequence& sequence = *job.sequence;
  if (!cache_ || !job.submission.use_prefix_cache) {
    engine_.runtime->reset(slot);
    if (again) sequence.resume(slot, 0);
    return;
  }
  sequence.started(now);
  const auto length = static_cast<int64_t>(sequence.tokens().size());
  const int64_t restored = cache_->restore(slot, sequence.tokens(), length - 1);
  sequence.resume(slot, restored);
  if (!again) {
    job.cached_tokens = restored;
    metrics_.cached_tokens += restored;
  }
  job.snapshots = snapshot_lengths(
      static_cast<int64_t>(request.prompt.size()), restored, job.submission.turn_ends,
      {config_.snapshot_stride, config_.snapshot_gap, cuts_.alignment});
  std::reverse(job.snapshots.begin(), job.snapshots.end());
  job.pause_at_next_snapshot();
}

bool Scheduler::round() {
  if (running_.empty()) return false;
  views_.clear();
  RoundDemand demand;
  for (const auto& job : running_) {
    views_.push_back(job->sequence.get());
    if (!job->sequence->prefilled()) {
      ++demand.prompts;
      continue;
    }
    const SpeculativeConfig& speculation = job->submission.request.speculation;
    if (speculation.adaptive) {
      ++demand.adaptive;
      demand.most_drafts = std::max(demand.most_drafts, speculation.num_speculative_tokens);
    } else {
      ++demand.others;
      demand.other_rows += 1 + speculation.num_speculative_tokens;
    }
  }
  const RoundLimits limits = policy_.next(demand);
  const Clock::time_point start = Clock::now();
  try {
    rounds_->run(views_, limits);
  } catch (...) {
    step_ = {};
    step_.round_begin = step_.round_end = start;
    give_up_step();
    return true;
  }
  const RoundReport& report = rounds_->report();
  metrics_.failed_steps_in_a_row = 0;
  policy_.observe(report);
  metrics_.speculation.add(report.speculation);
  metrics_.adaptive_drafts = limits.adaptive_drafts;
  metrics_.prefilled_tokens += report.prompt_rows;
  const Clock::time_point end = Clock::now();
  metrics_.step_seconds.add(std::chrono::duration<double>(end - start).count());
  ++metrics_.steps;
  if (engine_.timeline != nullptr) {
    step_ = {.begin = {},
             .round_begin = start,
             .round_end = end,
             .end = {},
             .draft_seconds = report.draft_seconds,
             .extend_seconds = report.extend_seconds,
             .device_rounds = engine_.runtime->rounds() != nullptr,
             .decoding = report.decoding,
             .decode_rows = report.decode_rows,
             .prompt_rows = report.prompt_rows,
             .drafts = report.speculation.num_draft_tokens,
             .accepted = report.speculation.num_accepted_tokens,
             .running = static_cast<int>(running_.size()),
             .waiting = 0};
  }
  save_snapshots();
  return true;
}

// In a catch block. The runtime may be in the middle of anything; slots are reset when they are
// given out again.
void Scheduler::give_up_step() {
  const std::exception_ptr error = std::current_exception();
  spdlog::error("a step failed; given up: {}: {}", counted(running_.size(), "running request"),
                message_of(error));
  ++metrics_.failed_steps;
  ++metrics_.failed_steps_in_a_row;
  abort_all("error", error);
  rounds_.emplace(*engine_.runtime);
}

// Puts out what a device has been working on since the last round.
void Scheduler::settle() {
  try {
    rounds_->settle();
    metrics_.speculation.add(rounds_->report().speculation);
  } catch (...) {
    give_up_step();
  }
}

void Scheduler::save_snapshots() {
  if (!cache_) return;
  for (const auto& job : running_) {
    if (!job->submission.use_prefix_cache) continue;
    const Sequence& sequence = *job->sequence;
    if (sequence.error()) continue;  // nobody knows what is in its slot
    const bool output_ends = config_.snapshot_outputs && sequence.finished() && may_save(*job);
    const bool due = !job->snapshots.empty() && job->snapshots.back() == sequence.consumed();
    if (due || output_ends) save(*job);
    if (!due) continue;
    job->snapshots.pop_back();
    job->pause_at_next_snapshot();
  }
}

bool Scheduler::may_save(const Job& job) const {
  const int64_t length = job.sequence->consumed();
  const auto prompt = static_cast<int64_t>(job.submission.request.prompt.size());
  return length > 0 && shareable(cuts_, length, prompt);
}

// Without a snapshot everything goes on, only slower.
void Scheduler::save(const Job& job) {
  try {
    cache_->save(job.sequence->slot(), job.consumed());
  } catch (const std::exception& error) {
    spdlog::warn("request {}: no snapshot of it: {}", job.id, error.what());
  }
}

void Scheduler::report() {
  for (const auto& job : running_) {
    Sequence& sequence = *job->sequence;
    const Request& request = job->submission.request;
    const std::span<const int32_t> tokens = sequence.take_new_tokens();
    metrics_.generated_tokens += static_cast<int64_t>(tokens.size());
    const std::span<const TokenLogprobs> logprobs = sequence.take_new_logprobs();
    const std::string_view text = sequence.take_new_text();
    try {
      const bool go_on =
          (!request.on_logprobs || logprobs.empty() || request.on_logprobs(logprobs)) &&
          (!request.on_tokens || tokens.empty() || request.on_tokens(tokens)) &&
          (!request.on_text || text.empty() || request.on_text(text));
      if (!go_on) abort(*job, "callback");
    } catch (...) {
      job->error = std::current_exception();
      spdlog::error("request {}: nobody took its output: {}", job->id, message_of(job->error));
      abort(*job, "error");
    }
  }
}

// Finishes everything that is done, waiting or running.
void Scheduler::retire() {
  std::vector<std::unique_ptr<Job>> done;
  for (auto place = waiting_.begin(); some_aborted_ && place != waiting_.end();) {
    if (place->second->done()) {
      done.push_back(std::move(place->second));
      place = waiting_.erase(place);
    } else {
      ++place;
    }
  }
  some_aborted_ = false;
  for (auto& job : running_) {
    if (!job->done()) continue;
    rounds_->drop(*job->sequence);
    free_slots_.push_back(job->sequence->slot());
    done.push_back(std::move(job));
  }
  std::erase(running_, nullptr);
  for (auto& job : done) finish(std::move(job));
}

void Scheduler::finish(std::unique_ptr<Job> job) {
  Completion completion;
  completion.id = job->id;
  completion.error = job->error;
  if (!completion.error && job->sequence && job->sequence->error()) {
    completion.error = job->sequence->error();
    spdlog::error("request {} failed: {}", job->id, message_of(completion.error));
  }
  const bool failed = completion.error != nullptr;
  Result& result = completion.result;
  if (job->sequence) {
    result = job->sequence->result();
  } else {
    result.finish_reason = FinishReason::kAbort;
    result.stop_reason = job->aborted;
    job->queue_seconds = std::chrono::duration<double>(Clock::now() - job->submitted).count();
  }
  result.cached_tokens = job->cached_tokens;
  result.preemptions = job->preemptions;
  result.timings.queue_seconds = job->queue_seconds;
  metrics_.finished_stop += result.finish_reason == FinishReason::kStop ? 1 : 0;
  metrics_.finished_length += result.finish_reason == FinishReason::kLength ? 1 : 0;
  metrics_.finished_abort += result.finish_reason == FinishReason::kAbort ? 1 : 0;
  metrics_.failed += failed ? 1 : 0;
  record_slot(*job, name_of(result.finish_reason));
  with_deadline_ -= job->submission.deadline ? 1 : 0;
  {
    const std::lock_guard lock(mutex_);
    --open_;
  }
  if (!job->submission.on_finish) return;
  try {
    job->submission.on_finish(std::move(completion));
  } catch (...) {
    spdlog::error("a completion was not taken: {}", message_of(std::current_exception()));
  }
}

void Scheduler::publish() {
  metrics_.running = static_cast<int>(running_.size());
  metrics_.kv_tokens = 0;
  for (const auto& job : running_) metrics_.kv_tokens += job->sequence->consumed();
  if (cache_) metrics_.prefix_cache = cache_->stats();
  const std::lock_guard lock(mutex_);
  metrics_.waiting = static_cast<int64_t>(waiting_.size() + arrivals_.size());
  metrics_.submitted = published_.submitted;
  metrics_.refused_queue_full = published_.refused_queue_full;
  metrics_.refused_draining = published_.refused_draining;
  published_ = metrics_;
}

}  // namespace levin::engine
