#!/usr/bin/env python3
"""Times one peer engine on the rows of `dunlin bench`, one command at a time.

Runs in a virtual environment that holds the peer's package. Reads one JSON object a line from
standard input and answers each with one line on standard output, so that the caller decides the
order and can put its own repetitions between the peer's:

  {"cmd": "load", "model": PATH, "threads": 2, "settings": {...}}
  {"cmd": "run", "row": "tg16@8000", "flash_attention": true, "settings": {...}}
  {"cmd": "workload", "requests": 64, "shared": 0, "prompt": 256, "output": 128, "batch": 16,
   "flash_attention": true, "settings": {...}}   requests of `shared` common tokens and `prompt` own
                                     ones, `batch` of them at a time
  {"cmd": "release"}                 frees the contexts that rows keep between repetitions
  {"cmd": "footprint", "context": 1024}   a context and a few tokens, for the peak memory
  {"cmd": "quit"}

Rows: ppN (N tokens at once, logits of the last), tgN[@D] (N single tokens, from empty or after D
tokens), bS (32 steps of S sequences that hold 128 tokens each). What is timed is `llama_decode`
alone: no sampling. The context is as small as the row allows. What a row needs first (its prompt,
one step to warm up) is not timed and is kept for the next repetition.
"""
import argparse
import json
import os
import re
import sys
import time

from peer import PEERS, PeerError, open_peer

BATCH_STEPS = 32
BATCH_DEPTH = 128


def parse_row(row):
    """(kind, count, depth) of a row's name."""
    m = re.fullmatch(r"(pp|tg|b)([1-9][0-9]*)(?:@([0-9]+))?", row)
    if not m or (m[1] == "pp" and m[3]):
        raise PeerError(f"no row {row!r}: use ppN, tgN, tgN@DEPTH or bS")
    depth = int(m[3]) if m[3] else (BATCH_DEPTH if m[1] == "b" else 0)
    return m[1], int(m[2]), depth


def tokens(n, vocab_size, seed=1):
    """Token ids that mean nothing, the same every time (a linear congruential sequence)."""
    out, x = [], seed
    for _ in range(n):
        x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append((x >> 33) % vocab_size)
    return out


def padded(n, to=256):
    return (n + to - 1) // to * to


def memory(field):
    """A line of /proc/self/status in bytes (VmHWM: the peak, VmRSS: now)."""
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return None


