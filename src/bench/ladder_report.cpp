// Text, Markdown and JSON of bench/ladder.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "bench/bench.h"
#include "bench/ladder.h"
#include "bench/neighbours.h"
#include "core/plural.h"
#include "evaluate/more_samples.h"
#include "evaluate/table.h"

namespace levin::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string with_spread(const Spread& spread, int digits) {
  return fmt::format("{:.{}f} [{:.{}f}-{:.{}f}]", spread.median, digits, spread.min, digits,
                     spread.max, digits);
}

std::string factor(const Spread& spread) {
  return with_spread(spread, 2) + "x";
}

std::string title(const RungResult& result) {
  const Rung& rung = result.rung;
  return rung.id == rung.title ? "- " + rung.title : label(rung);
}

std::string positions(const std::vector<double>& shares) {
  std::string text;
  for (const double share : shares) {
    text += fmt::format("{}{:.2f}", text.empty() ? "" : "/", share);
  }
  return text;
}

std::string median(const Spread& spread, int digits) {
  return fmt::format("{:.{}f}", spread.median, digits);
}

std::string speed_table(const LadderReport& report) {
  evaluate::Table table({"rung", "MB/token", "floor ms", "TTFT ms", "tokens/s", "TPOT ms",
                         "rung 0 ms", "over rung 0", "control ms", "over control"});
  const FastestRead read = fastest_read(report);
  for (const RungResult& result : report.rungs) {
    if (!result.climbed()) {
      table.add_row({title(result), "-"});
      continue;
    }
    const RungTiming& timing = result.timing;
    const bool has_control = result.rung.k > 0;
    const bool is_baseline = report.is_baseline(result);
    table.add_row({title(result), fmt::format("{:.2f}", result.prediction.bytes_per_token / 1e6),
                   fmt::format("{:.3f}", floor_ms(result, read)), median(timing.own.ttft_ms(), 1),
                   median(timing.own.decode_tokens_per_second(), 0),
                   with_spread(timing.own.tpot_ms(), 3),
                   is_baseline ? "-" : median(timing.baseline.tpot_ms(), 3),
                   is_baseline ? "-" : factor(timing.speedup_over_baseline()),
                   has_control ? median(timing.control.tpot_ms(), 3) : "-",
                   has_control ? factor(timing.speedup_over_control()) : "-"});
  }
  return table.to_string();
}

const evaluate::GateLine* recovery_line(const RungResult& result) {
  for (const evaluate::GateLine& line : result.gate.lines) {
    if (line.key == "median_recovery_min") return &line;
  }
  return nullptr;
}

std::string recovery_cell(const RungResult& result, const RungResult& baseline) {
  if (result.evaluation.items.empty()) return "-";
  const double value = median_recovery(result, baseline) * 100;
  if (!std::isfinite(value)) return "-";  // the baseline gets nothing right
  const evaluate::GateLine* line = recovery_line(result);
  if (line == nullptr) return fmt::format("{:.1f} %", value);
  return fmt::format("{:.1f} [{:.1f}-{:.1f}] %", value, line->estimate.low * 100,
                     line->estimate.high * 100);
}

std::string perplexity_cell(const evaluate::TextScore& text) {
  const double value = text.perplexity();
  return std::isfinite(value) ? fmt::format("{:.3f}", value) : "-";
}

