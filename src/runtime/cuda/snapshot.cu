#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "core/error.h"
#include "runtime/cuda/snapshot.h"

namespace levin::runtime::cuda {
namespace {

// Gives a snapshot's memory back; of a state also the numbers of its slot.
struct Keeper {
  std::shared_ptr<SnapshotPool> pool;
  SlotState numbers;
  void operator()(const std::byte* memory) const noexcept {
    pool->give_back(const_cast<std::byte*>(memory));
  }
};

std::shared_ptr<const std::byte[]> keep(const std::shared_ptr<SnapshotPool>& pool,
                                        std::byte* memory, const SlotState& numbers) {
  return {memory, Keeper{pool, numbers}};
}

std::size_t size(int64_t value) {
  return static_cast<std::size_t>(value);
}

}  // namespace

SnapshotPool::SnapshotPool(int device) {
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, device};
  check(cudaMemPoolCreate(&pool_, &properties));
  uint64_t all = std::numeric_limits<uint64_t>::max();
  check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &all));
}

SnapshotPool::~SnapshotPool() {
  cudaStreamSynchronize(stream_.get());
  cudaMemPoolDestroy(pool_);
}

std::byte* SnapshotPool::take(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status =
      cudaMallocFromPoolAsync(&memory, std::max<std::size_t>(bytes, 1), pool_, stream_.get());
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // or the next launch would be blamed
    throw Error({.what = "the device has no memory left for a snapshot",
                 .where = "CUDA runtime",
                 .expected = std::to_string(bytes) + " free bytes",
                 .found = "fewer",
                 .hint = "lower --prefix-cache-memory or --max-num-seqs",
                 .exit_code = ExitCode::kMachine});
  }
  check(status);
  return static_cast<std::byte*>(memory);
}

void SnapshotPool::give_back(std::byte* memory) noexcept {
  cudaFreeAsync(memory, stream_.get());
}

Snapshots::Snapshots(const model::Config& config, const Options& options, const State& state,
                     int device)
    : c_(config), options_(options), state_(state), pool_(std::make_shared<SnapshotPool>(device)) {}

// Of the two halves of windows and logs only the current one counts (pass.h).
template <typename Visit>
void Snapshots::for_each_state_piece(int slot, int parity, Visit&& visit) const {
  const auto whole = [&](void* memory, int64_t bytes) {
    visit(Piece{memory, size(bytes), 1, size(bytes)});
  };
  const int64_t half = int64_t{2} * slot + parity;
  for (const MambaCache& cache : state_.mamba) {
    if (cache.state == nullptr) continue;
    const int64_t state = mamba_state_bytes(c_, options_);
    whole(static_cast<std::byte*>(cache.state) + slot * state, state);
    const int64_t window = (c_.conv_kernel - 1) * c_.conv_dim();
    whole(cache.window + half * window, window * int64_t{sizeof(float)});
    const int64_t log = kMaxRows * (c_.conv_dim() + c_.mamba_num_heads);
    whole(cache.log + half * log, log * int64_t{sizeof(float)});
  }
  if (options_.mtp) {
    const int64_t hidden = kHiddenRing * c_.hidden_size;
    whole(state_.hidden + slot * hidden, hidden * int64_t{sizeof(float)});
  }
}

// Positions begin .. end - 1. Keys have a position's dims side by side, values within a tile of
// positions a dim's.
template <typename Visit>
void Snapshots::visit_cache(const KvCaches& caches, int slot, int64_t begin, int64_t end,
                            Visit&& visit) const {
  const KvView& keys = caches.keys;
  if (keys.data == nullptr || begin >= end) return;
  const int64_t element = keys.fp8 ? 1 : 2;
  const int64_t at = slot * keys.slot_stride;
  const int64_t row = keys.padded_dim * element;
  visit(Piece{static_cast<std::byte*>(keys.data) + at * element + begin * row,
              size((end - begin) * row), size(keys.heads), size(keys.capacity * row)});
  const KvView& values = caches.values;
  const auto part_of_tile = [&](int64_t from, int64_t to) {
    if (from >= to) return;
    const int64_t in_tile = from % kCacheTile;
    for (int64_t head = 0; head < values.heads; ++head) {
      const int64_t first =
          at + (head * values.capacity + from - in_tile) * values.padded_dim + in_tile;
      visit(Piece{static_cast<std::byte*>(values.data) + first * element,
                  size((to - from) * element), size(values.padded_dim),
                  size(kCacheTile * element)});
    }
  };
  const int64_t first_whole = std::min((begin + kCacheTile - 1) / kCacheTile * kCacheTile, end);
  const int64_t end_whole = std::max(end / kCacheTile * kCacheTile, first_whole);
  part_of_tile(begin, first_whole);
  if (end_whole > first_whole) {
    visit(Piece{static_cast<std::byte*>(values.data) + at * element + first_whole * row,
                size((end_whole - first_whole) * row), size(values.heads),
                size(values.capacity * row)});
  }
  part_of_tile(end_whole, end);
}

