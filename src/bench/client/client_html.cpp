// The report of client_bench.h as one self-contained page.
#include <fmt/format.h>

#include <algorithm>

#include "bench/client/client_bench.h"
#include "bench/client/definitions.h"
#include "bench/html.h"

namespace levin::bench::client {
namespace {

constexpr double kMs = 1000;

std::string cell(const std::string& text) {
  return "<td>" + text + "</td>";
}

std::string spread_cell(const std::optional<Spread>& spread, int digits) {
  if (!spread) return cell("-");
  return cell(fmt::format("{:.{}f} <span class=\"soft\">{:.{}f}&ndash;{:.{}f}</span>",
                          spread->median, digits, spread->min, digits, spread->max, digits));
}

const char* colour(const Point& point, const ClientReport& report) {
  if (!report.valid()) return "failed";
  return &point == &report.points.front() ? "baseline" : "ours";
}

template <typename Value>
std::string chart(const ClientReport& report, const char* unit, int digits, Value&& value) {
  double largest = 1e-12;
  for (const Point& point : report.points) {
    if (const std::optional<Spread> spread = value(point)) largest = std::max(largest, spread->max);
  }
  std::string rows;
  for (const Point& point : report.points) {
    const std::optional<Spread> spread = value(point);
    if (!spread) continue;
    rows += chart_row(escaped(point.name), chart_bar(colour(point, report), *spread, largest),
                      fmt::format("{:.{}f} {}", spread->median, digits, unit));
  }
  return rows;
}

// Bars of a latency's first percentile, whiskers to the last one.
std::string latency_chart(const ClientReport& report, Distribution PointSummary::*latency) {
  return chart(report, "ms", 2, [&](const Point& point) -> std::optional<Spread> {
    const Distribution& values = point.summary.*latency;
    if (values.percentiles.empty()) return std::nullopt;
    return Spread{values.percentiles.front() * kMs, values.percentiles.front() * kMs,
                  values.percentiles.back() * kMs};
  });
}

std::string throughput_table(const ClientReport& report) {
  std::string html =
      "<div class=\"scroll\"><table>\n<tr><th>load</th><th>requests</th><th>failed</th>"
      "<th>output tokens/s</th><th>over one at a time</th><th>all tokens/s</th><th>requests/s</th>"
      "<th>good requests/s</th></tr>\n";
  for (const Point& point : report.points) {
    const PointSummary& summary = point.summary;
    html += "<tr>" + cell(escaped(point.name)) + cell(fmt::format("{}", summary.requests)) +
            cell(fmt::format("{}", summary.failed())) +
            spread_cell(summary.output_tokens_per_second, 1) + spread_cell(point.over_control, 2) +
            spread_cell(summary.total_tokens_per_second, 1) +
            spread_cell(summary.requests_per_second, 2) + spread_cell(summary.good_per_second, 2) +
            "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string latency_table(const ClientReport& report) {
  std::string html =
      "<div class=\"scroll\"><table>\n<tr><th>load</th><th>ms</th><th>values</th><th>mean</th>";
  for (const double percent : report.options.percentiles) {
    html += fmt::format("<th>p{:g}</th>", percent);
  }
  html += "</tr>\n";
  for (const Point& point : report.points) {
    const auto add = [&](const char* name, const Distribution& values) {
      if (values.count == 0) return;
      html += "<tr>" + cell(escaped(point.name)) + cell(name) +
              cell(fmt::format("{}", values.count)) +
              cell(fmt::format("{:.2f}", values.mean * kMs));
      for (const double value : values.percentiles)
        html += cell(fmt::format("{:.2f}", value * kMs));
      html += "</tr>\n";
    };
    add("TTFT", point.summary.ttft);
    add("TPOT", point.summary.tpot);
    add("ITL", point.summary.itl);
    add("E2E", point.summary.e2e);
    if (point.rate) add("sent late", point.summary.late);
  }
  return html + "</table></div>\n";
}

std::string answer(const ClientReport& report) {
  if (!report.valid()) return "<b>Not valid:</b> " + escaped(complaint(report)) + ".";
  const auto best = std::max_element(
      report.points.begin(), report.points.end(), [](const Point& a, const Point& b) {
        return a.summary.output_tokens_per_second.value_or(Spread{}).median <
               b.summary.output_tokens_per_second.value_or(Spread{}).median;
      });
  if (!best->over_control) return "The server does not count tokens.";
  return fmt::format("<b>{:.0f} output tokens/s</b> with {}, {:.2f}&times; one at a time.",
                     best->summary.output_tokens_per_second->median, escaped(best->name),
                     best->over_control->median);
}

}  // namespace

std::string to_html(const ClientReport& report) {
  std::string html = page_head("levin bench: " + report.options.model);
  html += fmt::format(
      "<h1>{}</h1>\n<p class=\"soft\">{}</p>\n<p class=\"answer\">{}</p>\n"
      "<h2>Throughput</h2>\n<p class=\"soft\">Output tokens a second; the bar is the median of the "
      "rounds, the whisker spans them.</p>\n",
      escaped(report.options.model), escaped(describe_work(report)), answer(report));
  html += chart(report, "tokens/s", 0,
                [](const Point& point) { return point.summary.output_tokens_per_second; });
  html += fmt::format(
      "<h2>Time to the first token</h2>\n<p class=\"soft\">p{:g}, whisker to "
      "p{:g}.</p>\n",
      report.options.percentiles.front(), report.options.percentiles.back());
  html += latency_chart(report, &PointSummary::ttft);
  html += "<h2>Time per output token</h2>\n" + latency_chart(report, &PointSummary::tpot);
  html += "<h2>All figures</h2>\n" + throughput_table(report) + "<p></p>\n" + latency_table(report);
  html += "<h2>Notes</h2>\n";
  for (const Point& point : report.points) {
    if (const std::string line = describe_speculation(point.summary); !line.empty()) {
      html += fmt::format("<p class=\"soft\">Speculation, {}: {}</p>\n", escaped(point.name),
                          escaped(line));
    }
  }
  for (const std::string& note : notes_of(report)) {
    html += fmt::format("<p class=\"soft\">{}</p>\n", escaped(note));
  }
  html += fmt::format("<details><summary>Definitions</summary>\n<pre>{}</pre></details>\n",
                      escaped(definitions()));
  return html + "</body>\n</html>\n";
}

}  // namespace levin::bench::client
