// Time of decode and verification passes of a full-size model on a CUDA device, with random weights
// made there, against the floor: bytes over the read bandwidth measured in the same run.
//
//   cuda_step CONFIG_FOLDER [--recipe bf16|coverage|4bit|int4]... [--context N] [--phases] [--mtp]
//   cuda_step CONFIG_FOLDER --prompts [--recipe ...]... [--chunk TOKENS] [--phases] [--mtp]
//
// With --prompts the time of prompts of 128, 1,024 and 8,192 tokens until the first token's
// logits are on the host, and where it goes.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "model/cost.h"
#include "runtime/cuda/profile.h"

namespace {

using levin::checkpoint::ModuleQuant;
using levin::checkpoint::QuantAlgo;
using levin::model::Role;
using levin::model::TensorPlan;

constexpr ModuleQuant kNvfp4 = {QuantAlgo::kW4A16Nvfp4, 16};
constexpr ModuleQuant kFp8 = {QuantAlgo::kFp8, 0};

struct Recipe {
  std::string name;
  ModuleQuant (*quant_of)(const TensorPlan&);
  bool half_state = false;
};

ModuleQuant bf16(const TensorPlan&) {
  return {};
}

// Routed experts and lm_head NVFP4, shared expert and Mamba FP8, attention BF16; drafter NVFP4.
ModuleQuant coverage(const TensorPlan& plan) {
  switch (plan.role) {
    case Role::kRoutedExperts:
    case Role::kLmHead:
      return kNvfp4;
    case Role::kSharedExperts:
    case Role::kMamba:
      return plan.mtp ? kNvfp4 : kFp8;
    default:
      return plan.mtp && plan.role == Role::kMtpInput ? kNvfp4 : ModuleQuant{};
  }
}

ModuleQuant all_4bit(const TensorPlan&) {
  return kNvfp4;
}
ModuleQuant all_int4(const TensorPlan&) {
  return {QuantAlgo::kInt4Packed, 64};
}

const std::vector<Recipe> kRecipes = {
    {"bf16", bf16}, {"coverage", coverage}, {"4bit", all_4bit, true}, {"int4", all_int4, true}};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double bytes_per_step(const levin::model::Config& config, const Recipe& recipe, int rows,
                      int context) {
  std::vector<levin::model::SizedTensor> tensors;
  for (const TensorPlan& plan : levin::model::plan_tensors(config)) {
    const bool linear = plan.kind == levin::model::TensorKind::kLinear;
    tensors.push_back(
        levin::model::sized_tensor(plan, linear ? recipe.quant_of(plan) : ModuleQuant{}));
  }
  levin::model::StepOptions options;
  options.tokens_per_sequence = rows;
  options.context = context;
  options.types.ssm = recipe.half_state ? 2 : 4;
  return levin::model::total(levin::model::step_operations(config, tensors, options))
      .memory_bytes();
}

void run(const std::string& folder, const Recipe& recipe, int context, bool phases, bool mtp) {
  const auto json = levin::read_json(std::filesystem::path(folder) / "config.json");
  const levin::model::Config config = levin::model::parse_config(json, folder);
  levin::runtime::Options options;
  options.max_model_len = 8192;
  options.max_extend_tokens = 16;
  options.ssm_cache_dtype =
      recipe.half_state ? levin::runtime::SsmCacheDType::kF16 : levin::runtime::SsmCacheDType::kF32;
  options.mtp = mtp;
  const auto profile = levin::runtime::make_cuda_profile(
      levin::runtime::make_shape_model(config, recipe.quant_of), options);
  const double bandwidth = profile->read_bandwidth();
  fmt::print("\n{}: {}, {:.1f} GB of weights and caches, plain read {:.0f} GB/s, context {}\n",
             recipe.name, profile->description(),
             static_cast<double>(profile->memory_bytes()) * 1e-9, bandwidth, context);
  fmt::print("tokens   MB    median us   min us   GB/s   % of plain read\n");
  for (int rows = 1; rows <= 8; ++rows) {
    const std::vector<double> times = profile->time_passes(rows, context, 21);
    const double bytes = bytes_per_step(config, recipe, rows, context);
    const double us = median(times);
    fmt::print("{:>4} {:>8.1f} {:>9.1f} {:>9.1f} {:>7.0f} {:>8.1f}\n", rows, bytes * 1e-6, us,
               *std::min_element(times.begin(), times.end()), bytes / us * 1e-3,
               bytes / us * 1e-3 / bandwidth * 100);
  }
  if (mtp) {
    const std::vector<double> times = profile->time_drafts(context, 21);
    fmt::print("a step of the draft head: median {:.1f} us, min {:.1f} us\n", median(times),
               *std::min_element(times.begin(), times.end()));
  }
  if (phases) fmt::print("{}", profile->phase_table(1, context));
  std::fflush(stdout);
}

void run_prompts(const std::string& folder, const Recipe& recipe, int chunk, bool phases,
                 bool mtp) {
  const auto json = levin::read_json(std::filesystem::path(folder) / "config.json");
  levin::runtime::Options options;
  options.max_model_len = 8192 + 64;
  options.max_extend_tokens = chunk;
  options.max_logits_rows = 16;
  options.ssm_cache_dtype =
      recipe.half_state ? levin::runtime::SsmCacheDType::kF16 : levin::runtime::SsmCacheDType::kF32;
  options.mtp = mtp;
  const auto profile = levin::runtime::make_cuda_profile(
      levin::runtime::make_shape_model(levin::model::parse_config(json, folder), recipe.quant_of),
      options);
  fmt::print("\n{}: {}, {:.1f} GB\n", recipe.name, profile->description(),
             static_cast<double>(profile->memory_bytes()) * 1e-9);
  for (const int tokens : {128, 1024, 8192}) {
    const std::vector<double> times = profile->time_prompt(tokens, 5);
    fmt::print("{:>5} tokens: median {:.2f} ms, min {:.2f} ms\n", tokens, median(times) * 1e-3,
               *std::min_element(times.begin(), times.end()) * 1e-3);
    if (phases) fmt::print("{}", profile->prompt_table(tokens));
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<std::string> wanted;
  std::string folder;
  int context = 1024;
  bool phases = false;
  bool mtp = false;
  bool prompts = false;
  int chunk = 4096;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--recipe" && i + 1 < argc) {
      wanted.emplace_back(argv[++i]);
    } else if (argument == "--context" && i + 1 < argc) {
      context = std::stoi(argv[++i]);
    } else if (argument == "--phases") {
      phases = true;
    } else if (argument == "--prompts") {
      prompts = true;
    } else if (argument == "--chunk" && i + 1 < argc) {
      chunk = std::stoi(argv[++i]);
    } else if (argument == "--mtp") {
      mtp = true;
    } else {
      folder = argument;
    }
  }
  for (const Recipe& recipe : kRecipes) {
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), recipe.name) != wanted.end()) {
      if (prompts) {
        run_prompts(folder, recipe, chunk, phases, mtp);
      } else {
        run(folder, recipe, context, phases, mtp);
      }
    }
  }
  return 0;
} catch (const levin::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return static_cast<int>(error.exit_code());
}
