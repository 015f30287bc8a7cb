#!/usr/bin/env bash
# Every figure of docs/benchmarks.md, measured one after another:
#
#     scripts/bench.sh RESULTS [REPETITIONS]
#
# writes one JSON file for each run into the folder RESULTS (what is there already is not measured
# again) and then prints the tables. The machine must be idle: check `uptime` first, and run nothing
# else meanwhile. It takes about half an hour, and ten minutes of compiling llama.cpp the first time.
# DUNLIN names the binary (default: the release build), DUNLIN_MODELS the folder of the models
# (default: dunlin's cache folder); models that are not there are skipped and named.
set -euo pipefail
results=${1:?usage: scripts/bench.sh RESULTS [REPETITIONS]}
reps=${2:-5}
here=$(cd "$(dirname "$0")" && pwd)
dunlin=${DUNLIN:-${CARGO_TARGET_DIR:-$here/../target}/release/dunlin}
cache=${DUNLIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dunlin}
models=${DUNLIN_MODELS:-$cache/models}
mkdir -p "$results"

run() { # NAME MODEL ARGUMENTS...
  local out=$results/$1.json model=$models/$2
  shift 2
  [ -s "$out" ] && return
  if [ ! -f "$model" ]; then
    echo "skipped: $model is not there" >&2
    return
  fi
  echo "== $(basename "$out" .json)" >&2
  "$dunlin" bench -m "$model" --reps "$reps" --json "$@" > "$out.part"
  mv "$out.part" "$out"
}

smol=SmolLM2-135M-Instruct.Q4_1.gguf
smol0=SmolLM2-135M-Instruct.Q4_0.gguf
qwen=qwen2.5-coder-0.5b-instruct-q4_k_m.gguf

# The Q4_0 file is made from the Q4_1 one: for speed alone, its quality is worse than a proper one's.
if [ -f "$models/$smol" ] && [ ! -f "$models/$smol0" ]; then
  python=$(ls -d "$cache"/peers/llama-*/bin/python 2>/dev/null | head -n 1 || true)
  if [ -n "$python" ]; then
    "$python" "$here/peers/requantize.py" "$models/$smol" "$models/$smol0" q4_0 2> /dev/null
  else
    echo "$smol0 is made when llama.cpp has been set up: run this once more for it" >&2
  fi
fi

all=pp512,tg128,b1,b2,b4,b8,b16
run smollm2-q4_1 "$smol" -t 2 --compare --startup --rows "$all,tg16@2048,tg16@4096,tg16@8000"
run smollm2-q4_0 "$smol0" -t 2 --compare --startup --rows "$all"
run gemma-270m gemma-3-270m-q4_k_m.gguf -t 2 --compare --startup --rows "$all,tg16@2048"
run qwen-0.5b "$qwen" -t 2 --compare --startup --rows "$all,tg16@2048"
run qwen-1.5b qwen2.5-coder-1.5b-instruct-q4_k_m.gguf -t 2 --compare --startup --rows "pp512,tg128,b16"
for model in "smollm2-q4_1 $smol" "qwen-0.5b $qwen"; do
  read -r name file <<< "$model"
  run "$name-1-thread" "$file" -t 1 --rows pp512,tg128,b16
  run "$name-split" "$file" -t 2 --activations split --rows pp512,tg128
  run "$name-int8-kv" "$file" -t 2 --kv-type int8 --rows pp512,tg128,tg16@2048
done

"$here/bench-table.py" "$results"/*.json
