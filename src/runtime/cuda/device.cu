#include <cstdlib>
#include <string>

#include "core/error.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/make_cuda_runtime.h"
#include "runtime/cuda/tokens.h"

namespace levin::runtime {
namespace cuda {

void check(cudaError_t status, std::source_location where) {
  if (status == cudaSuccess) return;
  throw Error({.what = "a CUDA call failed",
               .where = std::string(where.file_name()) + ":" + std::to_string(where.line()),
               .expected = {},
               .found = std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status),
               .hint = {},
               .exit_code = ExitCode::kMachine});
}

LoadedKernels loaded_kernels() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, embed_kernel());
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    throw Error({.what = "this program has no kernels for this CUDA device",
                 .where = "CUDA runtime",
                 .expected = "a build for its compute capability, or PTX of one below",
                 .found = cudaGetErrorString(status),
                 .hint = "build with its compute capability in -DLEVIN_CUDA_ARCHITECTURES",
                 .exit_code = ExitCode::kMachine});
  }
  check(status);
  const int capability = attributes.ptxVersion;
  return {.capability = capability,
          .overlap = capability >= ptx::kOverlapFrom,
          .clusters = capability >= ptx::kClustersFrom};
}

Memory::Memory(Place place, std::size_t bytes) : bytes_(bytes), place_(place) {
  if (bytes == 0) return;
  check(place == Place::kDevice ? cudaMalloc(&data_, bytes) : cudaMallocHost(&data_, bytes));
}

Memory::~Memory() {
  if (data_ == nullptr) return;
  if (place_ == Place::kDevice) {
    cudaFree(data_);
  } else {
    cudaFreeHost(data_);
  }
}

CudaStream::CudaStream() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}
CudaStream::~CudaStream() {
  cudaStreamDestroy(stream_);
}

Event::Event(Kind kind) {
  check(cudaEventCreateWithFlags(
      &event_, kind == Kind::kTiming ? cudaEventDefault : cudaEventDisableTiming));
}
Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

void Graph::begin(cudaStream_t stream) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

void Graph::end(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph));
  const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  check(status);
  check(cudaGraphUpload(graph_, stream));
}

Graph::~Graph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
}

cudaError_t device_count(int& count) {
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  return cudaGetDeviceCount(&count);
}

}  // namespace cuda

std::vector<std::string> cuda_devices() {
  std::vector<std::string> lines;
  int count = 0;
  if (cuda::device_count(count) != cudaSuccess) return lines;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    cuda::check(cudaGetDeviceProperties(&properties, device));
    const double gigabytes = static_cast<double>(properties.totalGlobalMem) / 1e9;
    lines.push_back(std::string(properties.name) + ", compute capability " +
                    std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                    ", " + std::to_string(properties.multiProcessorCount) + " multiprocessors, " +
                    std::to_string(static_cast<int64_t>(gigabytes + 0.5)) + " GB");
  }
  return lines;
}

}  // namespace levin::runtime
