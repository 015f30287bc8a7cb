#!/usr/bin/env python3
"""Makes a GGUF file of another type from one that is quantized already, with llama.cpp.

  requantize.py IN.gguf OUT.gguf q4_0     (or q4_1, q5_0, q5_1, q8_0, q4_k_m, ..., f16)

The head and the embeddings keep the type that llama.cpp's own rules give them. A file made so
differs from one made from the original weights: it measures speed, not quality. f16 is exact up to
the rounding of each weight. Runs in the environment of the llama.cpp peer:

  ~/.cache/dunlin/peers/llama/bin/python scripts/peers/requantize.py IN.gguf OUT.gguf q4_0
"""
import argparse
import os
import sys

# llama.cpp's file types (enum llama_ftype).
FILE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10,
    "q3_k_s": 11, "q3_k_m": 12, "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16,
    "q5_k_m": 17, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30, "bf16": 32,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("type", choices=sorted(FILE_TYPES))
    parser.add_argument("--pure", action="store_true",
                        help="every matrix of this type, the embeddings too")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()

    import llama_cpp.llama_cpp as c

    params = c.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[args.type]
    params.allow_requantize = True
    params.pure = args.pure
    params.nthread = args.threads
    # Written beside the target and renamed: a broken run leaves no half file.
    part = args.target + ".part"
    code = c.llama_model_quantize(args.source.encode(), part.encode(), params)
    if code != 0:
        if os.path.exists(part):
            os.remove(part)
        sys.exit(f"llama.cpp could not make {args.type} of {args.source}: code {code}")
    os.replace(part, args.target)
    print(f"{args.target}: {os.path.getsize(args.target)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
