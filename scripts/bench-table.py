#!/usr/bin/env python3
"""Turns results of `dunlin bench --json` into the tables of docs/benchmarks.md.

  scripts/bench-table.py RESULT.json...

Prints Markdown: what the machine can do, one table of rows beside limits and peers, one of starts
and memory, one of two threads against one and of `split` against `int8`. Where scripts/bench-reference.json has a floor for a row, the table says whether it is
kept; where it has a peer's reference figure and the peer stayed below its share of it, the row is
marked void. Exit code 1 says that a floor is missed or a row void.
"""
import argparse
import json
import os
import statistics
import sys

PEERS = {"ik": "ik_llama.cpp", "llama": "llama.cpp"}
MIB = 1 << 20


def row_key(name):
    """Prefill, then decode by depth, then batches."""
    kind = 0 if name.startswith("pp") else 1 if name.startswith("tg") else 2
    numbers = [int(n) for n in name.lstrip("pptgb").split("@")]
    return kind, numbers[1:] or [0], numbers[0]


def best(peer, row):
    """The better attention's median and its name, or None."""
    settings = peer.get("rows", {}).get(row, {})
    medians = [(statistics.median(v), name) for name, v in settings.items() if v]
    return max(medians, default=None)


def void(result, reference, row, peer, figure):
    """Why a peer's figure says nothing, or None."""
    expected = reference["models"].get(result["setting"]["model"], {})
    expected = expected.get("peers", {}).get(peer, {}).get(row)
    read = result["machine"]["read_huge_gbps"].get(str(result["setting"]["threads"]))
    if expected is None or not read or result["setting"]["threads"] != 2:
        return None
    scaled = expected * statistics.median(read) / reference["read_gbps"]
    share = figure / scaled
    if share < reference["least_share"]:
        return f"{PEERS[peer]} at {share:.0%} of its reference"
    return None


def rows_table(results, reference):
    lines = [
        "| model | row | dunlin, t/s (lowest to highest) | limit | share | ik_llama.cpp | llama.cpp "
        "| ratio | floor |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    failures = []
    for result in results:
        setting = result["setting"]
        model = setting["model"].removesuffix(".gguf")
        how = f", {setting['activations']}" if setting["activations"] != "int8" else ""
        how += f", {setting['kv_type']} KV" if setting["kv_type"] != "f16" else ""
        how += f", {setting['threads']} threads" if setting["threads"] != 2 else ""
        floors = reference["models"].get(setting["model"], {}).get("floors", {})
        floors = floors if not how else {}
        for row in sorted(result["rows"], key=row_key):
            values = result["rows"][row]
            limit, share = result["limits"].get(row), result["share"].get(row)
            cells = [
                model + how, row,
                f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})",
                "-" if limit is None else f"{limit:.0f} ({result['bounds'][row]})",
                "-" if share is None else f"{share:.0%}",
            ]
            fastest, problem = None, None
            for peer in PEERS:
                found = best(result.get("peers", {}).get(peer, {}), row)
                cells.append("-" if not found else f"{found[0]:.1f} ({found[1]})")
                if found and (fastest is None or found[0] > fastest[0]):
                    fastest = (found[0], peer)
            if fastest:
                problem = void(result, reference, row, fastest[1], fastest[0])
            ratio = result.get("ratios", {}).get(row)
            cells.append("-" if ratio is None else f"{ratio:.2f}")
            floor = floors.get(row)
            if floor is None or ratio is None:
                cells.append("-" if floor is None else f"{floor}")
            elif problem:
                cells.append(f"{floor}, void: {problem}")
                failures.append(f"{model} {row}: void, {problem}")
            elif ratio < floor:
                cells.append(f"{floor}, missed")
                failures.append(f"{model} {row}: {ratio:.2f} times the peer, floor {floor}")
            else:
                cells.append(f"{floor}, kept")
            lines.append("| " + " | ".join(cells) + " |")
    return lines, failures


def machine_table(results):
    lines = [
        "| run | CPU | threads | read, huge pages | read, plain pages | f32 | int8 A | int8 B "
        "| int8 dot |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        m = result["machine"]
        for threads, rates in sorted(m["arithmetic"].items(), key=lambda kv: int(kv[0])):
            giga = [rates.get(f"{k}_gops") for k in ("f32_fma", "int8_a", "int8_b", "int8_dot")]
            cells = [
                result["setting"]["model"].removesuffix(".gguf"), f"{m['cpu']}, {m['isa']}", threads,
                f"{statistics.median(m['read_huge_gbps'][threads]):.1f} GB/s",
                f"{statistics.median(m['read_plain_gbps'][threads]):.1f} GB/s",
                *("-" if g is None else f"{g:.0f} Gop/s" for g in giga),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def process_table(results):
    lines = [
        "| model | start to first prefill | peak memory | of it file + KV | the rest | ik_llama.cpp: "
        "load, peak | llama.cpp: load, peak |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        startup, memory = result.get("startup"), result.get("memory")
        if not startup or not memory:
            continue
        cells = [
            result["setting"]["model"].removesuffix(".gguf"),
            f"{startup['median_ms']:.1f} ms",
            f"{memory['peak_rss_bytes'] / MIB:.1f} MiB",
            f"{memory['file_bytes'] / MIB:.1f} + {memory['kv_bytes'] / MIB:.1f} MiB",
            f"{memory['over_bytes'] / MIB:.1f} MiB",
        ]
        for peer in PEERS:
            p = result.get("peers", {}).get(peer)
            peak = p and p.get("peak_rss_bytes")
            peak = f"{peak / MIB:.0f} MiB" if peak else "-"
            cells.append("-" if not p else f"{p['load_s'] * 1e3:.0f} ms, {peak}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def pairs_table(results):
    """Two threads against one, and `split` against `int8` activations, where both were run."""
    runs = {}
    for result in results:
        s = result["setting"]
        for row, values in result["rows"].items():
            key = (s["model"], row, s["kv_type"], s["threads"], s["activations"])
            runs[key] = statistics.median(values)
    lines = ["| model | row | what | ratio |", "|---|---|---|---|"]
    for (model, row, kv, threads, activations), value in sorted(runs.items()):
        name = model.removesuffix(".gguf")
        one = runs.get((model, row, kv, 1, activations))
        if threads == 2 and one:
            what = f"2 threads / 1, {activations} ({value:.1f} / {one:.1f})"
            lines.append(f"| {name} | {row} | {what} | {value / one:.2f} |")
        int8 = runs.get((model, row, kv, threads, "int8"))
        if activations == "split" and int8:
            what = f"split / int8, {threads} threads ({value:.1f} / {int8:.1f})"
            lines.append(f"| {name} | {row} | {what} | {value / int8:.2f} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", nargs="+")
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--reference", default=os.path.join(here, "bench-reference.json"))
    args = parser.parse_args()
    with open(args.reference) as f:
        reference = json.load(f)
    results = []
    for path in args.results:
        with open(path) as f:
            results.append(json.load(f))
    rows, failures = rows_table(results, reference)
    print("\n".join(machine_table(results)), "\n".join(rows), sep="\n\n")
    for table in (process_table(results), pairs_table(results)):
        if len(table) > 2:
            print("\n" + "\n".join(table))
    for failure in failures:
        print(failure, file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
