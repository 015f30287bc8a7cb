#!/usr/bin/env python3
"""Writes gguf-py.gguf and gguf-py.json: a file by the reference Python package, and what that
package's own reader says of it. Needs `pip install gguf numpy`; run it in this folder.
"""
import json

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader, GGUFValueType as V, GGUFWriter
from gguf.quants import quantize

NAME = "gguf-py.gguf"
rng = np.random.default_rng(1)
w = GGUFWriter(NAME, "llama")
w.add_name("fixture — ü")
w.add_uint8("k.u8", 255)
w.add_int8("k.i8", -128)
w.add_uint16("k.u16", 65535)
w.add_int16("k.i16", -32768)
w.add_uint32("k.u32", 4294967295)
w.add_int32("k.i32", -2147483648)
w.add_float32("k.f32", 0.1)
w.add_uint64("k.u64", 2**64 - 1)
w.add_int64("k.i64", -(2**63))
w.add_float64("k.f64", 0.1)
w.add_bool("k.true", True)
w.add_bool("k.false", False)
w.add_string("k.str", "a\nb")
w.add_array("k.strs", ["", "Ġ", "three"])
w.add_array("k.i32s", [1, -2, 3])
w.add_array("k.f32s", [0.5, -0.25])
w.add_array("k.bools", [True, False, True])
w.add_array("k.nested", [[1, 2], [3]])
for t in (T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0):
    data = rng.standard_normal((3, 64)).astype(np.float32)
    w.add_tensor(f"t.{t.name}", quantize(data, t), raw_dtype=t)
w.add_tensor("t.3d", rng.standard_normal((2, 3, 5)).astype(np.float32))
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()

reader = GGUFReader(NAME)
facts = {
    "tensors": [
        {
            "name": t.name,
            "type": t.tensor_type.name,
            "dims": [int(d) for d in t.shape],
            "offset": int(t.data_offset),
            "bytes": int(t.n_bytes),
            "hex": t.data.tobytes().hex(),
        }
        for t in reader.tensors
    ],
    "keys": [k for k in reader.fields if not k.startswith("GGUF.")],
}
json.dump(facts, open("gguf-py.json", "w"), indent=1)
