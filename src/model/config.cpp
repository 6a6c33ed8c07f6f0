#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/plural.h"
#include "model/config_fields.h"
#include "model/schedule.h"

namespace levin::model {
namespace {

using nlohmann::json;

// Bounds far above any model and far below what could overflow 63-bit products of sizes.
constexpr int64_t kMaxWidth = int64_t{1} << 20;
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxHeads = int64_t{1} << 14;
constexpr int64_t kMaxHeadDim = int64_t{1} << 12;
constexpr int64_t kMaxExperts = int64_t{1} << 16;
constexpr int64_t kMaxContext = int64_t{1} << 40;
constexpr int64_t kMaxExpertMatrices = int64_t{1} << 20;
constexpr double kMaxParameters = 0x1p50;

bool has(const std::vector<BlockKind>& layers, BlockKind kind) {
  return std::find(layers.begin(), layers.end(), kind) != layers.end();
}

// A wrapper names a model type of its own. One that says it is the language model, and has another
// inside, must say the same twice: some programs read the one, some the other.
void refuse_two_models(const Fields& root, const json& nested, const char* key) {
  const json* type = root.find({"model_type"});
  if (type == nullptr || *type != "nemotron_h") return;
  for (const auto& [name, value] : nested.items()) {
    const json* outer = root.find({name.c_str()});
    if (outer == nullptr || *outer == value) continue;
    root.fail(fmt::format("config.json and its {} disagree", key), fmt::format("{}, {}", key, name),
              fmt::format("{}, as outside", shown(*outer)), shown(value),
              "take out the one that is wrong");
  }
}

// The object that holds the language model's keys.
const json& language_model_config(const json& root, std::string& where) {
  const Fields fields(root, where);
  const json* llm = fields.find({"llm_config"});
  const json* text = fields.find({"text_config"});
  if (llm != nullptr && text != nullptr && *llm != *text) {
    fields.fail("llm_config and text_config disagree", "llm_config", "one of them", "both");
  }
  const json* nested = llm != nullptr ? llm : text;
  if (nested == nullptr) return root;
  const char* key = llm != nullptr ? "llm_config" : "text_config";
  if (!nested->is_object()) {
    fields.fail("configuration value has the wrong type", key, "an object", shown(*nested));
  }
  refuse_two_models(fields, *nested, key);
  where += fmt::format(", {}", key);
  return *nested;
}

void check_model_type(const Fields& fields) {
  if (fields.find({"block_configs"}) != nullptr) {
    fields.fail("puzzle variants with different sizes per layer are not supported", "block_configs",
                "one size for all layers of a kind", "block_configs");
  }
  const std::string type = fields.get_string({"model_type"}, "");
  if (type == "nemotron_h") return;
  std::string found = shown(json(type));
  if (type.empty()) {
    const json* architectures = fields.find({"architectures"});
    if (architectures != nullptr && *architectures == json::array({"NemotronHForCausalLM"})) return;
    found = "nothing";
  }
  fields.fail("unsupported model type", "model_type", "\"nemotron_h\"", found,
              type == "nemotron_h_puzzle"
                  ? "puzzle variants with different sizes per layer are not supported"
                  : "");
}

void check_activation(const Fields& fields, const char* key, std::string_view expected) {
  const std::string activation = fields.get_string({key}, std::string(expected));
  if (activation == expected) return;
  fields.fail("unsupported activation", key, fmt::format("\"{}\"", expected),
              shown(json(activation)));
}

// What would change the mathematics and is not implemented must be absent.
void check_unsupported(const Fields& fields) {
  check_activation(fields, "mamba_hidden_act", "silu");
  check_activation(fields, "mlp_hidden_act", "relu2");
  if (const json* window = fields.find({"sliding_window"})) {
    fields.fail("sliding-window attention is not supported", "sliding_window", "null",
                shown(*window));
  }
}

void parse_layers(const Fields& fields, const std::string& where, Config& config) {
  const json* modern = fields.find({"layers_block_type"});
  const json* renamed = fields.find({"layer_types"});
  const json* legacy = fields.find({"hybrid_override_pattern"});
  if (modern != nullptr) {
    config.layers = parse_schedule(*modern, where + ", layers_block_type");
  }
  if (renamed != nullptr) {
    const auto layers = parse_schedule(*renamed, where + ", layer_types");
    if (modern != nullptr && layers != config.layers) {
      fields.fail("two layer schedules disagree", "layers_block_type", pattern_of(config.layers),
                  "layer_types " + pattern_of(layers));
    }
    config.layers = layers;
  }
  if (legacy != nullptr) {
    const auto layers = parse_schedule(*legacy, where + ", hybrid_override_pattern");
    if (!config.layers.empty() && layers != config.layers) {
      config.notes.push_back(
          fmt::format("{}: the list of layers says {}, hybrid_override_pattern {}; the list counts",
                      where, pattern_of(config.layers), pattern_of(layers)));
    } else {
      config.layers = layers;
    }
  }
  if (config.layers.empty()) {
    fields.fail("configuration has no layer schedule", "layers_block_type",
                "layers_block_type, layer_types or hybrid_override_pattern", "none of them");
  }
  const int64_t count =
      fields.get_int({"num_hidden_layers"}, 1, int64_t{1} << 20, config.num_layers());
  if (count != config.num_layers()) {
    fields.fail("layer schedule and num_hidden_layers disagree", "num_hidden_layers",
                fmt::format("{} (length of {})", config.num_layers(), pattern_of(config.layers)),
                std::to_string(count));
  }
}

void parse_mtp(const Fields& fields, const std::string& where, Config& config) {
  const int64_t depth = fields.get_int({"num_nextn_predict_layers"}, 0, 1024, 0);
  if (depth == 0) return;
  if (depth > 1) {
    fields.fail("more than one physical MTP layer is not supported", "num_nextn_predict_layers",
                "0 or 1", std::to_string(depth));
  }
  // transformers writes its default pair whatever the model has, so there a pattern knows better.
  const std::vector<BlockKind> default_pair = {BlockKind::kAttention, BlockKind::kMoe};
  const json* modern = fields.find({"mtp_layers_block_type"});
  const json* legacy = fields.find({"mtp_hybrid_override_pattern"});
  config.mtp_layers =
      modern != nullptr ? parse_schedule(*modern, where + ", mtp_layers_block_type") : default_pair;
  if (config.mtp_layers == default_pair && legacy != nullptr) {
    config.mtp_layers = parse_schedule(*legacy, where + ", mtp_hybrid_override_pattern");
  }
  if (has(config.mtp_layers, BlockKind::kMamba)) {
    fields.fail("Mamba layers in the MTP head are not supported", "mtp_layers_block_type",
                "attention, moe, mlp", pattern_of(config.mtp_layers));
  }
}

void parse_attention(const Fields& fields, Config& config) {
  config.num_attention_heads = fields.require_int({"num_attention_heads"}, 1, kMaxHeads);
  config.num_key_value_heads = fields.require_int({"num_key_value_heads"}, 1, kMaxHeads);
  config.head_dim = fields.require_int({"head_dim", "attention_head_dim"}, 1, kMaxHeadDim);
  config.attention_bias = fields.get_bool({"attention_bias"}, false);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.fail("key-value heads do not divide attention heads", "num_key_value_heads",
                fmt::format("a divisor of {}", config.num_attention_heads),
                std::to_string(config.num_key_value_heads));
  }
}

void parse_time_step_limit(const Fields& fields, Config& config) {
  const json* limit = fields.find({"mamba_dt_limit", "time_step_limit"});
  if (limit == nullptr) return;
  std::optional<double> low;
  std::optional<double> high;
  if (limit->is_array() && limit->size() == 2) {
    low = as_number((*limit)[0]);
    high = as_number((*limit)[1]);
  }
  if (!low || !high || !(*low >= 0) || !(*high >= *low)) {
    fields.fail("time_step_limit is not a range", "time_step_limit",
                "[low, high], 0 <= low <= high", shown(*limit));
  }
  config.time_step_limit_min = *low;
  config.time_step_limit_max = *high;
}

void parse_mamba(const Fields& fields, Config& config) {
  config.mamba_num_heads = fields.require_int({"mamba_num_heads"}, 1, kMaxHeads);
  config.mamba_head_dim = fields.require_int({"mamba_head_dim"}, 1, kMaxHeadDim);
  config.n_groups = fields.require_int({"mamba_n_groups", "n_groups"}, 1, kMaxHeads);
  config.ssm_state_size = fields.require_int({"ssm_state_size"}, 1, kMaxHeadDim);
  config.conv_kernel = fields.require_int({"mamba_d_conv", "conv_kernel"}, 1, 64);
  config.chunk_size = fields.get_int({"mamba_chunk_size", "chunk_size"}, 1, kMaxWidth, 128);
  config.use_conv_bias = fields.get_bool({"mamba_conv_bias", "use_conv_bias"}, true);
  config.mamba_proj_bias = fields.get_bool({"use_bias", "mamba_proj_bias"}, false);
  parse_time_step_limit(fields, config);
  if (config.mamba_num_heads % config.n_groups != 0) {
    fields.fail("groups do not divide Mamba heads", "n_groups",
                fmt::format("a divisor of {}", config.mamba_num_heads),
                std::to_string(config.n_groups));
  }
  // Not mamba_ssm_dtype: that is another family's key, and would halve the precision.
  config.mamba_ssm_cache_dtype = fields.get_string({"mamba_ssm_cache_dtype"}, "float32");
  const std::string& dtype = config.mamba_ssm_cache_dtype;
  if (dtype != "float32" && dtype != "float16" && dtype != "bfloat16") {
    fields.fail("unknown dtype", "mamba_ssm_cache_dtype", "float32, float16 or bfloat16",
                shown(json(dtype)));
  }
}

void check_routing(const Fields& fields, const Config& config) {
  if (config.n_routed_experts % config.n_group != 0) {
    fields.fail("groups do not divide experts", "n_group",
                fmt::format("a divisor of {}", config.n_routed_experts),
                std::to_string(config.n_group));
  }
  const int64_t selectable = config.n_routed_experts / config.n_group * config.topk_group;
  if (config.num_experts_per_tok > selectable) {
    fields.fail("more experts per token than can be selected", "num_experts_per_tok",
                fmt::format("at most {}", selectable), std::to_string(config.num_experts_per_tok));
  }
}

void parse_moe(const Fields& fields, Config& config) {
  config.n_routed_experts =
      fields.require_int({"n_routed_experts", "num_local_experts", "num_experts"}, 1, kMaxExperts);
  config.num_experts_per_tok = fields.require_int({"num_experts_per_tok"}, 1, kMaxExperts);
  config.moe_intermediate_size = fields.require_int({"moe_intermediate_size"}, 1, kMaxWidth);
  config.n_shared_experts = fields.require_int({"n_shared_experts"}, 0, 64);
  if (config.n_shared_experts > 0) {
    config.moe_shared_expert_intermediate_size =
        fields.require_int({"moe_shared_expert_intermediate_size"}, 1, kMaxWidth);
  }
  config.moe_latent_size = fields.get_int({"moe_latent_size"}, 1, kMaxWidth, 0);
  config.n_group = fields.get_int({"n_group"}, 1, kMaxExperts, 1);
  config.topk_group = fields.get_int({"topk_group"}, 1, config.n_group, 1);
  config.norm_topk_prob = fields.get_bool({"norm_topk_prob"}, true);
  config.routed_scaling_factor = fields.get_number({"routed_scaling_factor"}, 1.0);
  if (!(config.routed_scaling_factor > 0 && config.routed_scaling_factor < 1e6)) {
    fields.fail("routed_scaling_factor is out of range", "routed_scaling_factor", "0 to 1e6",
                fmt::format("{}", config.routed_scaling_factor));
  }
  check_routing(fields, config);
}

// One width for all '-' layers, or a list indexed by the count of '-' layers so far.
void parse_mlp(const Fields& fields, Config& config) {
  const auto count = static_cast<std::size_t>(
      std::count(config.layers.begin(), config.layers.end(), BlockKind::kMlp) +
      std::count(config.mtp_layers.begin(), config.mtp_layers.end(), BlockKind::kMlp));
  const json* sizes = fields.find({"intermediate_size"});
  if (sizes == nullptr || !sizes->is_array()) {
    config.intermediate_size.assign(count, fields.require_int({"intermediate_size"}, 1, kMaxWidth));
    return;
  }
  if (sizes->size() != count) {
    fields.fail("intermediate_size does not match the '-' layers", "intermediate_size",
                counted(count, "size"), counted(sizes->size(), "size"));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const json& size = (*sizes)[i];
    if (!size.is_number_integer() || size < 1 || size > kMaxWidth) {
      fields.fail("configuration value is out of range", fmt::format("intermediate_size[{}]", i),
                  fmt::format("an integer from 1 to {}", kMaxWidth), shown(size));
    }
    config.intermediate_size.push_back(size.get<int64_t>());
  }
}

void parse_dtype(const Fields& fields, Config& config) {
  config.torch_dtype = fields.get_string({"dtype", "torch_dtype"}, "bfloat16");
  const std::string& dtype = config.torch_dtype;
  if (dtype != "bfloat16" && dtype != "float16" && dtype != "float32") {
    fields.fail("unknown dtype", "dtype", "bfloat16, float16 or float32", shown(json(dtype)));
  }
}

void parse_eos(const Fields& fields, Config& config) {
  const json* eos = fields.find({"eos_token_id"});
  if (eos == nullptr) return;
  const json list = eos->is_array() ? *eos : json::array({*eos});
  if (list.size() > 1024) {
    fields.fail("too many end tokens", "eos_token_id", "at most 1024", shown(list));
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json& id = list[i];
    if (!id.is_number_integer() || id < 0 || id >= config.vocab_size) {
      fields.fail("configuration value is out of range",
                  eos->is_array() ? fmt::format("eos_token_id[{}]", i) : "eos_token_id",
                  fmt::format("an integer from 0 to {}", config.vocab_size - 1), shown(id));
    }
    config.eos_token_ids.push_back(id.get<int32_t>());
  }
}

// In floating point, so that sizes which are legal one by one cannot overflow together.
void check_total_size(const Fields& fields, const Config& config) {
  const auto count = [&](BlockKind kind) {
    return static_cast<double>(
        std::count(config.layers.begin(), config.layers.end(), kind) +
        std::count(config.mtp_layers.begin(), config.mtp_layers.end(), kind));
  };
  const auto real = [](int64_t value) { return static_cast<double>(value); };
  const double experts = count(BlockKind::kMoe) * real(config.n_routed_experts);
  if (experts > static_cast<double>(kMaxExpertMatrices)) {
    fields.fail("too many experts over all layers", "n_routed_experts",
                fmt::format("at most {}", kMaxExpertMatrices), fmt::format("{:.0f}", experts));
  }
  double total = 2 * real(config.vocab_size) * real(config.hidden_size);
  total += count(BlockKind::kMamba) * real(config.hidden_size) *
           (real(config.in_proj_rows()) + real(config.d_inner()));
  total += count(BlockKind::kAttention) * real(config.hidden_size) * 2 *
           (real(config.q_rows()) + real(config.kv_rows()));
  total += 2 * experts * real(config.moe_intermediate_size) * real(config.expert_width());
  total += 2 * count(BlockKind::kMoe) * real(config.hidden_size) *
           (real(config.shared_intermediate()) + real(config.moe_latent_size) +
            real(config.n_routed_experts));
  for (const int64_t size : config.intermediate_size) {
    total += 2 * real(size) * real(config.hidden_size);
  }
  if (total > kMaxParameters) {
    fields.fail("model is larger than any that exists", "hidden_size",
                fmt::format("at most {:.3g} parameters", kMaxParameters),
                fmt::format("{:.3g}", total));
  }
}

void check_norm_eps(const Fields& fields, const Config& config) {
  if (config.norm_eps > 0 && config.norm_eps < 1) return;
  fields.fail("norm epsilon is out of range", "layer_norm_epsilon", "between 0 and 1",
              fmt::format("{}", config.norm_eps));
}

}  // namespace

