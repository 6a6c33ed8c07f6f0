// Time of decode, verification and prompt passes of a model on the CPU, with random weights made
// from its configuration, against the floor: bytes over the read bandwidth. Bandwidth and passes
// are measured in turn, round by round, in one process.
//
//   levin_cpu_step configs/nemotron-3-eighth --recipe coverage
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/bandwidth.h"
#include "checkpoint/metadata_writer.h"
#include "core/error.h"
#include "core/files.h"
#include "core/thread_team.h"
#include "runtime/cpu/cpu_runtime.h"
#include "step_recipes.h"

namespace {

using namespace levin;
using benchmarks::median;
using benchmarks::Recipe;
using runtime::cpu::Isa;

struct Flags {
  std::string folder;
  std::vector<std::string> recipes, isas;
  int threads = available_cores();
  int context = 128;
  int rounds = 7;
  int prompt = 512;
  bool draft = false;
};

// A folder with the configuration and the metadata of the recipe, for as long as it takes to load.
class RecipeFolder {
 public:
  RecipeFolder(const std::string& folder, const Recipe& recipe)
      : path_(std::filesystem::temp_directory_path() / ("levin_cpu_step_" + recipe.name)) {
    const std::filesystem::path source = std::filesystem::path(folder) / "config.json";
    config = model::parse_config(read_json(source), source.string());
    checkpoint::WrittenQuant quant;
    bool quantized = false;
    bool int4 = false;
    for (const model::TensorPlan& plan : model::plan_tensors(config)) {
      if (plan.kind != model::TensorKind::kLinear) continue;
      const checkpoint::ModuleQuant module = recipe.quant_of(plan);
      quant.modules.emplace_back(std::string(plan.module()), module);
      quantized = quantized || module.algo != checkpoint::QuantAlgo::kNone;
      int4 = int4 || module.algo == checkpoint::QuantAlgo::kInt4Packed;
    }
    std::string text = read_text(source);
    if (quantized) {
      const auto json = int4 ? checkpoint::compressed_tensors_quantization_config(quant)
                             : checkpoint::modelopt_quantization_config(quant);
      text = checkpoint::with_quantization_config(text, json, source.string());
    }
    std::filesystem::create_directories(path_);
    write_text(path_ / "config.json", text);
  }
  ~RecipeFolder() { std::filesystem::remove_all(path_); }
  RecipeFolder(const RecipeFolder&) = delete;
  RecipeFolder& operator=(const RecipeFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  model::Config config;

 private:
  std::filesystem::path path_;
};

// One kind of pass on one runtime.
struct Pass {
  std::string name;
  runtime::Runtime* runtime = nullptr;
  int tokens = 1;       // 0: a step of the draft head
  int repetitions = 1;  // timed together
  double bytes = 0;     // of the cost model; 0 where they are not the floor
  std::vector<double> seconds = {};
};

class Tokens {
 public:
  explicit Tokens(int64_t vocabulary) : vocabulary_(vocabulary) {}
  std::vector<int32_t> next(int count) {
    std::vector<int32_t> tokens;
    for (int i = 0; i < count; ++i) {
      state_ = (state_ * 6364136223846793005u) + 1442695040888963407u;
      tokens.push_back(static_cast<int32_t>((state_ >> 33) % static_cast<uint64_t>(vocabulary_)));
    }
    return tokens;
  }

