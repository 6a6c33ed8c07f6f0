// Text and JSON of bench/bench.h.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "core/plural.h"
#include "evaluate/table.h"

namespace levin::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDefinitions =
    "One sequence at a time, greedy, exactly the same prompts and output length for everyone.\n"
    "  TTFT              start of prefill to the first token\n"
    "  TPOT              (t_last - t_first) / (N - 1) over the N tokens of an output\n"
    "  decode tokens/s   (N - 1) / (t_last - t_first)\n"
    "  prefill tokens/s  prompt tokens / TTFT\n"
    "Each round times every prompt, with speculation and its control in turn; figures are medians\n"
    "over rounds, ratios are medians of the ratios within a round.\n";

void add_row(evaluate::Table& table, const std::string& name, const Spread& spread, int digits) {
  table.add_row({name, fmt::format("{:.{}f}", spread.median, digits),
                 fmt::format("{:.{}f}", spread.min, digits),
                 fmt::format("{:.{}f}", spread.max, digits)});
}

std::string shares(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    text += fmt::format("{}{:.3f}", text.empty() ? "" : " / ", value);
  }
  return text;
}

std::string workload_line(const BenchReport& report) {
  std::string prompts;
  for (const Prompt& prompt : report.workload.prompts) {
    prompts +=
        fmt::format("{}{} {}", prompts.empty() ? "" : ", ", prompt.name, prompt.tokens.size());
  }
  return fmt::format("{} tokens in, {} out; {} after {} to warm up; hash {}", prompts,
                     report.timing.output_tokens, counted(int64_t{report.timing.rounds}, "round"),
                     report.timing.warm_up, report.workload.hash);
}

Json timing_json(const ContenderTiming& timing) {
  return {{"tokens_per_second", timing.decode_tokens_per_second().median},
          {"tokens_per_second_spread", to_json(timing.decode_tokens_per_second())},
          {"tpot_ms", timing.tpot_ms().median},
          {"tpot_ms_spread", to_json(timing.tpot_ms())}};
}

}  // namespace

std::string to_text(const Bandwidth& bandwidth) {
  if (bandwidth.device) {
    return fmt::format("{:.1f} GB/s [{:.1f} .. {:.1f}] over {:.1f} MiB of the device's memory",
                       bandwidth.gb_per_s.median, bandwidth.gb_per_s.min, bandwidth.gb_per_s.max,
                       static_cast<double>(bandwidth.bytes) / (1 << 20));
  }
  return fmt::format("{:.1f} GB/s [{:.1f} .. {:.1f}] over {:.1f} MiB, {} x {}{}",
                     bandwidth.gb_per_s.median, bandwidth.gb_per_s.min, bandwidth.gb_per_s.max,
                     static_cast<double>(bandwidth.bytes) / (1 << 20),
                     counted(int64_t{bandwidth.threads}, "thread"),
                     counted(int64_t{bandwidth.streams}, "stream"),
                     bandwidth.huge_pages ? ", huge pages" : "");
}

std::string to_text(const BenchReport& report) {
  std::string text = fmt::format(
      "model      {}\nruntime    {}\nrounds     {}\nwork       {}\nmemory     {}\nat size    "
      "{}\n\n",
      report.model, report.runtime,
      report.device_rounds ? "by the device, one launch each" : "by the host",
      workload_line(report), to_text(report.memory), to_text(report.at_model_size));
  if (!report.synthetic_rates.empty()) {
    text += fmt::format(
        "SYNTHETIC ACCEPTANCE {}: drafts are accepted in these shares of the rounds, whatever the\n"
        "model says. The tokens are not the model's; only the speed means anything.\n\n",
        shares(report.synthetic_rates));
  }

  evaluate::Table table({"", "median", "min", "max"});
  add_row(table, "TTFT ms", report.control.ttft_ms(), 2);
  add_row(table, "prefill tokens/s", report.control.prefill_tokens_per_second(), 1);
  add_row(table, "TPOT ms", report.control.tpot_ms(), 3);
  add_row(table, "decode tokens/s", report.control.decode_tokens_per_second(), 1);
  if (report.speculating) {
    table.add_rule();
    add_row(table, fmt::format("k={} TPOT ms", report.k), report.speculating->tpot_ms(), 3);
    add_row(table, fmt::format("k={} decode tokens/s", report.k),
            report.speculating->decode_tokens_per_second(), 1);
    add_row(table, "speed-up over control", speedup(*report.speculating, report.control), 2);
  }
  text += table.to_string() + '\n';

  if (report.disturbance.noticeable()) {
    text += fmt::format("{}\n{}\n", to_text(report.disturbance), kDoNotTrust);
  }
  const double bytes = report.control_prediction.bytes_per_token;
  text += fmt::format(
      "A token reads {:.2f} MB. Decode reads them at {:.1f} % of the bandwidth of memory and "
      "{:.1f} %\nof that of a buffer of this size{}.\n",
      bytes / 1e6, report.share_of(report.memory) * 100,
      report.share_of(report.at_model_size) * 100,
      !report.memory.device && bytes < static_cast<double>(last_level_cache_bytes())
          ? ", which the cache feeds"
          : "");
  if (report.speculating) {
    const engine::SpeculationStats& stats = report.speculating->speculation;
    text += fmt::format(
        "Speculation: {:.2f} tokens a round; draft 1, 2, ... accepted in {} of rounds; {}.\n",
        stats.mean_acceptance_length(), shares(accepted_per_position(stats)),
        !report.synthetic_rates.empty() ? "acceptance is synthetic"
        : report.lossless()             ? "all tokens equal the control's"
                                        : "SOME TOKENS DIFFER FROM THE CONTROL'S");
  }
  return text + '\n' + kDefinitions;
}

