#include "quantize/shard_jobs.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "model/inventory.h"

namespace levin::quantize {
namespace {

using checkpoint::QuantAlgo;
using checkpoint::TensorInfo;

constexpr std::string_view kWrapper = "language_model.";

Content content_of(const std::string& name, const checkpoint::ModuleQuant& quant) {
  if (name.ends_with(".weight") || name.ends_with(".weight_packed")) return Content::kCodes;
  if (name.ends_with(".weight_scale_2")) return Content::kGlobalScale;
  if (name.ends_with(".input_scale")) return Content::kInputScale;
  if (name.ends_with(".weight_shape")) return Content::kShape;
  return quant.algo == QuantAlgo::kFp8 ? Content::kGlobalScale : Content::kScales;
}

// Attention blocks by the name of their key or value projection's weight.
struct KvScaleNames {
  std::map<std::string, Content> of_weight;

  explicit KvScaleNames(const Plan& plan) {
    for (const KvPlan& block : plan.kv) {
      if (block.scale != KvScale::kCalibrated) continue;
      of_weight.emplace(block.attention + ".k_proj.weight", Content::kKeyScale);
      of_weight.emplace(block.attention + ".v_proj.weight", Content::kValueScale);
    }
  }
};

}  // namespace

std::vector<checkpoint::OutputTensor> ShardJob::outputs() const {
  std::vector<checkpoint::OutputTensor> all;
  for (const Item& item : items) {
    for (const OutputPart& part : item.parts) all.push_back(part.tensor);
  }
  return all;
}

std::string output_prefix(const checkpoint::Checkpoint& source, const Plan& plan) {
  const bool wrapped =
      std::any_of(plan.tensors.begin(), plan.tensors.end(), [&](const model::TensorPlan& tensor) {
        const TensorInfo* info = source.find(tensor.name);
        return info != nullptr && info->stored_name.starts_with(kWrapper);
      });
  return wrapped ? std::string(kWrapper) : std::string();
}

std::vector<ShardJob> shard_jobs(const checkpoint::Checkpoint& source, const Plan& plan) {
  const std::string prefix = output_prefix(source, plan);
  std::set<std::string_view> known;
  for (const model::TensorPlan& tensor : plan.tensors) known.insert(tensor.name);
  std::map<std::string_view, std::size_t> quantized;
  for (std::size_t i = 0; i < plan.linears.size(); ++i) {
    if (plan.linears[i].quant.algo == QuantAlgo::kNone) continue;
    quantized.emplace(plan.tensor(plan.linears[i]).name, i);
  }
  const KvScaleNames kv(plan);

  std::vector<ShardJob> jobs;
  for (const TensorInfo& info : source.tensors()) {
    if (jobs.empty() || jobs.back().file != info.file) jobs.push_back({info.file, {}});
    Item item;
    item.source = info.name;
    const auto linear = quantized.find(info.name);
    if (linear != quantized.end()) {
      item.linear = linear->second;
      const LinearPlan& decision = plan.linears[linear->second];
      for (const model::StoredPlan& stored :
           model::stored_as(plan.tensor(decision), decision.quant, plan.dialect)) {
        item.parts.push_back({content_of(stored.name, decision.quant),
                              {prefix + stored.name, stored.dtypes.front(), stored.shape}});
      }
    } else {
      // Tensors of other modalities keep their own spelling.
      const std::string name = known.contains(info.name) ? prefix + info.name : info.stored_name;
      item.parts.push_back({Content::kCopy, {name, info.dtype, info.shape}});
    }
    const auto scale = kv.of_weight.find(info.name);
    if (scale != kv.of_weight.end()) {
      const bool keys = scale->second == Content::kKeyScale;
      const std::string module = info.name.substr(0, info.name.rfind('.'));
      item.parts.push_back(
          {scale->second, {prefix + module + (keys ? ".k_scale" : ".v_scale"), DType::kF32, {}}});
    }
    jobs.back().items.push_back(std::move(item));
  }
  return jobs;
}

}  // namespace levin::quantize
