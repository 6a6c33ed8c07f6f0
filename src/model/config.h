// NemotronH's hyperparameters, resolved from config.json with every alias and drift that public
// checkpoints show. Names are Hugging Face's; shapes derive from these and from nothing else.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace levin::model {

enum class BlockKind : char { kMamba = 'M', kMoe = 'E', kAttention = '*', kMlp = '-' };

struct Config {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  std::vector<BlockKind> layers;      // the schedule; its length is the number of layers
  std::vector<BlockKind> mtp_layers;  // empty when there is no MTP head
  int64_t max_position_embeddings = 0;
  double norm_eps = 1e-5;
  bool tie_word_embeddings = false;

  // Attention (no rotary embedding, whatever rope_theta says)
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  bool attention_bias = false;

  // Mamba-2
  int64_t mamba_num_heads = 0;
  int64_t mamba_head_dim = 0;
  int64_t n_groups = 0;
  int64_t ssm_state_size = 0;
  int64_t conv_kernel = 0;
  int64_t chunk_size = 128;
  bool use_conv_bias = true;
  bool mamba_proj_bias = false;  // of in_proj and out_proj; Hugging Face's use_bias
  // softplus(dt) is clamped to this; (0, inf), i.e. not at all, in every public checkpoint.
  double time_step_limit_min = 0;
  double time_step_limit_max = std::numeric_limits<double>::infinity();
  std::string mamba_ssm_cache_dtype = "float32";

  // Mixture of experts and dense MLP; the activation is relu squared, without gate matrices
  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t n_shared_experts = 0;
  int64_t moe_intermediate_size = 0;
  int64_t moe_shared_expert_intermediate_size = 0;
  int64_t moe_latent_size = 0;             // 0: routed experts see the full width
  std::vector<int64_t> intermediate_size;  // one per '-' layer
  bool mlp_bias = false;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1;

  std::vector<int32_t> eos_token_ids;
  std::string torch_dtype = "bfloat16";

  // Keys with two spellings that have two values, one sentence each.
  std::vector<std::string> notes;

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  // mamba_num_heads * mamba_head_dim (not expand * hidden_size)
  int64_t d_inner() const { return mamba_num_heads * mamba_head_dim; }
  // width of the convolution: x, B and C
  int64_t conv_dim() const { return d_inner() + 2 * n_groups * ssm_state_size; }
  // rows of in_proj, in the order z, x, B, C, dt
  int64_t in_proj_rows() const { return d_inner() + conv_dim() + mamba_num_heads; }
  int64_t q_rows() const { return num_attention_heads * head_dim; }
  int64_t kv_rows() const { return num_key_value_heads * head_dim; }
  int64_t shared_intermediate() const {
    return moe_shared_expert_intermediate_size * n_shared_experts;
  }
  // width seen by routed experts
  int64_t expert_width() const { return moe_latent_size > 0 ? moe_latent_size : hidden_size; }
};

// Block characters in order, e.g. "MEMEM*E".
std::string pattern_of(const std::vector<BlockKind>& layers);

// Parses config.json. `where` names the file in errors. Multimodal wrappers are looked through
// (llm_config, text_config). Where a key has an older spelling and both are present, the one that
// wins is the one that wins in Hugging Face transformers (configuration_nemotron_h.py). Missing
// shape keys, unknown block types, unsupported activations or model types, sizes beyond any model,
// and values that contradict each other (a pattern whose length is not num_hidden_layers, heads
// that groups do not divide, ...) are Errors.
Config parse_config(const nlohmann::json& json, const std::string& where);

}  // namespace levin::model
