#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/ladder.h"
#include "bench/neighbours.h"

namespace levin::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

ContenderTiming timing(double tpot, double ttft) {
  ContenderTiming result;
  result.name = "x";
  result.prompt_tokens = 200;
  for (double noise : {1.0, 1.04, 0.97, 1.01, 1.1}) {
    result.tpot.push_back(tpot * noise);
    result.ttft.push_back(ttft * noise);
  }
  return result;
}

// Three tasks of 100 items, `lost` of each lost.
evaluate::Evaluation evaluation(int lost, double perplexity_factor) {
  evaluate::Evaluation result;
  for (const char* task : {"add", "sort", "<recall>"}) {
    for (int i = 0; i < 100; ++i) {
      result.items.push_back({.id = std::string(task) + std::to_string(i),
                              .task = task,
                              .thinking = i % 2 == 0,
                              .correct = i >= lost,
                              .same_tokens = true,
                              .hit_limit = false,
                              .loops = false,
                              .output_tokens = 20,
                              .output = {}});
    }
  }
  for (const char* kind : {"prose", "code"}) {
    evaluate::TextScore text{.kind = kind,
                             .documents = 1,
                             .tokens = 401,
                             .leftover = 0,
                             .unscored = 0,
                             .window = 100,
                             .compared = true,
                             .windows = {}};
    for (int i = 0; i < 4; ++i) {
      text.windows.push_back({100, 300 + 100 * std::log(perplexity_factor), 300, 1, 95});
    }
    result.texts.push_back(std::move(text));
  }
  return result;
}

LadderReport report() {
  LadderReport report;
  report.model = "models/<tiny> & co";
  report.runtime = "cpu, AVX-512, 2 threads";
  report.memory = {
      .gb_per_s = {20, 19, 21}, .threads = 2, .streams = 4, .bytes = 1 << 29, .huge_pages = true};
  report.workload_hash = "0123456789abcdef";
  report.command = {"levin", "ladder", "models/tiny", "-o", "out", "--limit", "60"};
  report.gate = {.median_recovery_min = 0.99,
                 .verbosity_increase_max = 0.05,
                 .repetition_increase_max = 0.005,
                 .perplexity_ratio_max = 1.03,
                 .confidence = 0.95};
  const double speeds[] = {2e-3,    1.1e-3, 0.9e-3,  1.0e-3,  0.95e-3, 0.5e-3,
                           0.45e-3, 0,      1.05e-3, 0.92e-3, 1.4e-3};
  const int losses[] = {0, 6, 40, 1, 2, 2, 2, 0, 0, 15, 0};
  std::size_t i = 0;
  for (const Rung& rung : all_rungs(true, false)) {
    RungResult result;
    result.rung = rung;
    if (result.climbed()) {
      result.checkpoint_bytes = 37'000'000 / (i == 0 ? 1 : 3);
      result.prediction = {i == 0 ? 21e6 : 8e6 + 1e5 * static_cast<double>(i)};
      result.timing.read_gb_per_s = 20;
      result.timing.baseline = timing(speeds[0], 0.05);
      result.timing.own = timing(speeds[i], 0.03);
      result.timing.control = timing(rung.k > 0 ? 0.95e-3 : speeds[i], 0.03);
      if (rung.k > 0) {
        result.timing.own.speculation = {.num_drafts = 100,
                                         .num_draft_tokens = 300,
                                         .num_accepted_tokens = 220,
                                         .num_accepted_tokens_per_pos = {90, 75, 55}};
      }
      result.evaluation = evaluation(losses[i], i == 0 ? 1.0 : 1.0 + losses[i] / 400.0);
      if (i > 0) {
        result.gate = evaluate::judge(
            report.gate, evaluate::compare(report.rungs[0].evaluation, result.evaluation));
      }
    }
    report.rungs.push_back(std::move(result));
    ++i;
  }
  return report;
}

TEST(LadderReport, TextNamesEveryRungAndItsVerdict) {
  const std::string text = to_text(report());
  for (const Rung& rung : all_rungs(true, false)) EXPECT_THAT(text, HasSubstr(rung.title));
  EXPECT_THAT(text, HasSubstr("2 w4a4-naive: FAIL: median_recovery_min"));
  EXPECT_THAT(text, HasSubstr("not climbed"));
  EXPECT_THAT(text, HasSubstr("0.90/0.75/0.55"));
  EXPECT_THAT(text, HasSubstr("over control"));
}

