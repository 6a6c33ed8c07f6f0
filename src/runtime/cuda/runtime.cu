#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "runtime/cuda/make_cuda_runtime.h"
#include "runtime/cuda/memory_plan.h"
#include "runtime/cuda/observe.h"
#include "runtime/cuda/runtime.h"
#include "runtime/validate.h"

namespace levin::runtime {
namespace cuda {
namespace {

// Sum of what the checkpoint's matrices take, for the progress bar.
int64_t stored_bytes(const model::Model& model) {
  int64_t bytes = 0;
  for (const model::Linear* linear : model.linears()) bytes += linear->bytes();
  return bytes;
}

// Chunks of one extend: all but the last are filled up to a multiple of kScanPiece positions.
std::size_t most_chunks(const Options& options, int capacity) {
  return static_cast<std::size_t>(options.max_extend_tokens / (capacity - kScanPiece + 1) + 2);
}

}  // namespace

CudaRuntime::CudaRuntime(std::shared_ptr<const model::Model> model, const Options& options,
                         int device, const CudaLimits& limits)
    : model_(std::move(model)),
      options_(resolve_options(*model_, options)),
      device_((check(cudaSetDevice(device)), device)),
      slots_(index(options_.max_num_seqs)),
      first_logits_row_(slots_.size()),
      proposed_(slots_.size()),
      proposed_among_(slots_.size()) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device));
  if (properties.major < 8) {
    throw Error({.what = "this CUDA device is too old",
                 .where = properties.name,
                 .expected = "compute capability 8.0 or above",
                 .found = std::to_string(properties.major) + "." + std::to_string(properties.minor),
                 .hint = "use --device cpu",
                 .exit_code = ExitCode::kMachine});
  }
  device_name_ = std::string(properties.name) + ", compute capability " +
                 std::to_string(properties.major) + "." + std::to_string(properties.minor) + ", " +
                 std::to_string(properties.multiProcessorCount) + " multiprocessors";
  kernels_ = loaded_kernels();
  if (!kernels_.overlap) {
    device_name_ += ", kernels of compute capability " + std::to_string(kernels_.capability / 10) +
                    "." + std::to_string(kernels_.capability % 10) +
                    " that start one after the other";
  }
  if (limits.shared_per_block > 0) {
    device_name_ +=
        ", " + std::to_string(limits.shared_per_block) + " bytes of shared memory used at most";
  }
  blocks_ = properties.multiProcessorCount;
  int capability = properties.major * 10 + properties.minor;
  if (limits.compute_capability > 0) capability = limits.compute_capability;
  if (!kernels_.overlap) capability = kernels_.capability;
  no_prefill_because_ = cuda::no_prefill_because(model_->config, options_, capability);
  allocate();
  step_ = std::make_unique<Step>(*model_, options_, weights_, state_, blocks_, kernels_, limits);
  most_rows_ = step_->most_rows();
  options_.max_rewind = std::min(options_.max_rewind, most_rows_);
  pinned_passes_ =
      Memory(Memory::Place::kPinned,
             (slots_.size() + index(options_.max_extend_tokens / most_rows_) + 2) * sizeof(Pass));
  if (no_prefill_because_.empty()) {
    prefill_ =
        std::make_unique<Prefill>(*model_, options_, weights_, state_, prefill_space_, blocks_);
  }
  capture();
  snapshots_ = std::make_unique<Snapshots>(model_->config, options_, state_, device_);
  if (!options_.poison_free_slots) return;
  for (int slot = 0; slot < options_.max_num_seqs; ++slot) snapshots_->poison(slot);
}

CudaRuntime::~CudaRuntime() {
  cudaStreamSynchronize(stream_.get());
}

