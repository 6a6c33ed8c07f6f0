#include "runtime/cpu/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace levin::runtime::cpu {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

}  // namespace

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
