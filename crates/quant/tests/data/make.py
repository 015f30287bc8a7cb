"""Makes the golden files of this folder; see README.md.

Usage: make.py [MODEL.gguf ...]   (writes next to itself; blocks of the given models are added)
"""

import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

HERE = pathlib.Path(__file__).parent
BLOCK_TYPES = [
    T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K,
    T.IQ4_NL, T.IQ4_XS, T.MXFP4,
]  # fmt: skip
# Bytes of d and, where there is one, of dmin or m.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82],
    T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0],
    T.IQ4_XS: [0], T.MXFP4: [],
}  # fmt: skip
# Zero, minus zero, the least and the largest subnormal, the largest values, one.
EDGES = [
    (0x0000, 0x0000), (0x8000, 0x0001), (0x0001, 0x8001), (0x03FF, 0x03FF), (0x7BFF, 0x7BFF),
    (0xFBFF, 0x7BFF), (0x3C00, 0xBC00),
]  # fmt: skip


def finite_halves(rng, n):
    bits = rng.integers(0, 65536, n * 4, dtype=np.uint16)
    return bits[(bits & 0x7C00) != 0x7C00][:n]


def random_blocks(t, rng):
    size = gguf.GGML_QUANT_SIZES[t][1]
    blocks = rng.integers(0, 256, (len(EDGES) + 5, size), dtype=np.uint8)
    n = len(blocks)
    for field, at in enumerate(HALVES[t]):
        halves = finite_halves(rng, n)
        halves[: len(EDGES)] = [edge[field] for edge in EDGES]
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(n, 2)
    if t == T.MXFP4:
        blocks[:8, 0] = [0, 1, 2, 3, 127, 128, 254, 255]
    # One block of the lowest integers and one of the highest.
    for row, byte in [(n - 1, 0x00), (n - 2, 0xFF)]:
        keep = blocks[row].copy()
        blocks[row] = byte
        for at in HALVES[t]:
            blocks[row, at : at + 2] = keep[at : at + 2]
    return blocks


def real_blocks(t, models, count=2):
    size = gguf.GGML_QUANT_SIZES[t][1]
    for model in models:
        for tensor in gguf.GGUFReader(model).tensors:
            if tensor.tensor_type == t:
                return np.array(tensor.data).reshape(-1, size)[:count]
    return np.empty((0, size), np.uint8)


def write_decode(t, blocks):
    with np.errstate(over="ignore"):  # MXFP4: 2^127 times 12
        values = gguf.quants.dequantize(blocks, t)
    assert values.dtype == np.float32 and not np.isnan(values).any(), t
    (HERE / f"decode_{t.name}.bin").write_bytes(blocks.tobytes() + values.tobytes())


def encode_inputs(rng):
    rows = [
        np.zeros(32),
        np.full(32, 0.37),
        np.full(32, -2.5),
        np.linspace(-1, 1, 32),
        np.linspace(0.5, 16, 32),
        (np.arange(32) - 16) / 2,  # halves: ties
        (np.arange(32) - 8) / 4,
        np.where(np.arange(32) % 2 == 0, 3.0, -3.0),  # equal extremes
        rng.normal(size=32) * 1e-7,  # scales that are subnormal halves
        rng.normal(size=32) * 1e-12,  # scales that round to zero
        rng.normal(size=32) * 1e4,
    ]
    rows += list(rng.normal(size=(12, 32)) * 0.02)
    rows += list(rng.standard_t(2, size=(6, 32)))
    return np.array(rows, np.float32)


def main():
    rng = np.random.default_rng(20261130)
    for t in BLOCK_TYPES:
        blocks = np.concatenate([random_blocks(t, rng), real_blocks(t, sys.argv[1:])])
        write_decode(t, blocks)
    write_decode(T.F16, finite_halves(rng, 256).view(np.uint8).reshape(-1, 2))
    brains = rng.integers(0, 65536, 1024, dtype=np.uint16)
    brains = brains[(brains & 0x7F80) != 0x7F80][:256]
    write_decode(T.BF16, brains.view(np.uint8).reshape(-1, 2))
    values = encode_inputs(rng)
    for t in [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.MXFP4]:
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            blocks = gguf.quants.quantize(values, t)
        (HERE / f"encode_{t.name}.bin").write_bytes(values.tobytes() + blocks.tobytes())


main()
