// Owners of what the CUDA driver hands out, and its error codes as levin::Error.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <utility>

namespace levin::runtime::cuda {

// Throws Error (exit code 3) naming the call's place when `status` is not success.
void check(cudaError_t status, std::source_location where = std::source_location::current());

// Number of devices. The first CUDA call of a program: has the driver load all kernels at the start
// instead of each when it is first launched, which the first prompt would wait for: 2.6 to 2.9 ms
// instead of 0.9 to the bundled model's first token on an H200, for less than 0.1 s at the start. A
// CUDA_MODULE_LOADING that the user has set stays.
cudaError_t device_count(int& count);

// What the kernels that the driver has loaded for the current device can do. That depends on what
// they were compiled for, not on the device: one of compute capability 9.0 runs PTX of 8.0, too.
struct LoadedKernels {
  int capability = 0;     // 80 for 8.0
  bool overlap = false;   // one may start before the one before it is over
  bool clusters = false;  // of blocks
};
// Throws Error when there are none for the device.
LoadedKernels loaded_kernels();

// Memory of the device or pinned memory of the host.
class Memory {
 public:
  enum class Place : uint8_t { kDevice, kPinned };

  Memory() = default;
  Memory(Place place, std::size_t bytes);
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void swap(Memory& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(place_, other.place_);
  }

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Place place_ = Place::kDevice;
};

// Hands out aligned pieces of one block of memory. Without a block it only counts: the same code
// that places things also says how much they need.
class Arena {
 public:
  Arena() = default;
  explicit Arena(std::byte* base) : base_(reinterpret_cast<std::uintptr_t>(base)) {}

  template <typename T>
  T* take(std::size_t count) {
    constexpr std::size_t kAlignment = 256;
    used_ = (used_ + kAlignment - 1) / kAlignment * kAlignment;
    T* piece = reinterpret_cast<T*>(base_ + used_);
    used_ += count * sizeof(T);
    return piece;
  }
  std::size_t used() const { return used_; }
  bool counting() const { return base_ == 0; }

 private:
  std::uintptr_t base_ = 0;
  std::size_t used_ = 0;
};

class CudaStream {
 public:
  CudaStream();
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  cudaStream_t get() const { return stream_; }
  void synchronize() const { check(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  enum class Kind : uint8_t { kOrder, kTiming };

  explicit Event(Kind kind = Kind::kOrder);
  Event(Event&& other) noexcept { std::swap(event_, other.event_); }
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// A sequence of launches, recorded once and started as one.
class Graph {
 public:
  Graph() = default;
  // Records what `record` puts on the stream.
  template <typename Function>
  Graph(cudaStream_t stream, Function&& record) {
    begin(stream);
    record();
    end(stream);
  }
  Graph(Graph&& other) noexcept { std::swap(graph_, other.graph_); }
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    return *this;
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph();
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(graph_, stream)); }
  explicit operator bool() const { return graph_ != nullptr; }

 private:
  static void begin(cudaStream_t stream);
  void end(cudaStream_t stream);
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace levin::runtime::cuda
