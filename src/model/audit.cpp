#include "model/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "core/plural.h"
#include "model/inventory.h"

namespace levin::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::ModuleQuant;
using checkpoint::QuantAlgo;
using checkpoint::TensorInfo;

constexpr std::size_t kListedExperts = 24;
// A checkpoint of another model differs in everything; nobody reads a list without end.
constexpr std::size_t kListedFaults = 1000;
constexpr std::size_t kMaxPrinted = 600;

// One fault of one tensor; faults that differ in the expert only are reported together.
struct Fault {
  std::string what;
  std::string name;  // with "{}" in place of the expert
  std::string expected;
  std::string found;
  std::string hint;
  auto key() const { return std::tie(name, what, expected, found, hint); }
  bool operator<(const Fault& other) const { return key() < other.key(); }
};

// "backbone.layers.1.mixer.experts.7.up_proj" -> ("...experts.{}.up_proj", 7)
std::pair<std::string, int64_t> split_expert(std::string_view name) {
  constexpr std::string_view kInfix = ".experts.";
  const std::size_t at = name.find(kInfix);
  if (at == std::string_view::npos) return {std::string(name), -1};
  const std::size_t begin = at + kInfix.size();
  std::size_t end = begin;
  int64_t expert = 0;
  while (end < name.size() && end - begin < 9 && name[end] >= '0' && name[end] <= '9') {
    expert = expert * 10 + (name[end++] - '0');
  }
  if (end == begin) return {std::string(name), -1};
  return {fmt::format("{}{{}}{}", name.substr(0, begin), name.substr(end)), expert};
}

std::string with_experts(const std::string& name, const std::vector<int64_t>& experts) {
  const std::size_t at = name.find("{}");
  if (at == std::string::npos) return checkpoint::printable(name, kMaxPrinted);
  std::string list;
  for (std::size_t i = 0; i < std::min(experts.size(), kListedExperts); ++i) {
    list += (i == 0 ? "" : ",") + std::to_string(experts[i]);
  }
  if (experts.size() > kListedExperts) {
    list += fmt::format(",... {} more", experts.size() - kListedExperts);
  }
  if (experts.size() > 1) list = "{" + list + "}";
  return checkpoint::printable(name.substr(0, at) + list + name.substr(at + 2), kMaxPrinted);
}

class Auditor {
 public:
  Auditor(const Config& config, const Checkpoint& checkpoint, const BindOptions& options)
      : config_(config),
        checkpoint_(checkpoint),
        options_(options),
        used_(checkpoint.tensors().size(), false) {}
  Audit run();

 private:
  void report(std::string what, std::string_view name, std::string expected, std::string found,
              std::string hint = {});
  const TensorInfo* use(std::string_view name);
  void check_tensor(const TensorPlan& tensor);
  bool check_format(const TensorPlan& tensor, const ModuleQuant& quant);
  void check_stored(const StoredPlan& stored, const std::string& context);
  void check_tied_head();
  void check_leftovers();
  void check_kv_scales(const std::vector<StoredPlan>& scales, std::string_view part);
  bool is_other_modality(const TensorInfo& info) const;
  bool has_mtp() const;

  const Config& config_;
  const Checkpoint& checkpoint_;
  const BindOptions& options_;
  std::vector<bool> used_;
  bool wrapped_ = false;
  Audit audit_;
  std::vector<Fault> order_;
  std::size_t unlisted_ = 0;
  std::map<Fault, std::vector<int64_t>> faults_;
};

void Auditor::report(std::string what, std::string_view name, std::string expected,
                     std::string found, std::string hint) {
  if (order_.size() == kListedFaults) {
    ++unlisted_;
    return;
  }
  auto [pattern, expert] = split_expert(name);
  Fault fault = {std::move(what), std::move(pattern), std::move(expected), std::move(found),
                 std::move(hint)};
  const auto [place, inserted] = faults_.try_emplace(fault);
  if (inserted) order_.push_back(std::move(fault));
  place->second.push_back(expert);
}

