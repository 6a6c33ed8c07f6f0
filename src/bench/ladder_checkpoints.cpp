#include "bench/ladder_checkpoints.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/files.h"
#include "quantize/convert.h"
#include "quantize/quantize.h"

namespace levin::bench {
namespace {

namespace fs = std::filesystem;

std::string calibration_content(const CheckpointRequest& request) {
  if (!fs::exists(request.calibration)) {
    throw Error({.what = "the recipe needs text to measure activation scales on",
                 .where = "recipe " + request.recipe,
                 .expected = "--calibration TEXT",
                 .found = "no file " + request.calibration.string(),
                 .hint = {}});
  }
  return read_text(request.calibration);
}

// Bytes of the files in a folder and below it; none when it is not there.
uint64_t held(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    if (entry.is_regular_file(error)) bytes += entry.file_size(error);
  }
  return bytes;
}

}  // namespace

uint64_t bytes_to_write(std::span<const LadderCheckpoint> checkpoints) {
  std::map<fs::path, uint64_t> folders;
  for (const LadderCheckpoint& checkpoint : checkpoints) {
    if (checkpoint.bytes > 0) folders[checkpoint.folder()] = checkpoint.bytes;
  }
  uint64_t bytes = 0;
  for (const auto& [folder, planned] : folders) bytes += planned - std::min(planned, held(folder));
  return bytes;
}

LadderCheckpoint describe_checkpoint(CheckpointRequest request) {
  Key key;
  key.add(request.version).add(folder_fingerprint(request.model));
  if (request.recipe.empty()) return {std::move(request), "bf16", key.hex(), false, 0};

  const quantize::Source source =
      quantize::open_source(request.model, request.recipe, model::LoadFormat::kAuto);
  const quantize::Plan& plan = source.plan;
  key.add(quantize::canonical_text(plan.recipe));
  const bool calibrated = plan.needs_calibration();
  if (calibrated) key.add(calibration_content(request)).add(request.calibration_tokens);
  std::string name = fs::path(request.recipe).stem().string();
  const uint64_t bytes = quantize::output_bytes(*source.checkpoint, plan);
  return {std::move(request), std::move(name), key.hex(), calibrated, bytes};
}

void ensure_checkpoint(const LadderCheckpoint& checkpoint, ResultStore& store) {
  const CheckpointRequest& request = checkpoint.request;
  if (request.recipe.empty()) return;
  const std::string record = "checkpoint-" + checkpoint.name;
  const bool begun = store.find(record, checkpoint.key).has_value();
  const bool replaces = !begun && store.has(record);  // one that an earlier climb made
  const std::string made = "made-" + checkpoint.name;
  if (begun && fs::exists(request.out / "config.json")) {
    const std::string fingerprint = folder_fingerprint(request.out);
    const auto stored = store.find(made, checkpoint.key);
    if (!stored) store.put(made, checkpoint.key, fingerprint);  // killed right behind the work
    if (!stored || *stored == fingerprint) return;
    throw Error({.what = "checkpoint is not the one that this ladder made",
                 .where = request.out.string(),
                 .expected = "the files as they were written",
                 .found = "other sizes, times or contents",
                 .hint = "remove the folder to have it made again"});
  }

  // Recorded before the work: whatever is in the folder later was made by this request.
  store.put(record, checkpoint.key, {{"recipe", request.recipe}, {"folder", request.out.string()}});
  spdlog::info("quantizing {}", checkpoint.name);
  quantize::Options options;
  options.model = request.model;
  options.recipe = request.recipe;
  options.output = request.out;
  if (checkpoint.calibrated) {
    options.calibration = {.text = request.calibration, .max_tokens = request.calibration_tokens};
  }
  options.threads = request.threads;
  options.overwrite = replaces;
  options.version = request.version;
  create_folder(request.out.parent_path());
  quantize::quantize(options);
  store.put(made, checkpoint.key, folder_fingerprint(request.out));
}

}  // namespace levin::bench