class Worker:
    def __init__(self, name):
        self.bare_rss = memory("VmRSS")
        self.peer = open_peer(name)
        self.contexts = {}
        self.threads = 1

    def load(self, model, threads, settings=None):
        self.threads = threads
        before = memory("VmRSS")
        start = time.perf_counter()
        self.peer.load(model, **(settings or {}))
        context = self.peer.context(context=1024, threads=threads, flash_attention=True)
        seconds = time.perf_counter() - start
        context.close()
        return {"load_s": seconds, "rss_before_bytes": before, "rss_bytes": memory("VmRSS"),
                "peak_rss_bytes": memory("VmHWM"), "system_info": self.peer.system_info(),
                "version": self.peer.version(), "vocab_size": self.peer.vocab_size}

    def prepared(self, row, flash_attention, settings):
        """The row's context, warm and holding `depth` tokens a sequence."""
        key = (row, flash_attention, json.dumps(settings, sort_keys=True))
        kind, count, depth = parse_row(row)
        sequences = count if kind == "b" else 1
        new = depth + {"pp": count, "tg": count, "b": BATCH_STEPS}[kind]
        context = self.contexts.get(key)
        if context and not all(context.truncate(s, depth) for s in range(sequences)):
            context.close()
            context = None
        if not context:
            context = self.peer.context(
                context=padded(new) * sequences, threads=self.threads, sequences=sequences,
                batch=max(512, min(2048, padded(new))), flash_attention=flash_attention, **settings)
            self.contexts[key] = context
            warm = tokens(count if kind == "pp" else 1, self.peer.vocab_size, 7)
            context.prefill(0, warm)
            context.synchronize()
            context.clear()
            for s in range(sequences):
                if depth:
                    context.prefill(s, tokens(depth, self.peer.vocab_size, 1 + s), logits="none")
            context.synchronize()
        if not depth:
            context.clear()
        return context, kind, count, depth

    def run(self, row, flash_attention=False, settings=None):
        context, kind, count, depth = self.prepared(row, flash_attention, settings or {})
        time_it = self.time_prefill if kind == "pp" else self.time_decode
        n, seconds = time_it(context, kind, count, depth)
        return {"tokens": n, "seconds": seconds, "tokens_per_second": n / seconds}

    def time_prefill(self, context, kind, count, depth):
        ids = tokens(count, self.peer.vocab_size)
        start = time.perf_counter()
        context.prefill(0, ids)
        context.synchronize()
        return count, time.perf_counter() - start

    def time_decode(self, context, kind, count, depth):
        sequences, steps = (count, BATCH_STEPS) if kind == "b" else (1, count)
        ids = tokens(sequences * steps, self.peer.vocab_size, 99)
        context.fill([(0, 0, s, True) for s in range(sequences)])
        batch = context.batch
        start = time.perf_counter()
        for step in range(steps):
            for s in range(sequences):
                batch.token[s] = ids[step * sequences + s]
                batch.pos[s] = depth + step
            context.step()
            context.synchronize()
        return sequences * steps, time.perf_counter() - start

    def workload(self, requests, shared, prompt, output, batch, flash_attention=True,
                 settings=None):
        """Answers `requests` prompts, `batch` at a time: their prefill, packed into calls as large
        as the context takes, then `output` - 1 steps of one token each. A common prefix is computed
        once and shared by all. Timed without sampling and without what comes before the first call."""
        self.release()
        length = padded(shared + prompt + output)
        unified = bool(shared) and hasattr(self.peer.c.llama_context_default_params(), "kv_unified")
        size = (padded(shared) + batch * padded(prompt + output) if shared else length * batch)
        context = self.peer.context(
            context=size, threads=self.threads, sequences=batch, batch=2048,
            flash_attention=flash_attention, **({"kv_unified": True} if unified else {}),
            **(settings or {}))
        vocab = self.peer.vocab_size
        context.prefill(0, tokens(8, vocab, 7))
        context.synchronize()
        context.clear()
        start = time.perf_counter()
        if shared:
            context.prefill(0, tokens(shared, vocab, 5), logits="none")
            for s in range(1, batch):
                context.share(0, s, shared)
        for first in range(0, requests, batch):
            count = min(batch, requests - first)
            entries = []
            for s in range(count):
                ids = tokens(prompt, vocab, 100 + first + s)
                entries += [(ids[i], shared + i, s, i == prompt - 1) for i in range(prompt)]
            for at in range(0, len(entries), context.batch_size):
                context.fill(entries[at:at + context.batch_size])
                context.step()
            ids = tokens(count * output, vocab, 99 + first)
            context.fill([(0, 0, s, True) for s in range(count)])
            for step in range(output - 1):
                for s in range(count):
                    context.batch.token[s] = ids[step * count + s]
                    context.batch.pos[s] = shared + prompt + step
                context.step()
                context.synchronize()
            for s in range(count):
                context.truncate(s, shared)
        seconds = time.perf_counter() - start
        context.close()
        return {"seconds": seconds, "output_tokens": requests * output,
                "tokens_per_second": requests * output / seconds}

    def release(self):
        for context in self.contexts.values():
            context.close()
        self.contexts = {}
        return {}

    def footprint(self, context, flash_attention=True):
        """Fills a context of this many tokens; the peak is then what a user would see."""
        c = self.peer.context(context=context, threads=self.threads, batch=min(context, 2048),
                              flash_attention=flash_attention)
        c.prefill(0, tokens(context - 1, self.peer.vocab_size))
        c.fill([(0, context - 1, 0, True)])
        c.step()
        c.synchronize()
        c.close()
        return {"peak_rss_bytes": memory("VmHWM"), "bare_rss_bytes": self.bare_rss}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer", choices=PEERS, required=True)
    args = parser.parse_args()
    # The peers print to standard output now and then; answers go to a copy of it.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(args.peer)
    for line in sys.stdin:
        if not line.strip():
            continue
        command = json.loads(line)
        name = command.pop("cmd")
        if name == "quit":
            break
        try:
            if name not in ("load", "run", "workload", "release", "footprint"):
                raise PeerError(f"no command {name!r}")
            answer = {"ok": True, **getattr(worker, name)(**command)}
        except (PeerError, TypeError, OSError, MemoryError) as e:
            answer = {"ok": False, "error": str(e)}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