std::string quality_table(const LadderReport& report) {
  std::vector<std::string> header = {"rung", "size MB"};
  const std::vector<evaluate::TextScore>& texts = report.baseline().evaluation.texts;
  for (const evaluate::TextScore& text : texts) header.push_back("ppl " + text.kind);
  header.insert(header.end(), {"median recovery", "accept", "per position", "gate"});
  evaluate::Table table(header);
  for (const RungResult& result : report.rungs) {
    std::vector<std::string> row = {title(result)};
    if (result.climbed()) {
      row.push_back(fmt::format("{:.1f}", static_cast<double>(result.checkpoint_bytes) / 1e6));
      for (const evaluate::TextScore& text : result.evaluation.texts) {
        row.push_back(perplexity_cell(text));
      }
      const engine::SpeculationStats& stats = result.timing.own.speculation;
      const bool speculates = result.rung.k > 0;
      const bool is_baseline = report.is_baseline(result);
      row.push_back(is_baseline ? "-" : recovery_cell(result, report.baseline()));
      row.push_back(speculates ? fmt::format("{:.2f}", stats.mean_acceptance_length()) : "-");
      row.push_back(speculates ? positions(accepted_per_position(stats)) : "-");
      row.push_back(is_baseline ? "baseline" : std::string(name_of(result.gate.verdict)));
    } else {
      row.resize(header.size() - 1, "-");
      row.push_back("not climbed");
    }
    table.add_row(std::move(row));
  }
  return table.to_string();
}

// What decided the gate, a line each under the rung's title.
std::string sentences(const RungResult& result) {
  std::string text;
  std::istringstream lines(explain(result.gate));
  for (std::string line; std::getline(lines, line);) {
    text += fmt::format("{}: {}\n", title(result), line);
  }
  return text;
}

std::string notes(const LadderReport& report) {
  std::string text;
  if (noise(report) > kTolerableNoise) {
    text += fmt::format(
        "THE MACHINE WAS BUSY: the same work took up to {:.1f} times as long in another round.\n"
        "Do not trust the speeds; delete results/timing-*.json in the output folder and run again\n"
        "when it is quiet.\n\n",
        noise(report));
  }
  for (const RungResult& result : report.rungs) {
    if (!result.climbed()) {
      text += fmt::format("{}: not climbed. {}\n", title(result), result.rung.skipped);
    } else if (!report.is_baseline(result)) {
      text += sentences(result);
    }
    if (!result.timing.same_tokens_as_control) {
      text += fmt::format("{}: SPECULATION CHANGED THE OUTPUT\n", title(result));
    }
  }
  return text;
}

