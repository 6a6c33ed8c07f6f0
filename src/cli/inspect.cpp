#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/inspect_view.h"
#include "cli/output.h"
#include "core/error.h"
#include "core/plural.h"
#include "model/audit.h"
#include "model/model.h"
#include "model/summary.h"
#include "quantize/quantize.h"

namespace levin::cli {
namespace {

constexpr int64_t kDefaultContext = 4096;

constexpr const char* kDescription =
    "Shows what a checkpoint is: schedule, tensors by role and format, bytes of a decode step,\n"
    "memory for contexts and concurrency, and whether tensors, configuration and quantization\n"
    "metadata agree. Exit code 1 when they do not.\n\n"
    "With a recipe: which linears it gives which format and why, and the same sums for the\n"
    "checkpoint that levin quantize would make. Nothing is written.\n\n"
    "With a device: loads the model there and shows how each linear is executed, and why where\n"
    "that is not as it is stored.\n\n"
    "  levin inspect models/tiny\n"
    "  levin inspect models/tiny --recipe w4a4\n"
    "  levin inspect models/tiny --device cpu\n"
    "  levin inspect configs/nemotron-3.5-lightning-30b-a3b --load-format dummy\n";

struct InspectFlags {
  std::string model;
  std::string recipe;
  std::string device;
  std::string load_format = "auto";
  std::string kv_cache_dtype = "auto";
  std::string ssm_cache_dtype = "auto";
  std::optional<int64_t> context;
  int64_t sequences = 1;
  bool check_values = false;
  bool json = false;
};

model::SummaryOptions summary_options(const InspectFlags& flags, const Inspection& inspection) {
  const model::Config& config = inspection.config;
  model::SummaryOptions options;
  options.context =
      flags.context.value_or(std::min(kDefaultContext, config.max_position_embeddings));
  options.sequences = flags.sequences;
  options.types = model::state_types(config, inspection.checkpoint->quantization());
  if (inspection.plan && inspection.plan->kv_cache() == checkpoint::KvCacheQuant::kFp8) {
    options.types.kv = 1;
  }
  if (flags.kv_cache_dtype != "auto") options.types.kv = flags.kv_cache_dtype == "fp8" ? 1 : 2;
  if (flags.ssm_cache_dtype != "auto") {
    options.types.ssm = flags.ssm_cache_dtype == "float32" ? 4 : 2;
  }
  return options;
}

model::Summary summarize(const InspectFlags& flags, const Inspection& inspection) {
  const model::SummaryOptions options = summary_options(flags, inspection);
  const checkpoint::Checkpoint& checkpoint = *inspection.checkpoint;
  if (!inspection.plan) return model::summarize(inspection.config, checkpoint, options);
  return model::summarize(inspection.config,
                          quantize::planned_tensors(*inspection.plan, &checkpoint), options);
}

// What is read is the folder as it is: with a recipe, not yet what that would make of it.
void check_values(const InspectFlags& flags, Inspection& inspection) {
  const bool has_scales = !inspection.checkpoint->quantization().method.empty();
  if (flags.load_format == "dummy") {
    inspection.values = "none: random weights";
  } else if (!inspection.good()) {
    inspection.values = "not read before the problems above are solved";
  } else if (!flags.check_values && inspection.checkpoint->total_bytes() > model::kAutoCheckBytes) {
    inspection.values = fmt::format("not read; --check-values looks for NaN, infinity{}",
                                    has_scales ? " and impossible scales" : "");
  } else {
    try {
      model::bind_model(inspection.checkpoint, {.check = model::ValueCheck::kWeights});
      inspection.values = has_scales ? "all finite, all scales in range" : "all finite";
    } catch (const Error& error) {
      inspection.problems.push_back(error.parts());
      inspection.values = "out of range, see above";
    }
  }
}

Inspection inspect(const InspectFlags& flags) {
  const auto format =
      flags.load_format == "dummy" ? model::LoadFormat::kDummy : model::LoadFormat::kAuto;
  Inspection inspection;
  inspection.folder = flags.model;
  if (flags.recipe.empty()) {
    inspection.checkpoint = model::open_checkpoint(flags.model, format);
  } else {
    quantize::Source source = quantize::open_source(flags.model, flags.recipe, format);
    inspection.checkpoint = std::move(source.checkpoint);
    inspection.plan = std::move(source.plan);
  }
  const checkpoint::Checkpoint& checkpoint = *inspection.checkpoint;
  inspection.config =
      model::parse_config(checkpoint.config(), (checkpoint.folder() / "config.json").string());
  const model::Audit audit = model::audit(inspection.config, checkpoint);
  inspection.problems = audit.problems;
  inspection.notes = model::notes_of(inspection.config, checkpoint);
  if (audit.mtp_absent) {
    inspection.notes.emplace_back("config.json announces an MTP head, the checkpoint has none");
    inspection.config.mtp_layers.clear();
  }
  if (audit.other_modality_tensors > 0) {
    inspection.notes.push_back("not used, outside language_model.*: " +
                               counted(audit.other_modality_tensors, "tensor"));
  }
  inspection.summary = summarize(flags, inspection);
  check_values(flags, inspection);
  if (!flags.device.empty() && inspection.good()) {
    EngineFlags engine;
    engine.model = flags.model;
    engine.device = flags.device;
    engine.load_format = flags.load_format;
    engine.kv_cache_dtype = flags.kv_cache_dtype;
    engine.ssm_cache_dtype = flags.ssm_cache_dtype;
    inspection.device = plan_device(flags.model, load_options(engine));
  }
  return inspection;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("inspect", kDescription);
  auto flags = std::make_shared<InspectFlags>();
  command->add_option("MODEL", flags->model, "Hugging Face folder of the checkpoint")->required();
  CLI::Option* recipe = command->add_option(
      "--recipe", flags->recipe,
      "YAML file or name of a shipped recipe: show what it would make of the model");
  command
      ->add_option("--device", flags->device,
                   "Load the model and show how this device executes it: auto, cpu, cuda[:N]")
      ->excludes(recipe);
  command
      ->add_option("--load-format", flags->load_format,
                   "auto reads the tensors' headers; dummy needs config.json alone")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str();
  command
      ->add_option("--context", flags->context,
                   "Tokens already in each sequence of the step (default: 4096 or, when that is "
                   "less, the model's longest)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  command->add_option("--max-num-seqs", flags->sequences, "Sequences decoded together")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command
      ->add_option("--kv-cache-dtype", flags->kv_cache_dtype,
                   "KV cache: auto (as the checkpoint says), bfloat16, fp8")
      ->check(CLI::IsMember({"auto", "bfloat16", "fp8"}))
      ->capture_default_str();
  command
      ->add_option("--mamba-ssm-cache-dtype", flags->ssm_cache_dtype,
                   "SSM state: auto (as the checkpoint says), float32, float16")
      ->check(CLI::IsMember({"auto", "float32", "float16"}))
      ->capture_default_str();
  command->add_flag("--check-values", flags->check_values,
                    "Read every weight, also of checkpoints larger than 4 GiB");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags, &action] {
    action = [flags] {
      const Inspection inspection = inspect(*flags);
      if (flags->json) {
        print_json(to_json(inspection));
      } else {
        fmt::print("{}", to_text(inspection));
      }
      return inspection.good() ? ExitCode::kDone : ExitCode::kNo;
    };
  });
}

}  // namespace levin::cli
