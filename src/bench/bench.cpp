#include "bench/bench.h"

#include "core/error.h"
#include "core/progress.h"
#include "engine/self_test.h"

namespace levin::bench {

double BenchReport::share_of(const Bandwidth& bandwidth) const {
  const double floor = control_prediction.tpot_seconds(bandwidth.gb_per_s.median);
  return floor / (control.tpot_ms().median / 1e3);
}

void run_once(engine::Engine& engine, const BenchOptions& options) {
  const Workload workload = options.prompt_file.empty()
                                ? fixed_workload(engine, options.prompt_tokens)
                                : file_workload(engine, options.prompt_file);
  engine::Request request;
  request.prompt = workload.prompts.front().tokens;
  request.sampling.temperature = 0;
  request.sampling.max_tokens = options.timing.output_tokens;
  request.sampling.ignore_eos = true;
  request.sampling.seed = 0;  // of synthetic acceptance
  request.speculation = options.speculation;
  engine::generate(engine, {&request, 1});
}

BenchReport run_bench(engine::Engine& engine, const BenchOptions& options) {
  const int k = options.speculation.num_speculative_tokens;
  if (k > 0 && !engine.model->mtp) {
    throw Error({.what = "the checkpoint has no MTP head to draft with",
                 .where = engine.folder.string(),
                 .expected = {},
                 .found = {},
                 .hint = "leave --speculative-config out"});
  }
  BenchReport report;
  report.model = engine.folder.string();
  report.runtime = engine.runtime->description();
  report.timing = options.timing;
  report.k = k;
  report.workload = options.prompt_file.empty() ? fixed_workload(engine, options.prompt_tokens)
                                                : file_workload(engine, options.prompt_file);
  require_fit(report.workload, engine, options.timing.output_tokens);

  const bool device_rounds = options.speculation.device_rounds;
  report.device_rounds = device_rounds && engine.runtime->rounds() != nullptr;
  report.synthetic_rates = options.speculation.synthetic_acceptance_rates;
  if (k > 0 && report.synthetic_rates.empty()) engine::check_drafter(engine);
  std::vector<Contender> contenders = {{"control", &engine, {.device_rounds = device_rounds}}};
  if (k > 0) contenders.push_back({"speculating", &engine, options.speculation});
  const auto runs = static_cast<int64_t>(contenders.size() * report.workload.prompts.size()) *
                    (options.timing.rounds + options.timing.warm_up);
  Progress progress("timing", runs, "runs");
  const NeighbourWatch watch;
  std::vector<ContenderTiming> timings =
      time_contenders(contenders, report.workload, options.timing, [&] { progress.advance(1); });
  const Spread tpot = spread_of(timings[0].tpot);
  report.disturbance = {.neighbours = watch.so_far(), .noise = tpot.max / tpot.min};

  // The context in the middle of an average output.
  const auto prompts = static_cast<int64_t>(report.workload.prompts.size());
  const int64_t context =
      report.workload.prompt_tokens() / prompts + options.timing.output_tokens / 2;
  report.control = std::move(timings[0]);
  report.control_prediction = predict_decode(*engine.model, context, 0, 1);
  if (k > 0) {
    report.speculating = std::move(timings[1]);
    report.speculating_prediction = predict_decode(
        *engine.model, context, k, report.speculating->speculation.mean_acceptance_length());
  }

  report.memory = measure_memory_bandwidth(engine);
  report.at_model_size = measure_read_bandwidth(
      engine, static_cast<std::size_t>(report.control_prediction.bytes_per_token));
  return report;
}

}  // namespace levin::bench
