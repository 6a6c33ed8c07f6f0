// Text and JSON of bench/roofline.h.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "bench/roofline.h"
#include "core/plural.h"
#include "evaluate/table.h"

namespace levin::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDefinitions =
    "  after      tokens that the sequence had before a step, on average\n"
    "  mamba      in: norm and in_proj; scan: convolution and recurrence; out: norm and out_proj\n"
    "  attention  in: norm, q, k and v; attend: scores and sums over the KV cache; out: o_proj\n"
    "  experts    router+shared up: norm, router, the shared expert's first matrix; route: "
    "choosing\n"
    "             the experts of many tokens; then the routed experts' first matrices, and at "
    "last\n"
    "             the second ones of both\n"
    "  draft:     of the draft head, which keeps up with the prompt, too; draft in: its eh_proj\n"
    "  barriers   times a step that all threads wait for each other behind this phase\n"
    "  MB         weights, recurrent state and KV cache that the cost model says a step reads and\n"
    "             writes; of routed experts those that the runtime counted\n"
    "  counted    the same as the runtime added it up, padding included; without embeddings, "
    "norms\n"
    "             and convolutions\n"
    "  act. MB    activations between phases, in and out; no part of MB or the floor\n"
    "  MFLOP      multiplications and additions that the cost model says a step makes\n"
    "  floor us   the longer of bytes / bandwidth and operations / arithmetic rate\n"
    "  us, min    measured: median and least over steps, all layers together, barrier to barrier\n"
    "  GB/s       MB / us\n"
    "  ceiling    floor us / us; above 100 % where a cache fed a phase faster than one stream of\n"
    "             the step's size is read (its bandwidth is above each table)\n"
    "  waiting    share of the threads' time spent at barriers\n"
    "  experts    (the column) distinct routed experts that a layer read, counted\n"
    "  the rest   of a step, in no phase: waking the threads, bookkeeping of the call\n";

std::string name_of(const RooflineLine& line) {
  return fmt::format("{}{}", line.draft ? "draft: " : "", runtime::name_of(line.phase));
}

std::string percent(double part, double whole) {
  return whole > 0 && part > 0 ? fmt::format("{:.1f} %", part / whole * 100) : "";
}

std::string rate(double bytes, double seconds) {
  return seconds > 0 && bytes > 0 ? fmt::format("{:.1f}", bytes / seconds * 1e-9) : "";
}

std::string text_of(const RooflineTable& table) {
  evaluate::Table lines({"", "barriers", "MB", "counted", "act. MB", "MFLOP", "floor us", "us",
                         "min", "GB/s", "ceiling", "waiting", "experts"});
  double counted_bytes = 0;
  for (const RooflineLine& line : table.lines) {
    counted_bytes += line.counted_bytes;
    lines.add_row({name_of(line), fmt::format("{:.0f}", line.barriers),
                   fmt::format("{:.3f}", line.cost.memory_bytes() / 1e6),
                   fmt::format("{:.3f}", line.counted_bytes / 1e6),
                   fmt::format("{:.3f}", line.cost.activation_bytes / 1e6),
                   fmt::format("{:.2f}", line.cost.flops / 1e6),
                   fmt::format("{:.1f}", line.floor_seconds * 1e6),
                   fmt::format("{:.1f}", line.seconds.median * 1e6),
                   fmt::format("{:.1f}", line.seconds.min * 1e6),
                   rate(line.cost.memory_bytes(), line.seconds.median),
                   percent(line.floor_seconds, line.seconds.median),
                   fmt::format("{:.0f} %", line.waiting * 100),
                   line.experts > 0 ? fmt::format("{:.2f}", line.experts) : ""});
  }
  lines.add_rule();
  lines.add_row({"all phases", "", fmt::format("{:.3f}", table.cost.memory_bytes() / 1e6),
                 fmt::format("{:.3f}", counted_bytes / 1e6),
                 fmt::format("{:.3f}", table.cost.activation_bytes / 1e6),
                 fmt::format("{:.2f}", table.cost.flops / 1e6),
                 fmt::format("{:.1f}", table.floor_seconds * 1e6),
                 fmt::format("{:.1f}", table.phase_seconds * 1e6), "",
                 rate(table.cost.memory_bytes(), table.phase_seconds),
                 percent(table.floor_seconds, table.phase_seconds),
                 fmt::format("{:.0f} %", table.waiting * 100)});
  lines.add_row(
      {"the rest", "", "", "", "", "", "", fmt::format("{:.1f}", table.rest_seconds * 1e6)});
  lines.add_row({"a step", "", "", "", "", "", fmt::format("{:.1f}", table.floor_seconds * 1e6),
                 fmt::format("{:.1f}", table.seconds.median * 1e6),
                 fmt::format("{:.1f}", table.seconds.min * 1e6),
                 rate(table.cost.memory_bytes(), table.seconds.median),
                 percent(table.floor_seconds, table.seconds.median)});
  return fmt::format("{}: {} a step after {:.0f}, {}; read {}\n{}\n", table.name,
                     counted(int64_t{table.rows}, "token"), table.context,
                     counted(table.steps, "step"), to_text(table.bandwidth), lines.to_string());
}

