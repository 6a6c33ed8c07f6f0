#!/usr/bin/env python3
"""levin serve against the number of requests at a time, by drafts: docs/benchmarks/serving.md.

    benchmarks/serving.py LEVIN -o out/serving [--model scaled] [--levels 1,2,4,8,16,32,64]
    benchmarks/serving.py --table out/serving

Starts a server for every setting and lets `LEVIN bench --url` measure them in turn, round by round,
so that a busy machine hits all of them. Every measurement is a folder of its own with raw records;
what is there is not measured again. `--model scaled` is the shape of the 30B-A3B model at about a
hundredth of its size with random weights, made from configs/.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

SETTINGS = {
    "k=0": ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 0}'],
    "k=1": ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}'],
    "k=2": ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}'],
    "k=3": ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}'],
    "k=5": ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 5}'],
    "auto": [],
}
SCALED = {
    "layers_block_type": ["mamba", "moe", "mamba", "moe", "mamba", "attention", "moe"],
    "num_hidden_layers": 7, "hidden_size": 896, "head_dim": 128, "num_attention_heads": 8,
    "num_key_value_heads": 2, "mamba_num_heads": 28, "mamba_head_dim": 64, "n_groups": 4,
    "ssm_state_size": 128, "intermediate_size": 640, "moe_intermediate_size": 640,
    "moe_shared_expert_intermediate_size": 1280, "n_routed_experts": 32, "vocab_size": 4096,
    "max_position_embeddings": 2048,
}

parser = argparse.ArgumentParser()
parser.add_argument("levin", nargs="?")
parser.add_argument("-o", "--out")
parser.add_argument("--table", metavar="FOLDER", help="print what has been measured")
parser.add_argument("--model", choices=["tiny", "scaled"], default="tiny")
parser.add_argument("--levels", default="1,2,4,8,16,32,64")
parser.add_argument("--settings", default="k=0,k=1,k=2,k=3,k=5,auto")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--input-len", type=int, default=128)
parser.add_argument("--output-len", type=int, default=64)
parser.add_argument("--serve-flags", default="", help="more flags for the servers")
parser.add_argument("--bench-flags", default="", help="more flags for levin bench")
args = parser.parse_args()


def make_scaled(folder):
    source = "configs/nemotron-3.5-lightning-30b-a3b/config.json"
    with open(source, encoding="utf-8") as file:
        config = json.load(file)
    config.update(SCALED)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                 "chat_template.jinja"):
        shutil.copy(os.path.join("models/tiny", name), folder)
    return folder


class Server:
    def __init__(self, model, flags):
        self.process = subprocess.Popen(
            [args.levin, "serve", *model, "--port", "0", "--disable-log-requests",
             "--max-num-seqs", "64", "--max-model-len", "512", *flags, *args.serve_flags.split()],
            stderr=subprocess.PIPE, text=True)
        log = ""
        for line in self.process.stderr:
            log += line
            port = re.search(r"http://127\.0\.0\.1:(\d+)", log)
            if port and "speculation:" in line:
                self.url = f"http://127.0.0.1:{port.group(1)}"
                return
        sys.exit(f"no server:\n{log}")

    def stop(self):
        self.process.terminate()
        self.process.wait()


def measure(model):
    levels = [int(level) for level in args.levels.split(",")]
    names = args.settings.split(",")
    missing = [(level, round_, name) for level in levels for round_ in range(args.rounds)
               for name in names
               if not os.path.exists(os.path.join(folder_of(level, round_, name), "summary.json"))]
    servers = {name: Server(model, SETTINGS[name]) for name in names
               if any(name == each for _, _, each in missing)}
    try:
        for level, round_, name in missing:
            # The first time a server sees a load, its choice of drafts has yet to settle.
            warm_ups = 2 * level + 8 if round_ == 0 else 1
            subprocess.run(
                [args.levin, "bench", "--url", servers[name].url, "--max-concurrency", str(level),
                 "--num-rounds", "1", "--num-warmups", str(warm_ups), "--ignore-eos",
                 "--input-len", str(args.input_len), "--output-len", str(args.output_len),
                 "-o", folder_of(level, round_, name), *args.bench_flags.split()],
                check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    finally:
        for server in servers.values():
            server.stop()


def folder_of(level, round_, name):
    return os.path.join(args.out, f"{level}-{name}-{round_}")


def read_all(folder):
    points = {}
    for entry in os.listdir(folder):
        path = os.path.join(folder, entry, "summary.json")
        if not os.path.exists(path):
            continue
        level, name, _ = entry.split("-")
        with open(path, encoding="utf-8") as file:
            points.setdefault((int(level), name), []).append(json.load(file)["points"])
    return points


def table(folder):
    points = read_all(folder)
    levels = sorted({level for level, _ in points})
    names = [name for name in SETTINGS if any(name == each for _, each in points)]

    def rates(level, name):
        return [run[-1]["output_tokens_per_second"]["median"] for run in points.get((level, name), [])]

    def value(level, name):
        return statistics.median(rates(level, name) or [0])

    def cell(level, name):
        measured = rates(level, name)
        if not measured:
            return "-"
        return f"{value(level, name):.0f} [{min(measured):.0f} .. {max(measured):.0f}]"

    print("output tokens/s, median of the rounds [least .. most]\n")
    print("| at a time |", " | ".join(names), "| auto / best fixed |")
    print("|" + "---|" * (len(names) + 2))
    for level in levels:
        cells = [cell(level, name) for name in names]
        best = max(value(level, n) for n in names if n != "auto")
        print(f"| {level} |", " | ".join(cells), f"| {value(level, 'auto') / best:.3f} |")
    print("\nauto, ms: p50 / p90 / p99 of all rounds' medians; drafts a round\n")
    print("| at a time | TTFT | TPOT | ITL | over one at a time | drafts | acceptance length |")
    print("|---|---|---|---|---|---|---|")
    for level in levels:
        runs = [run[-1] for run in points.get((level, "auto"), [])]
        if not runs:
            continue
        cells = []
        for key in ("ttft_ms", "tpot_ms", "itl_ms"):
            cells.append(" / ".join(f"{statistics.median(r[key][p] for r in runs):.2f}"
                                    for p in ("p50", "p90", "p99")))
        over = statistics.median(r["over_control"]["median"] for r in runs)
        drafts = sum((r["speculation"] or {}).get("draft_tokens", 0) for r in runs)
        rounds = sum((r["speculation"] or {}).get("drafts", 0) for r in runs)
        accepted = sum((r["speculation"] or {}).get("accepted_tokens", 0) for r in runs)
        cells += [f"{over:.2f}", f"{drafts / max(rounds, 1):.2f}",
                  f"{1 + accepted / max(rounds, 1):.2f}"]
        print(f"| {level} |", " | ".join(cells), "|")


if args.table:
    table(args.table)
elif not args.levin or not args.out:
    parser.error("LEVIN and -o, or --table")
elif args.model == "tiny":
    measure(["models/tiny"])
else:
    with tempfile.TemporaryDirectory() as scaled:
        measure([make_scaled(scaled), "--load-format", "dummy"])
