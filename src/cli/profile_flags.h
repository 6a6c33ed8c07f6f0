// --profile: settings that `levin tune` found, where the user gave none by hand.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "bench/profile.h"
#include "cli/engine_flags.h"

namespace levin::cli {

void add_profile_flag(CLI::App& command, std::string& file);

// Reads `file` and sets the flags of `command` that were not given by hand; says what it sets and
// what it leaves. `drafts`: whether their number is set too, or left to be chosen round by round.
// Nothing for an empty name. Throws Error for what is no profile and for one that
// was made for another model.
std::optional<bench::TuneProfile> apply_profile(const std::string& file, const CLI::App& command,
                                                EngineFlags& flags, bool drafts = true);

// Warns when the profile was made on another device than this engine's.
void check_device(const std::optional<bench::TuneProfile>& profile, engine::Engine& engine);

}  // namespace levin::cli
