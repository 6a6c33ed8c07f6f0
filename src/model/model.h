// NemotronH as data: blocks with their weights bound to checkpoint tensors. Small vectors are
// widened to float32 here; matrices stay views of the checkpoint, which the model keeps alive.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/linear.h"

namespace levin::model {

struct MambaBlock {
  Linear in_proj;                  // [d_inner + conv_dim + heads, hidden]: z, x, B, C, dt
  std::vector<float> conv_weight;  // [conv_dim, conv_kernel]; the last tap meets the current token
  std::vector<float> conv_bias;    // [conv_dim]; zeros when use_conv_bias is false
  std::vector<float> a;            // [heads], -exp(A_log)
  std::vector<float> d;            // [heads]
  std::vector<float> dt_bias;      // [heads]
  std::vector<float> norm;         // [d_inner], gated grouped RMSNorm
  Linear out_proj;                 // [hidden, d_inner]
};

struct AttentionBlock {
  Linear q_proj, k_proj, v_proj, o_proj;
  float k_scale = 1.0F;  // FP8 KV cache scales (multipliers); 1 when the checkpoint has none
  float v_scale = 1.0F;
};

struct Expert {
  Linear up_proj;    // [intermediate, width]
  Linear down_proj;  // [width, intermediate]
};

struct MoeBlock {
  Linear gate;                                 // router [experts, hidden], F32 or BF16
  std::vector<float> e_score_correction_bias;  // [experts]
  std::vector<Expert> experts;
  std::optional<Expert> shared;   // absent when n_shared_experts is 0
  Linear fc1_latent, fc2_latent;  // exist() only with moe_latent_size
};

struct MlpBlock {
  Linear up_proj, down_proj;
};

struct Layer {
  BlockKind kind;
  std::vector<float> norm;  // [hidden], pre-norm
  std::variant<MambaBlock, MoeBlock, AttentionBlock, MlpBlock> mixer;
};

// The built-in draft head. One physical depth, applied recursively.
struct Mtp {
  std::vector<float> enorm;  // [hidden], of the next token's embedding
  std::vector<float> hnorm;  // [hidden], of the incoming hidden state
  Linear eh_proj;            // [hidden, 2 * hidden]: embedding half first
  std::vector<Layer> layers;
  std::vector<float> final_layernorm;
};

struct Model {
  Config config;
  Linear embeddings;  // used as a table: row t is token t's vector
  std::vector<Layer> layers;
  std::vector<float> norm_f;
  Linear lm_head;  // equals embeddings when tie_word_embeddings
  std::optional<Mtp> mtp;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;  // owns the bytes

  // Every linear with a name, MTP's included, embeddings and lm_head too, in checkpoint order.
  std::vector<const Linear*> linears() const;
};

enum class LoadFormat { kAuto, kDummy };

// Reading the values of more than this takes long enough to be asked for.
inline constexpr uint64_t kAutoCheckBytes = uint64_t{4} << 30;

// How much of the values binding looks at. Norms, biases, Mamba's parameters and all scales always.
enum class ValueCheck : uint8_t {
  kAuto,    // kWeights up to kAutoCheckBytes of tensors, kScales above
  kScales,  // not the matrices
  kWeights  // NaN and infinity in every matrix too, all cores
};

struct BindOptions {
  bool mtp = true;  // bind mtp.* when the checkpoint has it; false: as if the model had no MTP head
  ValueCheck check = ValueCheck::kAuto;
};

// Binds every tensor of the checkpoint to its place. Accounts for the whole inventory: a tensor
// that the config requires and the checkpoint lacks, a tensor that nobody consumes, a wrong shape
// or dtype, NaN/Inf or out-of-range scales, metadata that contradicts tensors or itself are Errors.
// Two things are told on the log instead: a checkpoint without any mtp.* tensor although its config
// announces the head (transformers drops it when it saves), and tensors of other modalities in a
// multimodal wrapper. Binding a dummy checkpoint makes its tensors.
std::shared_ptr<const Model> bind_model(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                        const BindOptions& options = {});

// The checkpoint of `folder`; with LoadFormat::kDummy its configuration with random weights.
std::shared_ptr<const checkpoint::Checkpoint> open_checkpoint(const std::filesystem::path& folder,
                                                              LoadFormat format);

// open + bind. With LoadFormat::kDummy only config.json of `folder` is read.
std::shared_ptr<const Model> load_model(const std::filesystem::path& folder,
                                        LoadFormat format = LoadFormat::kAuto,
                                        const BindOptions& options = {});

}  // namespace levin::model
