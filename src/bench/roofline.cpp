#include "bench/roofline.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "bench/workload.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/plural.h"
#include "core/progress.h"
#include "engine/generate.h"
#include "runtime/recorder_room.h"

namespace levin::bench {
namespace {

using model::Operation;
using model::Role;
using runtime::Phase;
using runtime::PhaseRecorder;
using runtime::StepKind;
using runtime::StepRecord;

// Kinds of phases: those of the model and those of the draft head apart.
using Kind = std::pair<bool, Phase>;

Phase phase_of_norm(const Operation& op, const model::Config& config) {
  const std::string_view name = op.name;
  if (name.ends_with(".norm_f") || name.ends_with(".final_layernorm")) return Phase::kHead;
  if (name.ends_with(".enorm") || name.ends_with(".hnorm")) return Phase::kDraftIn;
  const auto& layers = op.mtp ? config.mtp_layers : config.layers;
  switch (layers.at(static_cast<std::size_t>(op.layer))) {
    case model::BlockKind::kMamba:
      return Phase::kMambaIn;
    case model::BlockKind::kAttention:
      return Phase::kAttentionIn;
    case model::BlockKind::kMoe:
      return Phase::kMoeIn;
    case model::BlockKind::kMlp:
      break;
  }
  return Phase::kMlpUp;
}

Phase phase_of_mamba(std::string_view name) {
  if (name.ends_with(".in_proj")) return Phase::kMambaIn;
  return name.ends_with(".conv1d") || name.ends_with(".ssm") ? Phase::kMambaScan : Phase::kMambaOut;
}

Phase phase_of_attention(std::string_view name) {
  if (name.ends_with(".o_proj")) return Phase::kAttentionOut;
  return name.ends_with(".attention") ? Phase::kAttend : Phase::kAttentionIn;
}

// What the records of one kind add up to in a step.
struct Sum {
  double seconds = 0;
  double barriers = 0;
  double bytes = 0;
  double experts = 0, expert_phases = 0;
  double waiting = 0, all = 0;  // of all threads, seconds
};

std::map<Kind, Sum> sums_of(const PhaseRecorder& recorder, const StepRecord& step,
                            const TickScale::Line& scale) {
  std::map<Kind, Sum> sums;
  for (int thread = 0; thread < recorder.threads(); ++thread) {
    for (uint64_t i = step.first_phase; i < step.first_phase + step.phases; ++i) {
      const runtime::PhaseRecord& record = recorder.phase(thread, i);
      Sum& sum = sums[{record.draft, record.phase}];
      const double seconds = scale.seconds(record.begin, record.end);
      sum.bytes += static_cast<double>(record.bytes);
      sum.waiting += scale.seconds(record.arrived, record.end);
      sum.all += seconds;
      if (thread > 0) continue;
      sum.seconds += seconds;
      sum.barriers += 1;
      sum.experts += record.experts;
      sum.expert_phases += record.experts > 0 ? 1 : 0;
    }
  }
  return sums;
}

double mean_of(const std::vector<Sum>& sums, double Sum::*member) {
  double all = 0;
  for (const Sum& sum : sums) all += sum.*member;
  return all / static_cast<double>(std::max<std::size_t>(sums.size(), 1));
}

// The operations of a line. Routed experts cost what those that were read do.
Operation cost_of(const RooflineLine& line, const MeasuredSteps& measured,
                  const model::Config& config) {
  const double expected = model::distinct_experts(
      config.n_routed_experts, config.num_experts_per_tok, measured.routed_tokens);
  Operation cost;
  for (Operation op : measured.operations) {
    if (op.mtp != line.draft || phase_of(op, config) != line.phase) continue;
    if (op.role == Role::kRoutedExperts) op.weight_bytes *= line.experts / expected;
    cost += op;
  }
  return cost;
}

RooflineLine make_line(const Kind& kind, const std::vector<Sum>& sums,
                       const MeasuredSteps& measured, const model::Config& config) {
  RooflineLine line;
  line.draft = kind.first;
  line.phase = kind.second;
  std::vector<double> seconds;
  seconds.reserve(sums.size());
  for (const Sum& sum : sums) seconds.push_back(sum.seconds);
  line.seconds = spread_of(seconds);
  line.barriers = mean_of(sums, &Sum::barriers);
  line.counted_bytes = mean_of(sums, &Sum::bytes);
  const double expert_phases = mean_of(sums, &Sum::expert_phases);
  if (expert_phases > 0) line.experts = mean_of(sums, &Sum::experts) / expert_phases;
  line.waiting = mean_of(sums, &Sum::waiting) / mean_of(sums, &Sum::all);
  line.cost = cost_of(line, measured, config);
  return line;
}

}  // namespace

double Ceiling::seconds(const Operation& cost) const {
  return std::max(cost.memory_bytes() / (gb_per_s * 1e9), cost.flops / (gflop_per_s * 1e9));
}

Phase phase_of(const Operation& op, const model::Config& config) {
  const std::string_view name = op.name;
  const bool up = name.ends_with(".up_proj");
  switch (op.role) {
    case Role::kEmbeddings:
      return op.mtp ? Phase::kDraftIn : Phase::kEmbed;
    case Role::kMamba:
      return phase_of_mamba(name);
    case Role::kAttention:
      return phase_of_attention(name);
    case Role::kRouter:
      return Phase::kMoeIn;
    case Role::kRoutedExperts:
      return up ? Phase::kMoeUp : Phase::kMoeDown;
    case Role::kSharedExperts:
      return up ? Phase::kMoeIn : Phase::kMoeDown;
    case Role::kLatent:
      return name.ends_with(".fc1_latent_proj") ? Phase::kMoeIn : Phase::kMoeOut;
    case Role::kMlp:
      return up ? Phase::kMlpUp : Phase::kMlpDown;
    case Role::kMtpInput:
      return Phase::kDraftIn;
    case Role::kNorm:
      return phase_of_norm(op, config);
    case Role::kLmHead:
      break;
  }
  return Phase::kHead;
}

RooflineTable make_table(const PhaseRecorder& recorder, const MeasuredSteps& measured,
                         const model::Config& config) {
  RooflineTable table;
  table.name = measured.name;
  table.rows = measured.steps.front().rows;
  table.context = measured.context;
  table.steps = static_cast<int64_t>(measured.steps.size());
  const TickScale::Line scale = recorder.scale();
  std::map<Kind, std::vector<Sum>> by_kind;
  std::vector<double> seconds, phases, rests;
  for (const StepRecord& step : measured.steps) {
    seconds.push_back(scale.seconds(step.begin, step.end));
    double in_phases = 0;
    for (const auto& [kind, sum] : sums_of(recorder, step, scale)) {
      by_kind[kind].push_back(sum);
      in_phases += sum.seconds;
    }
    phases.push_back(in_phases);
    rests.push_back(seconds.back() - in_phases);
  }
  table.seconds = spread_of(seconds);
  table.phase_seconds = spread_of(phases).median;
  table.rest_seconds = spread_of(rests).median;
  double waiting = 0;
  double all = 0;
  for (const auto& [kind, sums] : by_kind) {
    // What only some steps do is not what such a step costs (the draft head catching up).
    if (2 * sums.size() < measured.steps.size()) continue;
    table.lines.push_back(make_line(kind, sums, measured, config));
    waiting += mean_of(sums, &Sum::waiting);
    all += mean_of(sums, &Sum::all);
    table.cost += table.lines.back().cost;
  }
  table.waiting = all > 0 ? waiting / all : 0;
  return table;
}

void apply(const Ceiling& ceiling, RooflineTable& table) {
  table.floor_seconds = 0;
  for (RooflineLine& line : table.lines) {
    line.floor_seconds = ceiling.seconds(line.cost);
    table.floor_seconds += line.floor_seconds;
  }
}

namespace {

// The recorder is in the runtime for as long as this lives.
class Recording {
 public:
  Recording(engine::Engine& engine, PhaseRecorder& recorder) : engine_(engine) {
    if (engine.runtime->set_phase_recorder(&recorder)) return;
    throw Error({.what = "this runtime does not record its phases",
                 .where = "--roofline",
                 .expected = "the fast CPU runtime",
                 .found = engine.runtime->description(),
                 .hint = "use --device cpu --runtime fast"});
  }
  ~Recording() { engine_.runtime->set_phase_recorder(nullptr); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  engine::Engine& engine_;
};

struct Generations {
  std::vector<StepRecord> steps;
  int rounds = 0;
};

// Generations without or with speculation, as many rounds as there is time for.
Generations generate(engine::Engine& engine, PhaseRecorder& recorder, const Prompt& prompt,
                     const RooflineOptions& options, int k) {
  engine::Request request;
  request.prompt = prompt.tokens;
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.speculation = {.num_speculative_tokens = k, .device_rounds = false};
  const char* what = k > 0 ? "verifying and drafting" : "decoding";
  constexpr int64_t kWarmUpTokens = 16;
  request.sampling.max_tokens = std::min(options.output_tokens, kWarmUpTokens);
  const engine::Result warm_up = std::move(engine::generate(engine, {&request, 1}).front());
  const engine::Timings& timings = warm_up.timings;
  const double one =
      timings.ttft_seconds + timings.tpot_seconds(static_cast<int64_t>(warm_up.tokens.size())) *
                                 static_cast<double>(options.output_tokens - 1);
  const int rounds = affordable_rounds(options, one);
  if (rounds < options.rounds) {
    spdlog::info("{}: {} of {:.0f} s instead of {}; --rounds sets how many", what,
                 counted(int64_t{rounds}, "round"), one, options.rounds);
  }
  recorder.clear();
  Progress progress(what, rounds * options.output_tokens, "tokens");
  request.sampling.max_tokens = options.output_tokens;
  request.on_tokens = [&](std::span<const int32_t> tokens) {
    progress.advance(static_cast<int64_t>(tokens.size()));
    return true;
  };
  for (int round = 0; round < rounds; ++round) engine::generate(engine, {&request, 1});
  return {recorder.steps(), rounds};
}

std::vector<StepRecord> steps_with(const std::vector<StepRecord>& steps, StepKind kind, int rows) {
  std::vector<StepRecord> found;
  std::copy_if(steps.begin(), steps.end(), std::back_inserter(found),
               [&](const StepRecord& step) { return step.kind == kind && step.rows == rows; });
  return found;
}

// Those that verify `rows` tokens: behind a step that drafted. A prompt may have as many.
std::vector<StepRecord> verifications(const std::vector<StepRecord>& steps, int rows) {
  std::vector<StepRecord> found;
  for (std::size_t i = 1; i < steps.size(); ++i) {
    const bool drafted = steps[i - 1].kind == StepKind::kDraft;
    if (drafted && steps[i].kind == StepKind::kExtend && steps[i].rows == rows) {
      found.push_back(steps[i]);
    }
  }
  return found;
}

class Measurement {
 public:
  Measurement(engine::Engine& engine, const RooflineOptions& options)
      : engine_(engine),
        options_(options),
        config_(engine.model->config),
        tensors_(model::sized_tensors(config_, *engine.model->checkpoint)),
        workload_(fixed_workload(engine, options.prompt_tokens)),
        recorder_(recorder()) {
    types_ = model::state_types(config_, engine.model->checkpoint->quantization());
    const runtime::Options& set = engine.runtime->options();
    types_.kv = set.kv_cache_dtype == runtime::KvCacheDType::kFp8    ? 1
                : set.kv_cache_dtype == runtime::KvCacheDType::kBf16 ? 2
                                                                     : 4;
    types_.ssm = set.ssm_cache_dtype == runtime::SsmCacheDType::kF32 ? 4 : 2;
  }