const TensorInfo* Auditor::use(std::string_view name) {
  const TensorInfo* info = checkpoint_.find(name);
  if (info != nullptr) used_[static_cast<std::size_t>(info - checkpoint_.tensors().data())] = true;
  return info;
}

bool Auditor::has_mtp() const {
  return std::any_of(checkpoint_.tensors().begin(), checkpoint_.tensors().end(),
                     [](const TensorInfo& info) { return info.name.starts_with("mtp."); });
}

// In a multimodal wrapper everything of the language model is below language_model.
bool Auditor::is_other_modality(const TensorInfo& info) const {
  return wrapped_ && !info.stored_name.starts_with("language_model.");
}

// What a matrix is stored as must be what the metadata says. On a contradiction the companions are
// not looked at: they would only repeat it.
bool Auditor::check_format(const TensorPlan& tensor, const ModuleQuant& quant) {
  const std::string module(tensor.module());
  const TensorInfo* plain = checkpoint_.find(tensor.name);
  const TensorInfo* packed = checkpoint_.find(module + ".weight_packed");
  const TensorInfo* info = plain != nullptr ? plain : packed;
  if (info == nullptr) return true;  // reported as missing
  const std::vector<StoredPlan> expected =
      stored_as(tensor, quant, dialect_of(checkpoint_.quantization()));
  const StoredPlan& weight = expected.front();
  // Between float types it is a wrong type, not another format.
  const bool same_format = quant.algo != QuantAlgo::kNone
                               ? info->dtype == weight.dtypes.front()
                               : info->dtype != DType::kU8 && info->dtype != DType::kI32 &&
                                     info->dtype != DType::kF8E4M3;
  if (info->name == weight.name && same_format) return true;
  report("checkpoint and metadata disagree about a module", module,
         fmt::format("{} ({} {})", checkpoint::name_of(quant.algo),
                     weight.name.substr(module.size() + 1), name_of(weight.dtypes.front())),
         fmt::format("{} {}", info->name.substr(module.size() + 1), name_of(info->dtype)),
         "fix quantization_config in config.json (and hf_quant_config.json), or the tensors");
  for (const char* suffix :
       {".weight", ".weight_packed", ".weight_scale", ".weight_scale_2", ".weight_global_scale",
        ".weight_shape", ".input_scale", ".input_global_scale"}) {
    use(module + suffix);
  }
  return false;
}

void Auditor::check_stored(const StoredPlan& stored, const std::string& context) {
  const TensorInfo* info = use(stored.name);
  if (info == nullptr) {
    if (!stored.required) return;
    report("tensor is missing", stored.name,
           fmt::format("{} {}{}", name_of(stored.dtypes.front()), to_string(stored.shape), context),
           {});
    return;
  }
  const bool shape_fits = info->shape == stored.shape || (stored.scalar && info->shape == Shape{1});
  const bool dtype_fits =
      std::find(stored.dtypes.begin(), stored.dtypes.end(), info->dtype) != stored.dtypes.end();
  if (!shape_fits) {
    report("tensor has the wrong shape", stored.name, to_string(stored.shape) + context,
           to_string(info->shape));
  } else if (!dtype_fits) {
    std::string names;
    for (const DType dtype : stored.dtypes) {
      names += (names.empty() ? "" : " or ") + std::string(name_of(dtype));
    }
    report("tensor has the wrong type", stored.name, names + context,
           std::string(name_of(info->dtype)));
  }
}

void Auditor::check_tensor(const TensorPlan& tensor) {
  ModuleQuant quant;
  std::vector<StoredPlan> expected;
  try {
    quant = quant_of(tensor, checkpoint_.quantization());
    expected = stored_as(tensor, quant, dialect_of(checkpoint_.quantization()));
  } catch (const Error& error) {
    report(error.parts().what, error.parts().where, error.parts().expected, error.parts().found,
           error.parts().hint);
    use(tensor.name);
    return;
  }
  if (tensor.kind != TensorKind::kVector && !check_format(tensor, quant)) return;
  const std::string context =
      quant.algo == QuantAlgo::kNone ? "" : fmt::format(" ({})", checkpoint::name_of(quant.algo));
  for (const StoredPlan& stored : expected) check_stored(stored, context);
}

