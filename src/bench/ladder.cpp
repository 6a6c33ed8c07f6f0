#include "bench/ladder.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/ladder_checkpoints.h"
#include "bench/ladder_store.h"
#include "bench/result_store.h"
#include "core/error.h"
#include "core/files.h"
#include "core/progress.h"
#include "core/space.h"
#include "engine/self_test.h"
#include "quantize/recipe.h"

namespace levin::bench {
namespace {

namespace fs = std::filesystem;

// Everything about the evaluation but the models.
std::string evaluation_key(const evaluate::Settings& settings, const std::string& runtime) {
  Key key;
  key.add(runtime).add(settings.task_limit).add(settings.text.window);
  key.add(settings.text.max_windows).add(settings.task.max_tokens);
  for (const fs::path& file : settings.texts) key.add(file.stem().string()).add(read_text(file));
  for (const fs::path& file : evaluate::task_files(settings.tasks)) key.add(read_text(file));
  return key.hex();
}

// The baseline beside itself: no divergence, by definition.
void compare_with_itself(evaluate::Evaluation& evaluation) {
  for (evaluate::TextScore& text : evaluation.texts) {
    text.compared = true;
    for (evaluate::WindowScore& window : text.windows) {
      window.baseline_nll = window.nll;
      window.agreements = window.predictions;
    }
  }
}

class Climber {
 public:
  explicit Climber(const LadderOptions& options)
      : options_(checked(options)),
        material_(evaluate::prepare(options.model, options.evaluation)),
        baseline_(load(options.model, true)),  // tells whether there is a head to draft with
        workload_(fixed_workload(*baseline_, options.prompt_tokens)),
        rungs_(choose_rungs(
            all_rungs(baseline_->model->mtp.has_value(), baseline_->runtime->rounds() != nullptr),
            options.rungs)) {
    require_fit(workload_, *baseline_, options_.timing.output_tokens);
    for (const Rung& rung : rungs_) {
      if (rung.skipped.empty()) checkpoints_.emplace(rung.id, checkpoint_of(rung));
    }
    data_key_ = evaluation_key(options_.evaluation, baseline_->runtime->description());
    report_.model = options_.model.string();
    report_.runtime = baseline_->runtime->description();
    report_.timing = options_.timing;
    report_.gate = options_.gate;
    report_.command = options_.command;
    report_.workload_hash = workload_.hash;
  }

  // All input has been checked by now; only this writes.
  LadderReport climb(const std::function<void(const LadderReport&)>& on_rung) {
    require_room();
    const FileLock lock = claim_folder(options_.out);
    store_.emplace(options_.out / "results");
    report_.memory = measure_memory_bandwidth(*baseline_);
    for (const Rung& rung : rungs_) {
      report_.rungs.push_back(rung.skipped.empty() ? climb(rung) : skipped(rung));
      if (on_rung) on_rung(report_);
    }
    return std::move(report_);
  }

 private:
  // For the checkpoints, and for results and reports beside them.
  void require_room() const {
    std::vector<LadderCheckpoint> checkpoints;
    for (const auto& [id, checkpoint] : checkpoints_) checkpoints.push_back(checkpoint);
    const uint64_t results = kResultBytes * (1 + rungs_.size());
    require_space(options_.out, bytes_to_write(checkpoints) + results);
  }

  static const LadderOptions& checked(const LadderOptions& options) {
    require_own_folder(options.out);
    // Names and recipes, whatever this model and device can climb: before anything is loaded.
    for (const Rung& rung : choose_rungs(all_rungs(true, true), options.rungs)) {
      if (!rung.recipe.empty()) quantize::load_recipe(rung.recipe);
    }
    return options;
  }

  static RungResult skipped(const Rung& rung) {
    RungResult result;
    result.rung = rung;
    return result;
  }

  std::unique_ptr<engine::Engine> load(const fs::path& folder, bool with_mtp) const {
    engine::LoadOptions load = options_.load;
    const int64_t timed = options_.prompt_tokens + options_.timing.output_tokens;
    if (load.runtime.max_model_len == 0) {
      evaluate::Material needs;
      needs.needed_length = std::max(material_.needed_length, timed);
      load.runtime.max_model_len = evaluate::sequence_length(folder, needs);
    }
    load.runtime.max_num_seqs = options_.max_num_seqs;
    load.runtime.mtp = with_mtp;
    return engine::load_engine(folder, load);
  }

  LadderCheckpoint checkpoint_of(const Rung& rung) const {
    const std::string name = fs::path(rung.recipe).stem().string();
    return describe_checkpoint({.model = options_.model,
                                .recipe = rung.recipe,
                                .out = options_.out / "checkpoints" / name,
                                .calibration = options_.calibration,
                                .calibration_tokens = options_.calibration_tokens,
                                .version = options_.version,
                                .threads = options_.load.runtime.threads});
  }

