// What `levin tune` found, as a file that other commands load: settings for one model on one
// device.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bench/tuner.h"
#include "core/files.h"
#include "engine/engine.h"

namespace levin::bench {

struct TuneProfile {
  std::string levin;   // version that made it
  std::string model;   // model_fingerprint()
  std::string folder;  // where the model was; for messages
  std::string device;  // device_of()
  TuneSetting setting;
  bool of_busy_machine = false;  // as "measured" says; written with that
};

// What tells one model from another wherever it lies: its configuration, the names, types and
// shapes of its tensors, and a sample of their bytes.
std::string model_fingerprint(const checkpoint::Checkpoint& checkpoint);
// The processor and the cores that may be used, or the runtime's description of its device.
std::string device_of(engine::Engine& engine);

// `measured` is kept beside the settings, for people. Throws Error as write_text does.
void write_profile(const TuneProfile& profile, const nlohmann::ordered_json& measured,
                   const std::filesystem::path& file, Existing existing);
// Throws Error for what is no profile, or one of a version that this levin does not know.
TuneProfile read_profile(const std::filesystem::path& file);
// Throws Error when the profile was made for another model.
void require_made_for(const TuneProfile& profile, const std::filesystem::path& file,
                      const std::filesystem::path& model);

}  // namespace levin::bench
