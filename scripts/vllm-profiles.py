#!/usr/bin/env python3
"""Turns LLMServingSim's layer-wise profiles of vLLM, and its recorded runs, into files of dunlin.

    scripts/vllm-profiles.py LLMSERVINGSIM OUT

LLMSERVINGSIM is a checkout of https://github.com/casys-kaist/LLMServingSim (MIT), or the part of it
with `profiler/` and `bench/examples/`. OUT gets, for each run below, a `cost.toml` (operator profile)
and a `recorded.csv` (what vLLM did). Nothing is fitted, scaled or left out but the points of the
attention sweep that lie off its grid of doublings; the tests use these to check interpolation.
"""
import csv
import json
import pathlib
import re
import sys

LLAMA = ["layernorm", "qkv_proj", "rotary_emb", "o_proj", "layernorm", "gate_up_proj", "act_fn", "down_proj"]
QWEN3 = ["layernorm", "qkv_proj", "qk_norm", "rotary_emb", "o_proj", "layernorm", "gate_up_proj", "act_fn", "down_proj"]
QWEN3_MOE = ["layernorm", "qkv_proj", "qk_norm", "rotary_emb", "o_proj", "layernorm"]

# The link between the two GPUs is what the runs' own config.json says (link_bw, link_latency). Its
# bandwidth and latency are the authors' settings for that machine, not measurements of it.
LINK = "{ latency_ns = 20000.0, bytes_per_s = 16e9 }"

RUNS = [
    # name, profile, run, tensor ranks, layers, operators of a layer, largest recorded graph, collectives
    ("rtx4090-llama-3.1-8b", "RTX4090/meta-llama/Llama-3.1-8B", "RTX4090/Llama-3.1-8B", 1, 32, LLAMA, 512, []),
    ("rtxpro6000-llama-3.1-8b", "RTXPRO6000/meta-llama/Llama-3.1-8B", "RTXPRO6000/Llama-3.1-8B", 1, 32, LLAMA, 256, []),
    # Attention's output and the feed-forward network's are summed over two ranks, 5,120 values in 16 bits.
    ("rtxpro6000-qwen3-32b-tp2", "RTXPRO6000/Qwen/Qwen3-32B", "RTXPRO6000/Qwen3-32B", 2, 64, QWEN3, 256,
     [("exchange_all_reduce", 128, 2, 10240)]),
    # Two ranks with sequences of their own; their tokens' 2,048 values are gathered before the experts
    # and scattered after them. Vectors are those of both ranks.
    ("rtxpro6000-qwen3-30b-a3b-dp2", "RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507",
     "RTXPRO6000/Qwen3-30B-A3B-Instruct-2507", 1, 48, QWEN3_MOE, 256,
     [("ring_all_gather", 48, 2, 8192), ("ring_reduce_scatter", 48, 2, 8192)]),
]

# vLLM 0.19's sizes of CUDA graphs (the RTX 4090 run's meta.json lists them), up to twice max_num_seqs.
GRAPHS = [1, 2, 4] + list(range(8, 257, 8)) + list(range(272, 513, 16))

DOUBLINGS = [16 << i for i in range(11)]
CHUNKS, SEQS = [16 << i for i in range(8)], [1 << i for i in range(9)]


def table(path):
    with open(path, newline="") as f:
        return list(csv.reader(f))[1:]


def number(x):
    text = f"{float(x):.6g}"
    return text if "e" not in text else repr(float(text))


def array(values, indent=""):
    lines, line = [], ""
    for v in map(number, values):
        if len(line) + len(v) > 96:
            lines.append(line)
            line = ""
        line += v + ", "
    lines.append(line)
    return "[\n" + "".join(f"{indent}    {l.rstrip()}\n" for l in lines) + f"{indent}]"


def group(name, rows, counts):
    by = {}
    for layer, size, us in rows:
        by.setdefault(layer, {})[int(size)] = us
    points = sorted(next(iter(by.values())))
    text = f"[model.{name}]\npoints = {array(points)}\n"
    for layer, count in counts.items():
        assert sorted(by[layer]) == points, layer
        text += f"\n[[model.{name}.ops]]\nname = \"{layer}\"\ncount = {count}\n"
        text += f"us = {array(by[layer][p] for p in points)}\n"
    return text


def attention(path, layers):
    t = {tuple(map(int, row[:4])): row[4] for row in table(path)}
    contexts = [0] + DOUBLINGS
    return f"""[model.attention]
count = {layers}

[model.attention.decode]
seqs = {array(SEQS)}
kv = {array(DOUBLINGS)}
us = {array(t[0, 0, n, kv] for n in SEQS for kv in DOUBLINGS)}

[model.attention.prefill]
tokens = {array(CHUNKS)}
context = {array(contexts)}
us = {array(t[c, k, 0, 0] for c in CHUNKS for k in contexts)}

[model.attention.mixed]
tokens = {array(CHUNKS)}
context = {array(contexts)}
seqs = {array(SEQS[:-1])}
kv = {array(DOUBLINGS)}
us = {array(t[c, k, n, kv] for c in CHUNKS for k in contexts for n in SEQS[:-1] for kv in DOUBLINGS)}
"""


