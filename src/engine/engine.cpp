#include "engine/engine.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "core/memory.h"
#include "core/plural.h"
#include "engine/admission.h"
#include "model/audit.h"

namespace levin::engine {
namespace {

using nlohmann::json;

// The end-of-turn token of the chat format. The released configurations name only </s>.
constexpr std::string_view kEndOfTurn = "<|im_end|>";

// generation_config.json, or an empty object.
class GenerationConfig {
 public:
  explicit GenerationConfig(const std::filesystem::path& folder)
      : path_(folder / "generation_config.json") {
    present_ = file_exists(path_);
    if (present_) json_ = read_json(path_);
    if (!json_.is_object()) fail("not a JSON object", "", "an object", json_);
  }

  bool present() const { return present_; }

  double number(const char* key, double fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number()) fail("value has the wrong type", key, "a number", *value);
    return value->get<double>();
  }

  int integer(const char* key, int fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_number_integer() || *value < -1 || *value > (1 << 30)) {
      fail("value has the wrong type", key, "an integer from -1 to 2^30", *value);
    }
    return value->get<int>();
  }

  std::optional<bool> flag(const char* key) const {
    const json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) fail("value has the wrong type", key, "true or false", *value);
    return value->get<bool>();
  }

  // Whether the key is there with another value than one that asks for nothing.
  bool asks_for(const char* key) const {
    const json* value = find(key);
    return value != nullptr && *value != 0 && *value != 1 && !value->empty();
  }

  std::vector<int32_t> eos_token_ids(int64_t vocab_size) const {
    const json* value = find("eos_token_id");
    if (value == nullptr) return {};
    std::vector<int32_t> ids;
    for (const json& id : value->is_array() ? *value : json::array({*value})) {
      if (!id.is_number_integer() || id < 0 || id >= vocab_size) {
        fail("not a token id", "eos_token_id", fmt::format("0 to {}", vocab_size - 1), id);
      }
      ids.push_back(id.get<int32_t>());
    }
    return ids;
  }

 private:
  // Nothing for a key that is absent or null.
  const json* find(const char* key) const {
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }

  [[noreturn]] void fail(const char* what, const char* key, std::string expected,
                         const json& found) const {
    throw Error({.what = what,
                 .where = fmt::format("{}{}{}", path_.string(), *key == '\0' ? "" : ", ", key),
                 .expected = std::move(expected),
                 .found = found.dump().substr(0, 200),
                 .hint = {}});
  }

  std::filesystem::path path_;
  bool present_ = false;
  json json_ = json::object();
};

// What would change the output and is not implemented.
constexpr const char* kNotHonoured[] = {"stop_strings",
                                        "min_new_tokens",
                                        "min_length",
                                        "max_new_tokens",
                                        "no_repeat_ngram_size",
                                        "bad_words_ids",
                                        "force_words_ids",
                                        "constraints",
                                        "suppress_tokens",
                                        "begin_suppress_tokens",
                                        "forced_bos_token_id",
                                        "forced_eos_token_id",
                                        "forced_decoder_ids",
                                        "sequence_bias",
                                        "num_beams",
                                        "typical_p",
                                        "epsilon_cutoff",
                                        "eta_cutoff",
                                        "top_h",
                                        "penalty_alpha",
                                        "exponential_decay_length_penalty",
                                        "guidance_scale",
                                        "watermarking_config"};

void warn_of_ignored(const GenerationConfig& config, const std::string& where) {
  for (const char* key : kNotHonoured) {
    if (config.asks_for(key)) spdlog::warn("{}: {} is not honoured", where, key);
  }
}

SamplingParams default_sampling(const GenerationConfig& config, const std::string& where) {
  SamplingParams params;
  params.temperature = config.number("temperature", params.temperature);
  params.top_p = config.number("top_p", params.top_p);
  warn_of_ignored(config, where);
  params.top_k = config.integer("top_k", 0);
  params.min_p = config.number("min_p", params.min_p);
  params.repetition_penalty = config.number("repetition_penalty", params.repetition_penalty);
  if (config.flag("do_sample") == false) params.temperature = 0;
  try {
    validate(params);
  } catch (const Error& error) {
    ErrorParts parts = error.parts();
    parts.where = fmt::format("{}, {}", where, parts.where);
    throw Error(parts);
  }
  return params;
}

