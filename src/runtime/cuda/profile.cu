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

// Every block reads a contiguous slice, eight 16-byte loads in flight per thread.
__global__ void __launch_bounds__(512)
    read_all(const uint4* from, std::size_t words, uint32_t* sum) {
  const std::size_t per_block = words / gridDim.x;
  const uint4* slice = from + per_block * blockIdx.x;
  uint32_t x = 0;
  for (std::size_t i = threadIdx.x; i + 7 * blockDim.x < per_block;
       i += std::size_t{8} * blockDim.x) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = __ldcs(slice + i + j * blockDim.x);
#pragma unroll
    for (int j = 0; j < 8; ++j) x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
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

double CudaRuntime::read_bandwidth() {
  const Timer timer;
  const std::size_t bytes =
      std::min<std::size_t>(weight_memory_.bytes(), std::size_t{8} << 30) / 8192 * 8192;
  auto* sum = reinterpret_cast<uint32_t*>(state_.draft_pass);
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    times.push_back(timer.microseconds(stream_.get(), [&] {
      read_all<<<blocks_ * 4, 512, 0, stream_.get()>>>(weight_memory_.as<const uint4>(), bytes / 16,
                                                       sum);
    }));
    check(cudaGetLastError());
  }
  return static_cast<double>(bytes) / median(times) * 1e-3;
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
    uint64_t start = ~uint64_t{0};
    uint64_t ready = 0;
    uint64_t end = 0;
    std::array<double, Trace::kMarkCount> marks{};
    for (int block = 0; block < phase.blocks; ++block) {
      const uint64_t* of_block = of_phase + Trace::kCount * block;
      start = std::min(start, of_block[Trace::kStart]);
      ready = std::max(ready, of_block[Trace::kReady]);
      end = std::max(end, of_block[Trace::kEnd]);
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
  Profile(std::shared_ptr<const model::Model> model, const Options& options, int device)
      : runtime_(std::move(model), options, device) {
    runtime_.prepare_timing();
  }

  std::string description() const override { return runtime_.description(); }
  int64_t memory_bytes() const override { return runtime_.memory_bytes(); }
  double read_bandwidth() override { return runtime_.read_bandwidth(); }
  std::vector<double> time_passes(int rows, int context, int repeats) override {
    return runtime_.time_passes(rows, context, repeats);
  }
  std::vector<double> time_drafts(int context, int repeats) override {
    return runtime_.time_drafts(context, repeats);
  }
  std::string phase_table(int rows, int context) override {
    return runtime_.phase_table(rows, context);
  }
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
                                               const Options& options, int device) {
  return std::make_unique<cuda::Profile>(std::move(model), options, device);
}

}  // namespace levin::runtime