void CudaRuntime::allocate() {
  // The plan first: the same code counts, then places.
  Arena weights_count;
  place_weights(*model_, options_.mtp, blocks_, weights_count, nullptr);
  Arena state_count;
  place_state(*model_, options_, blocks_, kernels_, state_count);
  if (no_prefill_because_.empty()) place_prefill(*model_, options_, state_count);
  MemoryPlan plan;
  plan.device = device_name_;
  plan.weights = weights_count.used();
  plan.state = state_count.used();
  plan.staging = Uploader::kStagingBytes;
  std::size_t total = 0;
  check(cudaMemGetInfo(&plan.free, &total));
  announce(plan);
  weight_memory_ = Memory(Memory::Place::kDevice, weights_count.used());
  state_memory_ = Memory(Memory::Place::kDevice, state_count.used());
  // All ones is no number in any format: whoever reads what nobody wrote will show it.
  check(cudaMemsetAsync(state_memory_.data(), 0xFF, state_memory_.bytes(), stream_.get()));
  check(cudaMemsetAsync(weight_memory_.data(), 0, weight_memory_.bytes(), stream_.get()));
  {
    Uploader uploader(stream_.get(), stored_bytes(*model_));
    Arena arena(weight_memory_.data());
    weights_ = place_weights(*model_, options_.mtp, blocks_, arena, &uploader);
    uploader.finish();
  }
  Arena arena(state_memory_.data());
  state_ = place_state(*model_, options_, blocks_, kernels_, arena);
  if (no_prefill_because_.empty()) {
    prefill_space_ = place_prefill(*model_, options_, arena);
    pinned_chunks_ = Memory(Memory::Place::kPinned,
                            most_chunks(options_, prefill_space_.capacity) *
                                ChunkArrays::bytes(prefill_space_.capacity, options_.max_num_seqs));
  }
  check(cudaMemsetAsync(state_.zeroed_begin, 0,
                        static_cast<std::size_t>(state_.zeroed_end - state_.zeroed_begin),
                        stream_.get()));

  const auto vocab = static_cast<std::size_t>(model_->config.vocab_size);
  const std::size_t logits_rows = index(options_.max_logits_rows);
  const std::size_t draft_rows = options_.mtp ? slots_.size() * index(options_.max_rewind) : 0;
  host_logits_ = Memory(Memory::Place::kPinned, logits_rows * vocab * sizeof(float));
  host_draft_logits_ = Memory(Memory::Place::kPinned, draft_rows * vocab * sizeof(float));
  host_drafts_ = Memory(Memory::Place::kPinned, draft_rows * sizeof(int32_t));
  logits_fetched_.resize(logits_rows);
  draft_logits_fetched_.resize(draft_rows);
  stream_.synchronize();
}

void CudaRuntime::capture() {
  for (std::size_t i = 0; i < graphs_.size(); ++i) {
    const int rows = 1 << i;
    if (rows > most_rows_) break;
    for (const int head : {0, 1}) {
      graphs_[i].extend[index(head)] =
          Graph(stream_.get(), [&] { step_->extend(stream_.get(), rows, head != 0); });
    }
    if (options_.mtp) {
      graphs_[i].draft = Graph(stream_.get(), [&] { step_->draft(stream_.get(), rows); });
    }
  }
  rounds_ = std::make_unique<CudaRounds>(model_->config, options_, state_, *step_, stream_.get(),
                                         slots_, most_rows_);
  stream_.synchronize();
}

DeviceRounds* CudaRuntime::rounds() {
  return observer_.hidden || observer_.linear_input ? nullptr : rounds_.get();
}

std::string CudaRuntime::description() const {
  const std::string passes = std::to_string(most_rows_);
  const std::string prompts =
      prefill_ != nullptr ? "extends of more than " + passes + " tokens in chunks of up to " +
                                std::to_string(prefill_space_.capacity) + " on tensor-core products"
                          : "prompts in passes of " + passes + " tokens: " + no_prefill_because_;
  const std::string little =
      most_rows_ == kMaxRows ? ""
                             : "; passes of at most " + passes +
                                   " tokens, since the inputs of more do not fit its shared memory";
  return "CUDA runtime: " + device_name_ + "; " + prompts + little;
}

int64_t CudaRuntime::memory_bytes() const {
  return static_cast<int64_t>(weight_memory_.bytes() + state_memory_.bytes() +
                              pinned_passes_.bytes() + pinned_chunks_.bytes() +
                              host_logits_.bytes() + host_draft_logits_.bytes() +
                              host_drafts_.bytes() + rounds_->pinned_bytes());
}