  RungResult climb(const Rung& rung) {
    spdlog::info("rung {}", label(rung));
    const LadderCheckpoint& checkpoint = checkpoints_.at(rung.id);
    ensure_checkpoint(checkpoint, *store_);
    std::unique_ptr<engine::Engine> reloaded;
    if (!rung.recipe.empty()) reloaded = load(checkpoint.folder(), rung.k > 0);
    engine::Engine& engine = reloaded ? *reloaded : *baseline_;

    RungResult result;
    result.rung = rung;
    result.checkpoint_bytes = engine.model->checkpoint->total_bytes();
    result.evaluation = evaluation_of(engine, checkpoint.name, checkpoint.key);
    const bool is_baseline = report_.rungs.empty();
    if (!is_baseline) {
      const evaluate::Evaluation& base = report_.baseline().evaluation;
      result.gate = judge(options_.gate, compare(base, result.evaluation), material_);
    }
    result.timing = timing_of(engine, rung, checkpoint.key);
    result.prediction = predict_decode(*engine.model, mean_context(), rung.k,
                                       result.timing.own.speculation.mean_acceptance_length());
    return result;
  }

  int64_t mean_context() const {
    const auto prompts = static_cast<int64_t>(workload_.prompts.size());
    return workload_.prompt_tokens() / prompts + options_.timing.output_tokens / 2;
  }

  // Rungs of one checkpoint share its evaluation: speculation changes no answer, which the timing
  // checks token by token.
  evaluate::Evaluation evaluation_of(engine::Engine& engine, const std::string& name,
                                     const std::string& checkpoint_key) {
    const std::string key = Key().add(checkpoint_key).add(data_key_).hex();
    const std::string record = "evaluation-" + name;
    if (const auto stored = store_->find(record, key)) {
      return evaluate::load_evaluation(*stored, store_->file_of(record).string());
    }
    const bool is_baseline = &engine == baseline_.get();
    evaluate::Evaluation evaluation = evaluate::evaluate(
        engine, is_baseline ? nullptr : baseline_.get(), material_, options_.evaluation);
    if (is_baseline) compare_with_itself(evaluation);
    store_->put(record, key, save(evaluation));
    return evaluation;
  }

  RungTiming timing_of(engine::Engine& engine, const Rung& rung,
                       const std::string& checkpoint_key) {
    const TimingOptions& options = options_.timing;
    const std::string key = Key()
                                .add(checkpoint_key)
                                .add(workload_.hash)
                                .add(report_.runtime)
                                .add(options.output_tokens)
                                .add(int64_t{options.rounds})
                                .add(int64_t{options.warm_up})
                                .add(int64_t{rung.k})
                                .add(int64_t{rung.device_rounds ? 1 : 0})
                                .hex();
    const std::string record = "timing-" + rung.id;
    if (const auto stored = store_->find(record, key)) {
      return load_timing(*stored, store_->file_of(record).string());
    }
    RungTiming timing = time(engine, rung);
    store_->put(record, key, save(timing));
    return timing;
  }

  RungTiming time(engine::Engine& engine, const Rung& rung) {
    if (rung.k > 0) engine::check_drafter(engine);
    // The control does its rounds as the rung does, so that speculation is all that differs.
    const bool device = rung.device_rounds;
    std::vector<Contender> contenders = {{"baseline", baseline_.get(), {.device_rounds = false}}};
    if (&engine != baseline_.get()) {
      contenders.push_back({"control", &engine, {.device_rounds = device}});
    }
    if (rung.k > 0) {
      contenders.push_back(
          {"speculating", &engine, {.num_speculative_tokens = rung.k, .device_rounds = device}});
    }
    const auto runs = static_cast<int64_t>(contenders.size() * workload_.prompts.size()) *
                      (options_.timing.rounds + options_.timing.warm_up);
    Progress progress("timing", runs, "runs");
    const std::vector<ContenderTiming> timings =
        time_contenders(contenders, workload_, options_.timing, [&] { progress.advance(1); });
    const ContenderTiming& control = timings[std::min<std::size_t>(1, timings.size() - 1)];
    const double bytes = predict_decode(*engine.model, mean_context(), 0, 1).bytes_per_token;
    const Bandwidth at_size = measure_read_bandwidth(engine, static_cast<std::size_t>(bytes));
    return {.own = timings.back(),
            .control = control,
            .baseline = timings.front(),
            .same_tokens_as_control = timings.back().outputs == control.outputs,
            .read_gb_per_s = at_size.gb_per_s.median};
  }

  const LadderOptions& options_;
  evaluate::Material material_;
  std::unique_ptr<engine::Engine> baseline_;
  Workload workload_;
  std::vector<Rung> rungs_;
  std::map<std::string, LadderCheckpoint> checkpoints_;  // by rung id
  std::optional<ResultStore> store_;
  std::string data_key_;
  LadderReport report_;
};

}  // namespace

LadderReport climb(const LadderOptions& options,
                   const std::function<void(const LadderReport&)>& on_rung) {
  return Climber(options).climb(on_rung);
}

}  // namespace levin::bench
