#include "evaluate/gate.h"

#include <fmt/format.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "core/plural.h"
#include "text/utf8.h"

namespace levin::evaluate {
namespace {

struct Key {
  const char* name;
  std::optional<double> Gate::*bound;  // null for confidence
  double least, most;                  // values that make sense
};

constexpr Key kKeys[] = {
    {"median_recovery_min", &Gate::median_recovery_min, 0, 2},
    {"verbosity_increase_max", &Gate::verbosity_increase_max, -1, 100},
    {"repetition_increase_max", &Gate::repetition_increase_max, -1, 1},
    {"perplexity_ratio_max", &Gate::perplexity_ratio_max, 0, 1000},
    {"confidence", nullptr, 0.5, 0.9999},
};

[[noreturn]] void fail(const std::string& what, const std::string& where, std::string expected,
                       std::string found) {
  throw Error({.what = what,
               .where = where,
               .expected = std::move(expected),
               .found = std::move(found),
               .hint = "recipes/gate.yaml explains every key"});
}

const Key& find_key(const std::string& name, const std::string& where) {
  std::string known;
  for (const Key& key : kKeys) {
    if (name == key.name) return key;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", key.name);
  }
  fail("unknown key in gate", where, known, name);
}

double number_of(const YAML::Node& node, const Key& key, const std::string& where) {
  double value = 0;
  const bool is_number = node.IsScalar() && YAML::convert<double>::decode(node, value);
  if (!is_number || !(value >= key.least && value <= key.most)) {
    fail(fmt::format("bad value of \"{}\"", key.name), where,
         fmt::format("a number from {} to {}", key.least, key.most),
         node.IsScalar() ? node.Scalar() : "not a number");
  }
  return value;
}

Gate read_gate(const YAML::Node& root, const std::string& where) {
  if (!root.IsMap()) fail("gate is not a map of bounds", where, "key: number lines", {});
  Gate gate;
  std::set<std::string> seen;
  bool bounded = false;
  for (const auto& entry : root) {
    const std::string line = fmt::format("{}:{}", where, entry.first.Mark().line + 1);
    if (!entry.first.IsScalar()) fail("key is not a word", line, {}, {});
    const Key& key = find_key(entry.first.Scalar(), line);
    if (!seen.insert(key.name).second) fail("key is given twice", line, {}, key.name);
    const double value = number_of(entry.second, key, line);
    if (key.bound == nullptr) {
      gate.confidence = value;
    } else {
      gate.*key.bound = value;
      bounded = true;
    }
  }
  if (!bounded) fail("gate has no bounds", where, "at least one *_min or *_max key", {});
  return gate;
}

void require(bool present, const char* key, const char* what, const char* flag) {
  if (present) return;
  throw Error({.what = fmt::format("the gate bounds {}, but no {} were given", key, what),
               .where = key,
               .expected = {},
               .found = {},
               .hint = fmt::format("give {}, or take the line out of the gate", flag)});
}

int64_t most_items(const Comparison& comparison) {
  int64_t most = 0;
  for (const TaskComparison& task : comparison.tasks) most = std::max(most, task.correct.total());
  return most;
}

int64_t times(int64_t samples, double growth) {
  return static_cast<int64_t>(std::ceil(static_cast<double>(samples) * growth));
}

// Judges a line; `growth()` says how many times as many samples would decide it. What is no number
// keeps to no bound: it fails, for the reason that `broken` gives.
template <typename Growth>
GateLine finish(GateLine line, const std::string& broken, Growth&& growth) {
  if (!broken.empty() || !std::isfinite(line.estimate.value)) {
    line.verdict = Verdict::kFail;
    line.failure = broken.empty() ? "the value is not a finite number" : broken;
    return line;
  }
  line.verdict = judge(line.estimate, line.bound);
  if (line.verdict != Verdict::kUndecided) return line;
  if (const std::optional<double> more = growth()) {
    line.samples_to_decide = times(line.samples, *more);
    line.flag_to_decide = times(line.flag_now, *more);
  }
  return line;
}

// For estimates whose interval shrinks with the square root of the number of samples.
GateLine finish_shrinking(GateLine line, const std::string& broken) {
  const Estimate estimate = line.estimate;
  const Bound bound = line.bound;
  return finish(std::move(line), broken, [&] { return growth_that_decides(estimate, bound); });
}

// The number of items that would decide is an extrapolation; fewer resamples do.
Bootstrap coarse(Bootstrap bootstrap) {
  bootstrap.resamples = 1000;
  return bootstrap;
}

GateLine recovery_line(double limit, const Comparison& comparison, const Bootstrap& bootstrap,
                       int64_t items_held) {
  std::vector<PairCounts> counts;
  std::string unusable;
  for (const TaskComparison& task : comparison.tasks) {
    counts.push_back(task.correct);
    if (task.correct.baseline_right() == 0) {
      unusable += fmt::format("{}{}", unusable.empty() ? "" : ", ", task.task);
    }
  }
  GateLine line{.key = "median_recovery_min",
                .subject = counted(counts.size(), "task"),
                .estimate = median_recovery(counts, bootstrap),
                .bound = {.limit = limit, .is_minimum = true},
                .unit = "items per task",
                .samples = most_items(comparison),
                .flag = "--limit",
                .flag_now = most_items(comparison),
                .flag_held = items_held};
  if (std::isnan(line.estimate.value)) {
    return finish(std::move(line), "the baseline gets nothing right in any task",
                  [] { return std::optional<double>(); });
  }
  if (!unusable.empty()) line.note = "left out, the baseline gets nothing right: " + unusable;
  const Bound bound = line.bound;
  return finish(std::move(line), {},
                [&] { return growth_that_decides_recovery(counts, bound, coarse(bootstrap)); });
}

int64_t count_items(const Comparison& comparison) {
  int64_t items = 0;
  for (const TaskComparison& task : comparison.tasks) items += task.correct.total();
  return items;
}

// Not judged yet: an increase over all items.
GateLine line_of_items(const char* key, const Estimate& estimate, double limit,
                       const Comparison& comparison, int64_t items_held) {
  const int64_t items = count_items(comparison);
  return {.key = key,
          .subject = counted(items, "item"),
          .estimate = estimate,
          .bound = {.limit = limit, .is_minimum = false},
          .unit = "items",
          .samples = items,
          .flag = "--limit",
          .flag_now = most_items(comparison),
          .flag_held = items_held};
}

GateLine verbosity_line(double limit, const Comparison& comparison, const Bootstrap& bootstrap,
                        int64_t items_held) {
  std::vector<std::vector<Pair>> groups;
  for (const TaskComparison& task : comparison.tasks) groups.push_back(task.tokens);
  Estimate change = ratio_of_sums(groups, bootstrap);
  change = {change.value - 1, change.low - 1, change.high - 1};
  GateLine line = line_of_items("verbosity_increase_max", change, limit, comparison, items_held);
  return finish_shrinking(std::move(line), {});
}

GateLine repetition_line(double limit, const Comparison& comparison, const Bootstrap& bootstrap,
                         int64_t items_held) {
  std::vector<PairCounts> counts;
  for (const TaskComparison& task : comparison.tasks) counts.push_back(task.loops);
  GateLine line = line_of_items("repetition_increase_max", proportion_change(counts, bootstrap),
                                limit, comparison, items_held);
  const Bound bound = line.bound;
  return finish(std::move(line), {},
                [&] { return growth_that_decides_proportion(counts, bound, coarse(bootstrap)); });
}

// A window that is shorter than those of other texts leaves nothing unscored.
int64_t windows_held(const TextScore& text) {
  const auto scored = static_cast<int64_t>(text.windows.size());
  return text.window > 0 ? scored + text.unscored / text.window : scored;
}

GateLine perplexity_line(double limit, const TextScore& text, double confidence) {
  GateLine line{.key = "perplexity_ratio_max",
                .subject = "text " + text.kind,
                .estimate = perplexity_ratio(text, confidence),
                .bound = {.limit = limit, .is_minimum = false},
                .unit = "windows",
                .samples = static_cast<int64_t>(text.windows.size()),
                .flag = "--windows",
                .flag_now = static_cast<int64_t>(text.windows.size()),
                .flag_held = windows_held(text)};
  if (line.samples == 1) line.note = "one window bounds nothing";
  std::string broken;
  if (!std::isfinite(text.perplexity())) {
    broken = "the model's perplexity is not a finite number";
  } else if (!std::isfinite(text.baseline_perplexity())) {
    broken = "the baseline's perplexity is not a finite number";
  }
  return finish_shrinking(std::move(line), broken);
}

std::string shown(const GateLine& line, double value) {
  if (!std::isfinite(value)) return "unbounded";  // an end of an interval
  if (line.key == "perplexity_ratio_max") return fmt::format("{:.4f}", value);
  const bool is_change = line.key != "median_recovery_min";
  return is_change ? fmt::format("{:+.2f} %", value * 100) : fmt::format("{:.2f} %", value * 100);
}

// "--limit 340", and when the files have too few samples for that, how many they have.
std::string flag_text(const GateLine& line) {
  const std::string flag = fmt::format("{} {}", line.flag, *line.flag_to_decide);
  if (line.flag_held == 0 || *line.flag_to_decide <= line.flag_held) return flag;
  return fmt::format("{}, but the files hold {}", flag, line.flag_held);
}

}  // namespace

Gate load_gate(const std::filesystem::path& file) {
  return parse_gate(read_text(file, std::size_t{1} << 20), file.string());
}

Gate parse_gate(std::string_view yaml, const std::string& where) {
  text::require_utf8(yaml, where);
  const auto at = [&](const YAML::Mark& mark) {
    return mark.is_null() ? where : fmt::format("{}:{}", where, mark.line + 1);
  };
  try {
    return read_gate(YAML::Load(std::string(yaml)), where);
  } catch (const YAML::DeepRecursion& e) {  // which calls it a bad file
    fail("gate is nested too deeply", at(e.mark), "key: number lines", {});
  } catch (const YAML::Exception& e) {
    fail("not valid YAML", at(e.mark), {}, e.msg);
  }
}

void require_data(const Gate& gate, bool tasks, bool texts) {
  if (gate.median_recovery_min) require(tasks, "median_recovery_min", "tasks", "--tasks");
  if (gate.verbosity_increase_max) require(tasks, "verbosity_increase_max", "tasks", "--tasks");
  if (gate.repetition_increase_max) require(tasks, "repetition_increase_max", "tasks", "--tasks");
  if (gate.perplexity_ratio_max) require(texts, "perplexity_ratio_max", "texts", "--text");
}

GateResult judge(const Gate& gate, const Comparison& comparison, int64_t items_held) {
  const Bootstrap bootstrap{.confidence = gate.confidence};
  require_data(gate, !comparison.tasks.empty(), !comparison.texts.empty());
  GateResult result;
  if (gate.median_recovery_min) {
    result.lines.push_back(
        recovery_line(*gate.median_recovery_min, comparison, bootstrap, items_held));
  }
  if (gate.verbosity_increase_max) {
    result.lines.push_back(
        verbosity_line(*gate.verbosity_increase_max, comparison, bootstrap, items_held));
  }
  if (gate.repetition_increase_max) {
    result.lines.push_back(
        repetition_line(*gate.repetition_increase_max, comparison, bootstrap, items_held));
  }
  if (gate.perplexity_ratio_max) {
    for (const TextScore& text : comparison.texts) {
      result.lines.push_back(perplexity_line(*gate.perplexity_ratio_max, text, gate.confidence));
    }
  }
  const auto any = [&](Verdict verdict) {
    return std::any_of(result.lines.begin(), result.lines.end(),
                       [&](const GateLine& line) { return line.verdict == verdict; });
  };
  result.verdict = any(Verdict::kFail)        ? Verdict::kFail
                   : any(Verdict::kUndecided) ? Verdict::kUndecided
                                              : Verdict::kPass;
  return result;
}

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPass:
      return "pass";
    case Verdict::kFail:
      return "FAIL";
    case Verdict::kUndecided:
      break;
  }
  return "undecided";
}

