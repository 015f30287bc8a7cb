#!/usr/bin/env python3
"""A second forward pass in float64, for what oracle.py lacks.

Reads a Hugging Face folder (config.json and safetensors) and computes the logits of every position
with plain matrix algebra: no cache, no batching. Written apart from oracle.py, from the papers and
the configurations' documented meaning, so that the two can disagree. Needs only numpy.

  extra.py FOLDER --tokens 1,2,3 --context 128 --out L.npy

Models: Llama, Mistral (sliding window), Mixtral, Qwen2, Qwen3, Qwen3-MoE, Gemma 3 (text), Phi-3.
RoPE: plain, linear (arXiv 2306.15595), Llama 3's, YaRN (arXiv 2309.00071), LongRoPE as Phi-3 uses
it (arXiv 2402.13753).
"""
import argparse
import json
import math
import pathlib
import struct

import numpy as np


def load_tensors(folder):
    """Every tensor of every safetensors file, as float64."""
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        table = json.loads(raw[8 : 8 + length])
        data = raw[8 + length :]
        for name, entry in table.items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            piece = data[begin:end]
            if entry["dtype"] == "F32":
                values = np.frombuffer(piece, "<f4")
            elif entry["dtype"] == "F16":
                values = np.frombuffer(piece, "<f2")
            elif entry["dtype"] == "BF16":
                # The upper half of a float32.
                values = (np.frombuffer(piece, "<u2").astype("<u4") << 16).view("<f4")
            else:
                raise ValueError(f"{name} has type {entry['dtype']}")
            tensors[name] = values.astype(np.float64).reshape(entry["shape"])
    return tensors


