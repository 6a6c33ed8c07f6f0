#include "quantize/companions.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "checkpoint/metadata_writer.h"
#include "checkpoint/writer.h"
#include "core/error.h"
#include "core/files.h"

namespace levin::quantize {
namespace fs = std::filesystem;
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kHfQuantConfig = "hf_quant_config.json";

bool is_copied(const fs::path& path) {
  const std::string name = path.filename();
  const std::string extension = path.extension();
  const bool weights = extension == ".safetensors" || extension == ".bin" || extension == ".pt" ||
                       extension == ".pth" || extension == ".gguf" || extension == ".h5" ||
                       extension == ".onnx" || extension == ".msgpack";
  if (weights || name.starts_with(".") || name == "config.json" || name == kHfQuantConfig ||
      name.ends_with(".index.json") || !file_exists(path)) {
    return false;
  }
  if (fs::is_regular_file(path)) return true;
  if (fs::is_directory(path) && extension != ".json" && extension != ".jinja") return false;
  throw Error({.what = "cannot copy what is not a regular file",
               .where = path.string(),
               .expected = {},
               .found = {},
               .hint = "mend or remove it"});
}

void copy_over(const fs::path& from, const fs::path& to) {
  const MappedFile source(from);
  AtomicFile copy(to);
  copy.write(source.bytes());
  copy.commit();
}

void write_index(const checkpoint::Checkpoint& source, const std::vector<ShardJob>& jobs,
                 const fs::path& folder) {
  if (jobs.size() == 1 && !fs::exists(source.folder() / kIndex)) return;
  std::map<std::string, std::string> weight_map;
  uint64_t total = 0;
  for (const ShardJob& job : jobs) {
    for (const checkpoint::OutputTensor& tensor : job.outputs()) {
      weight_map.emplace(tensor.name, job.file);
      total += tensor.bytes();
    }
  }
  write_text(folder / kIndex, checkpoint::shard_index_json(weight_map, total).dump(2) + "\n");
}

// Every module with a weight matrix, the convolution and the router among them: a reader that takes
// everything unnamed for quantized has to find them named.
checkpoint::WrittenQuant written_quant(const Plan& plan, const std::string& prefix,
                                       const ConvertSettings& settings) {
  std::map<std::size_t, checkpoint::ModuleQuant> decided;
  for (const LinearPlan& linear : plan.linears) decided.emplace(linear.tensor, linear.quant);
  checkpoint::WrittenQuant quant;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const model::TensorPlan& tensor = plan.tensors[i];
    if (!tensor.name.ends_with(".weight") || tensor.shape.size() < 2) continue;
    const auto decision = decided.find(i);
    quant.modules.emplace_back(
        prefix + std::string(tensor.module()),
        decision == decided.end() ? checkpoint::ModuleQuant{} : decision->second);
  }
  quant.kv_cache = plan.kv_cache();
  quant.producer_name = settings.producer_name;
  quant.producer_version = settings.producer_version;
  return quant;
}

bool quantizes_anything(const checkpoint::WrittenQuant& quant) {
  return std::any_of(quant.modules.begin(), quant.modules.end(), [](const auto& module) {
    return module.second.algo != checkpoint::QuantAlgo::kNone;
  });
}

}  // namespace

void check_companions(const fs::path& source) {
  for (const fs::directory_entry& entry : fs::directory_iterator(source)) {
    if (is_copied(entry.path())) const MappedFile readable(entry.path());
  }
}

void write_companions(const checkpoint::Checkpoint& source, const Plan& plan,
                      const std::vector<ShardJob>& jobs, const ConvertSettings& settings,
                      const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(source.folder())) {
    if (is_copied(entry.path())) copy_over(entry.path(), folder / entry.path().filename());
  }
  write_index(source, jobs, folder);

  const std::string path = source.folder() / "config.json";
  std::string config = read_text(path);
  const checkpoint::WrittenQuant quant = written_quant(plan, output_prefix(source, plan), settings);
  if (quantizes_anything(quant)) {
    const bool modelopt = plan.dialect == model::Dialect::kModelOpt;
    if (modelopt) {
      write_text(folder / kHfQuantConfig,
                 checkpoint::modelopt_hf_quant_config(quant).dump(2) + "\n");
    }
    config = checkpoint::with_quantization_config(
        config,
        modelopt ? checkpoint::modelopt_quantization_config(quant)
                 : checkpoint::compressed_tensors_quantization_config(quant),
        path);
  }
  write_text(folder / "config.json", config);
}

}  // namespace levin::quantize
