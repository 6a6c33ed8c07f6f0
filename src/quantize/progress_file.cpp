#include "quantize/progress_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
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

void create_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return;
  throw Error({.what = fmt::format("cannot create folder: {}", error.message()),
               .where = folder.string(),
               .expected = {},
               .found = {},
               .hint = {},
               .exit_code = ExitCode::kMachine});
}

}  // namespace

bool ProgressFile::exists(const fs::path& output) {
  std::error_code ignored;
  return fs::exists(output / kFolder / kRecord, ignored);
}

ProgressFile::Lock::~Lock() {
  if (descriptor >= 0) ::close(descriptor);
}

ProgressFile::ProgressFile(const fs::path& output, nlohmann::json identity, bool discard)
    : folder_(output / kFolder), files_(folder_ / kFiles), identity_(std::move(identity)) {
  create_folder(folder_);
  lock();
  if (!exists(output)) {
    start_over();
    return;
  }
  try {
    read();
    resumed_ = true;
  } catch (const Error&) {
    if (!discard) throw;
    start_over();
  }
}

// The lock goes with the process, however that ends.
void ProgressFile::lock() {
  const fs::path path = folder_ / kLock;
  lock_.descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_.descriptor >= 0 && ::flock(lock_.descriptor, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  const bool taken = error == EWOULDBLOCK;
  throw Error({.what = taken ? "another process is writing to the output folder"
                             : fmt::format("cannot lock file: {}", std::strerror(error)),
               .where = path.string(),
               .expected = {},
               .found = {},
               .hint = taken ? "wait for it, or choose another folder" : "",
               .exit_code = ExitCode::kMachine});
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
  const nlohmann::json record = read_json(path);
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
                 .hint = "start over with --overwrite"});
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
  write_text(folder_ / kRecord, record.dump(1));
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
