#include "engine/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/memory.h"
#include "runtime/recorder_room.h"

namespace levin::engine {
namespace {

constexpr std::size_t kRequests = 4096;
// Rounds draft and verify.
constexpr std::size_t kCallsOfAStep = 2;
// Of a layer, with staging.
constexpr std::size_t kPhasesOfALayer = 8;

runtime::RecorderSize recorder_size(const runtime::Runtime& runtime, int steps) {
  const model::Config& config = runtime.model().config;
  const auto drafts = static_cast<std::size_t>(runtime.options().max_rewind);
  const std::size_t layers = config.layers.size() + 2 + drafts * (config.mtp_layers.size() + 2);
  return {.threads = runtime.options().threads,
          .phases = static_cast<std::size_t>(steps) * layers * kPhasesOfALayer,
          .steps = kCallsOfAStep * static_cast<std::size_t>(steps)};
}

}  // namespace

Timeline::Timeline(runtime::Runtime& runtime, int steps)
    : runtime_(runtime),
      steps_(static_cast<std::size_t>(steps)),
      requests_(kRequests),
      recorder_(runtime::recorder_within(available_memory_bytes(), recorder_size(runtime, steps),
                                         "--trace-steps")),
      has_phases_(runtime.set_phase_recorder(&recorder_)) {}

Timeline::~Timeline() {
  runtime_.set_phase_recorder(nullptr);
}

std::string waiting_text(const runtime::PhaseRecorder& recorder) {
  struct Wait {
    std::string name;
    double seconds = 0;
  };
  std::map<std::pair<bool, runtime::Phase>, double> waits;
  double waited = 0;
  double in_phases = 0;
  double all = 0;
  const TickScale::Line scale = recorder.scale();
  for (const runtime::StepRecord& step : recorder.steps()) {
    all += scale.seconds(step.begin, step.end) * recorder.threads();
    for (int thread = 0; thread < recorder.threads(); ++thread) {
      for (uint64_t i = step.first_phase; i < step.first_phase + step.phases; ++i) {
        const runtime::PhaseRecord& record = recorder.phase(thread, i);
        const double wait = scale.seconds(record.arrived, record.end);
        waits[{record.draft, record.phase}] += wait;
        waited += wait;
        in_phases += scale.seconds(record.begin, record.end);
      }
    }
  }
  if (all <= 0) return {};
  std::vector<Wait> order;
  order.reserve(waits.size());
  for (const auto& [kind, seconds] : waits) {
    order.push_back(
        {fmt::format("{}{}", kind.first ? "draft: " : "", name_of(kind.second)), seconds});
  }
  std::sort(order.begin(), order.end(),
            [](const Wait& a, const Wait& b) { return a.seconds > b.seconds; });
  std::string most;
  constexpr std::size_t kMost = 4;
  for (std::size_t i = 0; i < std::min(order.size(), kMost); ++i) {
    most += fmt::format("{}{} {:.1f} %", i == 0 ? "" : ", ", order[i].name,
                        order[i].seconds / all * 100);
  }
  return fmt::format(
      "threads idled {:.1f} % of the steps at barriers and {:.1f} % outside of phases; most "
      "waiting: {}",
      waited / all * 100, (all - in_phases) / all * 100, most);
}

}  // namespace levin::engine
