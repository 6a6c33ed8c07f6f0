#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <numeric>

#include "runtime/cuda/profile.h"
#include "runtime/cuda/runtime.h"

namespace levin::runtime {
namespace cuda {
namespace {

class Timer {
 public:
  Timer() {
    check(cudaEventCreate(&start_));
    check(cudaEventCreate(&stop_));
  }
  ~Timer() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  template <typename Function>
  double microseconds(cudaStream_t stream, Function&& function) const {
    check(cudaEventRecord(start_, stream));
    function();
    check(cudaEventRecord(stop_, stream));
    check(cudaEventSynchronize(stop_));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start_, stop_));
    return static_cast<double>(milliseconds) * 1e3;
  }

 private:
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

// Every block reads a contiguous slice `repeats` times, eight 16-byte loads in flight per thread.
// `per_block`: words of a slice, a multiple of 8 * 512. Past the L1 cache, which holds what is read
// again.
__global__ void __launch_bounds__(512)
    read_all(const uint4* from, std::size_t per_block, int repeats, uint32_t* sum) {
  const uint4* slice = from + per_block * blockIdx.x;
  uint32_t x = 0;
#pragma unroll 1
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (std::size_t i = threadIdx.x; i < per_block; i += std::size_t{8} * blockDim.x) {
      uint4 v[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = __ldcg(slice + i + j * blockDim.x);
#pragma unroll
      for (int j = 0; j < 8; ++j) x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    // A slice read again is read: the compiler must not know better.
    asm volatile("" ::: "memory");
  }
  if (x == 0x12345678u) atomicAdd(sum, x);  // never removed, hardly ever executed
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

// A state that passes can be timed on: that after some tokens, with a log in either half.
void CudaRuntime::prepare_timing() {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 16; ++i) {
    tokens.push_back(static_cast<int32_t>((17 + 104729 * i) % model_->config.vocab_size));
  }
  reset(0);
  const std::span<const int32_t> all = tokens;
  for (const auto piece : {all.first(14), all.subspan(14, 1), all.subspan(15, 1)}) {
    extend(std::vector<Extend>{{.slot = 0, .tokens = piece}});
  }
  stream_.synchronize();
}

Pass CudaRuntime::timing_pass(int rows, int context) const {
  Pass pass{};
  pass.rows = rows;
  pass.segments = 1;
  Segment& segment = pass.segment[0];
  segment.rows = rows;
  segment.position = context;
  segment.replay = 1;
  for (int32_t row = 0; row < rows; ++row) {
    // Different tokens go to different experts.
    pass.token[row] = static_cast<int32_t>((1237 + 7919 * row) % model_->config.vocab_size);
    pass.position[row] = context + row;
    pass.hidden_row[row] = hidden_row(0, context + row);
    pass.previous_row[row] = hidden_row(0, context + row - 1);
    pass.logits_row[row] = row < options_.max_logits_rows ? row : -1;
  }
  return pass;
}

std::vector<double> CudaRuntime::time_passes(int rows, int context, int repeats) {
  const Timer timer;
  const Pass pass = timing_pass(rows, context);
  check(cudaMemcpyAsync(state_.pass, &pass, sizeof(Pass), cudaMemcpyHostToDevice, stream_.get()));
  const Graph& graph = graphs_[size_class(rows)].extend[1];
  for (int i = 0; i < 3; ++i) graph.launch(stream_.get());
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    times.push_back(timer.microseconds(stream_.get(), [&] { graph.launch(stream_.get()); }));
  }
  return times;
}

std::vector<double> CudaRuntime::time_drafts(int context, int repeats) {
  const Timer timer;
  Pass pass = timing_pass(1, context);
  pass.logits_row[0] = 0;
  const Graph& graph = graphs_[0].draft;
  std::vector<double> times;
  for (int i = 0; i < repeats + 1; ++i) {
    check(cudaMemcpyAsync(state_.draft_pass, &pass, sizeof(Pass), cudaMemcpyHostToDevice,
                          stream_.get()));
    const double time = timer.microseconds(stream_.get(), [&] { graph.launch(stream_.get()); });
    if (i > 0) times.push_back(time);
  }
  return times;
}

// A buffer that a token's weights would fill, rounded to what a few blocks on every multiprocessor
// read in whole steps: the weights of this model where there are enough of them. Short reads are
// repeated within a launch, so that its cost does not count.
std::vector<double> CudaRuntime::read_gb_per_s(std::size_t bytes, int passes) {
  constexpr std::size_t kMeasured = std::size_t{1} << 30;
  constexpr std::size_t kStep = std::size_t{8} * 512 * sizeof(uint4);
  const std::size_t per_multiprocessor =
      std::clamp<std::size_t>(bytes / kStep / index(blocks_), 1, 4);
  const std::size_t grid = per_multiprocessor * index(blocks_);
  const std::size_t steps = std::max<std::size_t>((bytes + grid * kStep / 2) / (grid * kStep), 1);
  bytes = grid * steps * kStep;
  Memory own;
  if (bytes > weight_memory_.bytes()) {
    own = Memory(Memory::Place::kDevice, bytes);
    check(cudaMemsetAsync(own.data(), 0, bytes, stream_.get()));
  }
  const auto* from = (own.bytes() > 0 ? own : weight_memory_).as<const uint4>();
  auto* sum = reinterpret_cast<uint32_t*>(state_.draft_pass);
  const auto repeats = static_cast<int>((kMeasured + bytes - 1) / bytes);
  const Timer timer;
  std::vector<double> rates;
  for (int i = -1; i < passes; ++i) {
    const double microseconds = timer.microseconds(stream_.get(), [&] {
      read_all<<<static_cast<unsigned>(grid), 512, 0, stream_.get()>>>(
          from, steps * kStep / sizeof(uint4), repeats, sum);
    });
    check(cudaGetLastError());
    if (i >= 0) rates.push_back(static_cast<double>(bytes) * repeats / microseconds * 1e-3);
  }
  return rates;
}

namespace {

// When the first block started and had its input, and when the last one ended; nanoseconds.
struct PhaseTimes {
  uint64_t start = ~uint64_t{0};
  uint64_t first_ready = ~uint64_t{0};
  uint64_t ready = 0;
  uint64_t end = 0;
};

PhaseTimes times_of(const uint64_t* stamps, int blocks) {
  PhaseTimes times;
  for (int block = 0; block < blocks; ++block) {
    const uint64_t* of_block = stamps + std::ptrdiff_t{Trace::kCount} * block;
    if (of_block[Trace::kStart] == 0) continue;  // had nothing to do
    times.start = std::min(times.start, of_block[Trace::kStart]);
    times.ready = std::max(times.ready, of_block[Trace::kReady]);
    if (of_block[Trace::kReady] != 0) {
      times.first_ready = std::min(times.first_ready, of_block[Trace::kReady]);
    }
    times.end = std::max(times.end, of_block[Trace::kEnd]);
  }
  return times;
}

}  // namespace

RoundTimeline CudaRuntime::round_timeline(int drafts) {
  constexpr std::size_t kCapacity = std::size_t{1} << 21;
  const Memory stamps(Memory::Place::kDevice, kCapacity * sizeof(uint64_t));
  std::vector<TracedPhase> phases;
  step_->trace(stamps.as<uint64_t>(), kCapacity, &phases);
  int rows = 1;
  while (rows < 1 + drafts) rows *= 2;
  const Graph graph(stream_.get(),
                    [&] { step_->round(stream_.get(), 1, rows, drafts, rounds_->buffers()); });
  step_->trace(nullptr, 0, nullptr);
  std::vector<uint64_t> host(kCapacity);
  std::vector<RoundTimeline> timelines;
  for (int repeat = 0; repeat < 9; ++repeat) {
    check(cudaMemsetAsync(stamps.data(), 0, stamps.bytes(), stream_.get()));
    const int slot = 0;
    rounds_->launch_with(graph, {&slot, 1});
    rounds_->wait();
    check(cudaMemcpyAsync(host.data(), stamps.data(), stamps.bytes(), cudaMemcpyDeviceToHost,
                          stream_.get()));
    stream_.synchronize();
    RoundTimeline timeline;
    uint64_t first = 0;
    uint64_t busy_until = 0;
    for (const TracedPhase& phase : phases) {
      const PhaseTimes t =
          times_of(host.data() + (phase.stamps - stamps.as<uint64_t>()), phase.blocks);
      if (t.end == 0) continue;
      if (first == 0) first = busy_until = t.start;
      if (t.first_ready > busy_until) {
        const double gap = static_cast<double>(t.first_ready - busy_until) * 1e-3;
        timeline.idle += gap;
        timeline.longest_gap = std::max(timeline.longest_gap, gap);
      }
      busy_until = std::max(busy_until, t.end);
      ++timeline.kernels;
    }
    timeline.microseconds = static_cast<double>(busy_until - first) * 1e-3;
    timelines.push_back(timeline);
  }
  std::sort(timelines.begin(), timelines.end(),
            [](const auto& a, const auto& b) { return a.microseconds < b.microseconds; });
  return timelines[timelines.size() / 2];
}

std::string CudaRuntime::phase_table(int rows, int context) {
  constexpr std::size_t kCapacity = std::size_t{1} << 19;
  const Memory stamps(Memory::Place::kDevice, kCapacity * sizeof(uint64_t));
  const Pass pass = timing_pass(rows, context);
  check(cudaMemcpyAsync(state_.pass, &pass, sizeof(Pass), cudaMemcpyHostToDevice, stream_.get()));
  std::vector<TracedPhase> phases;
  check(cudaMemsetAsync(stamps.data(), 0, kCapacity * sizeof(uint64_t), stream_.get()));
  step_->trace(stamps.as<uint64_t>(), kCapacity, &phases);
  const Graph graph(stream_.get(),
                    [&] { step_->extend(stream_.get(), 1 << size_class(rows), true); });
  step_->trace(nullptr, 0, nullptr);
  for (int i = 0; i < 3; ++i) graph.launch(stream_.get());
  stream_.synchronize();
  std::vector<uint64_t> host(kCapacity);
  check(
      cudaMemcpy(host.data(), stamps.data(), kCapacity * sizeof(uint64_t), cudaMemcpyDeviceToHost));

  // Per phase, in order: when its first block started, when the predecessor was done, when its last
  // block ended. A phase takes from the end of the one before to its own end. Then, on the average
  // of its blocks, the cycles from the predecessor's end to the marks inside.
  std::string table =
      "phase                 start   ready     end    took      MB   GB/s | cycles after ready: "
      "inputs, routing, warp 0, all warps, end\n";
  uint64_t origin = 0;
  uint64_t last_end = 0;
  for (const TracedPhase& phase : phases) {
    const uint64_t* of_phase = host.data() + (phase.stamps - stamps.as<uint64_t>());
    const auto [start, first_ready, ready, end] = times_of(of_phase, phase.blocks);
    std::array<double, Trace::kMarkCount> marks{};
    for (int block = 0; block < phase.blocks; ++block) {
      const uint64_t* of_block = of_phase + Trace::kCount * block;
      for (std::size_t i = 0; i < marks.size(); ++i) {
        if (of_block[Trace::kMarks + i] == 0) continue;
        marks[i] +=
            (static_cast<double>(of_block[Trace::kMarks + i]) -
             static_cast<double>(of_block[Trace::kMarks + std::size_t{Trace::kReadyMark}])) /
            phase.blocks;
      }
    }
    if (origin == 0) origin = last_end = start;
    const auto us = [&](uint64_t t) {
      return (static_cast<double>(t) - static_cast<double>(origin)) * 1e-3;
    };
    const double took = us(end) - us(last_end);
    char line[200];
    std::snprintf(line, sizeof(line),
                  "%-18s %8.1f %7.1f %7.1f %7.2f %7.2f %6.0f | %6.0f %6.0f %6.0f %6.0f %6.0f\n",
                  phase.name.c_str(), us(start), us(ready), us(end), took, phase.bytes * 1e-6,
                  took > 0 ? phase.bytes * 1e-3 / took : 0.0, marks[Trace::kInputs],
                  marks[Trace::kRouting], marks[Trace::kOwnItems], marks[Trace::kAllItems],
                  marks[Trace::kEndMark]);
    table += line;
    last_end = end;
  }
  return table;
}

std::vector<int32_t> CudaRuntime::timing_prompt(int tokens) const {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < tokens; ++i) {
    prompt.push_back(static_cast<int32_t>((1237 + int64_t{7919} * i) % model_->config.vocab_size));
  }
  return prompt;
}

std::vector<double> CudaRuntime::time_prompt(int tokens, int repeats) {
  const std::vector<int32_t> prompt = timing_prompt(tokens);
  std::vector<double> times;
  for (int i = -1; i < repeats; ++i) {
    reset(0);
    stream_.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t done = 0; done < prompt.size();) {
      const std::size_t count = std::min(prompt.size() - done, index(options_.max_extend_tokens));
      extend(std::vector<Extend>{{.slot = 0,
                                  .tokens = std::span(prompt).subspan(done, count),
                                  .logits_rows = done + count == prompt.size() ? 1 : 0}});
      done += count;
    }
    logits(0, 0);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    if (i >= 0) times.push_back(time.count());
  }
  return times;
}

