// What a conversion has done so far, on disk, so that a run that was killed can be continued and a
// run with other inputs cannot be mistaken for it.
//
// OUT/.levin-partial/progress.json    this record
// OUT/.levin-partial/lock             held by the process that is writing
// OUT/.levin-partial/files/           finished shards and other files, moved into OUT at the end
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/files.h"
#include "quantize/errors.h"

namespace levin::quantize {

class ProgressFile {
 public:
  static constexpr const char* kFolder = ".levin-partial";

  enum class Stage : uint8_t {
    kConvert,  // shards are being written
    kRetire,   // everything is written; an older checkpoint in OUT is being removed
    kPublish   // files are being moved into OUT
  };

  struct Shard {
    uint64_t bytes = 0;  // of the finished file
    ErrorSums errors;
    std::vector<std::string> zero_matrices;
  };

  // Reads the record of `output`, or starts one there. `identity` holds everything that decides the
  // bytes of the result; a record with another identity, or a damaged one, is an Error that says
  // so, unless `discard` is set: then it is removed with everything that it covers.
  // Throws Error, too, when another process is writing there.
  ProgressFile(const std::filesystem::path& output, const nlohmann::json& identity, bool discard);
  ProgressFile(const ProgressFile&) = delete;
  ProgressFile& operator=(const ProgressFile&) = delete;

  const std::filesystem::path& files() const { return files_; }
  // Shards that are finished and whose files are there in full.
  const std::map<std::string, Shard>& shards() const { return shards_; }
  Stage stage() const { return stage_; }
  // Found in a record from an earlier run.
  bool resumed() const { return resumed_; }
  // What calibration measured; null until set.
  const nlohmann::json& calibration() const { return calibration_; }

  void set_calibration(nlohmann::json calibration);
  void add_shard(const std::string& name, Shard shard);
  void set_stage(Stage stage);
  // Removes the record and its folder.
  void remove();

  static bool exists(const std::filesystem::path& output);

 private:
  void read();
  void start_over();
  void write() const;

  std::filesystem::path folder_;
  std::filesystem::path files_;
  nlohmann::json identity_;
  nlohmann::json calibration_;
  std::map<std::string, Shard> shards_;
  Stage stage_ = Stage::kConvert;
  bool resumed_ = false;
  std::optional<FileLock> lock_;
};

}  // namespace levin::quantize
