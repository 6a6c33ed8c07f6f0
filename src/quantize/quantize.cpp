#include "quantize/quantize.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/writer.h"
#include "core/error.h"
#include "core/files.h"
#include "core/plural.h"
#include "core/space.h"
#include "core/thread_team.h"
#include "model/audit.h"
#include "quantize/calibration_text.h"
#include "quantize/companions.h"
#include "quantize/progress_file.h"
#include "runtime/runtime.h"
#include "text/tokenizer.h"

namespace levin::quantize {
namespace fs = std::filesystem;
namespace {

// Of the memory bound: the program, its catalogue and the allocator's slack.
constexpr int64_t kBaseMemory = int64_t{64} << 20;
constexpr int64_t kMaxChunk = int64_t{64} << 20;
// Tokens of one step of calibration.
constexpr int kExtendTokens = 128;
// Weights as the runtime repacks them beside their map, with caches and work space.
constexpr double kRuntimeOverhead = 2.2;

[[noreturn]] void bad_input(std::string what, std::string where, std::string found,
                            std::string hint) {
  throw Error({.what = std::move(what),
               .where = std::move(where),
               .expected = {},
               .found = std::move(found),
               .hint = std::move(hint)});
}

// Size and time of every file of the source, so that a resumed run can tell whether it is the same.
nlohmann::json file_stamps(const fs::path& folder) {
  nlohmann::json stamps = nlohmann::json::object();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    struct stat status {};
    if (name.starts_with(".") || ::stat(entry.path().c_str(), &status) != 0) continue;
    if (!S_ISREG(status.st_mode)) continue;
    stamps[name] = fmt::format("{} bytes, modified {}.{:09}", status.st_size, status.st_mtim.tv_sec,
                               status.st_mtim.tv_nsec);
  }
  return stamps;
}

nlohmann::json stamp(const fs::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return nullptr;
  return fmt::format("{} bytes, modified {}.{:09}", status.st_size, status.st_mtim.tv_sec,
                     status.st_mtim.tv_nsec);
}

// Everything that decides the bytes of the result. Threads and memory do not.
nlohmann::json identity_of(const Options& options, const Plan& plan) {
  nlohmann::json calibration = nullptr;
  if (options.calibration && plan.needs_calibration()) {
    calibration = {{"text", stamp(options.calibration->text)},
                   {"tokens", options.calibration->max_tokens},
                   {"window", options.calibration->window}};
  }
  return {{"version", options.version},
          {"source", file_stamps(options.model)},
          {"recipe", canonical_text(plan.recipe)},
          {"calibration", std::move(calibration)}};
}

void check_output(const Options& options) {
  std::error_code error;
  if (fs::equivalent(options.model, options.output, error)) {
    bad_input("output folder is the model's own folder", options.output.string(), {},
              "choose another folder");
  }
  if (!file_exists(options.output)) return;
  const fs::file_status status = fs::status(options.output, error);
  if (!fs::is_directory(status)) {
    bad_input("output is not a folder", options.output.string(), error ? error.message() : "", {});
  }
  if (fs::is_symlink(options.output / ProgressFile::kFolder, error)) {
    bad_input("working folder is a symbolic link",
              (options.output / ProgressFile::kFolder).string(), {}, "remove it");
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(options.output)) {
    if (!entry.is_directory() || !entry.path().has_extension()) continue;
    if (entry.path().filename() == ProgressFile::kFolder) continue;
    // Found after the old checkpoint is gone, it would be too late.
    bad_input("a folder may be in the way of a file", entry.path().string(), {},
              "move it elsewhere, or choose another output folder");
  }
  if (ProgressFile::exists(options.output)) return;
  if (options.overwrite && checkpoint::holds_checkpoint(options.output)) return;
  for (const fs::directory_entry& entry : fs::directory_iterator(options.output)) {
    // Without a record in it, from a run that was killed before it did anything.
    if (entry.path().filename() == ProgressFile::kFolder) continue;
    bad_input("output folder is not empty", options.output.string(),
              entry.path().filename().string(),
              options.overwrite ? "there is no checkpoint in it to replace; choose another folder"
                                : "choose another folder, or replace the checkpoint in it with "
                                  "--overwrite");
  }
}

void check_settings(const Options& options, const Plan& plan,
                    const checkpoint::Checkpoint& source) {
  if (options.memory_bytes < kMinMemory) {
    bad_input("memory bound is too small", "--memory",
              fmt::format("{} bytes", options.memory_bytes),
              fmt::format("give at least {} MB", kMinMemory >> 20));
  }
  if (options.calibration) {
    if (!file_exists(options.calibration->text)) {
      bad_input("no such calibration text", options.calibration->text.string(), {}, {});
    }
    if (!plan.needs_calibration()) {
      spdlog::warn("recipe {} measures nothing: the calibration text is not used",
                   plan.recipe.name);
    }
  }
  const auto copies = static_cast<int64_t>(source.largest_copy());
  if (kBaseMemory + copies + (int64_t{1} << 20) > options.memory_bytes) {
    bad_input("memory bound is too small for a tensor that is not aligned in its file", "--memory",
              fmt::format("{} bytes", options.memory_bytes),
              fmt::format("give at least {} MB", ((kBaseMemory + copies) >> 20) + 2));
  }
}

void require_calibration(const Options& options, const Plan& plan) {
  if (!plan.needs_calibration() || options.calibration) return;
  const auto calibrated =
      std::count_if(plan.linears.begin(), plan.linears.end(),
                    [](const LinearPlan& linear) { return linear.calibrated(); });
  bad_input("the recipe needs calibration text", plan.recipe.name,
            fmt::format("{} with static input scales{}", counted(calibrated, "linear"),
                        calibrated == 0 ? ", and a calibrated KV cache" : ""),
            "give --calibration TEXT (plain text or JSONL with \"text\"), some thousand tokens of "
            "what the model will be used for");
}

Calibration calibrate(const Options& options, const Source& source) {
  const auto needed = static_cast<int64_t>(static_cast<double>(source.checkpoint->total_bytes()) *
                                           kRuntimeOverhead);
  if (needed > options.memory_bytes) {
    throw Error({.what = "calibration runs the model, which does not fit into the memory bound",
                 .where = "--memory",
                 .expected = fmt::format("about {:.1f} GB", static_cast<double>(needed) / 1e9),
                 .found = fmt::format("{:.1f} GB", static_cast<double>(options.memory_bytes) / 1e9),
                 .hint = "raise --memory on a machine that has it, or use a recipe without "
                         "calibration (w4a16, int4-g64)",
                 .exit_code = ExitCode::kMachine});
  }
  const text::Tokenizer tokenizer = text::Tokenizer::load(options.model);
  if (tokenizer.vocab_size() > source.plan.config.vocab_size) {
    bad_input("the tokenizer has more tokens than the model", options.model.string(),
              fmt::format("{} tokens, {} embeddings", tokenizer.vocab_size(),
                          source.plan.config.vocab_size),
              "tokenizer.json and config.json belong to different models");
  }
  runtime::Options run;
  run.max_model_len = options.calibration->window;
  run.max_extend_tokens = kExtendTokens;
  run.threads = options.threads;
  run.mtp = !source.plan.config.mtp_layers.empty();
  const std::vector<int32_t> tokens =
      calibration_tokens(options.calibration->text, tokenizer, options.calibration->max_tokens);
  const auto runtime = runtime::make_cpu_runtime(model::bind_model(source.checkpoint), run);
  return derive_scales(source.plan,
                       observe(*runtime, source.plan, tokens, options.calibration->window));
}

std::optional<Calibration> calibrated(const Options& options, const Source& source,
                                      ProgressFile& progress) {
  if (!source.plan.needs_calibration()) return std::nullopt;
  if (!progress.calibration().is_null()) {
    return calibration_from_json(progress.calibration(), options.output.string());
  }
  Calibration calibration = calibrate(options, source);
  progress.set_calibration(to_json(calibration));
  return calibration;
}

// Half of what the base leaves: a piece of the source, mapped, and its codes.
int64_t chunk_bytes(int64_t memory, int64_t copies) {
  return std::clamp((memory - kBaseMemory - copies) / 4, int64_t{1} << 20, kMaxChunk);
}

// Every file of the checkpoint is still to be moved into OUT, or there already.
void check_nothing_lost(const Options& options, const ProgressFile& progress) {
  std::vector<std::string> names = {"config.json"};
  for (const auto& [name, shard] : progress.shards()) names.push_back(name);
  for (const std::string& name : names) {
    if (fs::exists(progress.files() / name) || fs::exists(options.output / name)) continue;
    bad_input("files of the unfinished conversion are gone", (progress.files() / name).string(), {},
              "start over with --overwrite");
  }
}

void finish(const Options& options, ProgressFile& progress) {
  using Stage = ProgressFile::Stage;
  check_nothing_lost(options, progress);
  if (progress.stage() == Stage::kConvert) progress.set_stage(Stage::kRetire);
  if (progress.stage() == Stage::kRetire) {
    const std::vector<std::string> removed = checkpoint::retire_checkpoint(options.output);
    if (!removed.empty()) {
      spdlog::info("{}: removed the checkpoint that was there: {}", options.output.string(),
                   fmt::join(removed, ", "));
    }
    progress.set_stage(Stage::kPublish);
  }
  // Without a config.json left to move, an earlier run was interrupted behind the last rename.
  if (fs::exists(progress.files() / "config.json")) {
    checkpoint::publish(progress.files(), options.output);
  }
  progress.remove();
}

// Converts, or goes on converting.
Result run(const Options& options, Source source, ProgressFile& progress,
           std::chrono::steady_clock::time_point start) {
  Result result;
  result.resumed = progress.resumed();
  result.shards_reused = static_cast<int>(progress.shards().size());
  uint64_t finished = 0;
  for (const auto& [name, shard] : progress.shards()) finished += shard.bytes;
  const uint64_t all = output_bytes(*source.checkpoint, source.plan);
  if (progress.stage() == ProgressFile::Stage::kConvert) {
    require_space(options.output, all - std::min(all, finished));
  }

  result.calibration = calibrated(options, source, progress);
  if (progress.stage() == ProgressFile::Stage::kConvert) {
    ConvertSettings settings;
    settings.threads = options.threads > 0 ? options.threads : available_cores();
    settings.chunk_bytes =
        chunk_bytes(options.memory_bytes, static_cast<int64_t>(source.checkpoint->largest_copy()));
    settings.producer_version = options.version;
    convert(*source.checkpoint, source.plan,
            result.calibration ? result.calibration->scales : MeasuredScales{}, settings, progress);
  }
  result.conversion = conversion_of(*source.checkpoint, source.plan, progress);
  finish(options, progress);

  result.bytes_before = result.conversion.tensor_bytes_read;
  result.bytes_after = result.conversion.tensor_bytes_written;
  result.plan = std::move(source.plan);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace

Source open_source(const fs::path& model, const std::string& recipe, model::LoadFormat format) {
  const Recipe parsed = load_recipe(recipe);
  Source source;
  source.checkpoint = model::open_checkpoint(model, format);
  const std::string path = (model / "config.json").string();
  model::Config config = model::parse_config(source.checkpoint->config(), path);
  if (!source.checkpoint->quantization().method.empty()) {
    bad_input("the checkpoint is quantized already", model.string(),
              fmt::format("quantization metadata ({})", source.checkpoint->quantization().method),
              "start from the unquantized release");
  }
  const model::Audit audit = model::audit(config, *source.checkpoint);
  if (!audit.problems.empty()) {
    ErrorParts first = audit.problems.front();
    first.where = fmt::format("{}, {}", model.string(), first.where);
    throw Error(first);
  }
  if (audit.mtp_absent) {
    spdlog::warn("config.json announces an MTP head, the checkpoint has none of its tensors");
    config.mtp_layers.clear();
  }
  source.plan = make_plan(config, parsed);
  return source;
}

void check(const Options& options, const Source& source) {
  if (!options.output.empty()) check_output(options);
  check_settings(options, source.plan, *source.checkpoint);
}

Result quantize(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  std::error_code ignored;
  const bool existed = fs::exists(options.output, ignored);
  check_output(options);
  Source source = open_source(options.model, options.recipe, model::LoadFormat::kAuto);
  for (const std::string& note : model::notes_of(source.plan.config, *source.checkpoint)) {
    spdlog::warn("{}", note);
  }
  check_settings(options, source.plan, *source.checkpoint);
  require_calibration(options, source.plan);
  check_companions(options.model);

  ProgressFile progress(options.output, identity_of(options, source.plan), options.overwrite);
  try {
    return run(options, std::move(source), progress, start);
  } catch (const Error& error) {
    // Bad input cannot be gone on with; nothing done yet is nothing to leave behind.
    if (error.exit_code() == ExitCode::kBadInput && !progress.resumed() &&
        progress.shards().empty() && progress.calibration().is_null()) {
      progress.remove();
      if (!existed) fs::remove(options.output, ignored);
    }
    throw;
  }
}

}  // namespace levin::quantize