std::string CudaRuntime::prompt_table(int tokens) {
  if (prefill_ == nullptr) return "no prefill: " + no_prefill_because_ + "\n";
  std::vector<Prefill::Mark> marks;
  prefill_->set_marks(&marks);
  time_prompt(tokens, 0);
  prefill_->set_marks(nullptr);
  stream_.synchronize();
  struct Line {
    std::string phase;
    int launches = 0;
    double ms = 0;
    double operations = 0;
  };
  std::vector<Line> lines;
  double all = 0;
  double operations = 0;
  for (std::size_t i = 0; i + 1 < marks.size(); ++i) {
    if (marks[i].phase == "end") continue;
    const auto found = std::find_if(lines.begin(), lines.end(),
                                    [&](const Line& line) { return line.phase == marks[i].phase; });
    Line& line = found != lines.end() ? *found : lines.emplace_back(Line{marks[i].phase, 0, 0, 0});
    float ms = 0;
    check(cudaEventElapsedTime(&ms, marks[i].event.get(), marks[i + 1].event.get()));
    ++line.launches;
    line.ms += static_cast<double>(ms);
    line.operations += marks[i].operations;
    all += static_cast<double>(ms);
    operations += marks[i].operations;
  }
  lines.push_back({"all", 0, all, operations});
  std::string table = "phase                  times      ms     %   TFLOP  TFLOP/s\n";
  for (const Line& line : lines) {
    char text[160];
    std::snprintf(text, sizeof(text), "%-22s %5d %7.3f %5.1f %7.3f %8.0f\n", line.phase.c_str(),
                  line.launches, line.ms, line.ms / all * 100, line.operations * 1e-12,
                  line.operations / line.ms * 1e-9);
    table += text;
  }
  return table;
}