// The draft head has no entry of a sequence's last token: its successor is not known.
template <typename Visit>
void Snapshots::for_each_cache_piece(int slot, int64_t parent, int64_t length,
                                     Visit&& visit) const {
  for (const KvCaches& caches : state_.kv) visit_cache(caches, slot, parent, length, visit);
  visit_cache(state_.mtp_kv, slot, std::max<int64_t>(parent - 1, 0), length - 1, visit);
}

SnapshotBytes Snapshots::bytes(int64_t parent, int64_t length) const {
  SnapshotBytes bytes;
  for_each_state_piece(0, 0, [&](const Piece& p) { bytes.state += int64_t(p.bytes()); });
  for_each_cache_piece(0, parent, length,
                       [&](const Piece& p) { bytes.caches += int64_t(p.bytes()); });
  return bytes;
}

Snapshot Snapshots::save(int slot, const SlotState& numbers, int64_t parent) const {
  const SnapshotBytes wanted = bytes(parent, numbers.length);
  const auto caches = keep(pool_, pool_->take(size(wanted.caches)), numbers);
  const auto state = keep(pool_, pool_->take(size(wanted.state)), numbers);
  const auto copy_to = [&](const std::shared_ptr<const std::byte[]>& memory) {
    return [&, to = const_cast<std::byte*>(memory.get())](const Piece& piece) mutable {
      check(cudaMemcpy2DAsync(to, piece.width, piece.memory, piece.pitch, piece.width, piece.rows,
                              cudaMemcpyDeviceToDevice, pool_->stream()));
      to += piece.bytes();
    };
  };
  for_each_cache_piece(slot, parent, numbers.length, copy_to(caches));
  for_each_state_piece(slot, numbers.parity, copy_to(state));
  pool_->synchronize();
  return {.parent = parent, .length = numbers.length, .caches = caches, .state = state};
}

void Snapshots::restore(int slot, SlotState& numbers, std::span<const Snapshot> chain) const {
  const Snapshot& last = chain.back();
  const Keeper* keeper = std::get_deleter<Keeper>(last.state);
  if (keeper == nullptr || keeper->pool != pool_) {
    throw Error({.what = "snapshot of another runtime",
                 .where = "slot " + std::to_string(slot),
                 .expected = "one that this runtime saved",
                 .found = "one of " + std::to_string(last.length) + " tokens that it did not",
                 .hint = {}});
  }
  const auto copy_from = [&](const std::shared_ptr<const std::byte[]>& memory) {
    return [&, from = memory.get()](const Piece& piece) mutable {
      check(cudaMemcpy2DAsync(piece.memory, piece.pitch, from, piece.width, piece.width, piece.rows,
                              cudaMemcpyDeviceToDevice, pool_->stream()));
      from += piece.bytes();
    };
  };
  for (const Snapshot& part : chain) {
    for_each_cache_piece(slot, part.parent, part.length, copy_from(part.caches));
  }
  for_each_state_piece(slot, keeper->numbers.parity, copy_from(last.state));
  pool_->synchronize();
  numbers.length = last.length;
  numbers.committed = keeper->numbers.committed;
  numbers.rewindable_to = last.length;
  numbers.parity = keeper->numbers.parity;
  numbers.on_device = false;
}

// Bytes of all ones are NaN in every cache format. What pads a head's dims stays zero.
void Snapshots::poison(int slot) const {
  const auto fill = [&](const Piece& piece) {
    check(cudaMemset2DAsync(piece.memory, piece.pitch, 0xFF, piece.width, piece.rows,
                            pool_->stream()));
  };
  for (const int parity : {0, 1}) for_each_state_piece(slot, parity, fill);
  const auto fill_cache = [&](const KvCaches& caches) {
    const KvView& keys = caches.keys;
    if (keys.data == nullptr) return;
    const int64_t element = keys.fp8 ? 1 : 2;
    const int64_t row = keys.padded_dim * element;
    for (int head = 0; head < keys.heads; ++head) {
      const int64_t at =
          (slot * keys.slot_stride + int64_t{head} * keys.capacity * keys.padded_dim) * element;
      fill({static_cast<std::byte*>(keys.data) + at, size(keys.head_dim * element),
            size(keys.capacity), size(row)});
      fill({static_cast<std::byte*>(caches.values.data) + at,
            size(keys.head_dim * kCacheTile * element), size(keys.capacity / kCacheTile),
            size(kCacheTile * row)});
    }
  };
  for (const KvCaches& caches : state_.kv) fill_cache(caches);
  fill_cache(state_.mtp_kv);
  pool_->synchronize();
}

}  // namespace levin::runtime::cuda