TEST(LadderReport, MarkdownHasARowForEveryClimbedRung) {
  const std::string text = to_markdown(report());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2 + 10);
  EXPECT_THAT(text, HasSubstr("| recipe | size MB | MB/token | perplexity prose (ratio) | KL nats "
                              "| top-1 | perplexity code (ratio) |"));
  EXPECT_THAT(text,
              HasSubstr("| bf16 | 37.00 | 21.00 | 20.086 |  |  | 20.086 |  |  |  | baseline |"));
  // 40 of 100 lost in each task, perplexity times 1.1, 1 nat over 100 tokens, 95 of 100 agree.
  EXPECT_THAT(text, HasSubstr("| w4a4-naive | 12.33 | 8.20 | 22.094 (1.1000) | 0.0100 | 95.0 % |"));
  EXPECT_THAT(text, HasSubstr("| 60.0 ["));
  EXPECT_THAT(text, HasSubstr("| FAIL |"));
  EXPECT_THAT(text, Not(HasSubstr("fused")));
}

TEST(LadderReport, JsonHoldsTheFigures) {
  const auto json = nlohmann::json::parse(to_json(report()).dump());
  ASSERT_EQ(json.at("rungs").size(), 11u);
  const auto& naive = json.at("rungs").at(2);
  EXPECT_EQ(naive.at("gate").at("verdict"), "FAIL");
  EXPECT_NEAR(naive.at("predicted_tpot_ms").get<double>(), 8.2e6 / 20e9 * 1e3, 1e-9);
  EXPECT_NEAR(naive.at("tasks").at("median_recovery").get<double>(), 0.6, 1e-9);
  EXPECT_NEAR(naive.at("timing").at("speedup_over_rung_0").at("median").get<double>(), 2 / 0.9,
              1e-6);
  EXPECT_TRUE(naive.at("bytes_per_token").is_number_integer());
  const auto& drafts = json.at("rungs").at(5);
  EXPECT_NEAR(drafts.at("speculation").at("acceptance_length").get<double>(), 3.2, 1e-9);
  EXPECT_EQ(drafts.at("speculation").at("accepted_per_position").size(), 3u);
  EXPECT_NEAR(drafts.at("timing").at("speedup_over_control").at("median").get<double>(), 0.95 / 0.5,
              1e-6);
  EXPECT_FALSE(json.at("rungs").at(7).at("climbed").get<bool>());
  EXPECT_TRUE(json.at("rungs").at(7).contains("reason"));
  EXPECT_FALSE(json.at("rungs").at(0).contains("gate"));
}