std::string markdown_row(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

std::vector<std::string> markdown_cells(const RungResult& result, const LadderReport& report) {
  const bool is_baseline = report.is_baseline(result);
  std::vector<std::string> cells = {
      result.rung.title, fmt::format("{:.2f}", static_cast<double>(result.checkpoint_bytes) / 1e6),
      fmt::format("{:.2f}", result.prediction.bytes_per_token / 1e6)};
  for (const evaluate::TextScore& text : result.evaluation.texts) {
    const double ratio = text.perplexity() / text.baseline_perplexity();
    cells.push_back(is_baseline || !std::isfinite(ratio)
                        ? perplexity_cell(text)
                        : fmt::format("{} ({:.4f})", perplexity_cell(text), ratio));
    const bool compared = !is_baseline && std::isfinite(text.mean_kl());
    cells.push_back(compared ? fmt::format("{:.4f}", text.mean_kl()) : "");
    cells.push_back(is_baseline ? "" : fmt::format("{:.1f} %", text.top1_agreement() * 100));
  }
  cells.push_back(is_baseline ? "" : recovery_cell(result, report.baseline()));
  cells.push_back(is_baseline ? "baseline" : std::string(name_of(result.gate.verdict)));
  return cells;
}

// null where there would be nothing but the rung itself to compare with.
Json timing_json(const RungResult& result, const LadderReport& report) {
  const RungTiming& timing = result.timing;
  const bool is_baseline = report.is_baseline(result);
  const bool has_control = result.rung.k > 0;
  return {{"tpot_ms", to_json(timing.own.tpot_ms())},
          {"ttft_ms", to_json(timing.own.ttft_ms())},
          {"tokens_per_second", to_json(timing.own.decode_tokens_per_second())},
          {"prefill_tokens_per_second", to_json(timing.own.prefill_tokens_per_second())},
          {"control_tpot_ms", has_control ? to_json(timing.control.tpot_ms()) : Json()},
          {"baseline_tpot_ms", is_baseline ? Json() : to_json(timing.baseline.tpot_ms())},
          {"speedup_over_rung_0", is_baseline ? Json() : to_json(timing.speedup_over_baseline())},
          {"speedup_over_control", has_control ? to_json(timing.speedup_over_control()) : Json()}};
}

Json rung_json(const RungResult& result, const LadderReport& report) {
  Json json = {{"rung", result.rung.id},
               {"title", result.rung.title},
               {"recipe", result.rung.recipe},
               {"num_speculative_tokens", result.rung.k},
               {"climbed", result.climbed()}};
  if (!result.climbed()) {
    json["reason"] = result.rung.skipped;
    return json;
  }
  json["checkpoint_bytes"] = result.checkpoint_bytes;
  json["bytes_per_token"] = result.prediction.whole_bytes();
  json["predicted_tpot_ms"] = floor_ms(result, fastest_read(report));
  json["read_gb_per_s_at_size"] = result.timing.read_gb_per_s;
  json["timing"] = timing_json(result, report);
  if (result.rung.k > 0) {
    const engine::SpeculationStats& stats = result.timing.own.speculation;
    json["speculation"] = {{"acceptance_length", stats.mean_acceptance_length()},
                           {"accepted_per_position", accepted_per_position(stats)},
                           {"same_tokens_as_control", result.timing.same_tokens_as_control}};
  }
  Json texts = Json::array();
  for (const evaluate::TextScore& text : result.evaluation.texts) {
    texts.push_back(to_json(text, report.gate.confidence));
  }
  json["texts"] = std::move(texts);
  if (!result.evaluation.items.empty()) {
    const std::span<const evaluate::ItemResult> items = result.evaluation.items;
    json["tasks"] = report.is_baseline(result)
                        ? to_json(items, {})
                        : to_json(items, std::span(report.baseline().evaluation.items));
  }
  if (!report.is_baseline(result)) json["gate"] = to_json(result.gate);
  return json;
}

}  // namespace

// Within one timing, and of the baseline from rung to rung.
double noise(const LadderReport& report) {
  double largest = 1;
  double fastest = std::numeric_limits<double>::infinity();
  double slowest = 0;
  for (const RungResult& result : report.rungs) {
    const Spread baseline = result.timing.baseline.tpot_ms();
    if (baseline.min > 0) {
      fastest = std::min(fastest, baseline.min);
      slowest = std::max(slowest, baseline.max);
    }
    for (const ContenderTiming* timing :
         {&result.timing.own, &result.timing.control, &result.timing.baseline}) {
      const Spread tpot = timing->tpot_ms();
      if (tpot.min > 0) largest = std::max(largest, tpot.max / tpot.min);
    }
  }
  return std::max(largest, slowest / fastest);
}

std::string headline(const LadderReport& report) {
  const RungResult* fastest = nullptr;
  int64_t undecided = 0;
  for (const RungResult& result : report.rungs) {
    if (!result.climbed() || report.is_baseline(result)) continue;
    undecided += result.gate.verdict == evaluate::Verdict::kUndecided;
    if (result.gate.verdict != evaluate::Verdict::kPass) continue;
    if (fastest == nullptr || result.timing.speedup_over_baseline().median >
                                  fastest->timing.speedup_over_baseline().median) {
      fastest = &result;
    }
  }
  std::string text =
      undecided > 0 ? "No rung has passed the gate yet." : "No rung passes the gate.";
  if (fastest != nullptr) {
    text = fmt::format("The fastest rung that passes the gate is {}: {} rung 0, {:.0f} tokens/s.",
                       label(fastest->rung), factor(fastest->timing.speedup_over_baseline()),
                       fastest->timing.own.decode_tokens_per_second().median);
  }
  if (undecided > 0) {
    text += fmt::format(" So few items do not decide {}.", counted(undecided, "rung"));
  }
  return text;
}

