// The checkpoints of a climb, made by their recipes when they are not there yet.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "bench/result_store.h"

namespace levin::bench {

struct CheckpointRequest {
  std::filesystem::path model;
  std::string recipe;                 // shipped name or path; empty: the model itself
  std::filesystem::path out;          // folder to make
  std::filesystem::path calibration;  // text for recipes that need it
  int64_t calibration_tokens = 0;
  std::string version;  // of levin
  int threads = 0;
};

struct LadderCheckpoint {
  CheckpointRequest request;
  std::string name;  // of the recipe without folder and extension; "bf16" for the model itself
  std::string key;   // of everything that the files depend on
  bool calibrated = false;
  uint64_t bytes = 0;  // of the files that have to be made
  const std::filesystem::path& folder() const {
    return request.recipe.empty() ? request.model : request.out;
  }
};

// Checks that the recipe fits the model and that calibration text is there when needed, before any
// work is done. Throws Error.
LadderCheckpoint describe_checkpoint(CheckpointRequest request);

// What the disk still has to take: the checkpoints that are not there, each counted once, without
// the parts of them that are.
uint64_t bytes_to_write(std::span<const LadderCheckpoint> checkpoints);

// Quantizes unless the folder holds what this request made before; goes on with an unfinished one.
// The store remembers under "checkpoint-<name>" what was begun.
void ensure_checkpoint(const LadderCheckpoint& checkpoint, ResultStore& store);

}  // namespace levin::bench