  Roofline run();

 private:
  std::size_t steps_needed() const {
    const auto chunks = static_cast<std::size_t>(
        options_.prompt_tokens / engine_.runtime->options().max_extend_tokens + 2);
    return static_cast<std::size_t>(options_.rounds + 1) *
           (chunks + 2 * static_cast<std::size_t>(options_.output_tokens));
  }
  // After whatever else is wrong with the options: so many steps may be those of a mistake.
  PhaseRecorder recorder() const {
    require_fit(workload_, engine_, options_.output_tokens);
    constexpr std::size_t kPhasesOfALayer = 8;
    const std::size_t layers = config_.layers.size() + 2 + 8 * (config_.mtp_layers.size() + 2);
    const runtime::RecorderSize size = {.threads = engine_.runtime->options().threads,
                                        .phases = steps_needed() * kPhasesOfALayer * layers,
                                        .steps = steps_needed()};
    return runtime::recorder_within(available_memory_bytes(), size, "--rounds, --output-tokens");
  }

  model::StepOptions step_options(int rows, double context) const {
    return {.sequences = 1,
            .tokens_per_sequence = rows,
            .context = static_cast<int64_t>(context),
            .types = types_};
  }
  std::vector<Operation> operations(int rows, double context) const {
    return model::step_operations(config_, tensors_, step_options(rows, context));
  }