std::string undeclared_sampling(const GenerationConfig& config, const std::string& where) {
  if (!config.present()) return "no generation_config.json";
  return config.flag("do_sample") ? "" : where + " says nothing on do_sample";
}

// A prompt is its own tokens and no others; who relies on a file that asks for more should know.
void warn_of_missing_tokens(const Engine& engine) {
  if (!engine.tokenizer || !engine.tokenizer->surrounds_text()) return;
  spdlog::warn(
      "{}: the post_processor's tokens around a text are not added to plain prompts; a chat "
      "template writes its own",
      (engine.folder / "tokenizer.json").string());
}

// The end token that tokenizer_config.json names, as a string or an object with its content.
std::optional<int32_t> eos_of_tokenizer(const Engine& engine) {
  const std::filesystem::path path = engine.folder / "tokenizer_config.json";
  if (!engine.tokenizer || !file_exists(path)) return std::nullopt;
  const json config = read_json(path);
  if (!config.is_object()) return std::nullopt;  // the chat template's reader says so
  if (config.value("add_bos_token", json()) == true) {
    spdlog::warn(
        "{}: add_bos_token is not honoured for plain prompts; a chat template writes its "
        "own",
        path.string());
  }
  const json token = config.value("eos_token", json());
  if (token.is_null()) return std::nullopt;
  const json content = token.is_object() ? token.value("content", json()) : token;
  const std::optional<int32_t> id =
      content.is_string() ? engine.tokenizer->find(content.get<std::string>()) : std::nullopt;
  if (id) return id;
  throw Error({.what = "end token is not in the vocabulary",
               .where = path.string() + ", eos_token",
               .expected = "a token of tokenizer.json",
               .found = token.dump().substr(0, 200),
               .hint = {}});
}

std::vector<int32_t> stop_ids(const Engine& engine, const GenerationConfig& config) {
  std::vector<int32_t> ids = engine.model->config.eos_token_ids;
  const auto more = config.eos_token_ids(engine.model->config.vocab_size);
  ids.insert(ids.end(), more.begin(), more.end());
  if (engine.tokenizer) {
    if (const auto end_of_turn = engine.tokenizer->find(kEndOfTurn)) ids.push_back(*end_of_turn);
  }
  if (const auto eos = eos_of_tokenizer(engine)) ids.push_back(*eos);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// tokenizer.json; nothing when the folder has none.
std::optional<text::Tokenizer> load_tokenizer(const std::filesystem::path& folder,
                                              int64_t vocab_size) {
  if (!file_exists(folder / "tokenizer.json")) return std::nullopt;
  text::Tokenizer tokenizer = text::Tokenizer::load(folder);
  if (tokenizer.vocab_size() > vocab_size) {
    throw Error({.what = "the tokenizer has more tokens than the model",
                 .where = (folder / "tokenizer.json").string(),
                 .expected = fmt::format("at most {}", vocab_size),
                 .found = fmt::format("{}", tokenizer.vocab_size()),
                 .hint = "tokenizer.json and config.json belong to different models"});
  }
  return tokenizer;
}

std::optional<text::ChatTemplate> load_chat_template(const std::filesystem::path& folder) {
  bool present = file_exists(folder / "chat_template.jinja");
  const auto config = folder / "tokenizer_config.json";
  if (!present && file_exists(config)) {
    present = read_json(config).contains("chat_template");
  }
  if (!present) return std::nullopt;
  return text::ChatTemplate::load(folder);
}

runtime::KvCacheDType kv_cache_dtype(const model::Model& model, const LoadOptions& options) {
  if (options.kv_cache_dtype) return *options.kv_cache_dtype;
  if (model.checkpoint->quantization().kv_cache == checkpoint::KvCacheQuant::kFp8) {
    return runtime::KvCacheDType::kFp8;
  }
  return options.runtime_kind == RuntimeKind::kReference ? runtime::KvCacheDType::kF32
                                                         : runtime::KvCacheDType::kBf16;
}

bool has_kv_scales(const model::Model& model) {
  const auto& tensors = model.checkpoint->tensors();
  return std::any_of(tensors.begin(), tensors.end(), [](const checkpoint::TensorInfo& tensor) {
    return tensor.name.ends_with(".k_proj.k_scale");
  });
}

runtime::SsmCacheDType ssm_cache_dtype(const model::Model& model, const LoadOptions& options) {
  if (options.ssm_cache_dtype) return *options.ssm_cache_dtype;
  const std::string& dtype = model.config.mamba_ssm_cache_dtype;
  if (dtype == "float32") return runtime::SsmCacheDType::kF32;
  if (dtype == "float16") return runtime::SsmCacheDType::kF16;
  throw Error(
      {.what = "SSM cache dtype is not supported",
       .where = (model.checkpoint->folder() / "config.json").string() + ", mamba_ssm_cache_dtype",
       .expected = "float32 or float16",
       .found = dtype,
       .hint = "choose one with --mamba-ssm-cache-dtype"});
}

// Bytes for the slots; 0: any.
int64_t slot_memory(const model::Model& model, const LoadOptions& options) {
  if (!options.slots_from_free_memory) return options.slot_memory_bytes;
  const int64_t available = available_memory_bytes();
  if (available == 0) return 0;
  int64_t weights = 0;
  for (const model::Linear* linear : model.linears()) {
    weights += static_cast<int64_t>(linear->weight.bytes.size() + linear->scales.bytes.size());
  }
  return memory_for_slots(weights, available);
}

}  // namespace

