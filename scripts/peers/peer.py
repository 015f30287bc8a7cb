"""The peer engines behind one small interface: llama.cpp and ik_llama.cpp.

Both are driven through the C functions that their Python packages carry, so that what is timed is
`llama_decode` and not the package's own sampling or text handling. This file knows the two
packages' differences (structs, names of the KV functions, flash attention's setting) and nothing
about what is measured: `worker.py` measures speed, `logits_error.py` accuracy.
"""
import ctypes
import os

KV_TYPES = {"f32": 0, "f16": 1, "int8": 8}  # ggml's ids; int8 is its Q8_0
PEERS = ("ik", "llama")


class PeerError(Exception):
    """What a peer refused, in words that the caller can print."""


def open_peer(name):
    """The peer's interface; imports its package."""
    return {"ik": IkLlama, "llama": Llama}[name]()


class Peer:
    """What both peers share. `self.c` is the package's module of C functions."""

    name = ""
    package = ""

    def __init__(self):
        self.model = None
        self._log_callback = None

    def version(self):
        from importlib.metadata import version

        return f"{self.package} {version(self.package)}"

    def system_info(self):
        f = self.lib.llama_print_system_info
        f.restype = ctypes.c_char_p
        return f().decode().strip()

    def quiet(self):
        """Drops the peer's log unless DUNLIN_PEER_LOG is set."""
        if os.environ.get("DUNLIN_PEER_LOG"):
            return
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        self._log_callback = kind(lambda level, text, data: None)
        f = self.lib.llama_log_set
        f.argtypes, f.restype = [kind, ctypes.c_void_p], None
        f(self._log_callback, None)

    def load(self, path, **settings):
        params = self.c.llama_model_default_params()
        params.n_gpu_layers = 0
        for key, value in settings.items():
            if not hasattr(params, key):
                raise PeerError(f"{self.name} has no model setting {key!r}")
            setattr(params, key, value)
        self.model = self.c.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise PeerError(f"{self.name} could not load {path}")
        self.vocab = self.c.llama_model_get_vocab(self.model)
        self.vocab_size = self.c.llama_vocab_n_tokens(self.vocab)

    def add_bos(self):
        f = self.lib.llama_vocab_get_add_bos
        f.argtypes, f.restype = [ctypes.c_void_p], ctypes.c_bool
        return f(self.vocab)

    def context(self, **settings):
        return Context(self, **settings)


class Llama(Peer):
    """llama.cpp, through `llama-cpp-python`."""

    name = "llama"
    package = "llama-cpp-python"

    def __init__(self):
        super().__init__()
        import llama_cpp.llama_cpp as c

        self.c, self.lib = c, c._lib
        self.quiet()
        c.llama_backend_init()

    def set_flash_attention(self, params, on):
        params.flash_attn_type = 1 if on else 0

    def clear(self, ctx):
        self.c.llama_memory_clear(self.c.llama_get_memory(ctx), False)

    def truncate(self, ctx, sequence, length):
        return self.c.llama_memory_seq_rm(self.c.llama_get_memory(ctx), sequence, length, -1)

    def share(self, ctx, source, target, length):
        self.c.llama_memory_seq_cp(self.c.llama_get_memory(ctx), source, target, 0, length)


class IkLlama(Peer):
    """ik_llama.cpp, through `ik-llama-cpp-python`."""

    name = "ik"
    package = "ik-llama-cpp-python"

    def __init__(self):
        super().__init__()
        import ik_llama_cpp._ctypes_api as c

        self.c, self.lib = c, c._lib
        self.quiet()
        c.llama_backend_init()
        f = self.lib.llama_kv_cache_seq_rm
        f.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]
        f.restype = ctypes.c_bool
        f = self.lib.llama_kv_cache_seq_cp
        f.argtypes = [ctypes.c_void_p] + [ctypes.c_int32] * 4
        f.restype = None

    def set_flash_attention(self, params, on):
        params.flash_attn = on

    def clear(self, ctx):
        self.c.llama_kv_cache_clear(ctx)

    def truncate(self, ctx, sequence, length):
        return self.lib.llama_kv_cache_seq_rm(ctx, sequence, length, -1)

    def share(self, ctx, source, target, length):
        self.lib.llama_kv_cache_seq_cp(ctx, source, target, 0, length)


class Context:
    """KV and work buffers for one setting, and the batches that fill it.

    `context` is the tokens of all sequences together; `batch` the most tokens of one call.
    """

    def __init__(self, peer, context, threads, sequences=1, batch=2048, ubatch=512, kv="f16",
                 flash_attention=False, **more):
        self.peer = peer
        c = peer.c
        params = c.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = batch
        params.n_ubatch = min(ubatch, batch)
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = KV_TYPES[kv]
        peer.set_flash_attention(params, flash_attention)
        for key, value in more.items():
            if not hasattr(params, key):
                raise PeerError(f"{peer.name} has no context setting {key!r}")
            setattr(params, key, value)
        self.ctx = c.llama_init_from_model(peer.model, params)
        if not self.ctx:
            raise PeerError(f"{peer.name} could not make a context of {context} tokens")
        self.batch_size = batch
        self.batch = c.llama_batch_init(batch, 0, 1)
        for i in range(batch):
            self.batch.n_seq_id[i] = 1
        sync = peer.lib.llama_synchronize
        sync.argtypes, sync.restype = [ctypes.c_void_p], None
        self._synchronize = sync

    def close(self):
        if self.ctx:
            self.peer.c.llama_batch_free(self.batch)
            self.peer.c.llama_free(self.ctx)
            self.ctx = None

    def clear(self):
        self.peer.clear(self.ctx)

    def truncate(self, sequence, length):
        """Drops a sequence's positions from `length` on; False where the peer cannot."""
        return self.peer.truncate(self.ctx, sequence, length)

    def share(self, source, target, length):
        """Gives a sequence the first positions of another."""
        self.peer.share(self.ctx, source, target, length)

    def fill(self, entries):
        """Sets the batch to `entries` of (token, position, sequence, wants logits)."""
        b = self.batch
        b.n_tokens = len(entries)
        for i, (token, position, sequence, logits) in enumerate(entries):
            b.token[i] = token
            b.pos[i] = position
            b.seq_id[i][0] = sequence
            b.logits[i] = logits

    def step(self):
        """Computes the batch as it stands."""
        code = self.peer.c.llama_decode(self.ctx, self.batch)
        if code != 0:
            raise PeerError(f"{self.peer.name}: llama_decode answered {code}")

    def synchronize(self):
        self._synchronize(self.ctx)

    def prefill(self, sequence, tokens, first=0, logits="last"):
        """Stores `tokens` of one sequence; logits of the last, of all, or of none."""
        n = len(tokens)
        for start in range(0, n, self.batch_size):
            stop = min(start + self.batch_size, n)
            self.fill([
                (tokens[i], first + i, sequence, logits == "all" or (logits == "last" and i == n - 1))
                for i in range(start, stop)
            ])
            self.step()

    def logits(self, index):
        """The logits of the batch's entry `index`, a float32 array of the vocabulary's size."""
        import numpy as np

        p = self.peer.c.llama_get_logits_ith(self.ctx, index)
        if not p:
            raise PeerError(f"{self.peer.name} has no logits for entry {index}")
        p = ctypes.cast(p, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(p, (self.peer.vocab_size,)).copy()
