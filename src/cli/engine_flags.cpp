#include "cli/engine_flags.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/validators.h"
#include "core/control_groups.h"
#include "core/error.h"
#include "core/files.h"
#include "core/plural.h"
#include "core/thread_team.h"
#ifdef LEVIN_CUDA
#include "runtime/cuda/make_cuda_runtime.h"
#endif

namespace levin::cli {
namespace {

constexpr int kMaxSpeculativeTokens = 7;

#ifdef LEVIN_CUDA
// Linears that are not computed as they are stored, one line for each reason.
void log_deviations(const std::vector<runtime::PlanEntry>& plan) {
  std::map<std::string, int64_t> reasons;
  for (const runtime::PlanEntry& entry : plan) {
    if (!entry.why.empty()) ++reasons[entry.stored_as + ": " + entry.why];
  }
  for (const auto& [reason, linears] : reasons) {
    spdlog::warn("{}, {}", counted(linears, "linear"), reason);
  }
}
#endif

[[noreturn]] void bad_device(const EngineFlags& flags, std::string what, ExitCode code,
                             std::string hint = {}) {
  throw Error({.what = std::move(what),
               .where = "--device",
               .expected = "auto, cpu, cuda or cuda:N",
               .found = flags.device,
               .hint = std::move(hint),
               .exit_code = code});
}

#ifdef LEVIN_CUDA
void require_device(const EngineFlags& flags, int device) {
  const std::vector<std::string> devices = runtime::cuda_devices();
  if (devices.empty()) {
    bad_device(flags, "this machine has no CUDA device, or no driver for it", ExitCode::kMachine,
               "nvidia-smi shows what the driver sees; --device cpu needs neither");
  }
  if (device < static_cast<int>(devices.size())) return;
  std::string known;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    known += fmt::format("{}cuda:{} ({})", known.empty() ? "" : ", ", i, devices[i]);
  }
  bad_device(flags, "there is no such CUDA device", ExitCode::kMachine, "there is " + known);
}
#endif

// N of cuda:N; nothing for the CPU. `auto` is the first CUDA device, if there is one, unless the
// reference runtime is asked for.
std::optional<int> cuda_device(const EngineFlags& flags) {
  if (flags.device == "cpu") return std::nullopt;
  if (flags.device == "auto") {
#ifdef LEVIN_CUDA
    if (flags.runtime == "fast" && !runtime::cuda_devices().empty()) return 0;
#endif
    return std::nullopt;
  }
  if (flags.device == "cuda") return 0;
  int device = 0;
  const std::string prefix = "cuda:";
  const char* end = flags.device.data() + flags.device.size();
  if (!flags.device.starts_with(prefix) || flags.device.size() == prefix.size() ||
      std::from_chars(flags.device.data() + prefix.size(), end, device).ptr != end || device < 0) {
    bad_device(flags, "unknown device", ExitCode::kBadInput);
  }
  return device;
}

void choose_device(const EngineFlags& flags, engine::LoadOptions& options) {
  const std::optional<int> device = cuda_device(flags);
  if (!device) return;
  if (flags.pin_threads) {
    bad_device(flags, "--pin-threads binds threads of the CPU runtimes, and a CUDA device has none",
               ExitCode::kBadInput, "leave --pin-threads out, or give --device cpu");
  }
  if (flags.runtime == "reference") {
    bad_device(flags, "the reference runtime is for the CPU", ExitCode::kBadInput);
  }
#ifdef LEVIN_CUDA
  require_device(flags, *device);
  options.make_runtime = [device = *device](std::shared_ptr<const model::Model> model,
                                            const runtime::Options& runtime_options) {
    auto made = runtime::make_cuda_runtime(std::move(model), runtime_options, device);
    log_deviations(made->plan());
    return made;
  };
  options.make_dummy_model = [](const std::filesystem::path& folder) {
    return runtime::make_shape_model(folder);
  };
#else
  static_cast<void>(options);
  bad_device(flags, "this build has no CUDA runtime", ExitCode::kMachine,
             "where nvcc of CUDA 12.4 or later is found, building again from an empty build folder "
             "makes one; --device cpu needs none");
#endif
}

[[noreturn]] void bad_speculation(std::string what, std::string expected, std::string found) {
  throw Error({.what = std::move(what),
               .where = "--speculative-config",
               .expected = std::move(expected),
               .found = std::move(found),
               .hint = R"(for example {"method": "mtp", "num_speculative_tokens": 3})"});
}

std::vector<double> acceptance_rates(const nlohmann::json& json) {
  std::vector<double> rates;
  for (const nlohmann::json& rate : json.is_array() ? json : nlohmann::json::array({nullptr})) {
    if (!rate.is_number()) {
      bad_speculation("synthetic_acceptance_rates are no acceptance rates", "a list of numbers",
                      json.dump());
    }
    rates.push_back(rate.get<double>());
  }
  return rates;
}

bool is_synthetic(const nlohmann::json& method) {
  if (method != "standard" && method != "synthetic") {
    bad_speculation("unknown rejection_sample_method", R"("standard" or "synthetic")",
                    method.dump());
  }
  return method == "synthetic";
}

engine::SpeculativeConfig parse_speculation(const EngineFlags& flags, bool benchmark) {
  engine::SpeculativeConfig config;
  config.device_rounds = !flags.host_rounds;
  if (!flags.speculative_config) return config;
  const nlohmann::json json = parse_json(*flags.speculative_config, "--speculative-config");
  if (!json.is_object()) bad_speculation("not a JSON object", "an object", json.dump());
  bool synthetic = false;
  for (const auto& [key, value] : json.items()) {
    if (key == "method") {
      if (value != "mtp") {
        bad_speculation("unknown speculative method", "\"mtp\"", value.dump());
      }
    } else if (key == "num_speculative_tokens") {
      if (!value.is_number_integer() || value < 0 || value > kMaxSpeculativeTokens) {
        bad_speculation("num_speculative_tokens is out of range",
                        fmt::format("an integer from 0 to {}", kMaxSpeculativeTokens),
                        value.dump());
      }
      config.num_speculative_tokens = value.get<int>();
    } else if (key == "draft_vocab_size") {
      if (!value.is_number_integer() || value < 0) {
        bad_speculation("draft_vocab_size is out of range", "a number of tokens, or 0 for all",
                        value.dump());
      }
      config.draft_vocab_size = value.get<int64_t>();
    } else if (key == "rejection_sample_method") {
      synthetic = is_synthetic(value);
    } else if (key == "synthetic_acceptance_rates") {
      config.synthetic_acceptance_rates = acceptance_rates(value);
    } else {
      bad_speculation("unknown key", "method, num_speculative_tokens, draft_vocab_size", key);
    }
  }
  for (const char* key : {"method", "num_speculative_tokens"}) {
    if (!json.contains(key)) bad_speculation("key is missing", key, json.dump());
  }
  if (config.draft_vocab_size > 0 && config.num_speculative_tokens == 0) {
    bad_speculation("draft_vocab_size is of drafts, and there are none",
                    "num_speculative_tokens of at least 1 beside it, or no draft_vocab_size",
                    json.dump());
  }
  if (synthetic == config.synthetic_acceptance_rates.empty()) {
    bad_speculation("synthetic acceptance is asked for by halves",
                    "\"rejection_sample_method\": \"synthetic\" and synthetic_acceptance_rates",
                    json.dump());
  }
  if (synthetic && !benchmark) {
    bad_speculation("synthetic acceptance is for levin bench: its output is not the model's",
                    "drafts that the model verifies", json.dump());
  }
  return config;
}

}  // namespace

