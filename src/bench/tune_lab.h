// Tries settings of `levin tune` with the model itself: an engine for each way to load it, all
// alive while they are timed in turn.
#pragma once

#include <memory>

#include "bench/timing.h"
#include "bench/tuner.h"
#include "engine/engine.h"
#include "evaluate/text_score.h"
#include "evaluate/text_set.h"

namespace levin::bench {

struct TuneLabOptions {
  std::filesystem::path model;
  engine::LoadOptions load;  // threads and cache types are the control's, unless set
  TimingOptions timing;
  int64_t prompt_tokens = 256;
  // Text that divergence from the control is measured on; empty: the fixed prompts.
  std::vector<std::filesystem::path> texts;
  int64_t window = 128;     // predictions
  int64_t max_windows = 8;  // of each text
  double perplexity_ratio_max = 1.03;
};

class ModelLab final : public TuneLab {
 public:
  // Loads the control. Throws Error as load_engine() does, and when the prompts or texts do not fit
  // it: whether cache types will be judged is known only much later.
  explicit ModelLab(const TuneLabOptions& options);

  // Memory that all engines beside the control's may take (default, or not above 0: any).
  void set_available_bytes(int64_t bytes) { available_bytes_ = bytes; }
  engine::Engine& control_engine() { return *engines_.front().engine; }
  const TuneSetting& control() const { return control_; }
  // What can be tried with it, and why not what cannot: threads and pinning on the CPU, rounds of a
  // device that has them, cache types, drafts with a draft head, the prefix cache.
  std::vector<TuneDimension> dimensions() const;

  std::optional<std::string> obstacle(const TuneSetting& setting,
                                      std::span<const TuneSetting> beside) override;
  std::vector<TuneTiming> time(TuneWork work, std::span<const TuneSetting> settings) override;
  TuneQuality quality(const TuneSetting& setting) override;

 private:
  struct Loaded {
    TuneSetting setting;  // drafts do not matter
    std::unique_ptr<engine::Engine> engine;
  };
  engine::Engine& engine_for(const TuneSetting& setting);
  void keep_only(std::span<const TuneSetting> settings);
  std::vector<TuneTiming> time_generation(std::span<const TuneSetting> settings);
  std::vector<TuneTiming> time_shared_prefix(std::span<const TuneSetting> settings);
  std::vector<evaluate::TokenStream> load_streams() const;
  evaluate::TextOptions windows_of(const evaluate::TokenStream& stream) const;

  TuneLabOptions options_;
  TuneSetting control_;
  std::vector<Loaded> engines_;  // the control's first
  Workload workload_;
  std::vector<evaluate::TokenStream> streams_;  // that cache types are judged on
  int64_t available_bytes_ = -1;
};

}  // namespace levin::bench