namespace {

class Profile final : public CudaProfile {
 public:
  Profile(std::shared_ptr<const model::Model> model, const Options& options, int device,
          const CudaLimits& limits)
      : runtime_(std::move(model), options, device, limits) {
    runtime_.prepare_timing();
  }

  std::string description() const override { return runtime_.description(); }
  int64_t memory_bytes() const override { return runtime_.memory_bytes(); }
  Runtime& runtime() override { return runtime_; }
  double read_bandwidth() override {
    return median(runtime_.read_gb_per_s(std::size_t{8} << 30, 9));
  }
  std::vector<double> time_passes(int rows, int context, int repeats) override {
    return runtime_.time_passes(rows, context, repeats);
  }
  std::vector<double> time_drafts(int context, int repeats) override {
    return runtime_.time_drafts(context, repeats);
  }
  std::string phase_table(int rows, int context) override {
    return runtime_.phase_table(rows, context);
  }
  RoundTimeline round_timeline(int drafts) override { return runtime_.round_timeline(drafts); }
  std::vector<double> time_prompt(int tokens, int repeats) override {
    return runtime_.time_prompt(tokens, repeats);
  }
  std::string prompt_table(int tokens) override { return runtime_.prompt_table(tokens); }

 private:
  CudaRuntime runtime_;
};

}  // namespace
}  // namespace cuda

std::unique_ptr<CudaProfile> make_cuda_profile(std::shared_ptr<const model::Model> model,
                                               const Options& options, int device,
                                               const CudaLimits& limits) {
  return std::make_unique<cuda::Profile>(std::move(model), options, device, limits);
}

}  // namespace levin::runtime