def plain_frequencies(base, dim):
    return np.array([base ** (-2.0 * i / dim) for i in range(dim // 2)])


def yarn_frequencies(freq, base, dim, scaling, context):
    """YaRN, section 3.2: interpolate what turns slowly, leave what turns fast, ramp between."""
    factor = scaling["factor"]
    original = scaling.get("original_max_position_embeddings") or context

    def pair_that_turns(times):
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(scaling.get("beta_fast", 32))), 0)
    high = min(math.ceil(pair_that_turns(scaling.get("beta_slow", 1))), dim - 1)
    if low == high:
        high += 0.001
    interpolated = np.clip((np.arange(dim // 2) - low) / (high - low), 0.0, 1.0)
    magnitude = scaling.get("attention_factor") or 0.1 * math.log(factor) + 1.0
    return freq / factor * interpolated + freq * (1.0 - interpolated), magnitude


def llama3_frequencies(freq, scaling):
    """By how often a pair turns in the original context."""
    out = []
    for f in freq:
        turns = scaling["original_max_position_embeddings"] * f / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        # 0 below `low` turns (divide by the factor), 1 above `high` (leave alone).
        keep = min(max((turns - low) / (high - low), 0.0), 1.0)
        out.append(f * (keep + (1.0 - keep) / scaling["factor"]))
    return np.array(out)


class Model:
    def __init__(self, folder, context):
        self.config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        self.tensors = load_tensors(folder)
        self.kind = self.config["architectures"][0]
        self.gemma = self.kind == "Gemma3ForCausalLM"
        self.context = context
        c = self.config
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.head_dim = c.get("head_dim") or c["hidden_size"] // self.heads

    def tensor(self, layer, name):
        return self.tensors[f"model.layers.{layer}.{name}"]

    def has(self, layer, name):
        return f"model.layers.{layer}.{name}" in self.tensors

    def norm(self, x, weight):
        mean_square = (x * x).sum(-1, keepdims=True) / x.shape[-1]
        weight = weight + 1.0 if self.gemma else weight
        return x / (mean_square + self.config["rms_norm_eps"]) ** 0.5 * weight

    def rope(self, local):
        """Frequencies of the pairs, and what cos and sin are multiplied by."""
        c, dim = self.config, self.head_dim
        base = c["rope_local_base_freq"] if local else c["rope_theta"]
        freq = plain_frequencies(base, dim)
        scaling = c.get("rope_scaling")
        if local or not scaling:
            return freq, 1.0
        kind = scaling.get("rope_type") or scaling["type"]
        if kind == "linear":
            return freq / scaling["factor"], 1.0
        if kind == "llama3":
            return llama3_frequencies(freq, scaling), 1.0
        if kind == "yarn":
            return yarn_frequencies(freq, base, dim, scaling, c["max_position_embeddings"])
        if kind == "longrope":
            original = c["original_max_position_embeddings"]
            extension = c["max_position_embeddings"] / original
            magnitude = math.sqrt(1 + math.log(extension) / math.log(original))
            which = "long_factor" if self.context > original else "short_factor"
            return freq / np.array(scaling[which]), magnitude
        raise ValueError(f"RoPE scaling {kind}")

    def rotate(self, x, freq, magnitude):
        """x [tokens, heads, head_dim]: pair i is features i and i + head_dim / 2, as one complex
        number turned by position * freq[i]."""
        half = x.shape[-1] // 2
        z = x[..., :half] + 1j * x[..., half:]
        angle = np.outer(np.arange(x.shape[0]), freq)
        z = z * (magnitude * np.exp(1j * angle))[:, None, :]
        return np.concatenate([z.real, z.imag], -1)

    def window(self, layer):
        """How many positions back a query sees, itself included; None for all."""
        c = self.config
        if self.gemma:
            return None if (layer + 1) % 6 == 0 else c["sliding_window"]
        return c.get("sliding_window")

    def attention(self, layer, x):
        n, hd = x.shape[0], self.head_dim
        q_rows, kv_rows = self.heads * hd, self.kv_heads * hd
        if self.has(layer, "self_attn.qkv_proj.weight"):
            both = x @ self.tensor(layer, "self_attn.qkv_proj.weight").T
            q, k, v = np.split(both, [q_rows, q_rows + kv_rows], axis=1)
        else:
            q, k, v = (x @ self.tensor(layer, f"self_attn.{p}_proj.weight").T for p in "qkv")
            if self.has(layer, "self_attn.q_proj.bias"):
                q, k, v = (
                    y + self.tensor(layer, f"self_attn.{p}_proj.bias")
                    for p, y in zip("qkv", (q, k, v))
                )
        q, k = q.reshape(n, self.heads, hd), k.reshape(n, self.kv_heads, hd)
        v = v.reshape(n, self.kv_heads, hd)
        if self.has(layer, "self_attn.q_norm.weight"):
            q = self.norm(q, self.tensor(layer, "self_attn.q_norm.weight"))
            k = self.norm(k, self.tensor(layer, "self_attn.k_norm.weight"))
        window = self.window(layer)
        freq, magnitude = self.rope(self.gemma and window is not None)
        q, k = self.rotate(q, freq, magnitude), self.rotate(k, freq, magnitude)
        k = np.repeat(k, self.heads // self.kv_heads, axis=1)
        v = np.repeat(v, self.heads // self.kv_heads, axis=1)
        divisor = self.config.get("query_pre_attn_scalar") or hd
        scores = np.einsum("qhd,khd->hqk", q, k) / divisor**0.5
        distance = np.subtract.outer(np.arange(n), np.arange(n))
        hidden = (distance < 0) | ((distance >= window) if window else False)
        scores[:, hidden] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", weights, v).reshape(n, -1)
        return out @ self.tensor(layer, "self_attn.o_proj.weight").T

    def activate(self, x):
        if self.gemma:
            return x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        return x * (1 / (1 + np.exp(-x)))

    def gated(self, x, gate, up, down):
        return (self.activate(x @ gate.T) * (x @ up.T)) @ down.T

    def mixture(self, layer, x, block, names):
        c = self.config
        logits = x @ self.tensor(layer, f"{block}.gate.weight").T
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        # The others' weights are zero, so every expert can be run on everything.
        order = np.argsort(-p, axis=-1, kind="stable")[:, : c["num_experts_per_tok"]]
        weight = np.zeros_like(p)
        np.put_along_axis(weight, order, np.take_along_axis(p, order, -1), -1)
        if self.kind == "MixtralForCausalLM" or c["norm_topk_prob"]:
            weight /= weight.sum(-1, keepdims=True)
        out = np.zeros_like(x)
        for e in range(p.shape[1]):
            parts = [self.tensor(layer, f"{block}.experts.{e}.{n}.weight") for n in names]
            out += weight[:, e : e + 1] * self.gated(x, *parts)
        return out

    def feed_forward(self, layer, x):
        if self.kind == "MixtralForCausalLM":
            return self.mixture(layer, x, "block_sparse_moe", ("w1", "w3", "w2"))
        if self.kind == "Qwen3MoeForCausalLM":
            return self.mixture(layer, x, "mlp", ("gate_proj", "up_proj", "down_proj"))
        if self.has(layer, "mlp.gate_up_proj.weight"):
            gate, up = np.split(self.tensor(layer, "mlp.gate_up_proj.weight"), 2)
        else:
            gate = self.tensor(layer, "mlp.gate_proj.weight")
            up = self.tensor(layer, "mlp.up_proj.weight")
        return self.gated(x, gate, up, self.tensor(layer, "mlp.down_proj.weight"))

    def logits(self, tokens):
        embedding = self.tensors["model.embed_tokens.weight"]
        x = embedding[tokens]
        if self.gemma:
            x = x * math.sqrt(x.shape[1])
        for layer in range(self.config["num_hidden_layers"]):
            y = self.attention(layer, self.norm(x, self.tensor(layer, "input_layernorm.weight")))
            after = self.tensor(layer, "post_attention_layernorm.weight")
            if self.gemma:
                x = x + self.norm(y, after)
                y = self.norm(x, self.tensor(layer, "pre_feedforward_layernorm.weight"))
                y = self.feed_forward(layer, y)
                x = x + self.norm(y, self.tensor(layer, "post_feedforward_layernorm.weight"))
            else:
                x = x + y
                x = x + self.feed_forward(layer, self.norm(x, after))
        x = self.norm(x, self.tensors["model.norm.weight"])
        head = embedding if self.config["tie_word_embeddings"] else self.tensors["lm_head.weight"]
        return x @ head.T


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--tokens", required=True, help="comma-separated token ids")
    parser.add_argument("--context", type=int, required=True, help="tokens that the run has room for")
    parser.add_argument("--out", required=True, help="the .npy file for all logits, float64")
    args = parser.parse_args()
    tokens = [int(t) for t in args.tokens.split(",")]
    np.save(args.out, Model(args.folder, args.context).logits(tokens))


if __name__ == "__main__":
    main()