// A tied checkpoint may repeat the embeddings as lm_head; binding compares the bytes.
void Auditor::check_tied_head() {
  if (!config_.tie_word_embeddings || checkpoint_.find("lm_head.weight") == nullptr) return;
  StoredPlan head;
  head.name = "lm_head.weight";
  head.shape = {config_.vocab_size, config_.hidden_size};
  if (const TensorInfo* embeddings = checkpoint_.find("backbone.embeddings.weight")) {
    head.dtypes = {embeddings->dtype};
    check_stored(head, " (tied to the embeddings)");
  }
}

void Auditor::check_leftovers() {
  for (std::size_t i = 0; i < used_.size(); ++i) {
    const TensorInfo& info = checkpoint_.tensors()[i];
    if (used_[i]) continue;
    const bool mtp = info.name.starts_with("mtp.");
    if (mtp && !options_.mtp) continue;
    if (is_other_modality(info)) {
      ++audit_.other_modality_tensors;
      continue;
    }
    report("tensor is not part of the model", info.name, {},
           fmt::format("{} {} in {}", name_of(info.dtype), to_string(info.shape), info.file),
           mtp && config_.mtp_layers.empty()
               ? "config.json says num_nextn_predict_layers 0; set it to 1 to use the MTP head"
               : "the configuration and the quantization metadata leave no place for it");
  }
}

// All layers have scales or none: absent ones mean 1, which beside others is a loss, not a choice.
void Auditor::check_kv_scales(const std::vector<StoredPlan>& scales, std::string_view part) {
  bool any = false;
  std::string absent;
  for (const StoredPlan& scale : scales) {
    if (!scale.name.starts_with(part)) continue;
    if (checkpoint_.find(scale.name) != nullptr) {
      any = true;
    } else if (absent.empty()) {
      absent = scale.name;
    }
  }
  if (any && !absent.empty()) {
    report("KV cache scale is missing", absent, "a scale, as other layers have", "nothing", {});
  }
}

Audit Auditor::run() {
  const nlohmann::json& json = checkpoint_.config();
  wrapped_ = (json.contains("llm_config") || json.contains("text_config")) &&
             std::any_of(checkpoint_.tensors().begin(), checkpoint_.tensors().end(),
                         [](const TensorInfo& info) {
                           return info.stored_name.starts_with("language_model.");
                         });
  audit_.mtp_absent = !config_.mtp_layers.empty() && !has_mtp();
  for (const TensorPlan& tensor : plan_tensors(config_)) {
    if (tensor.mtp && (!options_.mtp || audit_.mtp_absent)) continue;
    check_tensor(tensor);
  }
  const std::vector<StoredPlan> kv = kv_scales(config_);
  for (const StoredPlan& scale : kv) check_stored(scale, "");
  for (const std::string_view part : {"backbone.", "mtp."}) check_kv_scales(kv, part);
  check_tied_head();
  check_leftovers();
  for (const Fault& fault : order_) {
    audit_.problems.push_back({.what = fault.what,
                               .where = with_experts(fault.name, faults_.at(fault)),
                               .expected = fault.expected,
                               .found = fault.found,
                               .hint = fault.hint});
  }
  if (unlisted_ > 0) {
    audit_.problems.push_back({.what = "there are more problems",
                               .where = checkpoint_.folder().string(),
                               .expected = {},
                               .found = counted(unlisted_, "tensor"),
                               .hint = "is this the configuration of these tensors?"});
  }
  return std::move(audit_);
}

}  // namespace

Audit audit(const Config& config, const Checkpoint& checkpoint, const BindOptions& options) {
  return Auditor(config, checkpoint, options).run();
}

std::vector<std::string> notes_of(const Config& config, const checkpoint::Checkpoint& checkpoint) {
  std::vector<std::string> notes = config.notes;
  for (const auto* more : {&checkpoint.warnings(), &checkpoint.quantization().warnings}) {
    notes.insert(notes.end(), more->begin(), more->end());
  }
  return notes;
}

}  // namespace levin::model
