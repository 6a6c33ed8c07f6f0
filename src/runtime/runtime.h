// The seam between a model and the device that executes it.
//
// Sequences live in numbered slots, each with everything a sequence needs: KV cache, Mamba
// convolution and SSM state, the MTP head's KV cache, and a log of recent inputs for rewinding.
// All primitives work on several slots at once with ragged lengths. Nothing here allocates, locks
// or logs after construction.
//
// Arguments that break a rule below are levin::Errors, thrown before anything changes (the checks
// are shared: runtime/validate.h).
//
// Contract of every implementation:
//  - extend() of the same tokens gives the same logits wherever the tokens are split into calls and
//    whatever other slots are in the batch (bit-equal on the CPU runtimes; on CUDA as far as
//    docs/cuda_runtime.md says).
//  - After rewind(slot, n) the slot is as if only the first n tokens had ever been extended.
//  - An F16 SSM state is rounded after every token (runtime/ssm_rounding.h); where a long extend
//    runs in chunks, after every chunk.
//  - After restore() of what save() gave, whatever was in the slot before, the slot is as if the
//    saved tokens had been extended in it, by an extend that cannot be rewound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"

namespace levin::runtime {

enum class KvCacheDType : uint8_t { kBf16, kFp8, kF32 };
enum class SsmCacheDType : uint8_t { kF32, kF16 };

struct Options {
  int64_t max_model_len = 0;    // tokens per slot; 0: the config's max_position_embeddings
  int max_num_seqs = 1;         // slots
  int max_extend_tokens = 512;  // rows of one extend() over all slots
  int max_logits_rows = 0;      // of them with logits; 0: all
  int max_rewind = 8;           // an extend of at most this many tokens to a slot can be rewound
  KvCacheDType kv_cache_dtype = KvCacheDType::kBf16;
  SsmCacheDType ssm_cache_dtype = SsmCacheDType::kF32;
  bool stochastic_rounding = false;  // of an F16 SSM cache; Philox keyed by position and layer
  int philox_rounds = 10;            // 5 or 10
  uint64_t seed = 0;                 // of stochastic rounding
  int threads = 0;                   // 0: available_cores()
  bool pin_threads = false;          // each to a core of its own (core/thread_team.h)
  bool mtp = true;                   // allocate the draft head's cache, allow draft()
  // Fills the memory of a slot with NaN before each use of it, to show that nothing stale is read.
  // For tests; by the runtimes that have snapshots.
  bool poison_free_slots = false;
};

// For calibration and for `levin logits --hidden-states`; unset functions cost nothing.
struct Observer {
  // Residual stream entering layer `layer` (layer == number of layers: after norm_f), rows of one
  // extend in batch order, [rows, hidden].
  std::function<void(int layer, std::span<const float> hidden, int rows)> hidden;
  // Input of a linear before any activation quantization, [rows, linear.in]; called only for rows
  // that reach it (an expert sees its own tokens).
  std::function<void(const model::Linear& linear, std::span<const float> input, int rows)>
      linear_input;
};

// How one linear is executed on this device.
struct PlanEntry {
  std::string linear;       // canonical name
  std::string stored_as;    // "NVFP4 W4A4", "BF16", ...
  std::string computed_as;  // "e2m1 x e2m1 products, f32 sums", ...
  std::string kernel;
  std::string why;  // empty when computed exactly as stored
};

struct Extend {
  int slot = 0;
  std::span<const int32_t> tokens;  // at least one
  int logits_rows = 1;              // logits for the last this many tokens; 0: none
};

struct Draft {
  int slot = 0;
  int32_t next_token = 0;  // sampled, not yet extended
  int k = 1;               // number of draft tokens, at most max_rewind
  // Proposals are among the first so many tokens, and so are draft_logits(): less to read of a
  // large lm_head. 0: all.
  int64_t vocab = 0;
};

// A sequence as it was at some length; immutable, so that copies share the memory. Snapshots of the
// same tokens form a chain: each has the cache entries of its own part only, and the recurrent
// state at its end. What the bytes mean is the business of the runtime that made them, and whether
// they are in the machine's memory or the device's.
struct Snapshot {
  int64_t parent = 0;  // length at which the part begins: that of the snapshot before, or 0
  int64_t length = 0;  // tokens of the sequence
  // Attention keys and values of positions parent .. length - 1, those of the draft head included.
  std::shared_ptr<const std::byte[]> caches;
  // Everything else at `length`: convolution windows, SSM states, the draft head's inputs. Only the
  // last snapshot of a chain needs it.
  std::shared_ptr<const std::byte[]> state;
};

// Where the tokens of a sequence may be cut into extends without changing a bit: an extend of more
// than `short_tokens` tokens begins at a multiple of `alignment` positions. Those of at most
// `short_tokens` may sum in another order, so whether a token is in one of them must not depend on
// chance. Alignment 1: anywhere.
struct ExtendCuts {
  int64_t alignment = 1;
  int64_t short_tokens = 0;
};

struct SnapshotBytes {
  int64_t caches = 0;
  int64_t state = 0;
};

class DeviceRounds;
class PhaseRecorder;

class Runtime {
 public:
  virtual ~Runtime() = default;