Json cost_json(const model::Operation& cost) {
  return {{"weight_bytes", cost.weight_bytes},   {"state_bytes", cost.state_bytes},
          {"kv_bytes", cost.kv_bytes},           {"activation_bytes", cost.activation_bytes},
          {"memory_bytes", cost.memory_bytes()}, {"flops", cost.flops}};
}

Json line_json(const RooflineLine& line) {
  Json json = {{"phase", name_of(line)}, {"barriers", line.barriers}};
  json.update(cost_json(line.cost));
  json["counted_bytes"] = line.counted_bytes;
  json["floor_us"] = line.floor_seconds * 1e6;
  json["us"] = line.seconds.median * 1e6;
  json["us_min"] = line.seconds.min * 1e6;
  json["us_max"] = line.seconds.max * 1e6;
  json["share_of_ceiling"] = line.floor_seconds / line.seconds.median;
  json["waiting"] = line.waiting;
  if (line.experts > 0) json["distinct_experts_per_layer"] = line.experts;
  return json;
}

Json table_json(const RooflineTable& table) {
  Json lines = Json::array();
  for (const RooflineLine& line : table.lines) lines.push_back(line_json(line));
  Json json = {{"step", table.name},
               {"rows", table.rows},
               {"context", table.context},
               {"steps", table.steps},
               {"bandwidth", to_json(table.bandwidth)},
               {"phases", std::move(lines)},
               {"total", cost_json(table.cost)},
               {"floor_us", table.floor_seconds * 1e6},
               {"phases_us", table.phase_seconds * 1e6},
               {"rest_us", table.rest_seconds * 1e6},
               {"step_us", table.seconds.median * 1e6},
               {"step_us_min", table.seconds.min * 1e6},
               {"step_us_max", table.seconds.max * 1e6},
               {"share_of_ceiling", table.floor_seconds / table.seconds.median},
               {"waiting", table.waiting}};
  return json;
}

}  // namespace

std::string to_text(const Roofline& roofline) {
  std::string text =
      fmt::format("model      {}\nruntime    {}\nmemory     {}\n{}", roofline.model,
                  roofline.runtime, to_text(roofline.memory), to_text(roofline.rates));
  text += fmt::format("ceiling    memory of each step's size, {} arithmetic\n\n", roofline.rate);
  for (const RooflineTable& table : roofline.tables) text += text_of(table);
  for (const RooflineGap& gap : roofline.gaps) {
    text += fmt::format("{}: no table: {}\n\n", gap.name, gap.why);
  }
  if (roofline.neighbours.noticeable()) text += to_warning(roofline.neighbours) + '\n';
  return text + kDefinitions;
}

std::string to_text(const std::vector<ArithmeticRate>& rates) {
  std::string text;
  for (const ArithmeticRate& rate : rates) {
    text += fmt::format(
        "{:<10} {:.1f} GFLOP/s [{:.1f} .. {:.1f}] on 1 thread, {:.1f} [{:.1f} .. {:.1f}] on {} "
        "({})\n",
        rate.name, rate.one_thread.median, rate.one_thread.min, rate.one_thread.max,
        rate.all_threads.median, rate.all_threads.min, rate.all_threads.max, rate.threads,
        rate.instruction);
  }
  return text;
}

Json to_json(const std::vector<ArithmeticRate>& rates) {
  Json json = Json::object();
  for (const ArithmeticRate& rate : rates) {
    json[rate.name] = {{"instruction", rate.instruction},
                       {"one_thread_gflop_per_s", rate.one_thread.median},
                       {"one_thread_spread", to_json(rate.one_thread)},
                       {"gflop_per_s", rate.all_threads.median},
                       {"spread", to_json(rate.all_threads)},
                       {"threads", rate.threads}};
  }
  return json;
}

Json to_json(const Roofline& roofline) {
  Json device = to_json(roofline.memory);
  device["runtime"] = roofline.runtime;
  device["arithmetic"] = to_json(roofline.rates);
  device["ceiling_arithmetic"] = roofline.rate;
  Json tables = Json::array();
  for (const RooflineTable& table : roofline.tables) tables.push_back(table_json(table));
  Json gaps = Json::array();
  for (const RooflineGap& gap : roofline.gaps)
    gaps.push_back({{"step", gap.name}, {"why", gap.why}});
  return {{"model", roofline.model},
          {"device", std::move(device)},
          {"roofline", std::move(tables)},
          {"no_table", std::move(gaps)},
          {"machine_was_busy", to_json(roofline.neighbours)},
          {"definitions", kDefinitions}};
}

}  // namespace levin::bench
