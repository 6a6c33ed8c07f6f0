#include "bench/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/result_store.h"
#include "core/error.h"
#include "core/plural.h"
#include "core/thread_team.h"

namespace levin::bench {
namespace {

constexpr int kVersion = 1;
constexpr const char* kVersionKey = "levin_profile";

// Tensors whose bytes are looked at, and how many of each.
constexpr std::size_t kSampledTensors = 128;
constexpr std::size_t kSampledBytes = 256;

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& what,
                       std::string expected, std::string found) {
  throw Error({.what = what,
               .where = file.string(),
               .expected = std::move(expected),
               .found = std::move(found),
               .hint = "make one with levin tune"});
}

int integer(const nlohmann::json& json, const std::filesystem::path& file, const char* key,
            int least, int most) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer() || *found < least || *found > most) {
    fail(file, fmt::format("a profile's {} is wrong", key), fmt::format("{} to {}", least, most),
         found == json.end() ? "nothing" : found->dump());
  }
  return found->get<int>();
}

std::string text(const nlohmann::json& json, const std::filesystem::path& file, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_string()) {
    fail(file, fmt::format("a profile's {} is wrong", key), "text",
         found == json.end() ? "nothing" : found->dump());
  }
  return found->get<std::string>();
}

// Nothing where the device of the profile left no choice: the key is absent or null.
std::optional<bool> choice(const nlohmann::json& json, const std::filesystem::path& file,
                           const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return std::nullopt;
  if (!found->is_boolean()) {
    fail(file, fmt::format("a profile's {} is wrong", key), "true, false or null", found->dump());
  }
  return found->get<bool>();
}

// A setting that this levin does not know must not pass for one that it heeds.
void refuse_unknown(const nlohmann::json& json, const std::filesystem::path& file,
                    const std::string& place, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : json.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    fail(file, "unknown key in a profile", fmt::format("{}", fmt::join(known, ", ")),
         place + key.substr(0, 100));
  }
}

template <typename T>
T one_of(const nlohmann::json& json, const std::filesystem::path& file, const char* key,
         std::initializer_list<T> values) {
  const std::string name = text(json, file, key);
  std::string expected;
  for (const T value : values) {
    if (name_of(value) == name) return value;
    expected += fmt::format("{}{}", expected.empty() ? "" : " or ", name_of(value));
  }
  fail(file, fmt::format("a profile's {} is wrong", key), expected, name);
}

}  // namespace

std::string model_fingerprint(const checkpoint::Checkpoint& checkpoint) {
  Key key;
  key.add(checkpoint.config().dump());
  const auto& tensors = checkpoint.tensors();
  const std::size_t stride = std::max<std::size_t>(tensors.size() / kSampledTensors, 1);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    key.add(tensors[i].name).add(name_of(tensors[i].dtype));
    for (const int64_t size : tensors[i].shape) key.add(size);
    if (i % stride != 0) continue;
    const std::span<const std::byte> bytes = checkpoint.view(tensors[i].name).bytes;
    const std::span<const std::byte> sample =
        bytes.first(std::min<std::size_t>(bytes.size(), kSampledBytes));
    key.add(std::string_view(reinterpret_cast<const char*>(sample.data()), sample.size()));
  }
  return key.hex();
}

std::string device_of(engine::Engine& engine) {
  if (!engine.runtime->read_gb_per_s(1, 1).empty()) return engine.runtime->description();
  return fmt::format("{}, {}", processor_name(), counted(int64_t{available_cores()}, "core"));
}

void write_profile(const TuneProfile& profile, const nlohmann::ordered_json& measured,
                   const std::filesystem::path& file, Existing existing) {
  const nlohmann::ordered_json json = {
      {kVersionKey, kVersion},    {"levin", profile.levin},
      {"model", profile.model},   {"folder", profile.folder},
      {"device", profile.device}, {"settings", to_json(profile.setting)},
      {"measured", measured}};
  write_text(file,
             json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n",
             existing);
}

// "measured" is for people, and may be anything.
bool tells_of_neighbours(const nlohmann::json& profile) {
  const nlohmann::json::json_pointer told("/measured/machine_was_busy/noticeable");
  return profile.contains(told) && profile.at(told) == true;
}

TuneProfile read_profile(const std::filesystem::path& file) {
  const nlohmann::json json = read_json(file);
  if (!json.is_object() || !json.contains(kVersionKey) || !json.contains("settings") ||
      !json.at("settings").is_object()) {
    fail(file, "this is no profile", fmt::format("an object with {} and settings", kVersionKey),
         json.dump().substr(0, 100));
  }
  integer(json, file, kVersionKey, kVersion, kVersion);
  const nlohmann::json& settings = json.at("settings");
  refuse_unknown(json, file, "",
                 {kVersionKey, "levin", "model", "folder", "device", "settings", "measured"});
  refuse_unknown(
      settings, file, "settings.",
      {"threads", "pin_threads", "kv_cache_dtype", "mamba_ssm_cache_dtype",
       "num_speculative_tokens", "draft_vocab_size", "device_rounds", "enable_prefix_caching"});
  using Kv = runtime::KvCacheDType;
  using Ssm = runtime::SsmCacheDType;
  TuneProfile profile{
      .levin = text(json, file, "levin"),
      .model = text(json, file, "model"),
      .folder = text(json, file, "folder"),
      .device = text(json, file, "device"),
      .setting = {.threads = integer(settings, file, "threads", 0, 1024),
                  .pin_threads = choice(settings, file, "pin_threads").value_or(false),
                  .kv = one_of(settings, file, "kv_cache_dtype", {Kv::kBf16, Kv::kFp8}),
                  .ssm = one_of(settings, file, "mamba_ssm_cache_dtype", {Ssm::kF32, Ssm::kF16}),
                  .drafts = integer(settings, file, "num_speculative_tokens", 0, 7),
                  .draft_vocab = settings.contains("draft_vocab_size")
                                     ? integer(settings, file, "draft_vocab_size", 0, 1 << 24)
                                     : 0,
                  .device_rounds = choice(settings, file, "device_rounds"),
                  .prefix_cache = choice(settings, file, "enable_prefix_caching")},
      .of_busy_machine = tells_of_neighbours(json)};
  if (profile.setting.draft_vocab > 0 && profile.setting.drafts == 0) {
    fail(file, "a profile's draft_vocab_size is of drafts, and there are none",
         "num_speculative_tokens of at least 1 beside it, or draft_vocab_size 0",
         fmt::format("{}", profile.setting.draft_vocab));
  }
  return profile;
}

void require_made_for(const TuneProfile& profile, const std::filesystem::path& file,
                      const std::filesystem::path& model) {
  const std::string found = model_fingerprint(*checkpoint::Checkpoint::open(model));
  if (found == profile.model) return;
  throw Error({.what = "the profile was made for another model",
               .where = file.string(),
               .expected = fmt::format("{} ({})", profile.model, profile.folder),
               .found = fmt::format("{} ({})", found, model.string()),
               .hint = "make one for this model with levin tune"});
}

}  // namespace levin::bench
