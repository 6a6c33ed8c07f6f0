#include "runtime/cpu/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "core/error.h"

namespace levin::runtime::cpu {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

// Memory that can be had without swapping, or nothing when /proc does not say.
std::optional<int64_t> available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (file >> key >> kib >> unit) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::nullopt;
}

}  // namespace

void require_memory(int64_t bytes, std::string_view for_what) {
  const std::optional<int64_t> available = available_memory();
  if (!available || bytes <= *available) return;
  throw Error({.what = fmt::format("not enough memory for the {}", for_what),
               .where = {},
               .expected = fmt::format("{:.2f} GB", static_cast<double>(bytes) * 1e-9),
               .found = fmt::format("{:.2f} GB available", static_cast<double>(*available) * 1e-9),
               .hint = "quantize the model, or free memory",
               .exit_code = ExitCode::kMachine});
}

Arena::Arena(int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* base = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    throw Error({.what = "not enough memory for the runtime",
                 .where = {},
                 .expected = fmt::format("{} bytes", bytes),
                 .found = std::strerror(errno),
                 .hint = "lower --max-model-len, --max-num-seqs or the chunk size",
                 .exit_code = ExitCode::kMachine});
  }
  base_ = base;
  // Only a wish: without huge pages everything works, a little slower.
  if (bytes >= kHugePage) madvise(base_, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, static_cast<std::size_t>(bytes_));
}

Arena::Arena(Arena&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace levin::runtime::cpu