  void add_decode(const std::vector<StepRecord>& steps, Roofline& roofline) const;
  void add_prompt(const Generations& generations, Roofline& roofline) const;
  void add_speculation(const std::vector<StepRecord>& steps, Roofline& roofline) const;
  // `why_none`: what is to blame when there are no such steps.
  void add(const MeasuredSteps& measured, Roofline& roofline, std::string_view why_none) const;

  engine::Engine& engine_;
  const RooflineOptions& options_;
  const model::Config& config_;
  std::vector<model::SizedTensor> tensors_;
  Workload workload_;
  PhaseRecorder recorder_;
  model::StateTypes types_;
};

void Measurement::add(const MeasuredSteps& measured, Roofline& roofline,
                      std::string_view why_none) const {
  if (measured.steps.empty()) {
    roofline.gaps.push_back({measured.name, std::string(why_none)});
    return;
  }
  RooflineTable table = make_table(recorder_, measured, config_);
  table.bandwidth =
      measure_read_bandwidth(engine_, static_cast<std::size_t>(table.cost.memory_bytes()));
  apply({.gb_per_s = table.bandwidth.gb_per_s.median,
         .gflop_per_s = rate_of(roofline.rates, roofline.rate).all_threads.median},
        table);
  roofline.tables.push_back(std::move(table));
}

void Measurement::add_decode(const std::vector<StepRecord>& steps, Roofline& roofline) const {
  const double context =
      static_cast<double>(options_.prompt_tokens) + static_cast<double>(options_.output_tokens) / 2;
  add({.name = "decode",
       .steps = steps_with(steps, StepKind::kExtend, 1),
       .context = context,
       .operations = operations(1, context),
       .routed_tokens = 1},
      roofline, "no step was of one token");
}

// The widest chunks.
void Measurement::add_prompt(const Generations& generations, Roofline& roofline) const {
  const std::vector<StepRecord>& steps = generations.steps;
  int rows = 0;
  for (const StepRecord& step : steps) rows = std::max(rows, step.rows);
  const int short_rows = engine_.runtime->options().max_rewind;
  if (rows <= short_rows) {
    roofline.gaps.push_back(
        {"prompt", fmt::format("the prompt's {} make no chunk of more than {}; raise "
                               "--prompt-tokens",
                               counted(options_.prompt_tokens, "token"), short_rows)});
    return;
  }
  MeasuredSteps measured;
  measured.name = "prompt";
  measured.steps = steps_with(steps, StepKind::kExtend, rows);
  const double chunks =
      static_cast<double>(measured.steps.size()) / static_cast<double>(generations.rounds);
  measured.context = rows * (chunks - 1) / 2;
  measured.operations = operations(rows, measured.context);
  // Logits of the last row of the last chunk only.
  const double with_logits = options_.prompt_tokens % rows == 0 ? 1 / chunks : 0;
  for (Operation& op : measured.operations) {
    if (op.role != Role::kLmHead) continue;
    op.flops *= with_logits / rows;
    op.weight_bytes *= with_logits;
  }
  // Entries of the draft head's cache, made along: its input, keys and values.
  if (engine_.runtime->options().mtp && engine_.model->mtp) {
    for (const Operation& op :
         model::draft_operations(config_, tensors_, step_options(rows, measured.context), 1)) {
      const Phase phase = phase_of(op, config_);
      const bool made = phase == Phase::kDraftIn ||
                        (phase == Phase::kAttentionIn && !op.name.ends_with(".q_proj"));
      if (made) measured.operations.push_back(op);
    }
  }
  measured.routed_tokens = rows;
  add(measured, roofline, "no step was a chunk of the prompt");
}

void Measurement::add_speculation(const std::vector<StepRecord>& steps, Roofline& roofline) const {
  const double context =
      static_cast<double>(options_.prompt_tokens) + static_cast<double>(options_.output_tokens) / 2;
  const int rows = 1 + options_.k;
  const std::string why_none = fmt::format(
      "no round had room for {}: one of --output-tokens {} is the prompt's, and a round may "
      "put out {}; give {} or more",
      counted(int64_t{options_.k}, "draft"), options_.output_tokens, rows, rows + 1);
  add({.name = "verify",
       .steps = verifications(steps, rows),
       .context = context,
       .operations = operations(rows, context),
       .routed_tokens = static_cast<double>(rows)},
      roofline, why_none);
  // Experts of the rows that propose only; the others just enter the cache.
  add({.name = "draft",
       .steps = steps_with(steps, StepKind::kDraft, options_.k),
       .context = context,
       .operations =
           model::draft_operations(config_, tensors_, step_options(1, context), options_.k),
       .routed_tokens = 1},
      roofline, why_none);
}

Roofline Measurement::run() {
  Roofline roofline;
  roofline.model = engine_.folder.string();
  roofline.runtime = engine_.runtime->description();
  const NeighbourWatch watch;
  roofline.rates = measure_arithmetic({.threads = engine_.runtime->options().threads});
  roofline.rate = rate_of(roofline.rates, "BF16").name;
  const Recording recording(engine_, recorder_);
  const Prompt& prompt = workload_.prompts.front();
  const Generations plain = generate(engine_, recorder_, prompt, options_, 0);
  add_decode(plain.steps, roofline);
  add_prompt(plain, roofline);
  if (options_.k > 0) {
    add_speculation(generate(engine_, recorder_, prompt, options_, options_.k).steps, roofline);
  }
  roofline.memory = measure_memory_bandwidth(engine_);
  roofline.neighbours = watch.so_far();
  return roofline;
}

}  // namespace

int affordable_rounds(const RooflineOptions& options, double seconds_of_one) {
  if (options.seconds <= 0 || seconds_of_one * options.rounds <= options.seconds) {
    return options.rounds;
  }
  return std::max(1, static_cast<int>(std::floor(options.seconds / seconds_of_one)));
}

Roofline measure_roofline(engine::Engine& engine, const RooflineOptions& options) {
  if (options.k > 0 && !engine.model->mtp) {
    throw Error({.what = "the checkpoint has no MTP head to draft with",
                 .where = engine.folder.string(),
                 .expected = {},
                 .found = {},
                 .hint = "leave --speculative-config out"});
  }
  return Measurement(engine, options).run();
}

}  // namespace levin::bench