void CudaRuntime::reset(int slot) {
  check_slot(options_, slot);
  const uint32_t generation = slots_[index(slot)].generation + 1;
  slots_[index(slot)] = {.generation = generation};
  if (!options_.poison_free_slots) return;
  stream_.synchronize();
  snapshots_->poison(slot);
}

SnapshotBytes CudaRuntime::snapshot_bytes(int64_t parent, int64_t length) const {
  return snapshots_->bytes(parent, length);
}

std::optional<int64_t> CudaRuntime::free_snapshot_bytes() const {
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

Snapshot CudaRuntime::save(int slot, int64_t parent) {
  check_save(*this, slot, parent);
  stream_.synchronize();
  return snapshots_->save(slot, slots_[index(slot)], parent);
}

void CudaRuntime::restore(int slot, std::span<const Snapshot> chain) {
  check_restore(*this, slot, chain);
  reset(slot);
  stream_.synchronize();
  snapshots_->restore(slot, slots_[index(slot)], chain);
}

std::size_t CudaRuntime::size_class(int rows) {
  std::size_t i = 0;
  while ((1 << i) < rows) ++i;
  return i;
}

int CudaRuntime::hidden_row(int slot, int64_t position) const {
  return slot * kHiddenRing + static_cast<int>((position + kHiddenRing) % kHiddenRing);
}

Pass& CudaRuntime::next_pass() {
  Pass& pass = pinned_passes_.as<Pass>()[passes_used_++];
  pass = {};
  return pass;
}

void CudaRuntime::add_rows(Pass& pass, int slot_index, std::span<const int32_t> tokens,
                           bool commit) {
  SlotState& slot = slots_[index(slot_index)];
  const auto rows = static_cast<int32_t>(tokens.size());
  Segment& segment = pass.segment[pass.segments++];
  segment.slot = slot_index;
  segment.first_row = pass.rows;
  segment.rows = rows;
  segment.position = static_cast<int32_t>(slot.length);
  segment.replay = static_cast<int32_t>(slot.length - slot.committed);
  segment.parity = slot.parity;
  segment.fresh = slot.committed == 0 ? 1 : 0;
  segment.commit = commit ? 1 : 0;
  for (int32_t i = 0; i < rows; ++i) {
    const int32_t row = pass.rows++;
    const int64_t position = slot.length + i;
    pass.token[row] = tokens[index(i)];
    pass.slot[row] = slot_index;
    pass.position[row] = static_cast<int32_t>(position);
    pass.hidden_row[row] = hidden_row(slot_index, position);
    pass.previous_row[row] = hidden_row(slot_index, position - 1);
    pass.logits_row[row] = -1;
  }
  slot.committed = commit ? slot.length + rows : slot.length;
  slot.length += rows;
  slot.rewindable_to = slot.committed;
  slot.parity ^= 1;
  slot.on_device = false;
}

void CudaRuntime::run(const Pass& pass) {
  if (pass.rows == 0) return;
  const bool head = std::any_of(pass.logits_row, pass.logits_row + pass.rows,
                                [](int32_t row) { return row >= 0; });
  check(cudaMemcpyAsync(state_.pass, &pass, sizeof(Pass), cudaMemcpyHostToDevice, stream_.get()));
  if (observer_.hidden || observer_.linear_input) {
    observe_pass(pass, head ? PassKind::kWithLogits : PassKind::kWithoutLogits);
  } else {
    graphs_[size_class(pass.rows)].extend[head ? 1 : 0].launch(stream_.get());
  }
}

// Lays the batch out in passes. Tokens that can be rewound stay together in one pass; longer pieces
// fill passes up.
std::size_t CudaRuntime::run_passes(std::span<const Extend> batch) {
  std::size_t logits_row = 0;
  Pass* pass = &next_pass();
  const auto flush = [&] {
    run(*pass);
    pass = &next_pass();
  };
  for (std::size_t entry = 0; entry < batch.size(); ++entry) {
    if (runs_in_chunks(batch[entry])) continue;
    const std::span<const int32_t> tokens = batch[entry].tokens;
    first_logits_row_[entry] = logits_row;
    const bool commit = tokens.size() > index(options_.max_rewind);
    if (!commit && pass->rows + static_cast<int>(tokens.size()) > most_rows_) flush();
    std::size_t done = 0;
    while (done < tokens.size()) {
      if (pass->rows == most_rows_) flush();
      const std::size_t count = std::min(tokens.size() - done, index(most_rows_ - pass->rows));
      const int first = pass->rows;
      add_rows(*pass, batch[entry].slot, tokens.subspan(done, count), commit);
      for (std::size_t i = 0; i < count; ++i) {
        const bool wanted = done + i + index(batch[entry].logits_rows) >= tokens.size();
        if (wanted)
          pass->logits_row[first + static_cast<int>(i)] = static_cast<int32_t>(logits_row++);
      }
      done += count;
    }
  }
  run(*pass);
  return logits_row;
}

bool CudaRuntime::runs_in_chunks(const Extend& entry) const {
  return prefill_ != nullptr && entry.tokens.size() > index(most_rows_) && !observer_.hidden &&
         !observer_.linear_input;
}

// Passes give the same bits however they are cut; chunks do where they begin with a piece of the
// scan.
ExtendCuts CudaRuntime::extend_cuts() const {
  if (prefill_ == nullptr) return {};
  return {.alignment = kScanPiece, .short_tokens = most_rows_};
}

// Chunks start from the state of all tokens before, not from a log.
void CudaRuntime::commit_logs(std::span<const Extend> batch) {
  Pass* pass = nullptr;
  const auto flush = [&] {
    if (pass == nullptr) return;
    check(cudaMemcpyAsync(state_.pass, pass, sizeof(Pass), cudaMemcpyHostToDevice, stream_.get()));
    prefill_->commit_logs(stream_.get(), state_.pass, pass->segments);
    pass = nullptr;
  };
  for (const Extend& entry : batch) {
    SlotState& slot = slots_[index(entry.slot)];
    if (!runs_in_chunks(entry) || slot.length == slot.committed) continue;
    if (pass == nullptr) pass = &next_pass();
    add_rows(*pass, entry.slot, {}, false);
    if (pass->segments == kMaxRows) flush();
  }
  flush();
}

std::size_t CudaRuntime::add_segment(Chunk& chunk, const ChunkArrays& arrays, int slot_index,
                                     std::span<const int32_t> tokens) {
  SlotState& slot = slots_[index(slot_index)];
  const auto position = static_cast<int>(slot.length);
  auto rows = static_cast<int>(tokens.size());
  const int room = prefill_space_.capacity - chunk.rows;
  if (rows > room) rows = room - (position + room) % kScanPiece;
  if (rows <= 0) return 0;
  Segment& segment = arrays.segments[chunk.segments++];
  segment = {};
  segment.slot = slot_index;
  segment.first_row = chunk.rows;
  segment.rows = rows;
  segment.position = position;
  segment.parity = slot.parity;
  segment.fresh = slot.committed == 0 ? 1 : 0;
  segment.commit = 1;
  for (int i = 0; i < rows; ++i) {
    const int row = chunk.rows + i;
    arrays.token[row] = tokens[index(i)];
    arrays.slot[row] = slot_index;
    arrays.position[row] = position + i;
    arrays.previous[row] = i > 0 ? row - 1 : ~hidden_row(slot_index, position - 1);
    arrays.kept[row] = i + kHiddenRing >= rows ? hidden_row(slot_index, position + i) : -1;
  }
  chunk.rows += rows;
  chunk.longest = std::max(chunk.longest, rows);
  const auto& c = model_->config;
  if (c.num_key_value_heads > 0) {
    chunk.attention_blocks +=
        attention_blocks(rows, static_cast<int>(c.num_attention_heads / c.num_key_value_heads));
  }
  slot.length += rows;
  slot.committed = slot.length;
  slot.rewindable_to = slot.length;
  slot.parity ^= 1;
  return index(rows);
}

void CudaRuntime::run_chunks(std::span<const Extend> batch, std::size_t logits_row) {
  if (prefill_ == nullptr) return;
  commit_logs(batch);
  const std::size_t bytes = ChunkArrays::bytes(prefill_space_.capacity, options_.max_num_seqs);
  std::byte* pinned = pinned_chunks_.data();
  ChunkArrays arrays(pinned, prefill_space_.capacity, options_.max_num_seqs);
  Chunk chunk;
  const auto flush = [&] {
    if (chunk.rows == 0) return;
    check(cudaMemcpyAsync(prefill_space_.chunk, pinned, bytes, cudaMemcpyHostToDevice,
                          stream_.get()));
    prefill_->run(stream_.get(), chunk);
    pinned += bytes;
    arrays = ChunkArrays(pinned, prefill_space_.capacity, options_.max_num_seqs);
    chunk = {};
    chunk.first_logits_row = static_cast<int>(logits_row);
  };
  chunk.first_logits_row = static_cast<int>(logits_row);
  for (std::size_t entry = 0; entry < batch.size(); ++entry) {
    if (!runs_in_chunks(batch[entry])) continue;
    const std::span<const int32_t> tokens = batch[entry].tokens;
    first_logits_row_[entry] = logits_row;
    std::size_t done = 0;
    while (done < tokens.size()) {
      const int first = chunk.rows;
      const std::size_t count = add_segment(chunk, arrays, batch[entry].slot, tokens.subspan(done));
      for (std::size_t i = 0; i < count; ++i) {
        if (done + i + index(batch[entry].logits_rows) < tokens.size()) continue;
        arrays.wanted[chunk.wanted++] = first + static_cast<int32_t>(i);
        ++logits_row;
      }
      done += count;
      if (done < tokens.size()) flush();
    }
  }
  flush();
}

void CudaRuntime::extend(std::span<const Extend> batch) {
  check_extend(*this, batch);
  stream_.synchronize();
  passes_used_ = 0;
  std::fill(logits_fetched_.begin(), logits_fetched_.end(), uint8_t{0});
  run_chunks(batch, run_passes(batch));
  if (observer_.hidden) {
    const auto width = static_cast<std::size_t>(model_->config.hidden_size);
    for (std::size_t layer = 0; layer < observed_hidden_.size(); ++layer) {
      std::vector<float>& rows = observed_hidden_[layer];
      observer_.hidden(static_cast<int>(layer), rows, static_cast<int>(rows.size() / width));
      rows.clear();
    }
  }
}

std::span<const float> CudaRuntime::fetch(const float* device, float* host,
                                          std::vector<uint8_t>& fetched, std::size_t row) const {
  const auto vocab = static_cast<std::size_t>(model_->config.vocab_size);
  float* to = host + row * vocab;
  if (fetched[row] == 0) {
    check(cudaMemcpyAsync(to, device + row * vocab, vocab * sizeof(float), cudaMemcpyDeviceToHost,
                          stream_.get()));
    stream_.synchronize();
    fetched[row] = 1;
  }
  return {to, vocab};
}

std::span<const float> CudaRuntime::logits(int entry, int row) const {
  return fetch(state_.logits, host_logits_.as<float>(), logits_fetched_,
               first_logits_row_[index(entry)] + index(row));
}

void CudaRuntime::rewind(int slot_index, int64_t length) {
  check_slot(options_, slot_index);
  SlotState& slot = slots_[index(slot_index)];
  check_rewind(slot_index, length, slot.rewindable_to, slot.length);
  slot.length = length;
  slot.on_device = false;
}

void CudaRuntime::draft(std::span<const Draft> batch) {
  check_draft(*this, batch);
  stream_.synchronize();
  passes_used_ = 0;
  std::fill(draft_logits_fetched_.begin(), draft_logits_fetched_.end(), uint8_t{0});
  for (std::size_t begin = 0; begin < batch.size(); begin += index(most_rows_)) {
    Pass& pass = next_pass();
    int most = 0;
    for (std::size_t i = begin; i < std::min(begin + index(most_rows_), batch.size()); ++i) {
      const Draft& entry = batch[i];
      const int64_t length = slots_[index(entry.slot)].length;
      const int32_t row = pass.rows++;
      pass.token[row] = entry.next_token;
      pass.slot[row] = entry.slot;
      pass.position[row] = static_cast<int32_t>(length);
      pass.previous_row[row] = hidden_row(entry.slot, length - 1);
      pass.logits_row[row] = static_cast<int32_t>(i) * options_.max_rewind;
      pass.vocab[row] = static_cast<int32_t>(entry.vocab);
      proposed_among_[i] = entry.vocab;
      Segment& segment = pass.segment[pass.segments++];
      segment.slot = entry.slot;
      segment.first_row = row;
      segment.rows = 1;
      segment.position = pass.position[row];
      proposed_[i] = entry.k;
      most = std::max(most, entry.k);
    }
    const auto [least, largest] = std::minmax_element(pass.vocab, pass.vocab + pass.rows);
    pass.most_vocab = *least == 0 ? 0 : *largest;
    check(cudaMemcpyAsync(state_.draft_pass, &pass, sizeof(Pass), cudaMemcpyHostToDevice,
                          stream_.get()));
    for (int step = 0; step < most; ++step) {
      if (observer_.linear_input) {
        observe_pass(pass, PassKind::kDraft);
      } else {
        graphs_[size_class(pass.rows)].draft.launch(stream_.get());
      }
    }
  }
  check(cudaMemcpyAsync(host_drafts_.data(), state_.drafts,
                        batch.size() * index(options_.max_rewind) * sizeof(int32_t),
                        cudaMemcpyDeviceToHost, stream_.get()));
  stream_.synchronize();
}

std::span<const int32_t> CudaRuntime::drafts(int entry) const {
  return {host_drafts_.as<int32_t>() + index(entry) * index(options_.max_rewind),
          index(proposed_[index(entry)])};
}

std::span<const float> CudaRuntime::draft_logits(int entry, int step) const {
  const std::span<const float> all =
      fetch(state_.draft_logits, host_draft_logits_.as<float>(), draft_logits_fetched_,
            index(entry) * index(options_.max_rewind) + index(step));
  const int64_t among = proposed_among_[index(entry)];
  return among == 0 ? all : all.first(static_cast<std::size_t>(among));
}

void CudaRuntime::set_observer(Observer observer) {
  observer_ = std::move(observer);
  if (!observer_.hidden && !observer_.linear_input) {
    observed_memory_ = {};
    observed_ = {};
    return;
  }
  Arena count;
  place_observed(model_->config, count);
  observed_memory_ = Memory(Memory::Place::kDevice, count.used());
  Arena arena(observed_memory_.data());
  observed_ = place_observed(model_->config, arena);
  observed_hidden_.assign(observer_.hidden ? model_->layers.size() + 1 : 0, {});
}

// A pass without a graph, for the observer's eyes.
void CudaRuntime::observe_pass(const Pass& pass, PassKind kind) {
  PassObserver seen(*model_, observer_, pass, kind == PassKind::kDraft, observed_hidden_,
                    stream_.get());
  step_->observe(&seen, observed_);
  const int rows = 1 << size_class(pass.rows);
  if (kind == PassKind::kDraft) {
    step_->draft(stream_.get(), rows);
  } else {
    step_->extend(stream_.get(), rows, kind == PassKind::kWithLogits);
  }
  step_->observe(nullptr, {});
  stream_.synchronize();
}

}  // namespace cuda

std::unique_ptr<Runtime> make_cuda_runtime(std::shared_ptr<const model::Model> model,
                                           const Options& options, int device,
                                           const CudaLimits& limits) {
  int count = 0;
  const cudaError_t status = cuda::device_count(count);
  if (status != cudaSuccess || device < 0 || device >= count) {
    throw Error({.what = "there is no such CUDA device",
                 .where = "device " + std::to_string(device),
                 .expected = count > 0 ? "0 to " + std::to_string(count - 1) : "a CUDA device",
                 .found = status != cudaSuccess ? cudaGetErrorString(status) : "none",
                 .hint = "use --device cpu",
                 .exit_code = ExitCode::kMachine});
  }
  return std::make_unique<cuda::CudaRuntime>(std::move(model), options, device, limits);
}

}  // namespace levin::runtime
