#!/usr/bin/env python3
"""Makes tests/data/blocks: small random NemotronH checkpoints that the bundled model does not cover
(dense layers, latent experts, expert groups, biases, tied embeddings, ...), and for each the float32
logits and hidden states that Hugging Face transformers computes.

    pip install torch transformers safetensors numpy
    python tools/make_block_goldens.py tests/data/blocks

Made with torch 2.7.1 and transformers 5.24.0, which ignores three keys of the configuration. They
are put into effect here: time_step_limit (transformers clamps dt at time_step_min instead, which the
published models were not trained with), attention_bias and tie_word_embeddings.
"""

import math
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import NemotronHConfig, NemotronHForCausalLM

COMMON = dict(
    vocab_size=64,
    hidden_size=48,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=12,
    max_position_embeddings=64,
    mamba_num_heads=6,
    mamba_head_dim=10,
    n_groups=2,
    ssm_state_size=20,
    conv_kernel=4,
    chunk_size=8,
    intermediate_size=40,
    n_routed_experts=8,
    num_experts_per_tok=2,
    n_shared_experts=1,
    moe_intermediate_size=24,
    moe_shared_expert_intermediate_size=56,
    routed_scaling_factor=2.5,
    num_nextn_predict_layers=0,
)

CASES = {
    # Dense layers and every bias.
    "dense_bias": dict(
        hybrid_override_pattern="M-*-M",
        mlp_bias=True,
        attention_bias=True,
        use_bias=True,
        mamba_proj_bias=True,
    ),
    # Super's experts in a narrower space, behind biased projections, chosen within expert groups.
    "latent_groups": dict(
        hybrid_override_pattern="ME*E",
        moe_latent_size=16,
        mlp_bias=True,
        n_routed_experts=16,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=5.0,
    ),
    # Tied embeddings, a convolution of 3 taps without bias, one head per group, clamped dt, expert
    # weights that are not normalized.
    "tied_clamped": dict(
        hybrid_override_pattern="MEM*E",
        tie_word_embeddings=True,
        use_conv_bias=False,
        conv_kernel=3,
        n_groups=6,
        time_step_limit=[0.02, 0.2],
        norm_topk_prob=False,
        num_key_value_heads=6,
    ),
}


def random_weights(model, generator):
    """BF16-representable values of the size that trained weights have."""
    with torch.no_grad():
        for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("A_log"):
                value = torch.log(1 + 7 * torch.rand(tensor.shape, generator=generator))
            elif name.endswith("dt_bias"):
                value = -3 + 2 * noise
            elif name.endswith("e_score_correction_bias"):
                value = 0.1 * noise
            elif name.endswith("norm.weight") or name.endswith("norm_f.weight"):
                value = 1 + 0.2 * noise
            elif name.endswith(".D"):
                value = 1 + 0.5 * noise
            elif "embeddings" in name:
                value = noise
            elif tensor.dim() == 1:
                value = 0.3 * noise
            elif "conv1d" in name:
                value = noise / math.sqrt(tensor.shape[-1])
            else:
                value = noise / math.sqrt(tensor.shape[-1])
            tensor.copy_(value.to(torch.bfloat16).float())


def obey_ignored_keys(model, config):
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embeddings.weight
    for layer in model.model.layers:
        mixer = layer.mixer
        if hasattr(mixer, "time_step_limit"):
            low, high = config.time_step_limit
            mixer.time_step_limit = (float(low), float(high))
        if config.attention_bias and hasattr(mixer, "q_proj"):
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                old = getattr(mixer, name)
                setattr(mixer, name, torch.nn.Linear(old.in_features, old.out_features, bias=True))


def make(name, options, out, generator):
    config = NemotronHConfig(**{**COMMON, **options})
    torch.manual_seed(0)
    model = NemotronHForCausalLM(config).float().eval()
    obey_ignored_keys(model, config)
    random_weights(model, generator)
    ids = torch.randint(0, config.vocab_size, (1, 21), generator=generator)
    with torch.no_grad():
        result = model(ids, output_hidden_states=True, use_cache=False)

    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    tensors = {}
    for key, tensor in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        full = key.endswith("e_score_correction_bias")
        tensors[key] = tensor.to(torch.float32 if full else torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    golden = {
        "input_ids": ids[0].to(torch.int32),
        "logits": result.logits[0].float(),
        "hidden": torch.stack([h[0].float() for h in result.hidden_states]),
    }
    save_file({k: v.contiguous() for k, v in golden.items()}, out / f"{name}.golden.safetensors")
    print(name, "logits", tuple(golden["logits"].shape), "std", golden["logits"].std().item())


def main():
    out = pathlib.Path(sys.argv[1])
    generator = torch.Generator().manual_seed(20)
    for name, options in CASES.items():
        make(name, options, out, generator)


if __name__ == "__main__":
    main()