void add_engine_flags(CLI::App& command, EngineFlags& flags) {
  command.add_option("MODEL", flags.model, "Hugging Face folder of the checkpoint")->required();
  auto* device = command.add_option("--device", flags.device, "Where to run: auto, cpu, cuda[:N]");
  auto* runtime = command.add_option("--runtime", flags.runtime,
                                     "fast, or reference: slow float32, for checking");
  auto* format =
      command.add_option("--load-format", flags.load_format,
                         "auto reads the weights; dummy makes random ones from config.json alone");
  auto* kv = command.add_option("--kv-cache-dtype", flags.kv_cache_dtype,
                                "KV cache: auto (as the checkpoint says), bfloat16, fp8");
  auto* ssm = command.add_option("--mamba-ssm-cache-dtype", flags.ssm_cache_dtype,
                                 "SSM state: auto (as the checkpoint says), float32, float16");
  command.add_flag("--enable-mamba-cache-stochastic-rounding", flags.stochastic_rounding,
                   "Round a float16 SSM state stochastically");
  auto* philox = command.add_option("--mamba-cache-philox-rounds", flags.philox_rounds,
                                    "Philox rounds of stochastic rounding: 5 or 10");
  auto* length = command.add_option("--max-model-len", flags.max_model_len,
                                    "Longest sequence in tokens (default: the model's)");
  auto* seqs = command.add_option("--max-num-seqs", flags.max_num_seqs, "Sequences run at once");
  auto* threads =
      command.add_option("--threads", flags.threads, "CPU threads (default: all usable cores)");
  command.add_flag("--pin-threads,!--no-pin-threads", flags.pin_threads,
                   "Keep each of them on a core of its own (default: the kernel moves them)");
  command.add_option("--seed", flags.seed, "Seed of sampling and stochastic rounding")
      ->check(unsigned_64());
  command.add_option("--speculative-config", flags.speculative_config,
                     R"(JSON, e.g. '{"method": "mtp", "num_speculative_tokens": 3}'; with )"
                     R"("draft_vocab_size": N drafts are among the first N tokens alone)");

  runtime->check(CLI::IsMember({"fast", "reference"}))->capture_default_str();
  format->check(CLI::IsMember({"auto", "dummy"}))->capture_default_str();
  kv->check(CLI::IsMember({"auto", "bfloat16", "fp8"}))->capture_default_str();
  ssm->check(CLI::IsMember({"auto", "float32", "float16"}))->capture_default_str();
  philox->check(CLI::IsMember({"5", "10"}))->capture_default_str();
  length->check(at_least(1));
  seqs->check(CLI::Range(1, 1024))->capture_default_str();
  threads->check(CLI::Range(1, 1024));
  device->capture_default_str();
}

