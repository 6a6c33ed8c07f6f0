#include "quantize/progress_file.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "core/error.h"
#include "core/files.h"

namespace levin::quantize {
namespace fs = std::filesystem;
namespace {

constexpr const char* kRecord = "progress.json";
constexpr const char* kFiles = "files";
constexpr const char* kLock = "lock";
constexpr const char* kStages[] = {"convert", "retire", "publish"};

// Where two identities differ, for the user.
std::string differences(const nlohmann::json& ours, const nlohmann::json& theirs) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : ours.items()) {
    if (!theirs.contains(key) || theirs.at(key) != value) keys.push_back(key);
  }
  return fmt::format("{}", fmt::join(keys, ", "));
}

// Names of the source's files need not be UTF-8.
std::string to_text(const nlohmann::json& json) {
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// What a killed run had begun to write and not finished.
void remove_partial_files(const fs::path& folder) {
  std::vector<fs::path> partial;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() == ".partial") partial.push_back(entry.path());
  }
  for (const fs::path& file : partial) fs::remove(file, ignored);
}

constexpr const char* kStartOver = "start over with --overwrite";

nlohmann::json read_record(const fs::path& path) {
  try {
    return read_json(path);
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    parts.hint = kStartOver;
    throw Error(parts);
  }
}

}  // namespace

bool ProgressFile::exists(const fs::path& output) {
  std::error_code ignored;
  return fs::exists(output / kFolder / kRecord, ignored);
}

ProgressFile::ProgressFile(const fs::path& output, const nlohmann::json& identity, bool discard)
    : folder_(output / kFolder),
      files_(folder_ / kFiles),
      identity_(nlohmann::json::parse(to_text(identity))) {
  create_folder(folder_);
  lock_.emplace(folder_ / kLock);
  if (!exists(output)) {
    start_over();
    return;
  }
  create_folder(files_);
  remove_partial_files(files_);
  try {
    read();
    resumed_ = true;
  } catch (const Error&) {
    if (!discard) throw;
    start_over();
  }
}

void ProgressFile::start_over() {
  std::error_code ignored;
  fs::remove_all(files_, ignored);
  shards_.clear();
  calibration_ = nullptr;
  stage_ = Stage::kConvert;
  create_folder(files_);
  write();
}

void ProgressFile::read() {
  const fs::path path = folder_ / kRecord;
  const nlohmann::json record = read_record(path);
  try {
    const nlohmann::json& theirs = record.at("identity");
    if (theirs != identity_) {
      throw Error({.what = "the output folder holds an unfinished conversion of something else",
                   .where = path.string(),
                   .expected = "the same source, recipe, calibration and version of levin",
                   .found = fmt::format("different: {}", differences(identity_, theirs)),
                   .hint = "choose another folder, or start over with --overwrite"});
    }
    const auto stage = record.at("stage").get<std::string>();
    for (std::size_t i = 0; i < std::size(kStages); ++i) {
      if (stage == kStages[i]) stage_ = static_cast<Stage>(i);
    }
    calibration_ = record.at("calibration");
    for (const auto& [name, entry] : record.at("shards").items()) {
      Shard shard;
      shard.bytes = entry.at("bytes").get<uint64_t>();
      shard.errors = error_sums_from_json(entry.at("errors"), path.string());
      shard.zero_matrices = entry.at("zero_matrices").get<std::vector<std::string>>();
      std::error_code error;
      const bool whole = fs::file_size(files_ / name, error) == shard.bytes && !error;
      if (whole || stage_ == Stage::kPublish) shards_.emplace(name, std::move(shard));
    }
  } catch (const nlohmann::json::exception& e) {
    throw Error({.what = "progress record is damaged",
                 .where = path.string(),
                 .expected = {},
                 .found = e.what(),
                 .hint = kStartOver});
  }
}

void ProgressFile::write() const {
  nlohmann::json shards = nlohmann::json::object();
  for (const auto& [name, shard] : shards_) {
    shards[name] = {{"bytes", shard.bytes},
                    {"errors", to_json(shard.errors)},
                    {"zero_matrices", shard.zero_matrices}};
  }
  const nlohmann::json record = {{"identity", identity_},
                                 {"stage", kStages[static_cast<std::size_t>(stage_)]},
                                 {"calibration", calibration_},
                                 {"shards", std::move(shards)}};
  write_text(folder_ / kRecord, to_text(record));
}

void ProgressFile::set_calibration(nlohmann::json calibration) {
  calibration_ = std::move(calibration);
  write();
}

void ProgressFile::add_shard(const std::string& name, Shard shard) {
  shards_[name] = std::move(shard);
  write();
}

void ProgressFile::set_stage(Stage stage) {
  stage_ = stage;
  write();
}

void ProgressFile::remove() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

}  // namespace levin::quantize
