#!/usr/bin/env python3
"""Counts, independently of the crate, what the tests expect of the excerpts beside this file.

    python3 crates/workload/data/count.py
"""
import csv
import json
import math
import os
from datetime import datetime, timezone

HERE = os.path.dirname(os.path.abspath(__file__))
SECOND = 10**9


def path(name):
    return os.path.join(HERE, name)


def nearest_rank(values, p):
    values = sorted(values)
    return values[max(1, math.ceil(p * len(values))) - 1]


def describe(name, rows):
    """rows: (arrival in ns, prompt tokens, output tokens)."""
    prompts, outputs = [r[1] for r in rows], [r[2] for r in rows]
    span = rows[-1][0] - rows[0][0]
    print(f"{name}: rows {len(rows)}, span {span} ns")
    for what, values in (("prompt", prompts), ("output", outputs)):
        ranks = [nearest_rank(values, p) for p in (0.5, 0.9, 0.99)]
        print(f"  {what}: sum {sum(values)}, min {min(values)}, max {max(values)}, p50 p90 p99 {ranks}")
    if not span:
        return
    gaps = [b[0] - a[0] for a, b in zip(rows, rows[1:])]
    mean = sum(gaps) / len(gaps)
    cv = math.sqrt(sum((g - mean) ** 2 for g in gaps) / len(gaps)) / mean
    print(f"  rate {(len(rows) - 1) / (span / SECOND)!r} per s, gap cv {cv!r}")
    for width in (SECOND, 10 * SECOND):
        counts = [0] * (span // width + 1)
        for row in rows:
            counts[(row[0] - rows[0][0]) // width] += 1
        counts.pop()  # the last window is not over
        if len(counts) < 2:
            continue
        mean = sum(counts) / len(counts)
        variance = sum((c - mean) ** 2 for c in counts) / len(counts)
        covariance = sum((a - mean) * (b - mean) for a, b in zip(counts, counts[1:]))
        print(
            f"  windows of {width // SECOND} s: {len(counts)}, dispersion {variance / mean!r},"
            f" correlation {covariance / (len(counts) * variance)!r}, peak {max(counts)}"
        )


def shared(rows, block_tokens):
    """rows: (prompt tokens, block ids). Prompt tokens in blocks that were seen before."""
    seen, found = set(), 0
    for prompt, ids in rows:
        for k, block in enumerate(ids):
            if block not in seen:
                break
            found += max(0, min(block_tokens, prompt - k * block_tokens))
        seen.update(ids)
    print(f"  shared {found} tokens, sum of ids {sum(sum(ids) for _, ids in rows)}")


def azure(name):
    rows, first = [], None
    with open(path(name)) as file:
        for row in csv.DictReader(file):
            text = row["TIMESTAMP"]
            whole = datetime.strptime(text[:19], "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
            ns = int(whole.timestamp()) * SECOND + int(text[20:].ljust(9, "0"))
            first = ns if first is None else first
            rows.append((ns - first, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
    describe(name, rows)


def json_lines(name, arrival, prompt, output, ids, unit_ns, block_tokens):
    with open(path(name)) as file:
        rows = [json.loads(line) for line in file]
    describe(name, [(r[arrival] * unit_ns, r[prompt], r[output]) for r in rows])
    shared([(r[prompt], r[ids]) for r in rows], block_tokens)


def pairs(name):
    with open(path(name)) as file:
        rows = list(csv.DictReader(file))
    describe(name, [(0, int(r["num_prefill_tokens"]), int(r["num_decode_tokens"])) for r in rows])


for name in ("azure_conv.csv", "azure_code.csv"):
    azure(name)
for name in ("mooncake_conversation.jsonl", "mooncake_synthetic.jsonl"):
    json_lines(name, "timestamp", "input_length", "output_length", "hash_ids", 10**6, 512)
json_lines(
    "llmservingsim_sharegpt.jsonl",
    "arrival_time_ns", "input_toks", "output_toks", "block_ids_16", 1, 16,
)
for name in ("vidur_arxiv.csv", "etalon_sharegpt.csv"):
    pairs(name)