def skew(path, meta, tp):
    """The alphas, where the profile's own notes say that they were measured for it."""
    enabled = re.search(r"skew_fit:\n  enabled: (\w+)", meta).group(1) == "true"
    if not enabled:
        return ""
    default = re.findall(r"alpha_default: ([\d.]+)", meta)[tp - 1]
    t = {tuple(row[:5]): row[5] for row in table(path)}
    prefill = sorted({int(k[0]) for k in t})
    seqs = [2 << i for i in range(8)]
    spread = ["sr<=5%", "sr<=15%", "sr<=40%", "sr<=70%", "sr>70%"]
    longest = ["kvB<=1k", "kvB<=4k", "kvB<=16k", "kvB>16k"]
    context = ["kp=0", "kp<=512", "kp<=1k", "kp<=2k", "kp<=4k", "kp<=8k", "kp>8k"]
    keys = [(str(p), f"n<={n}", s, l, c) for p in prefill for n in seqs for s in spread for l in longest for c in context]
    return f"""
# Cells without measurements have the profile's default, {default}.
[model.skew]
prefill_tokens = {array(prefill)}
decode_seqs = {array(seqs)}
spread = [0.05, 0.15, 0.4, 0.7]
longest = [1024, 4096, 16384]
prefill_context = [0, 512, 1024, 2048, 4096, 8192]
alpha = {array(t.get(k, default) for k in keys)}
"""


def experts(path, layers):
    by = {}
    for tokens, active, us in table(path):
        by.setdefault(int(active), []).append((int(tokens), us))
    text = f"\n[model.experts]\ncount = {layers}\nn_experts = 128\nn_experts_used = 8\nranks = 2\n"
    for active in sorted(by):
        rows = sorted(by[active])
        text += f"\n[[model.experts.curves]]\nexperts = {active}\n"
        text += f"tokens = {array(r[0] for r in rows)}\nus = {array(r[1] for r in rows)}\n"
    return text


def recorded(run):
    """Nanoseconds since the first arrival. Arrivals are on another clock than the rest; the two are
    put together at the request that was queued soonest after it arrived."""
    rows = [json.loads(line) for line in open(run / "vllm" / "requests.jsonl")]
    shift = min(r["queued_ts"] - r["arrival_time"] for r in rows)
    first = rows[0]["arrival_time"]
    lines = ["arrival_ns,queued_ns,scheduled_ns,first_token_ns,last_token_ns,output_tokens"]
    for r in rows:
        engine = [r[k] - shift - first for k in ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")]
        times = [r["arrival_time"] - first] + engine
        lines.append(",".join([str(round(t * 1e6) * 1000) for t in times] + [str(r["output_toks"])]))
    return "\n".join(lines) + "\n"


def main():
    source, out = map(pathlib.Path, sys.argv[1:])
    for name, profile, run, tp, layers, ops, largest, collectives in RUNS:
        folder = source / "profiler" / "perf" / profile / "bf16"
        meta, data = (folder / "meta.yaml").read_text(), folder / f"tp{tp}"
        counts = {"embedding": 1, "final_layernorm": 1}
        for op in ops:
            counts[op] = counts.get(op, 0) + layers
        head = f"""# {profile}, bf16, {tp} rank(s): layer-wise timings of vLLM 0.19.0 by LLMServingSim's profiler
# (MIT licence; see README.md). Made by scripts/vllm-profiles.py; microseconds.
version = 1
source = "LLMServingSim @ 5daddb21a545, profiler/perf/{profile}/bf16/tp{tp}"

[model]
kind = "operators"
graph_sizes = {array([g for g in GRAPHS if g <= largest])}
"""
        if name.endswith("dp2"):
            head += "data_ranks = 2\n"
        # Arrays of tables come before the tables that close them.
        body = ""
        for kind, count, devices, bytes_per_token in collectives:
            body += f"\n[[model.collectives]]\nkind = \"{kind}\"\ncount = {count}\ndevices = {devices}\n"
            body += f"bytes_per_token = {bytes_per_token}\nlink = {LINK}\n"
        body += "\n" + group("tokens", table(data / "dense.csv"), counts)
        body += "\n" + group("sampled", table(data / "per_sequence.csv"), {"lm_head": 1, "sampler": 1})
        body += "\n" + attention(data / "attention.csv", layers)
        body += skew(data / "skew_fit.csv", meta, tp)
        if name.endswith("dp2"):
            body += experts(data / "moe.csv", layers)
        target = out / name
        target.mkdir(parents=True, exist_ok=True)
        (target / "cost.toml").write_text(head + body)
        (target / "recorded.csv").write_text(recorded(source / "bench" / "examples" / run))


if __name__ == "__main__":
    main()