Json to_json(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

Json to_json(const Bandwidth& bandwidth) {
  if (bandwidth.device) {
    return {{"read_gb_per_s", bandwidth.gb_per_s.median},
            {"spread", to_json(bandwidth.gb_per_s)},
            {"memory", "device"},
            {"bytes", bandwidth.bytes}};
  }
  return {{"read_gb_per_s", bandwidth.gb_per_s.median},
          {"spread", to_json(bandwidth.gb_per_s)},
          {"threads", bandwidth.threads},
          {"streams", bandwidth.streams},
          {"bytes", bandwidth.bytes},
          {"huge_pages", bandwidth.huge_pages}};
}

Json to_json(const BenchReport& report) {
  Json device = to_json(report.memory);
  device["runtime"] = report.runtime;
  device["rounds"] = report.device_rounds ? "device" : "host";
  device["at_model_size"] = to_json(report.at_model_size);
  device["last_level_cache_bytes"] = last_level_cache_bytes();

  Json prompts = Json::array();
  for (const Prompt& prompt : report.workload.prompts) {
    prompts.push_back({{"name", prompt.name}, {"tokens", prompt.tokens.size()}});
  }
  Json decode = timing_json(report.control);
  decode["bytes_per_token"] = report.control_prediction.whole_bytes();
  decode["floor_tpot_ms"] =
      report.control_prediction.tpot_seconds(report.memory.gb_per_s.median) * 1e3;
  decode["share_of_read_bandwidth"] = report.share_of(report.memory);
  decode["share_of_read_bandwidth_at_size"] = report.share_of(report.at_model_size);

  Json json = {{"model", report.model},
               {"device", std::move(device)},
               {"workload",
                {{"prompts", std::move(prompts)},
                 {"output_tokens", report.timing.output_tokens},
                 {"rounds", report.timing.rounds},
                 {"warm_up", report.timing.warm_up},
                 {"hash", report.workload.hash}}},
               {"machine_was_busy", to_json(report.disturbance)},
               {"decode", std::move(decode)},
               {"prefill",
                {{"tokens_per_second", report.control.prefill_tokens_per_second().median},
                 {"tokens_per_second_spread", to_json(report.control.prefill_tokens_per_second())},
                 {"ttft_ms", report.control.ttft_ms().median},
                 {"ttft_ms_spread", to_json(report.control.ttft_ms())}}}};
  if (report.speculating) {
    const engine::SpeculationStats& stats = report.speculating->speculation;
    const Spread faster = speedup(*report.speculating, report.control);
    Json speculation = timing_json(*report.speculating);
    speculation["num_speculative_tokens"] = report.k;
    speculation["acceptance_length"] = stats.mean_acceptance_length();
    speculation["accepted_per_position"] = accepted_per_position(stats);
    speculation["num_drafts"] = stats.num_drafts;
    speculation["num_accepted_tokens"] = stats.num_accepted_tokens;
    speculation["speedup_over_control"] = faster.median;
    speculation["speedup_over_control_spread"] = to_json(faster);
    speculation["bytes_per_token"] = report.speculating_prediction->whole_bytes();
    if (report.synthetic_rates.empty()) {
      speculation["same_tokens_as_control"] = report.lossless();
    } else {
      speculation["rejection_sample_method"] = "synthetic";
      speculation["synthetic_acceptance_rates"] = report.synthetic_rates;
    }
    json["speculation"] = std::move(speculation);
  }
  json["definitions"] = kDefinitions;
  return json;
}

}  // namespace levin::bench