  virtual const model::Model& model() const = 0;
  virtual const Options& options() const = 0;
  // One line for start-up logs: device, instruction set, threads.
  virtual std::string description() const = 0;
  virtual std::vector<PlanEntry> plan() const = 0;
  // Bytes allocated: weights as repacked, state of all slots, work space.
  virtual int64_t memory_bytes() const = 0;

  virtual void set_observer(Observer observer) = 0;
  // Records the phases of all passes from now on (runtime/phases.h); null ends it. The recorder has
  // a ring for each of options().threads and outlives that. False: this runtime has no such record.
  virtual bool set_phase_recorder(PhaseRecorder* /*recorder*/) { return false; }

  // Empties the slot.
  virtual void reset(int slot) = 0;
  // Tokens consumed so far.
  virtual int64_t length(int slot) const = 0;

  virtual ExtendCuts extend_cuts() const { return {}; }
  // Appends tokens to slots (each slot at most once per call) and computes the logits asked for.
  // The total number of tokens is at most max_extend_tokens, each slot stays within max_model_len.
  virtual void extend(std::span<const Extend> batch) = 0;
  // Of the last extend(): logits [vocab] of row `row` (0 .. logits_rows-1) of batch entry `entry`.
  // Valid until the next extend() or draft().
  virtual std::span<const float> logits(int entry, int row) const = 0;

  // Shortens the slot to `length` tokens: any point inside the slot's last extend, if that had at
  // most max_rewind tokens (length >= the length before it). May be repeated, each time shorter.
  virtual void rewind(int slot, int64_t length) = 0;

  // Proposes the k tokens after `next_token` with the MTP head: greedy, recursive. Does not change
  // what extend() computes. The hidden states it needs are those of the tokens already extended (at
  // least one); slots whose last extend was followed by a rewind are fine. Proposals may lie beyond
  // max_model_len. Throws Error when the model has no draft head or Options::mtp is false.
  virtual void draft(std::span<const Draft> batch) = 0;
  // Of the last draft(): the proposals (k of them), and the logits [vocab] behind proposal `step`.
  virtual std::span<const int32_t> drafts(int entry) const = 0;
  virtual std::span<const float> draft_logits(int entry, int step) const = 0;

  // Snapshots, for caching prompts and for moving sequences between slots. These are the calls that
  // allocate. A runtime without them says so, and throws Error.
  virtual bool has_snapshots() const { return false; }
  // What save() of a slot with `length` tokens would take.
  virtual SnapshotBytes snapshot_bytes(int64_t parent, int64_t length) const;
  // Where snapshots lie in a device's memory: bytes that are free there now. Empty: in the
  // machine's.
  virtual std::optional<int64_t> free_snapshot_bytes() const { return std::nullopt; }
  // The slot's sequence as it is now, also right after a rewind; not an empty one. Positions below
  // `parent` (less than the length) are left to the snapshots before it.
  virtual Snapshot save(int slot, int64_t parent);
  // Puts the sequence of a chain of snapshots into a slot: the first begins at 0, each where the
  // one before it ends, the last has its state. They must be of one sequence of tokens and from
  // this runtime, whichever slots they were saved from.
  virtual void restore(int slot, std::span<const Snapshot> chain);

  // Whole generation rounds on the device (runtime/round.h); null: by calls of the host.
  virtual DeviceRounds* rounds() { return nullptr; }
  // Gigabytes (10^9) per second at which the device's own memory can be read over a buffer of
  // `bytes`, as `passes` measurements. Empty: the runtime works in the host's memory.
  virtual std::vector<double> read_gb_per_s(std::size_t /*bytes*/, int /*passes*/) { return {}; }
};

// The slow, obviously right one: float32 throughout, straight from the formulas. Activation
// quantization of W4A4 and FP8 layers is emulated exactly.
std::unique_ptr<Runtime> make_reference_runtime(std::shared_ptr<const model::Model> model,
                                                const Options& options);

// The fast CPU one. Throws Error when a linear has no kernel.
std::unique_ptr<Runtime> make_cpu_runtime(std::shared_ptr<const model::Model> model,
                                          const Options& options);

}  // namespace levin::runtime