std::unique_ptr<Engine> load_engine(const std::filesystem::path& folder,
                                    const LoadOptions& options) {
  auto engine = std::make_unique<Engine>();
  engine->folder = folder;
  const bool dummy = options.load_format == model::LoadFormat::kDummy;
  engine->model =
      dummy && options.make_dummy_model
          ? options.make_dummy_model(folder)
          : model::load_model(folder, options.load_format, {.mtp = options.runtime.mtp});
  engine->tokenizer = load_tokenizer(folder, engine->model->config.vocab_size);
  engine->chat_template = load_chat_template(folder);

  for (const std::string& note :
       model::notes_of(engine->model->config, *engine->model->checkpoint)) {
    spdlog::warn("{}", note);
  }

  warn_of_missing_tokens(*engine);
  const GenerationConfig generation(folder);
  engine->stop_token_ids = stop_ids(*engine, generation);
  engine->default_sampling =
      default_sampling(generation, (folder / "generation_config.json").string());
  engine->undeclared_sampling =
      undeclared_sampling(generation, (folder / "generation_config.json").string());

  const int64_t trained = engine->model->config.max_position_embeddings;
  if (options.runtime.max_model_len > trained) {
    spdlog::warn("--max-model-len {} is beyond what the model was made for: {}",
                 options.runtime.max_model_len, counted(trained, "token"));
  }
  runtime::Options runtime_options = options.runtime;
  runtime_options.kv_cache_dtype = kv_cache_dtype(*engine->model, options);
  runtime_options.ssm_cache_dtype = ssm_cache_dtype(*engine->model, options);
  if (runtime_options.kv_cache_dtype == runtime::KvCacheDType::kFp8 &&
      !has_kv_scales(*engine->model)) {
    spdlog::warn("FP8 KV cache, but the checkpoint has no k_scale and v_scale: 1 is used");
  }
  if (const int64_t bytes = slot_memory(*engine->model, options); bytes > 0) {
    if (runtime_options.max_model_len == 0) runtime_options.max_model_len = trained;
    runtime_options.max_num_seqs = fit_slots(engine->model->config, runtime_options, bytes);
  }
  if (options.before_runtime) options.before_runtime(*engine);
  if (options.make_runtime) {
    engine->runtime = options.make_runtime(engine->model, runtime_options);
  } else if (options.runtime_kind == RuntimeKind::kReference) {
    engine->runtime = runtime::make_reference_runtime(engine->model, runtime_options);
  } else {
    engine->runtime = runtime::make_cpu_runtime(engine->model, runtime_options);
  }
  return engine;
}

}  // namespace levin::engine
