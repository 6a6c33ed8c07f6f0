// Engines on the CUDA runtime for tests.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/files.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "runtime/cuda/make_cuda_runtime.h"

namespace levin::engine::testing {

inline std::unique_ptr<Engine> engine_with(std::shared_ptr<const model::Model> model, int slots,
                                           int64_t length = 1024) {
  auto engine = std::make_unique<Engine>();
  engine->model = std::move(model);
  engine->runtime = runtime::make_cuda_runtime(
      engine->model, {.max_model_len = length, .max_num_seqs = slots, .max_extend_tokens = 64});
  return engine;
}

inline std::filesystem::path tiny_folder() {
  return std::filesystem::path(LEVIN_SOURCE_DIR) / "models/tiny";
}

// Room for the prompts of all slots at once: how a prompt is split is part of its result.
inline std::unique_ptr<Engine> tiny_cuda_engine(int slots, bool poison_free_slots = false) {
  LoadOptions options;
  options.runtime = {.max_model_len = 1024,
                     .max_num_seqs = slots,
                     .max_extend_tokens = 256,
                     .poison_free_slots = poison_free_slots};
  options.make_runtime = [](std::shared_ptr<const model::Model> model,
                            const runtime::Options& runtime_options) {
    return runtime::make_cuda_runtime(std::move(model), runtime_options);
  };
  return load_engine(tiny_folder(), options);
}

// The bundled model's shape with another vocabulary, with random weights.
inline std::shared_ptr<const model::Model> random_model(int64_t vocab) {
  nlohmann::json json = read_json(tiny_folder() / "config.json");
  json["vocab_size"] = vocab;
  json["eos_token_id"] = 0;
  const model::Config config = model::parse_config(json, "a config");
  return runtime::make_shape_model(
      config, [](const model::TensorPlan&) { return checkpoint::ModuleQuant{}; });
}

}  // namespace levin::engine::testing
