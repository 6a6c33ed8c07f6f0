// The ladder as one self-contained page: styles inline, bars in CSS, no script and no network.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "bench/bench.h"
#include "bench/html.h"
#include "bench/ladder.h"
#include "bench/neighbours.h"
#include "core/plural.h"

namespace levin::bench {
namespace {

std::string title(const RungResult& result) {
  return escaped(label(result.rung));
}

// The class that gives a rung its colour.
const char* colour(const RungResult& result, const LadderReport& report) {
  if (report.is_baseline(result)) return "baseline";
  switch (result.gate.verdict) {
    case evaluate::Verdict::kPass:
      return "ours";
    case evaluate::Verdict::kFail:
      return "failed";
    case evaluate::Verdict::kUndecided:
      break;
  }
  return "undecided";
}

template <typename Value>
double largest_of(const LadderReport& report, Value&& value) {
  double largest = 1e-12;
  for (const RungResult& result : report.rungs) {
    if (result.climbed()) largest = std::max(largest, value(result));
  }
  return largest;
}

std::string speed_chart(const LadderReport& report) {
  const double largest = largest_of(report, [](const RungResult& result) {
    return result.timing.own.decode_tokens_per_second().max;
  });
  std::string chart;
  for (const RungResult& result : report.rungs) {
    if (!result.climbed()) {
      chart += chart_row(title(result), "", "<span class=\"soft\">not climbed here</span>");
      continue;
    }
    const Spread speed = result.timing.own.decode_tokens_per_second();
    std::string value = fmt::format("{:.0f} tokens/s", speed.median);
    if (!report.is_baseline(result)) {
      value += fmt::format(" &middot; <b>{:.2f}&times;</b>",
                           result.timing.speedup_over_baseline().median);
    }
    chart += chart_row(title(result), chart_bar(colour(result, report), speed, largest), value);
  }
  return chart;
}

std::string bytes_chart(const LadderReport& report) {
  const double largest = largest_of(
      report, [](const RungResult& result) { return result.prediction.bytes_per_token; });
  const FastestRead read = fastest_read(report);
  std::string chart;
  for (const RungResult& result : report.rungs) {
    if (!result.climbed()) continue;
    const double bytes = result.prediction.bytes_per_token;
    const double own_ms = result.timing.own.tpot_ms().median;
    chart +=
        chart_row(title(result), chart_bar(colour(result, report), {bytes, bytes, bytes}, largest),
                  fmt::format("{:.2f} MB &middot; {:.3f} of {:.3f} ms", bytes / 1e6,
                              floor_ms(result, read), own_ms));
  }
  return chart;
}

const evaluate::GateLine* line_of(const RungResult& result, std::string_view key) {
  for (const evaluate::GateLine& line : result.gate.lines) {
    if (line.key == key) return &line;
  }
  return nullptr;
}

// Positions of recoveries on an axis that begins a little below the worst.
struct Axis {
  double low, high;
  double at(double value) const { return 100 * std::clamp((value - low) / (high - low), 0.0, 1.0); }
};

std::string recovery_chart(const LadderReport& report) {
  double low = 0.97;
  double high = 1.01;
  for (const RungResult& result : report.rungs) {
    if (const auto* line = line_of(result, "median_recovery_min"); line != nullptr) {
      if (std::isfinite(line->estimate.low)) low = std::min(low, line->estimate.low);
      if (std::isfinite(line->estimate.high)) high = std::max(high, line->estimate.high);
    }
  }
  const double margin = (high - low) * 0.03;
  const Axis axis{low - margin, high + margin};
  std::string chart;
  for (const RungResult& result : report.rungs) {
    const evaluate::GateLine* line = line_of(result, "median_recovery_min");
    if (!result.climbed() || line == nullptr || report.is_baseline(result)) continue;
    const evaluate::Estimate& estimate = line->estimate;
    if (!std::isfinite(estimate.value)) continue;  // nothing to draw; the details say why
    const double left = axis.at(estimate.low);
    const std::string drawing = fmt::format(
        "<span class=\"bound\" style=\"left:{:.2f}%\"></span>"
        "<span class=\"whisker\" style=\"left:{:.2f}%;width:{:.2f}%\"></span>"
        "<span class=\"dot {}\" style=\"left:{:.2f}%\"></span>",
        axis.at(line->bound.limit), left, axis.at(estimate.high) - left, colour(result, report),
        axis.at(estimate.value));
    chart += chart_row(title(result), drawing,
                       fmt::format("{:.1f} % [{:.1f} &ndash; {:.1f}]", estimate.value * 100,
                                   estimate.low * 100, estimate.high * 100));
  }
  if (chart.empty()) return {};
  const double bound = line_of(report.rungs.back(), "median_recovery_min") != nullptr
                           ? line_of(report.rungs.back(), "median_recovery_min")->bound.limit
                           : report.gate.median_recovery_min.value_or(0);
  return fmt::format(
             "<h2>What it keeps of the baseline's answers</h2>\n"
             "<p class=\"soft\">Median over tasks of candidate accuracy / baseline accuracy, with "
             "its {:.0f} % interval. The dashed line is the gate, {:.0f} %; an interval across it "
             "decides nothing.</p>\n",
             report.gate.confidence * 100, bound * 100) +
         chart;
}

std::string cell(const std::string& text, const char* attributes = "") {
  return fmt::format("<td{}>{}</td>", attributes, text);
}

std::string spread_cell(const Spread& spread, int digits, const char* unit = "") {
  return cell(fmt::format("{:.{}f}{} <span class=\"soft\">{:.{}f}&ndash;{:.{}f}</span>",
                          spread.median, digits, unit, spread.min, digits, spread.max, digits));
}

std::string verdict_cell(const RungResult& result, const LadderReport& report) {
  if (report.is_baseline(result)) return cell("baseline");
  switch (result.gate.verdict) {
    case evaluate::Verdict::kPass:
      return cell("pass", " class=\"pass\"");
    case evaluate::Verdict::kFail:
      return cell("FAIL", " class=\"fail\"");
    case evaluate::Verdict::kUndecided:
      break;
  }
  return cell("undecided");
}

std::string recovery_text(const RungResult& result, const LadderReport& report) {
  if (result.evaluation.items.empty() || report.is_baseline(result)) return "-";
  const double recovery = median_recovery(result, report.baseline());
  return std::isfinite(recovery) ? fmt::format("{:.1f} %", recovery * 100) : "-";
}

std::string shares(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    text += fmt::format("{}{:.2f}", text.empty() ? "" : " / ", value);
  }
  return text;
}

std::string table_row(const RungResult& result, const LadderReport& report,
                      const FastestRead& read) {
  const RungTiming& timing = result.timing;
  const engine::SpeculationStats& stats = timing.own.speculation;
  const bool speculates = result.rung.k > 0;
  std::string html = "<tr>" + cell(title(result));
  html += cell(fmt::format("{:.1f}", static_cast<double>(result.checkpoint_bytes) / 1e6));
  html += cell(fmt::format("{:.2f}", result.prediction.bytes_per_token / 1e6));
  html += cell(fmt::format("{:.3f}", floor_ms(result, read)));
  html += spread_cell(timing.own.ttft_ms(), 1);
  html += spread_cell(timing.own.decode_tokens_per_second(), 0);
  html += spread_cell(timing.own.tpot_ms(), 3);
  html += report.is_baseline(result)
              ? cell("-") + cell("-")
              : spread_cell(timing.baseline.tpot_ms(), 3) +
                    spread_cell(timing.speedup_over_baseline(), 2, "&times;");
  html += speculates ? spread_cell(timing.control.tpot_ms(), 3) +
                           spread_cell(timing.speedup_over_control(), 2, "&times;")
                     : cell("-") + cell("-");
  for (const evaluate::TextScore& text : result.evaluation.texts) {
    const double value = text.perplexity();
    html += cell(std::isfinite(value) ? fmt::format("{:.3f}", value) : "-");
  }
  html += cell(recovery_text(result, report));
  html += cell(speculates ? fmt::format("{:.2f}", stats.mean_acceptance_length()) : "-");
  html += cell(speculates ? shares(accepted_per_position(stats)) : "-");
  html += verdict_cell(result, report);
  return html + "</tr>\n";
}

std::string full_table(const LadderReport& report) {
  std::string html =
      "<div class=\"scroll\"><table>\n<tr><th>rung</th><th>size MB</th><th>MB / token</th>"
      "<th>floor ms</th><th>TTFT ms</th><th>tokens/s</th><th>TPOT ms</th><th>rung 0 ms</th>"
      "<th>over rung 0</th><th>control ms</th><th>over control</th>";
  for (const evaluate::TextScore& text : report.baseline().evaluation.texts) {
    html += fmt::format("<th>perplexity {}</th>", escaped(text.kind));
  }
  html += "<th>recovery</th><th>acceptance</th><th>per position</th><th>gate</th></tr>\n";
  const FastestRead read = fastest_read(report);
  for (const RungResult& result : report.rungs) {
    if (result.climbed()) html += table_row(result, report, read);
  }
  return html + "</table></div>\n";
}

std::string task_table(const RungResult& result, const RungResult& baseline) {
  if (result.evaluation.items.empty()) return {};
  std::string html =
      "<div class=\"scroll\"><table>\n<tr><th>task</th><th>items</th><th>baseline</th>"
      "<th>candidate</th><th>recovery</th><th>lost</th><th>gained</th></tr>\n";
  for (const auto& task : evaluate::compare(baseline.evaluation, result.evaluation).tasks) {
    const evaluate::PairCounts& counts = task.correct;
    const auto total = static_cast<double>(counts.total());
    const double kept = evaluate::recovery(counts);
    html += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{:.1f} %</td><td>{:.1f} %</td><td>{}</td><td>{}</td>"
        "<td>{}</td></tr>\n",
        escaped(task.task), counts.total(),
        100 * static_cast<double>(counts.baseline_right()) / total,
        100 * static_cast<double>(counts.candidate_right()) / total,
        std::isnan(kept) ? "-" : fmt::format("{:.1f} %", kept * 100), counts.lost, counts.gained);
  }
  return html + "</table></div>\n";
}