std::string how_to_decide(const LadderReport& report) {
  evaluate::MoreSamples more;
  for (const RungResult& result : report.rungs) {
    if (!result.climbed() || result.gate.verdict != evaluate::Verdict::kUndecided) continue;
    more = both(more, more_samples(result.gate));
  }
  return how_to_decide(more, report.command);
}

FastestRead fastest_read(const LadderReport& report) {
  FastestRead fastest{report.memory.gb_per_s.median, "memory"};
  for (const RungResult& result : report.rungs) {
    if (!result.climbed() || result.timing.read_gb_per_s <= fastest.gb_per_s) continue;
    fastest = {result.timing.read_gb_per_s,
               "a buffer as large as a token of rung " + label(result.rung)};
  }
  return fastest;
}

double floor_ms(const RungResult& result, const FastestRead& read) {
  return result.prediction.tpot_seconds(read.gb_per_s) * 1e3;
}

double median_recovery(const RungResult& rung, const RungResult& baseline) {
  std::vector<double> values;
  for (const auto& task : evaluate::compare(baseline.evaluation, rung.evaluation).tasks) {
    values.push_back(evaluate::recovery(task.correct));
  }
  return evaluate::median(std::move(values));
}

std::string to_text(const LadderReport& report) {
  const FastestRead read = fastest_read(report);
  const std::string decide = how_to_decide(report);
  return fmt::format(
      "model    {}\nruntime  {}\nmemory   {}\n\n"
      "Speed, one sequence at a time: median [min-max] of {} interleaved rounds\n{}"
      "floor: the bytes of a token at {:.1f} GB/s, the fastest read of this climb ({}).\n"
      "over rung 0: rung 0 ms / TPOT ms; rung 0 ms is rung 0 timed again in the rung's own "
      "rounds.\n"
      "over control: control ms / TPOT ms; the control is the same checkpoint without drafts.\n"
      "Both are medians of the ratios within a round.\n\n"
      "Quality beside rung 0\n{}\n{}\n{}\n{}",
      report.model, report.runtime, to_text(report.memory), report.timing.rounds,
      speed_table(report), read.gb_per_s, read.of, quality_table(report), notes(report),
      headline(report), decide.empty() ? "" : decide + "\n");
}

std::string to_markdown(const LadderReport& report) {
  std::vector<std::string> header = {"recipe", "size MB", "MB/token"};
  for (const evaluate::TextScore& text : report.baseline().evaluation.texts) {
    header.push_back(fmt::format("perplexity {} (ratio)", text.kind));
    header.push_back("KL nats");
    header.push_back("top-1");
  }
  header.insert(header.end(), {"median recovery", "gate"});
  std::vector<std::string> rule(header.size(), "---:");
  rule.front() = rule.back() = "---";
  std::string text = markdown_row(header) + fmt::format("|{}|\n", fmt::join(rule, "|"));
  for (const RungResult& result : report.rungs) {
    if (result.climbed()) text += markdown_row(markdown_cells(result, report));
  }
  return text;
}

Json to_json(const LadderReport& report) {
  Json rungs = Json::array();
  for (const RungResult& result : report.rungs) rungs.push_back(rung_json(result, report));
  Json device = to_json(report.memory);
  device["runtime"] = report.runtime;
  const FastestRead read = fastest_read(report);
  device["floor"] = {{"read_gb_per_s", read.gb_per_s}, {"of", read.of}};
  return {{"model", report.model},
          {"device", std::move(device)},
          {"workload_hash", report.workload_hash},
          {"rounds", report.timing.rounds},
          {"output_tokens", report.timing.output_tokens},
          {"noise", noise(report)},
          {"headline", headline(report)},
          {"to_decide", how_to_decide(report)},
          {"rungs", std::move(rungs)}};
}

}  // namespace levin::bench
