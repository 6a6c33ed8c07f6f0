// How fast this machine can read memory: the ceiling of every decode step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/spread.h"
#include "engine/engine.h"

namespace levin::bench {

struct BandwidthOptions {
  int threads = 0;                             // 0: available_cores()
  std::size_t bytes = std::size_t{512} << 20;  // read again and again; rounded up to 2 MiB a thread
  int passes = 7;                              // measurements per number of streams
};

struct Bandwidth {
  Spread gb_per_s;  // 10^9 bytes per second
  int threads = 0;
  int streams = 0;  // read at once by each thread: the number that gave the best median
  std::size_t bytes = 0;
  bool huge_pages = false;  // asked for and granted
  bool device = false;      // the runtime's own memory; nothing of threads, streams and pages then
};

// What to read of `bytes` on a machine with `available` left (0: not known): at most half of that.
std::size_t affordable(std::size_t bytes, int64_t available);
// What each of `threads` reads of them: whole huge pages, unless so many threads had more than is
// affordable then.
std::size_t share_of(std::size_t bytes, std::size_t threads, int64_t available);

// Every thread reads its own share, touched first by itself, front to back in 1, 2, 4 or 8
// interleaved streams with the widest loads the processor has. A buffer of at least a few times the
// last-level cache measures memory, a smaller one the cache. Reads no more than the machine can
// afford, and says so. Throws Error (ExitCode::kMachine) when the buffer cannot be allocated.
Bandwidth measure_read_bandwidth(const BandwidthOptions& options);

// Of a buffer of at least 512 MiB and four times the largest cache: memory, whatever the machine.
Bandwidth measure_memory_bandwidth(int threads);

// Of the memory that the engine's runtime has its weights in: the host's as above, or a device's
// own, where a small buffer measures its cache.
Bandwidth measure_memory_bandwidth(engine::Engine& engine);
Bandwidth measure_read_bandwidth(engine::Engine& engine, std::size_t bytes);

// Bytes of the largest cache of processor 0 that Linux reports; 0 when it reports none.
std::size_t last_level_cache_bytes();

}  // namespace levin::bench