std::string details(const RungResult& result, const LadderReport& report) {
  std::string html = fmt::format("<details><summary>{}</summary>\n<p>{}</p>\n", title(result),
                                 escaped(result.rung.what));
  if (!result.climbed()) {
    return html + fmt::format("<p>Not climbed. {}</p></details>\n", escaped(result.rung.skipped));
  }
  if (report.is_baseline(result)) {
    return html + "<p>The other rungs are judged beside this one.</p></details>\n";
  }
  if (result.rung.k > 0) {
    html += fmt::format(
        "<p>Speculation gave {} as the control.</p>\n",
        result.timing.same_tokens_as_control ? "exactly the same tokens" : "<b>other tokens</b>");
  }
  for (const evaluate::GateLine& line : result.gate.lines) {
    html += fmt::format("<p class=\"soft\">{}: {}</p>\n", name_of(line.verdict),
                        escaped(explain(line)));
  }
  return html + task_table(result, report.baseline()) + "</details>\n";
}

// The headline, and the command that decides what is not decided.
std::string answer(const LadderReport& report) {
  const std::string decide = how_to_decide(report);
  return escaped(headline(report)) + (decide.empty() ? "" : "<br>" + escaped(decide));
}

}  // namespace

std::string to_html(const LadderReport& report) {
  std::string html = page_head("levin ladder: " + report.model);
  html += fmt::format(
      "<h1>The ladder of {}</h1>\n<p class=\"soft\">{}<br>Memory read: {}</p>\n"
      "<p class=\"answer\">{}</p>\n",
      escaped(report.model), escaped(report.runtime), escaped(to_text(report.memory)),
      answer(report));
  html +=
      "<p class=\"legend soft\"><span><i class=\"baseline\"></i>baseline</span>"
      "<span><i class=\"ours\"></i>passes the gate</span>"
      "<span><i class=\"undecided\"></i>undecided</span>"
      "<span><i class=\"failed\"></i>fails the gate</span></p>\n";
  html += fmt::format(
      "<h2>Decode speed</h2>\n<p class=\"soft\">One sequence at a time; median of {} in "
      "which every rung, its control and the baseline ran in turn. The whisker spans all rounds; "
      "the factor is against the baseline of the same rounds.</p>\n",
      counted(int64_t{report.timing.rounds}, "round"));
  if (noise(report) > kTolerableNoise) {
    html += fmt::format(
        "<p><b>The machine was busy</b>: the same work took up to {:.1f} times as long in another "
        "round. These speeds say little.</p>\n",
        noise(report));
  }
  html += speed_chart(report) + recovery_chart(report);
  const FastestRead read = fastest_read(report);
  html += fmt::format(
      "<h2>What a token costs</h2>\n<p class=\"soft\">Bytes that the cost model counts per token: "
      "weights, recurrent state, KV cache. Then the floor, which is the time that reading them "
      "takes "
      "at {:.1f} GB/s, the fastest read of this climb ({}), of the time measured.</p>\n",
      read.gb_per_s, escaped(read.of));
  html += bytes_chart(report);
  html += "<h2>All figures</h2>\n" + full_table(report) + "<h2>Rung by rung</h2>\n";
  for (const RungResult& result : report.rungs) html += details(result, report);
  html += fmt::format(
      "<p class=\"soft\">TTFT: start of prefill to the first token. TPOT: time from the first to "
      "the last token over their number less one. Work {}, {} out. Over rung 0: rung 0 ms / TPOT "
      "ms, rung 0 being timed again in the rung's own rounds. Over control: control ms / TPOT ms, "
      "the control being the same checkpoint without drafts. Both are medians of the ratios within "
      "a round.</p>\n</body>\n</html>\n",
      escaped(report.workload_hash), counted(int64_t{report.timing.output_tokens}, "token"));
  return html;
}

}  // namespace levin::bench
