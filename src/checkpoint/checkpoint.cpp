#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/model_folder.h"
#include "core/error.h"
#include "core/files.h"

namespace levin::checkpoint {
namespace {

// A quantized_layers map of the largest public model is below 30 MB.
constexpr std::size_t kMaxConfigBytes = std::size_t{64} << 20;
// The 550B model has about 200,000 tensors with their scales.
constexpr std::size_t kMaxTensors = std::size_t{1} << 21;

}  // namespace

Checkpoint::Checkpoint(std::filesystem::path folder) : folder_(std::move(folder)) {
  require_model_folder(folder_);
  config_ =
      std::make_shared<const nlohmann::json>(read_json(folder_ / "config.json", kMaxConfigBytes));
  if (!config_->is_object()) {
    throw Error({.what = "config.json is not a JSON object",
                 .where = (folder_ / "config.json").string(),
                 .expected = {},
                 .found = config_->type_name(),
                 .hint = {}});
  }
}

void Checkpoint::add_tensor(TensorInfo info) {
  if (tensors_.size() == kMaxTensors) {
    throw Error({.what = "checkpoint has too many tensors",
                 .where = folder_.string(),
                 .expected = fmt::format("at most {}", kMaxTensors),
                 .found = {},
                 .hint = {}});
  }
  const auto [place, inserted] = index_.emplace(info.name, tensors_.size());
  if (!inserted) {
    const TensorInfo& other = tensors_[place->second];
    throw Error({.what = "two tensors mean the same weight",
                 .where = folder_.string(),
                 .expected = fmt::format("one tensor for \"{}\"", printable(info.name)),
                 .found = fmt::format("\"{}\" in {} and \"{}\" in {}", printable(other.stored_name),
                                      other.file, printable(info.stored_name), info.file),
                 .hint = {}});
  }
  tensors_.push_back(std::move(info));
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto place = index_.find(name);
  return place == index_.end() ? nullptr : &tensors_[place->second];
}

TensorView Checkpoint::view(std::string_view name) const {
  const auto place = index_.find(name);
  if (place == index_.end()) {
    throw Error({.what = "checkpoint has no such tensor",
                 .where = folder_.string(),
                 .expected = printable(name),
                 .found = {},
                 .hint = {}});
  }
  return view_at(place->second);
}

uint64_t Checkpoint::total_bytes() const {
  uint64_t total = 0;
  for (const TensorInfo& tensor : tensors_) total += tensor.bytes;
  return total;
}

void Checkpoint::read_quantization() {
  std::set<std::string> modules;
  for (const TensorInfo& tensor : tensors_) {
    const std::size_t dot = tensor.name.rfind('.');
    if (dot != std::string::npos) modules.insert(tensor.name.substr(0, dot));
  }
  quantization_ = read_quant_metadata(folder_, *config_, {modules.begin(), modules.end()});
}

}  // namespace levin::checkpoint