void add_host_rounds_flag(CLI::App& command, EngineFlags& flags) {
  command.add_flag("--host-rounds", flags.host_rounds,
                   "Draft, verify and accept by calls of the host even where the device can do "
                   "whole rounds");
}

void check_threads(int threads) {
  const auto cores = static_cast<int64_t>(usable_cores().size());
  if (threads == 0 && available_cores() < cores) {
    spdlog::info("{} on {}: the control group's quota is {:.4g} processors' time",
                 counted(int64_t{available_cores()}, "thread"), counted(cores, "core"),
                 processor_quota());
  }
  if (threads <= available_cores()) return;
  spdlog::warn("{} on {} wait for each other: expect to be much slower",
               counted(int64_t{threads}, "thread"),
               counted(int64_t{available_cores()}, "usable core"));
}

engine::LoadOptions load_options(const EngineFlags& flags) {
  check_threads(flags.threads);
  engine::LoadOptions options;
  options.runtime_kind =
      flags.runtime == "reference" ? engine::RuntimeKind::kReference : engine::RuntimeKind::kFast;
  options.load_format =
      flags.load_format == "dummy" ? model::LoadFormat::kDummy : model::LoadFormat::kAuto;
  if (flags.kv_cache_dtype == "bfloat16") options.kv_cache_dtype = runtime::KvCacheDType::kBf16;
  if (flags.kv_cache_dtype == "fp8") options.kv_cache_dtype = runtime::KvCacheDType::kFp8;
  if (flags.ssm_cache_dtype == "float32") options.ssm_cache_dtype = runtime::SsmCacheDType::kF32;
  if (flags.ssm_cache_dtype == "float16") options.ssm_cache_dtype = runtime::SsmCacheDType::kF16;
  options.runtime.stochastic_rounding = flags.stochastic_rounding;
  options.runtime.philox_rounds = flags.philox_rounds;
  options.runtime.max_model_len = flags.max_model_len;
  options.runtime.max_num_seqs = flags.max_num_seqs;
  options.runtime.threads = flags.threads;
  options.runtime.pin_threads = flags.pin_threads;
  options.runtime.seed = flags.seed;
  choose_device(flags, options);
  return options;
}

void size_steps(engine::LoadOptions& options, int tokens) {
  constexpr int kOnCpu = 512;
  constexpr int kOnDevice = 8192;
  runtime::Options& runtime = options.runtime;
  runtime.max_extend_tokens = tokens > 0 ? tokens : options.make_runtime ? kOnDevice : kOnCpu;
  // Those of a sequence's last token and its drafts.
  runtime.max_logits_rows =
      std::min(runtime.max_extend_tokens, runtime.max_num_seqs * runtime.max_rewind);
}

engine::SpeculativeConfig speculative_config(const EngineFlags& flags) {
  return parse_speculation(flags, false);
}

engine::SpeculativeConfig benchmark_speculative_config(const EngineFlags& flags) {
  return parse_speculation(flags, true);
}

}  // namespace levin::cli
