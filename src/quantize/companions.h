// The files around the shards of a quantized checkpoint: index, metadata, config.json, and whatever
// else the source folder has.
#pragma once

#include <filesystem>
#include <vector>

#include "quantize/convert.h"
#include "quantize/shard_jobs.h"

namespace levin::quantize {

// Writes them into `folder`, config.json last. Weights in other formats than safetensors, folders
// and hidden files of the source are left out.
void write_companions(const checkpoint::Checkpoint& source, const Plan& plan,
                      const std::vector<ShardJob>& jobs, const ConvertSettings& settings,
                      const std::filesystem::path& folder);

}  // namespace levin::quantize