std::string pattern_of(const std::vector<BlockKind>& layers) {
  std::string pattern;
  for (const BlockKind kind : layers) pattern += static_cast<char>(kind);
  return pattern;
}

Config parse_config(const json& root, const std::string& file) {
  std::string where = file;
  if (!root.is_object()) {
    throw Error({.what = "configuration is not a JSON object",
                 .where = where,
                 .expected = {},
                 .found = root.type_name(),
                 .hint = {}});
  }
  const json& object = language_model_config(root, where);
  Config config;
  const Fields fields(object, where);
  check_model_type(fields);
  check_unsupported(fields);
  config.vocab_size = fields.require_int({"vocab_size"}, 1, kMaxVocabulary);
  config.hidden_size = fields.require_int({"hidden_size"}, 1, kMaxWidth);
  config.max_position_embeddings = fields.require_int({"max_position_embeddings"}, 1, kMaxContext);
  parse_layers(fields, where, config);
  parse_mtp(fields, where, config);
  config.norm_eps = fields.get_number({"layer_norm_epsilon", "norm_eps", "rms_norm_eps"}, 1e-5);
  check_norm_eps(fields, config);
  config.tie_word_embeddings = fields.get_bool({"tie_word_embeddings"}, false);
  config.mlp_bias = fields.get_bool({"mlp_bias"}, false);
  const auto uses = [&](BlockKind kind) {
    return has(config.layers, kind) || has(config.mtp_layers, kind);
  };
  if (uses(BlockKind::kAttention)) parse_attention(fields, config);
  if (uses(BlockKind::kMamba)) parse_mamba(fields, config);
  if (uses(BlockKind::kMoe)) parse_moe(fields, config);
  if (uses(BlockKind::kMlp)) parse_mlp(fields, config);
  parse_dtype(fields, config);
  parse_eos(fields, config);
  check_total_size(fields, config);
  return config;
}

}  // namespace levin::model
