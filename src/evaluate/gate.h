// The quality gate: bounds that a candidate has to keep to beside its baseline, and the verdict.
// docs: recipes/gate.yaml explains every key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "evaluate/comparison.h"
#include "evaluate/statistics.h"

namespace levin::evaluate {

// Bounds; an absent one is not judged.
struct Gate {
  std::optional<double> median_recovery_min = {};
  std::optional<double> verbosity_increase_max = {};
  std::optional<double> repetition_increase_max = {};
  std::optional<double> perplexity_ratio_max = {};
  double confidence = 0.95;
};

// Throws Error with file and line for unknown or repeated keys, values that are not numbers or make
// no sense, and a gate without bounds.
Gate load_gate(const std::filesystem::path& file);
Gate parse_gate(std::string_view yaml, const std::string& where);

// One bound, judged. An estimate that is not a finite number fails.
struct GateLine {
  std::string key;      // of gate.yaml
  std::string subject;  // "11 tasks", "text prose"
  Estimate estimate;
  Bound bound;
  Verdict verdict = Verdict::kUndecided;
  std::string unit;  // what `samples` counts: "items per task", "items", "windows"
  int64_t samples = 0;
  std::optional<int64_t> samples_to_decide = {};  // of an undecided line; none: no number would
  std::string failure = {};                       // why it fails without a number; else empty
  std::string note = {};                          // what a reader must know to trust the line
  // The flag that sets the number of samples, what it amounts to now, the value that would decide
  // and the largest that the files have samples for (0: not known).
  std::string flag = {};
  int64_t flag_now = 0;
  std::optional<int64_t> flag_to_decide = {};
  int64_t flag_held = 0;
};

struct GateResult {
  Verdict verdict = Verdict::kUndecided;  // fail if any line fails, else undecided if any is
  std::vector<GateLine> lines;
};

// Throws Error when the gate has a bound for what will not be measured. For finding out beforehand.
void require_data(const Gate& gate, bool tasks, bool texts);

// Throws Error when the gate has a bound for tasks or text and the comparison holds none.
// `items_held`: the most items that a task has in the files; 0: not known.
GateResult judge(const Gate& gate, const Comparison& comparison, int64_t items_held = 0);

std::string_view name_of(Verdict verdict);  // "pass", "FAIL", "undecided"

// The verdict with a sentence for each line that has it, with value, interval and bound:
// "FAIL: median_recovery_min: 83.1 % [80.9 %, 86.0 %] is below 99.0 % (11 tasks)". Sentences are
// lines of text.
std::string explain(const GateResult& result);
// Of one line; an undecided one says how many samples would decide it, and which flag takes them.
std::string explain(const GateLine& line);

}  // namespace levin::evaluate
