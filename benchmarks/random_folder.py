#!/usr/bin/env python3
"""Writes a checkpoint folder of random BF16 weights: the first layers of a configuration, so many
that there are about so many bytes. For timing how files are read; `--load-format dummy` needs none.

    benchmarks/random_folder.py configs/nemotron-3.5-lightning-30b-a3b models/tiny OUT --gb 20

The tokenizer is that of the second folder. Needs numpy.
"""
import argparse
import json
import math
import pathlib
import shutil
import struct

import numpy

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("config", type=pathlib.Path)
parser.add_argument("tokenizer", type=pathlib.Path)
parser.add_argument("out", type=pathlib.Path)
parser.add_argument("--gb", type=float, default=20)
args = parser.parse_args()

config = json.loads((args.config / "config.json").read_text())
c = config
hidden = c["hidden_size"]
inner = c["mamba_num_heads"] * c["mamba_head_dim"]
conv = inner + 2 * c["n_groups"] * c["ssm_state_size"]
heads = c["mamba_num_heads"]
q = c["num_attention_heads"] * c["head_dim"]
kv = c["num_key_value_heads"] * c["head_dim"]


def mamba(p):
    yield p + "conv1d.weight", "BF16", [conv, 1, c["conv_kernel"]]
    if c.get("use_conv_bias", True):
        yield p + "conv1d.bias", "BF16", [conv]
    yield p + "in_proj.weight", "BF16", [inner + conv + heads, hidden]
    yield p + "out_proj.weight", "BF16", [hidden, inner]
    yield p + "norm.weight", "BF16", [inner]
    for name in ("A_log", "D", "dt_bias"):
        yield p + name, "F32", [heads]


def moe(p):
    experts = c["n_routed_experts"]
    yield p + "gate.weight", "F32", [experts, hidden]
    yield p + "gate.e_score_correction_bias", "F32", [experts]
    names = [(f"experts.{i}", c["moe_intermediate_size"]) for i in range(experts)]
    names.append(("shared_experts", c["moe_shared_expert_intermediate_size"]))
    for name, width in names:
        yield f"{p}{name}.up_proj.weight", "BF16", [width, hidden]
        yield f"{p}{name}.down_proj.weight", "BF16", [hidden, width]


def attention(p):
    for name, rows, columns in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
        yield f"{p}{name}_proj.weight", "BF16", [rows, columns]


def size(tensors):
    return sum(math.prod(shape) * (2 if dtype == "BF16" else 4) for _, dtype, shape in tensors)


pattern = c.get("hybrid_override_pattern") or "".join(
    {"mamba": "M", "moe": "E", "attention": "*"}[kind] for kind in c["layers_block_type"])
ends = [("backbone.embeddings.weight", "BF16", [c["vocab_size"], hidden]),
        ("backbone.norm_f.weight", "BF16", [hidden]),
        ("lm_head.weight", "BF16", [c["vocab_size"], hidden])]
shards = [ends]
total = size(ends)
layers = 0
for kind in pattern:
    prefix = f"backbone.layers.{layers}."
    mixer = {"M": mamba, "E": moe, "*": attention}[kind](prefix + "mixer.")
    shard = [(prefix + "norm.weight", "BF16", [hidden]), *mixer]
    if total + size(shard) > args.gb * 1e9:
        break
    shards.append(shard)
    total += size(shard)
    layers += 1
config.update(hybrid_override_pattern=pattern[:layers], num_hidden_layers=layers,
              num_nextn_predict_layers=0, model_type="nemotron_h")
for name in ("layers_block_type", "mtp_layers_block_type"):
    config.pop(name, None)

args.out.mkdir(parents=True)
(args.out / "config.json").write_text(json.dumps(config, indent=1))
for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(args.tokenizer / name, args.out)
random = numpy.random.default_rng(0)
floats = (random.standard_normal(1 << 26, dtype=numpy.float32) * 0.02)
pool = {"F32": floats.tobytes(), "BF16": (floats.view(numpy.uint32) >> 16).astype("<u2").tobytes()}
weight_map = {}
for i, shard in enumerate(shards):
    file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
    header, at = {}, 0
    for name, dtype, shape in shard:
        end = at + size([(name, dtype, shape)])
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        weight_map[name] = file
        at = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(args.out / file, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for number, (name, dtype, shape) in enumerate(shard):
            left = size([(name, dtype, shape)])
            start = number * 4096 % (1 << 20)
            while left > 0:
                piece = pool[dtype][start:start + left]
                f.write(piece)
                left -= len(piece)
                start = 0
(args.out / "model.safetensors.index.json").write_text(
    json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
print(f"{layers} layers, {total / 1e9:.2f} GB")
