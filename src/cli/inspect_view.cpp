#include "cli/inspect_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/plural.h"
#include "evaluate/table.h"
#include "quantize/report.h"

namespace levin::cli {
namespace {

using checkpoint::KvCacheQuant;
using evaluate::Table;
using model::BlockKind;
using nlohmann::json;

// 32913266240 -> "32,913,266,240"
std::string grouped(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (auto at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

std::string grouped(int64_t value) {
  return grouped(static_cast<double>(value));
}

// Decimal units, three significant decimals at most: "65.827 GB".
std::string size_text(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.3f} GB", bytes / 1e9);
  if (bytes >= 1e6) return fmt::format("{:.3f} MB", bytes / 1e6);
  if (bytes >= 1e4) return fmt::format("{:.3f} kB", bytes / 1e3);
  return fmt::format("{:.0f} B", bytes);
}

std::string size_or_blank(double bytes) {
  return bytes > 0 ? size_text(bytes) : "";
}

// "23 Mamba-2 (M), 23 MoE (E), 6 attention (*)"
std::string layer_counts(const std::vector<BlockKind>& layers) {
  std::string text;
  for (const auto& [kind, name] :
       {std::pair(BlockKind::kMamba, "Mamba-2"), std::pair(BlockKind::kMoe, "MoE"),
        std::pair(BlockKind::kAttention, "attention"), std::pair(BlockKind::kMlp, "MLP")}) {
    const auto count = std::count(layers.begin(), layers.end(), kind);
    if (count == 0) continue;
    text +=
        fmt::format("{}{} {} ({})", text.empty() ? "" : ", ", count, name, static_cast<char>(kind));
  }
  return text;
}

std::string quantization_text(const checkpoint::QuantMetadata& metadata) {
  if (metadata.method.empty()) return "none";
  std::string text = metadata.method;
  if (!metadata.format_version.empty()) text += " " + metadata.format_version;
  if (!metadata.producer.empty()) text += ", written by " + metadata.producer;
  if (metadata.kv_cache == KvCacheQuant::kFp8) text += ", FP8 KV cache";
  return text;
}

std::string shape_text(const model::Config& c) {
  std::string text = fmt::format("hidden {}, vocabulary {}", c.hidden_size, c.vocab_size);
  if (c.mamba_num_heads > 0) {
    text += fmt::format("; Mamba {} x {}, state {}, {}", counted(c.mamba_num_heads, "head"),
                        c.mamba_head_dim, c.ssm_state_size, counted(c.n_groups, "group"));
  }
  if (c.num_attention_heads > 0) {
    text += fmt::format("; attention {}/{} heads x {}", c.num_attention_heads,
                        c.num_key_value_heads, c.head_dim);
  }
  if (c.n_routed_experts > 0) {
    text += fmt::format("; {} of {}, {} active, shared {}", counted(c.n_routed_experts, "expert"),
                        c.moe_intermediate_size, c.num_experts_per_tok, c.shared_intermediate());
    if (c.moe_latent_size > 0) text += fmt::format(", latent {}", c.moe_latent_size);
  }
  return text;
}

std::string head_text(const Inspection& in) {
  const model::Config& c = in.config;
  const auto line = [](const char* label, const std::string& text) {
    return fmt::format("{:<13} {}\n", label, text);
  };
  std::string text = line("model", in.folder);
  text += line("schedule", pattern_of(c.layers));
  text += line("layers", fmt::format("{}: {}", c.layers.size(), layer_counts(c.layers)));
  text += line("MTP head", c.mtp_layers.empty() ? "none" : pattern_of(c.mtp_layers));
  text += line("shape", shape_text(c));
  text += line("context", grouped(c.max_position_embeddings) + " tokens");
  text += line("quantization",
               in.plan ? fmt::format("as planned by {}; nothing is written", in.plan->recipe.name)
                       : quantization_text(in.checkpoint->quantization()));
  text += line("parameters",
               fmt::format("{} ({} active per token)", grouped(in.summary.total.parameters),
                           grouped(in.summary.active_parameters)));
  return text;
}

std::string parts_text(const model::Summary& summary) {
  Table table(
      {"tensors by role", "format", "matrices", "tensors", "parameters", "size", "bits/weight"});
  const auto add = [&](const model::PartSummary& part) {
    table.add_row({part.part, part.format, part.linears > 0 ? grouped(part.linears) : "",
                   grouped(part.tensors), part.parameters > 0 ? grouped(part.parameters) : "",
                   size_text(part.bytes),
                   part.parameters > 0 ? fmt::format("{:.3f}", part.bits_per_weight()) : ""});
  };
  for (const model::PartSummary& part : summary.parts) add(part);
  table.add_rule();
  add(summary.total);
  return table.to_string();
}

std::string step_text(const model::Summary& summary) {
  const int64_t sequences = summary.options.sequences;
  Table table({"one decode step, " + counted(sequences, "sequence"), "weights", "state", "KV cache",
               "bytes", "share", "MFLOP"});
  const double all = summary.step_total.memory_bytes();
  const auto add = [&](const std::string& name, const model::Operation& sum) {
    table.add_row({name, size_or_blank(sum.weight_bytes), size_or_blank(sum.state_bytes),
                   size_or_blank(sum.kv_bytes), size_text(sum.memory_bytes()),
                   fmt::format("{:.1f} %", 100 * sum.memory_bytes() / all),
                   fmt::format("{:.1f}", sum.flops / 1e6)});
  };
  for (const model::ClassCost& cost : summary.step) add(cost.name, cost.sum);
  table.add_rule();
  add("total", summary.step_total);
  return table.to_string() +
         fmt::format("context {} tokens; the floor of a step is these bytes / read bandwidth\n",
                     grouped(summary.options.context));
}

std::string rounds_text(const model::Summary& summary) {
  if (summary.rounds.size() < 2) return {};
  Table table(
      {"speculation with the MTP head", "verify", "draft", "round", "tokens to break even"});
  const double plain = summary.rounds.front().bytes();
  for (const model::RoundCost& round : summary.rounds) {
    table.add_row({fmt::format("k = {}", round.k), size_text(round.verify.memory_bytes()),
                   size_or_blank(round.draft.memory_bytes()), size_text(round.bytes()),
                   fmt::format("{:.2f}", round.bytes() / plain)});
  }
  return table.to_string() +
         "experts as if neighbouring tokens routed independently; less when they agree\n\n";
}

// Contexts up to the model's own: the one asked for, and powers of eight.
std::vector<int64_t> plan_contexts(const Inspection& in) {
  const int64_t longest = in.config.max_position_embeddings;
  std::vector<int64_t> contexts = {in.summary.options.context, longest};
  for (int64_t context = 512; context < longest; context *= 8) contexts.push_back(context);
  std::sort(contexts.begin(), contexts.end());
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
  return contexts;
}

std::vector<int64_t> plan_sequences(const Inspection& in) {
  std::vector<int64_t> counts = {1, 4, 16, 64, in.summary.options.sequences};
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

std::string memory_text(const Inspection& in) {
  const model::Summary& summary = in.summary;
  const model::StateSize& state = summary.state;
  const std::vector<int64_t> sequences = plan_sequences(in);
  std::vector<std::string> header = {"memory: weights + state"};
  for (const int64_t count : sequences) {
    header.push_back(fmt::format("{} seq{}", count, count == 1 ? "" : "s"));
  }
  Table table(header);
  for (const int64_t context : plan_contexts(in)) {
    std::vector<std::string> row = {fmt::format("context {}", grouped(context))};
    for (const int64_t count : sequences) {
      row.push_back(size_text(summary.total.bytes + model::state_bytes(state, count, context)));
    }
    table.add_row(row);
  }
  return fmt::format(
             "KV cache      {} B/token{}\n"
             "state         {} B/sequence (SSM {}, convolution {})\n\n",
             grouped(state.kv_bytes_per_token),
             state.mtp_kv_bytes_per_token > 0 ? fmt::format(" + {} B/token for the MTP head",
                                                            grouped(state.mtp_kv_bytes_per_token))
                                              : "",
             grouped(state.recurrent_bytes()), grouped(state.ssm_bytes),
             grouped(state.conv_bytes)) +
         table.to_string();
}

std::string problem_text(const ErrorParts& parts) {
  std::string text = fmt::format("  - {}: {}\n", parts.what, parts.where);
  if (!parts.expected.empty()) text += fmt::format("      expected: {}\n", parts.expected);
  if (!parts.found.empty()) text += fmt::format("      found:    {}\n", parts.found);
  return text;
}

std::string verdict_text(const Inspection& in) {
  const auto& contradictions = in.checkpoint->quantization().contradictions;
  std::string text;
  if (contradictions.empty()) {
    text += "metadata      every place agrees\n";
  } else {
    text += fmt::format("metadata      CONTRADICTS ITSELF, {}\n",
                        counted(contradictions.size(), "finding"));
    for (const std::string& line : contradictions) text += fmt::format("  - {}\n", line);
  }
  if (in.problems.empty()) {
    text += "inventory     every tensor has its place, shape and type\n";
  } else {
    text += fmt::format("inventory     {} PROBLEM{}\n", in.problems.size(),
                        in.problems.size() == 1 ? "" : "S");
    for (const ErrorParts& problem : in.problems) text += problem_text(problem);
  }
  text += fmt::format("values        {}\n", in.values);
  for (const std::string& note : in.notes) text += fmt::format("note          {}\n", note);
  return text;
}

// Whole numbers of bytes and operations print as such.
json number(double value) {
  constexpr double kExact = 9007199254740992;  // 2^53
  if (std::abs(value) < kExact && value == std::floor(value)) return static_cast<int64_t>(value);
  return value;
}

json part_json(const model::PartSummary& part) {
  return {{"part", part.part},
          {"format", part.format},
          {"matrices", part.linears},
          {"tensors", part.tensors},
          {"parameters", part.parameters},
          {"bytes", number(part.bytes)},
          {"bits_per_weight", part.bits_per_weight()}};
}

json cost_json(const model::Operation& sum) {
  return {{"weight_bytes", number(sum.weight_bytes)},
          {"state_bytes", number(sum.state_bytes)},
          {"kv_bytes", number(sum.kv_bytes)},
          {"activation_bytes", number(sum.activation_bytes)},
          {"bytes", number(sum.memory_bytes())},
          {"flops", number(sum.flops)}};
}

json problem_json(const ErrorParts& parts) {
  return {{"what", parts.what},
          {"where", parts.where},
          {"expected", parts.expected},
          {"found", parts.found},
          {"hint", parts.hint}};
}

}  // namespace

std::string to_text(const Inspection& in) {
  std::string text = head_text(in) + "\n";
  if (in.plan) text += quantize::plan_table(*in.plan, in.checkpoint.get()) + "\n";
  return text + parts_text(in.summary) + "\n" + step_text(in.summary) + "\n" +
         rounds_text(in.summary) + memory_text(in) + "\n" +
         (in.device ? to_text(*in.device) + "\n" : "") + verdict_text(in);
}

json to_json(const Inspection& in) {
  const model::Summary& summary = in.summary;
  json out;
  out["model"] = in.folder;
  out["schedule"] = pattern_of(in.config.layers);
  out["mtp_schedule"] = pattern_of(in.config.mtp_layers);
  if (in.plan) out["plan"] = json(quantize::plan_json(*in.plan, in.checkpoint.get()));
  out["tensors"] =
      in.plan ? summary.total.tensors : static_cast<int64_t>(in.checkpoint->tensors().size());
  out["parameters"] = summary.total.parameters;
  out["active_parameters"] = number(summary.active_parameters);
  out["bytes"] = number(summary.total.bytes);
  out["quantization"] = {
      {"method", in.checkpoint->quantization().method},
      {"format_version", in.checkpoint->quantization().format_version},
      {"producer", in.checkpoint->quantization().producer},
      {"kv_cache", in.checkpoint->quantization().kv_cache == KvCacheQuant::kFp8 ? "FP8" : ""}};
  for (const model::PartSummary& part : summary.parts) out["parts"].push_back(part_json(part));
  json& step = out["decode_step"];
  step = cost_json(summary.step_total);
  step["sequences"] = summary.options.sequences;
  step["context"] = summary.options.context;
  for (const model::ClassCost& cost : summary.step)
    step["classes"][cost.name] = cost_json(cost.sum);
  for (const model::RoundCost& round : summary.rounds) {
    out["rounds"].push_back({{"k", round.k},
                             {"verify", cost_json(round.verify)},
                             {"draft", cost_json(round.draft)},
                             {"bytes", number(round.bytes())}});
  }
  out["memory"] = {{"weight_bytes", number(summary.total.bytes)},
                   {"kv_bytes_per_token", summary.state.kv_bytes_per_token},
                   {"mtp_kv_bytes_per_token", summary.state.mtp_kv_bytes_per_token},
                   {"ssm_bytes_per_sequence", summary.state.ssm_bytes},
                   {"conv_bytes_per_sequence", summary.state.conv_bytes},
                   {"recurrent_bytes_per_sequence", summary.state.recurrent_bytes()},
                   {"state_bytes", number(summary.state_total)},
                   {"total_bytes", number(summary.total.bytes + summary.state_total)}};
  if (in.device) out["device"] = to_json(*in.device);
  out["good"] = in.good();
  out["contradictions"] = in.checkpoint->quantization().contradictions;
  out["problems"] = json::array();
  for (const ErrorParts& problem : in.problems) out["problems"].push_back(problem_json(problem));
  out["values"] = in.values;
  out["notes"] = in.notes;
  return out;
}

}  // namespace levin::cli
