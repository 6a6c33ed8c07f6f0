#include "bench/bandwidth.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/memory.h"
#include "core/thread_team.h"

namespace levin::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMemoryBytes = std::size_t{512} << 20;
constexpr int kMaxStreams = 8;
// A measurement reads the buffer as often as it takes to last this long.
constexpr double kPassSeconds = 0.02;

// One cache line. GCC and clang lower it to the widest vectors of the chosen target.
using Line [[gnu::vector_size(64)]] = uint64_t;

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LEVIN_WIDEST_LOADS [[gnu::target_clones("avx512f", "avx2", "default")]]
#else
#define LEVIN_WIDEST_LOADS
#endif

// Reads `streams` equal parts of [begin, begin + lines) side by side, four lines of each at a time.
// The result depends on every byte, so that no load can be left out.
LEVIN_WIDEST_LOADS
uint64_t read_all(const Line* begin, std::size_t lines, int streams) {
  const std::size_t part = lines / static_cast<std::size_t>(streams) / 4 * 4;
  Line a{}, b{}, c{}, d{};
  for (std::size_t i = 0; i < part; i += 4) {
    const Line* line = begin + i;
    for (int s = 0; s < streams; ++s, line += part) {
      a ^= line[0];
      b ^= line[1];
      c ^= line[2];
      d ^= line[3];
    }
  }
  a ^= b ^ c ^ d;
  uint64_t folded = 0;
  for (int i = 0; i < 8; ++i) folded ^= a[i];
  return folded;
}

#undef LEVIN_WIDEST_LOADS

class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(bytes) {
    void* address = ::mmap(nullptr, bytes_ + kHugePage, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) {
      throw Error({.what = "cannot allocate the buffer of the bandwidth measurement",
                   .where = {},
                   .expected = fmt::format("{} MiB", bytes_ >> 20),
                   .found = std::strerror(errno),
                   .hint = {},
                   .exit_code = ExitCode::kMachine});
    }
    mapping_ = static_cast<std::byte*>(address);
    const auto start = reinterpret_cast<std::uintptr_t>(mapping_);
    data_ = mapping_ + (kHugePage - start % kHugePage) % kHugePage;
    huge_pages_ = ::madvise(data_, bytes_, MADV_HUGEPAGE) == 0;
  }
  ~Buffer() { ::munmap(mapping_, bytes_ + kHugePage); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return data_; }
  bool huge_pages() const { return huge_pages_; }

 private:
  std::size_t bytes_;
  std::byte* mapping_ = nullptr;
  std::byte* data_ = nullptr;  // aligned to a huge page
  bool huge_pages_ = false;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Where the results of reading go, one cache line per thread.
struct alignas(64) Sink {
  uint64_t value = 0;
};

class Reader {
 public:
  Reader(const Buffer& buffer, std::size_t share, ThreadTeam& team)
      : buffer_(buffer),
        share_(share),
        team_(team),
        sinks_(static_cast<std::size_t>(team.size())) {}

  // Seconds that all threads need to read their shares `times` times.
  double read(int streams, int times) {
    const Clock::time_point start = Clock::now();
    team_.run([&](int thread) {
      const auto* begin =
          reinterpret_cast<const Line*>(buffer_.data() + share_ * static_cast<std::size_t>(thread));
      for (int i = 0; i < times; ++i) {
        sinks_[static_cast<std::size_t>(thread)].value ^=
            read_all(begin, share_ / sizeof(Line), streams);
      }
    });
    return seconds_since(start);
  }

 private:
  const Buffer& buffer_;
  std::size_t share_;
  ThreadTeam& team_;
  std::vector<Sink> sinks_;
};

}  // namespace

Bandwidth measure_read_bandwidth(const BandwidthOptions& wanted) {
  BandwidthOptions options = wanted;
  const int64_t available = available_memory_bytes();
  options.bytes = affordable(wanted.bytes, available);
  if (options.bytes < wanted.bytes) {
    spdlog::warn("reading {} MiB instead of {}, half of what the machine has left",
                 options.bytes >> 20, wanted.bytes >> 20);
  }
  ThreadTeam team(options.threads > 0 ? options.threads : available_cores());
  const auto threads = static_cast<std::size_t>(team.size());
  const std::size_t share = share_of(options.bytes, threads, available);
  const Buffer buffer(share * threads);
  team.run([&](int thread) {
    std::memset(buffer.data() + share * static_cast<std::size_t>(thread), thread + 1, share);
  });

  Reader reader(buffer, share, team);
  Bandwidth best{.gb_per_s = {},
                 .threads = team.size(),
                 .streams = 0,
                 .bytes = share * threads,
                 .huge_pages = buffer.huge_pages()};
  for (int streams = 1; streams <= kMaxStreams; streams *= 2) {
    const double once = std::max(reader.read(streams, 1), 1e-6);  // warms up, too
    const int times = std::max(1, static_cast<int>(kPassSeconds / once));
    std::vector<double> rates;
    for (int pass = 0; pass < options.passes; ++pass) {
      const double bytes = static_cast<double>(best.bytes) * times;
      rates.push_back(bytes / reader.read(streams, times) / 1e9);
    }
    const Spread spread = spread_of(rates);
    if (spread.median > best.gb_per_s.median) {
      best.gb_per_s = spread;
      best.streams = streams;
    }
  }
  return best;
}

std::size_t affordable(std::size_t bytes, int64_t available) {
  if (available == 0) return bytes;
  return std::min(bytes, static_cast<std::size_t>(available) / 2);
}

std::size_t share_of(std::size_t bytes, std::size_t threads, int64_t available) {
  const std::size_t pages = std::max<std::size_t>(1, (bytes / threads + kHugePage - 1) / kHugePage);
  const std::size_t all = pages * kHugePage * threads;
  if (affordable(all, available) == all) return pages * kHugePage;
  // As much as the streams read at a time.
  constexpr std::size_t kGrain = kMaxStreams * 4 * sizeof(Line);
  return std::max<std::size_t>(1, bytes / threads / kGrain) * kGrain;
}

Bandwidth measure_memory_bandwidth(int threads) {
  return measure_read_bandwidth(
      {.threads = threads, .bytes = std::max(kMemoryBytes, 4 * last_level_cache_bytes())});
}

std::size_t last_level_cache_bytes() {
  std::size_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file(fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/size", index));
    std::size_t size = 0;
    char unit = 'K';
    if (!(file >> size)) continue;
    file >> unit;
    largest = std::max(largest, size << (unit == 'M' ? 20 : 10));
  }
  return largest;
}

Bandwidth measure_memory_bandwidth(engine::Engine& engine) {
  constexpr std::size_t kBeyondCaches = std::size_t{2} << 30;
  if (engine.runtime->read_gb_per_s(1, 1).empty()) {
    return measure_memory_bandwidth(engine.runtime->options().threads);
  }
  return measure_read_bandwidth(engine, kBeyondCaches);
}

Bandwidth measure_read_bandwidth(engine::Engine& engine, std::size_t bytes) {
  const BandwidthOptions options = {.threads = engine.runtime->options().threads, .bytes = bytes};
  const std::vector<double> rates = engine.runtime->read_gb_per_s(bytes, options.passes);
  if (rates.empty()) return measure_read_bandwidth(options);
  Bandwidth bandwidth;
  bandwidth.gb_per_s = spread_of(rates);
  bandwidth.bytes = bytes;
  bandwidth.device = true;
  return bandwidth;
}

}  // namespace levin::bench
