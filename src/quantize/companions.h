// The files around the shards of a quantized checkpoint: index, metadata, config.json, and whatever
// else the source folder has.
#pragma once

#include <filesystem>
#include <vector>

#include "quantize/convert.h"
#include "quantize/shard_jobs.h"

namespace levin::quantize {

// Throws Error for files of the source that cannot be copied: links that lead nowhere, pipes,
// folders in place of files. For finding out before anything is written.
void check_companions(const std::filesystem::path& source);

// Writes them into `folder`, config.json last. Weights in other formats than safetensors, folders
// and hidden files of the source are left out.
void write_companions(const checkpoint::Checkpoint& source, const Plan& plan,
                      const std::vector<ShardJob>& jobs, const ConvertSettings& settings,
                      const std::filesystem::path& folder);

}  // namespace levin::quantize
