#include "cli/profile_flags.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "core/error.h"
#include "core/thread_team.h"

namespace levin::cli {

void add_profile_flag(CLI::App& command, std::string& file) {
  command.add_option("--profile", file,
                     "Settings that levin tune found for this model; flags given by hand win");
}

std::optional<bench::TuneProfile> apply_profile(const std::string& file, const CLI::App& command,
                                                EngineFlags& flags, bool drafts) {
  if (file.empty()) return std::nullopt;
  if (flags.load_format == "dummy" || flags.runtime == "reference") {
    throw Error(
        {.what = "a profile is for the fast runtime and a model with weights",
         .where = "--profile",
         .expected = {},
         .found = flags.load_format == "dummy" ? "--load-format dummy" : "--runtime reference",
         .hint = "leave --profile out"});
  }
  const bench::TuneProfile profile = bench::read_profile(file);
  bench::require_made_for(profile, file, flags.model);
  if (profile.of_busy_machine) {
    spdlog::warn("profile {}: the machine was busy when it was measured: tune again to be sure",
                 file);
  }
  // `option` is set as `shown` unless it, or the one that says the opposite, was given.
  const auto set = [&](const char* option, const std::string& shown, auto&& assign,
                       const char* opposite = nullptr) {
    if (command.count(option) > 0 || (opposite != nullptr && command.count(opposite) > 0)) {
      spdlog::info("profile {}: {} is left, the one given by hand wins", file, shown);
      return;
    }
    spdlog::info("profile {}: {}", file, shown);
    assign();
  };
  const bench::TuneSetting& setting = profile.setting;
  std::string config =
      fmt::format(R"({{"method": "mtp", "num_speculative_tokens": {}}})", setting.drafts);
  if (setting.draft_vocab > 0) {
    config.insert(config.size() - 1,
                  fmt::format(R"(, "draft_vocab_size": {})", setting.draft_vocab));
  }
  if (setting.threads > 0) {
    set("--threads", fmt::format("--threads {}", setting.threads),
        [&] { flags.threads = setting.threads; });
  }
  if (setting.pin_threads) set("--pin-threads", "--pin-threads", [&] { flags.pin_threads = true; });
  set("--kv-cache-dtype", fmt::format("--kv-cache-dtype {}", bench::name_of(setting.kv)),
      [&] { flags.kv_cache_dtype = bench::name_of(setting.kv); });
  set("--mamba-ssm-cache-dtype",
      fmt::format("--mamba-ssm-cache-dtype {}", bench::name_of(setting.ssm)),
      [&] { flags.ssm_cache_dtype = bench::name_of(setting.ssm); });
  if (setting.device_rounds == false) {
    set("--host-rounds", "--host-rounds", [&] { flags.host_rounds = true; });
  }
  // Commands that answer one request have no use for it.
  if (setting.prefix_cache && command.get_option_no_throw("--enable-prefix-caching") != nullptr) {
    // Who gives it memory wants one.
    const bool wanted = command.count("--prefix-cache-memory") > 0;
    set(
        wanted ? "--prefix-cache-memory" : "--enable-prefix-caching",
        *setting.prefix_cache ? "--enable-prefix-caching" : "--no-enable-prefix-caching",
        [&] { flags.no_prefix_caching = !*setting.prefix_cache; }, "--no-enable-prefix-caching");
  }
  if (drafts || flags.speculative_config) {
    set("--speculative-config", "--speculative-config " + config,
        [&] { flags.speculative_config = config; });
  } else {
    spdlog::info("profile {}: its {} left, each round drafts as many as pay", file,
                 setting.drafts == 1 ? "1 draft is" : fmt::format("{} drafts are", setting.drafts));
    if (setting.draft_vocab > 0) {
      spdlog::info("profile {}: draft_vocab_size {}", file, setting.draft_vocab);
      flags.draft_vocab_size = setting.draft_vocab;
    }
  }
  return profile;
}

void check_device(const std::optional<bench::TuneProfile>& profile, engine::Engine& engine) {
  if (!profile) return;
  const std::string device = bench::device_of(engine);
  if (device == profile->device) return;
  spdlog::warn("the profile was made on another device ({}; this is {}): tune again to be sure",
               profile->device, device);
}

}  // namespace levin::cli
