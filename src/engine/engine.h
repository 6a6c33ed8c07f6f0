// A loaded model ready to generate: weights, runtime, tokenizer, chat template, stop tokens.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/sampling.h"
#include "engine/timeline.h"
#include "runtime/runtime.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace levin::engine {

enum class RuntimeKind { kFast, kReference };

struct Engine;

struct LoadOptions {
  RuntimeKind runtime_kind = RuntimeKind::kFast;
  runtime::Options runtime;
  model::LoadFormat load_format = model::LoadFormat::kAuto;
  // SSM and KV cache types follow the checkpoint (mamba_ssm_cache_dtype, kv_cache_scheme) unless
  // set here.
  std::optional<runtime::KvCacheDType> kv_cache_dtype;
  std::optional<runtime::SsmCacheDType> ssm_cache_dtype;
  // Memory for the slots; max_num_seqs is clamped to what fits (admission.h). 0: any.
  int64_t slot_memory_bytes = 0;
  // Then: half of the machine's memory that the weights leave, instead of any.
  bool slots_from_free_memory = false;
  // For a device that this room does not know: makes the runtime, instead of what runtime_kind
  // says; and the model of a dummy load, whose weights are then made there.
  std::function<std::unique_ptr<runtime::Runtime>(std::shared_ptr<const model::Model>,
                                                  const runtime::Options&)>
      make_runtime;
  std::function<std::shared_ptr<const model::Model>(const std::filesystem::path&)> make_dummy_model;
  // Called when all but the runtime is there, before it loads the weights: the time to refuse input
  // that this model cannot take. What it throws ends the load.
  std::function<void(const Engine&)> before_runtime;
};

struct Engine {
  std::filesystem::path folder;
  std::shared_ptr<const model::Model> model;
  std::unique_ptr<runtime::Runtime> runtime;
  std::optional<text::Tokenizer> tokenizer;         // absent when the folder has none
  std::optional<text::ChatTemplate> chat_template;  // absent when the folder has none
  // Union of config.json's, generation_config.json's and tokenizer_config.json's eos tokens and
  // <|im_end|>.
  std::vector<int32_t> stop_token_ids;
  SamplingParams default_sampling;  // from generation_config.json
  // Why default_sampling samples although no file asks for it: generation_config.json is absent, or
  // says nothing on do_sample. Empty when a file decides.
  std::string undeclared_sampling;
  // Records what schedulers of this engine do, unless null. Before the first of them is made.
  std::unique_ptr<Timeline> timeline;
};

std::unique_ptr<Engine> load_engine(const std::filesystem::path& folder,
                                    const LoadOptions& options);

}  // namespace levin::engine