std::string explain(const GateLine& line) {
  if (!line.failure.empty()) {
    return fmt::format("{}: {} ({})", line.key, line.failure, line.subject);
  }
  const char* relation = line.verdict == Verdict::kUndecided ? "is not clearly on one side of"
                         : line.verdict == Verdict::kPass
                             ? (line.bound.is_minimum ? "is at least" : "is at most")
                             : (line.bound.is_minimum ? "is below" : "is above");
  std::string text =
      fmt::format("{}: {} [{}, {}] {} {} ({})", line.key, shown(line, line.estimate.value),
                  shown(line, line.estimate.low), shown(line, line.estimate.high), relation,
                  shown(line, line.bound.limit), line.subject);
  if (line.verdict == Verdict::kUndecided) {
    text += line.samples == 1
                ? fmt::format("; too few {} to tell how many would decide (now 1)", line.unit)
            : line.samples_to_decide
                ? fmt::format("; about {} {} would decide (now {}): {}", *line.samples_to_decide,
                              line.unit, line.samples, flag_text(line))
                : fmt::format("; no practical number of {} would decide (now {})", line.unit,
                              line.samples);
  }
  if (!line.note.empty()) text += "; " + line.note;
  return text;
}

std::string explain(const GateResult& result) {
  const bool one = result.lines.size() == 1;
  std::string text;
  for (const GateLine& line : result.lines) {
    if (line.verdict != result.verdict || (line.verdict == Verdict::kPass && !one)) continue;
    text +=
        fmt::format("{}{}: {}", text.empty() ? "" : "\n", name_of(result.verdict), explain(line));
  }
  if (!text.empty()) return text;
  return fmt::format("{}: all {} lines of the gate hold", name_of(result.verdict),
                     result.lines.size());
}

}  // namespace levin::evaluate