TEST(LadderReport, HtmlIsSelfContainedAndEscaped) {
  const std::string html = to_html(report());
  EXPECT_THAT(html, HasSubstr("<!doctype html>"));
  EXPECT_THAT(html, HasSubstr("&lt;recall&gt;"));
  EXPECT_THAT(html, HasSubstr("models/&lt;tiny&gt; &amp; co"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(html, HasSubstr("bar failed"));
  EXPECT_THAT(html, HasSubstr("bar baseline"));
  for (const char* forbidden : {"http:", "https:", "<script", "src=", "<link", "@import", "url("}) {
    EXPECT_THAT(html, Not(HasSubstr(forbidden)));
  }
  std::ofstream(testing::TempDir() + "/levin_ladder_report_test.html") << html;
}

// The row of a rung in one of the text's tables; empty when there is none.
std::string row_of(const std::string& text, const std::string& title) {
  const std::size_t begin = text.find("\n" + title + "  ");
  return begin == text.npos ? "" : text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
}

// All cells of a rung in the page's table.
std::string html_row_of(const std::string& html, const std::string& title) {
  const std::size_t begin = html.find("<tr><td>" + title + "</td>");
  return begin == html.npos ? "" : html.substr(begin, html.find("</tr>", begin) - begin);
}

TEST(LadderReport, ComparesNothingWithItself) {
  const LadderReport made = report();
  const std::string text = to_text(made);
  const std::string html = to_html(made);
  EXPECT_THAT(row_of(text, "0 bf16"), Not(HasSubstr("x")));
  EXPECT_THAT(row_of(text, "3 w4a4"), HasSubstr("2.00 [2.00-2.00]x"));
  EXPECT_THAT(row_of(text, "3 w4a4"), Not(HasSubstr("1.00 [")));

  EXPECT_THAT(html_row_of(html, "0 bf16"), Not(HasSubstr("&times;")));
  EXPECT_THAT(html_row_of(html, "0 bf16"), Not(HasSubstr("100.0 %")));
  EXPECT_THAT(html_row_of(html, "0 bf16"), HasSubstr("baseline"));
  EXPECT_THAT(html_row_of(html, "3 w4a4"), HasSubstr("2.00&times;"));
  EXPECT_THAT(html_row_of(html, "3 w4a4"), Not(HasSubstr("1.00&times;")));
  EXPECT_THAT(html_row_of(html, "5 + MTP k=3"), HasSubstr("1.90&times;"));
  EXPECT_THAT(html, HasSubstr("The other rungs are judged beside this one."));

  const auto rungs = to_json(made).at("rungs");
  EXPECT_TRUE(rungs.at(0).at("timing").at("speedup_over_rung_0").is_null());
  EXPECT_TRUE(rungs.at(0).at("timing").at("speedup_over_control").is_null());
  EXPECT_FALSE(rungs.at(0).at("tasks").contains("median_recovery"));
  EXPECT_TRUE(rungs.at(3).at("timing").at("speedup_over_control").is_null());
  EXPECT_FALSE(rungs.at(5).at("timing").at("speedup_over_control").is_null());
}

TEST(LadderReport, FewerBytesNeverHaveAHigherFloor) {
  LadderReport made = report();
  made.rungs[1].timing.read_gb_per_s = 80;  // a cache feeds it
  made.rungs[2].timing.read_gb_per_s = 45;  // the same cache in a bad moment
  ASSERT_LT(made.rungs[1].prediction.bytes_per_token, made.rungs[2].prediction.bytes_per_token);
  const FastestRead read = fastest_read(made);
  EXPECT_EQ(read.gb_per_s, 80);
  for (const RungResult& one : made.rungs) {
    for (const RungResult& other : made.rungs) {
      if (one.prediction.bytes_per_token < other.prediction.bytes_per_token) {
        EXPECT_LT(floor_ms(one, read), floor_ms(other, read));
      }
    }
  }
  for (const std::string& page : {to_text(made), to_html(made)}) {
    EXPECT_THAT(page, HasSubstr("80.0 GB/s, the fastest read of this climb (a buffer as large as a "
                                "token of rung 1 w4a16)"));
  }
  EXPECT_EQ(to_json(made).at("device").at("floor").at("read_gb_per_s"), 80);
  made.memory.gb_per_s.median = 90;
  EXPECT_EQ(fastest_read(made).of, "memory");
}

// What is divided stands beside the quotient.
TEST(LadderReport, SpeedUpsCanBeCheckedFromTheirRow) {
  LadderReport made = report();
  made.rungs[5].timing.baseline = timing(1.6e-3, 0.05);  // rung 0 again, on a better day
  const std::string row = row_of(to_text(made), "5 + MTP k=3");
  EXPECT_THAT(row, HasSubstr("0.505 ["));    // 0.5 ms, median of its noise
  EXPECT_THAT(row, HasSubstr("  1.616  "));  // rung 0 in these rounds
  EXPECT_THAT(row, HasSubstr("3.20 ["));
  EXPECT_THAT(row, HasSubstr("  0.959  "));  // the control
  EXPECT_THAT(row, HasSubstr("1.90 ["));
  EXPECT_THAT(to_text(made), HasSubstr("over rung 0: rung 0 ms / TPOT ms"));
  EXPECT_THAT(to_html(made), HasSubstr("Over rung 0: rung 0 ms / TPOT ms"));
}

TEST(LadderReport, TellsWhatWouldDecide) {
  LadderReport made = report();
  int64_t needed = 0;
  int64_t undecided = 0;
  for (const RungResult& result : made.rungs) {
    if (!result.climbed() || result.gate.verdict != evaluate::Verdict::kUndecided) continue;
    if (made.is_baseline(result)) continue;
    ++undecided;
    for (const evaluate::GateLine& line : result.gate.lines) {
      if (line.verdict != evaluate::Verdict::kUndecided) continue;
      EXPECT_THAT(to_text(made), HasSubstr(result.rung.title + ": undecided: " + explain(line)));
      if (line.flag_to_decide) needed = std::max(needed, *line.flag_to_decide);
    }
  }
  ASSERT_GT(undecided, 0);
  const std::string count = "So few items do not decide " + std::to_string(undecided) + " rungs.";
  const std::string command =
      "To decide: levin ladder models/tiny -o out --limit " + std::to_string(needed);
  for (const std::string& page : {to_text(made), to_html(made)}) {
    EXPECT_THAT(page, HasSubstr(count));
    EXPECT_THAT(page, HasSubstr(command));
  }
  EXPECT_THAT(to_json(made).at("to_decide").get<std::string>(), HasSubstr(command));
}

TEST(LadderReport, TellsWhenTheMachineWasBusy) {
  LadderReport busy = report();
  EXPECT_LT(noise(busy), kTolerableNoise);
  EXPECT_THAT(to_text(busy), Not(HasSubstr("BUSY")));
  busy.rungs[3].timing.control.tpot[1] *= 3;
  EXPECT_GT(noise(busy), 2.5);
  EXPECT_THAT(to_text(busy), HasSubstr("THE MACHINE WAS BUSY"));
  EXPECT_THAT(to_html(busy), HasSubstr("The machine was busy"));
}

TEST(LadderReport, TellsWhenSpeculationChangedTheOutput) {
  LadderReport broken = report();
  broken.rungs[5].timing.same_tokens_as_control = false;
  EXPECT_THAT(to_text(broken), HasSubstr("SPECULATION CHANGED THE OUTPUT"));
  EXPECT_THAT(to_html(broken), HasSubstr("other tokens"));
}

}  // namespace
}  // namespace levin::bench
