#!/usr/bin/env python3
"""A peer's own error against golden logits: what `int8` activations are held to.

  logits_error.py --peer llama --model MODEL.gguf --kv f32 GOLDEN.json...

A golden file is a list of prompts (or one prompt) with `ids`, `probe_ids` and `probe_logits`, the
float64 logits of a few vocabulary entries at every position (or at the last ones: a long prompt).
The error of a prompt is the relative L2 norm over all of its probe logits, as `dunlin eval golden`
computes it. One JSON object on standard output: each prompt's error, their mean and the worst, the
largest absolute error, and how often the argmax of the probes' file agrees where it is given.
Runs in the peer's environment.
"""
import argparse
import json
import os
import sys

import numpy as np

from peer import KV_TYPES, PEERS, open_peer


def prompts(path):
    with open(path) as f:
        golden = json.load(f)
    for index, prompt in enumerate(golden if isinstance(golden, list) else [golden]):
        name = os.path.basename(path).removesuffix(".json")
        yield f"{name}#{index}", prompt


def logits_of(peer, ids, last, args):
    """float64 [last, vocab]: the logits of the last positions."""
    context = peer.context(
        context=(len(ids) + 255) // 256 * 256, threads=args.threads, kv=args.kv,
        batch=512, ubatch=512, flash_attention=args.flash_attention)
    first = len(ids) - last
    out = []
    for start in range(0, len(ids), 512):
        stop = min(start + 512, len(ids))
        context.fill([(ids[i], i, 0, i >= first) for i in range(start, stop)])
        context.step()
        context.synchronize()
        out += [context.logits(i - start) for i in range(max(start, first), stop)]
    context.close()
    return np.array(out, dtype=np.float64)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", choices=PEERS, default="llama")
    parser.add_argument("--model", required=True)
    parser.add_argument("--kv", choices=sorted(KV_TYPES), default="f32")
    parser.add_argument("--flash-attention", action="store_true",
                        help="needed by llama.cpp for int8 values")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("golden", nargs="+")
    args = parser.parse_args()

    peer = open_peer(args.peer)
    peer.load(args.model)
    rows = []
    for path in args.golden:
        for name, prompt in prompts(path):
            want = np.array(prompt["probe_logits"], dtype=np.float64)
            got = logits_of(peer, prompt["ids"], len(want), args)
            probes = got[:, prompt["probe_ids"]]
            row = {
                "prompt": name,
                "tokens": len(prompt["ids"]),
                "relative_l2": float(np.linalg.norm(probes - want) / np.linalg.norm(want)),
                "max_abs": float(np.abs(probes - want).max()),
            }
            if "argmax" in prompt:
                row["argmax_agrees"] = int((got.argmax(axis=1) == prompt["argmax"]).sum())
                row["argmax_of"] = len(want)
            rows.append(row)
            print(f"{name}: {row['relative_l2']:.3e}", file=sys.stderr)
    errors = [row["relative_l2"] for row in rows]
    json.dump({
        "peer": peer.version(), "model": os.path.basename(args.model), "kv": args.kv,
        "flash_attention": args.flash_attention, "mean": float(np.mean(errors)),
        "worst": max(errors), "prompts": rows,
    }, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