 private:
  int64_t vocabulary_;
  uint64_t state_ = 1;
};

void extend(runtime::Runtime& runtime, Tokens& tokens, int count, int logits_rows) {
  const std::vector<int32_t> ids = tokens.next(count);
  const runtime::Extend extend = {.slot = 0, .tokens = ids, .logits_rows = logits_rows};
  runtime.extend({&extend, 1});
}

double time_pass(const Pass& pass, Tokens& tokens, int context) {
  runtime::Runtime& runtime = *pass.runtime;
  runtime.reset(0);
  if (pass.tokens <= runtime::cpu::kTile) {
    for (int done = 0; done < context; done += 64) {
      extend(runtime, tokens, std::min(64, context - done), 0);
    }
    extend(runtime, tokens, 1, 1);
  }
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < pass.repetitions; ++i) {
    if (pass.tokens > 0) {
      extend(runtime, tokens, pass.tokens, pass.tokens <= runtime::cpu::kTile ? pass.tokens : 1);
    } else {
      const runtime::Draft draft = {.slot = 0, .next_token = tokens.next(1)[0], .k = 1};
      runtime.draft({&draft, 1});
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return seconds.count() / pass.repetitions;
}

void run(const Flags& flags, const Recipe& recipe) {
  std::shared_ptr<const model::Model> model;
  model::Config config;
  {
    const RecipeFolder folder(flags.folder, recipe);
    config = folder.config;
    model = model::load_model(folder.path(), model::LoadFormat::kDummy, {.mtp = flags.draft});
  }
  runtime::Options options;
  options.max_model_len = std::max(flags.context, flags.prompt) + 256;
  options.max_extend_tokens = std::max(flags.prompt, 64);
  options.max_logits_rows = 8;
  options.threads = flags.threads;
  options.mtp = flags.draft;
  options.ssm_cache_dtype =
      recipe.half_state ? runtime::SsmCacheDType::kF16 : runtime::SsmCacheDType::kF32;

  std::vector<std::unique_ptr<runtime::Runtime>> runtimes;
  std::vector<Pass> passes;
  for (const Isa isa : runtime::cpu::supported_isas()) {
    const std::string name(runtime::cpu::name_of(isa));
    const bool wanted = flags.isas.empty() ? isa == runtime::cpu::best_isa()
                                           : std::find(flags.isas.begin(), flags.isas.end(),
                                                       name) != flags.isas.end();
    if (!wanted) continue;
    runtimes.push_back(runtime::cpu::make_runtime(model, options, isa));
    runtime::Runtime* runtime = runtimes.back().get();
    fmt::print("{}: {}, {:.2f} GB\n", recipe.name, runtime->description(),
               static_cast<double>(runtime->memory_bytes()) * 1e-9);
    for (const int tokens : {1, 2, 4, 8}) {
      passes.push_back({fmt::format("{} decode {}", name, tokens), runtime, tokens, 8,
                        benchmarks::bytes_per_step(config, recipe, tokens, flags.context)});
    }
    if (flags.draft) passes.push_back({name + " draft", runtime, 0, 8});
    if (flags.prompt > 0) {
      passes.push_back({fmt::format("{} prompt {}", name, flags.prompt), runtime, flags.prompt});
    }
  }

  Tokens tokens(config.vocab_size);
  std::vector<double> bandwidth;
  for (int round = -1; round < flags.rounds; ++round) {
    const auto read = bench::measure_read_bandwidth(
        {.threads = flags.threads, .bytes = std::size_t{1} << 30, .passes = 1});
    if (round >= 0) bandwidth.push_back(read.gb_per_s.median);
    for (Pass& pass : passes) {
      const double seconds = time_pass(pass, tokens, flags.context);
      if (round >= 0) pass.seconds.push_back(seconds);
    }
  }
  const double read = median(bandwidth);
  fmt::print("read {:.2f} GB/s; {} rounds, medians; context {}\n", read, flags.rounds,
             flags.context);
  fmt::print("{:<24} {:>9} {:>9} {:>9} {:>8} {:>9}\n", "pass", "ms", "tokens/s", "MB", "GB/s",
             "% of read");
  for (const Pass& pass : passes) {
    const double seconds = median(pass.seconds);
    fmt::print("{:<24} {:>9.3f} {:>9.2f}", pass.name, seconds * 1e3,
               std::max(pass.tokens, 1) / seconds);
    if (pass.bytes > 0) {
      fmt::print(" {:>9.1f} {:>8.2f} {:>9.1f}", pass.bytes * 1e-6, pass.bytes / seconds * 1e-9,
                 pass.bytes / seconds * 1e-9 / read * 100);
    }
    fmt::print("\n");
  }
  std::fflush(stdout);
}

}  // namespace

constexpr const char* kDescription =
    "Times decode, verification and prompt passes of a model on the CPU, with random weights made\n"
    "from its configuration, beside the read bandwidth.";

int main(int argc, char** argv) try {
  Flags flags;
  CLI::App app(kDescription, "levin_cpu_step");
  std::vector<std::string> recipes, isas;
  for (const Recipe& recipe : benchmarks::kRecipes) recipes.push_back(recipe.name);
  for (const Isa isa : runtime::cpu::supported_isas()) {
    isas.emplace_back(runtime::cpu::name_of(isa));
  }
  app.add_option("CONFIG_FOLDER", flags.folder, "Folder with config.json")->required();
  app.add_option("--recipe", flags.recipes,
                 "Formats of the weights, of its own (benchmarks/step_recipes.h); may be repeated, "
                 "each is run by itself")
      ->required()
      ->allow_extra_args(false)
      ->check(CLI::IsMember(recipes));
  app.add_option("--isa", flags.isas,
                 "Instruction set instead of the best one; several are contenders on the same "
                 "weights")
      ->allow_extra_args(false)
      ->check(CLI::IsMember(isas));
  app.add_option("--threads", flags.threads, "Threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--context", flags.context, "Tokens before those of a pass")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--rounds", flags.rounds, "Rounds that count")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--prompt", flags.prompt, "Also prompts of so many tokens; 0: none")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_flag("--draft", flags.draft, "Also steps of the draft head");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  for (const Recipe& recipe : benchmarks::kRecipes) {
    if (std::find(flags.recipes.begin(), flags.recipes.end(), recipe.name) != flags.recipes.end()) {
      run(flags, recipe);
    }
  }
  return 0;
} catch (const levin::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return static_cast<int>(error.exit_code());
}
