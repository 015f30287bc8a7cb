#!/usr/bin/env bash
# Our server beside llama.cpp's on one model, under the same client:
#
#     scripts/bench-serve.sh MODEL RESULTS [ROW...]       rows: clients16 shared32 cached4000
#                                                               overhead16 memory idle1000
#
# writes one JSON file for each run into the folder RESULTS and prints a line for each. The rows of the
# second line are of our server alone: what HTTP and scheduling take between steps, memory after 1,000
# and after 10,000 requests, and 1,000 open streams on which nothing happens. LLAMA_SERVER is
# llama.cpp's llama-server; without it only ours is measured. DUNLIN is the binary (default: the release
# build), THREADS how many both use (default 2), WRAP a command that each run is started through. The
# machine must be idle.
set -euo pipefail
model=${1:?usage: scripts/bench-serve.sh MODEL RESULTS [ROW...]}
results=${2:?usage: scripts/bench-serve.sh MODEL RESULTS [ROW...]}
shift 2
here=$(cd "$(dirname "$0")" && pwd)
export DUNLIN=${DUNLIN:-${CARGO_TARGET_DIR:-$here/../target}/release/dunlin} THREADS=${THREADS:-2}
mkdir -p "$results"

# One run: a server is started, asked and stopped. SERVER is ours, llama or llama-fa.
if [ "${BENCH_SERVE_RUN:-}" ]; then
  read -r server row slots context <<< "$BENCH_SERVE_RUN"
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  log=$results/$row-$server.log
  case $server in
    ours) exec "$DUNLIN" serve -m "$model" -t "$THREADS" --port "$port" -c "$context" --parallel "$slots" ;;
    llama | llama-fa)
      flash=off
      [ "$server" = llama ] || flash=on
      exec "$LLAMA_SERVER" -m "$model" -t "$THREADS" -tb "$THREADS" --port "$port" -np "$slots" \
        -c $((context * slots)) -fa "$flash" --cache-ram 4096 ;;
  esac > "$log" 2>&1 &
  pid=$!
  trap 'kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true' EXIT
  for _ in $(seq 600); do
    curl -sf "http://127.0.0.1:$port/health" > /dev/null && break
    kill -0 "$pid" || { tail -5 "$log" >&2; exit 1; }
    sleep 0.1
  done
  busy() { awk '/^cpu / { print $2 + $3 + $4 + $7 + $8 }' /proc/stat; }
  before=$(busy)
  spent=$(awk '{ print $14 + $15 }' "/proc/$pid/stat")
  case $row in
    idle*) "$here/idle-streams.py" "http://127.0.0.1:$port" "$@" > "$results/$row-$server.json"; exit ;;
  esac
  bench() { # NAME ARGUMENTS...
    local name=$1
    shift
    timeout "${LIMIT:-600}" "$DUNLIN" bench serve --url "http://127.0.0.1:$port" --json "$@" \
      > "$results/$name.json" 2> "$results/$name.txt"
  }
  case $row in
    memory)
      bench "$row-1000-$server" "$@" --requests 1000
      bench "$row-10000-$server" "$@" --requests 9000 --seed 2
      exit ;;
  esac
  bench "$row-$server" "$@"
  # What others did meanwhile, in percent of what all did: a run with more than a few is no figure.
  spent=$(( $(awk '{ print $14 + $15 }' "/proc/$pid/stat") - spent ))
  times | tail -1 | awk -v all="$(( $(busy) - before ))" -v server="$spent" -F '[ms ]+' \
    '{ own = ($1 * 60 + $2 + $3 * 60 + $4) * 100; print 100 * (all - server - own) / all }' \
    > "$results/$row-$server.others"
  if [ "$server" = ours ]; then
    curl -s "http://127.0.0.1:$port/live" > "$results/$row-$server-live.json"
  fi
  exit
fi

measure() { # ROW SLOTS CONTEXT ARGUMENTS...
  local row=$1 slots=$2 context=$3 server servers=(ours)
  [ -z "${SERVERS:-}" ] || read -ra servers <<< "$SERVERS"
  shift 3
  [ -z "${LLAMA_SERVER:-}" ] || [ "${SERVERS:-}" ] || servers+=(llama llama-fa)
  for server in "${servers[@]}"; do
    BENCH_SERVE_RUN="$server $row $slots $context" ${WRAP:-} "$0" "$model" "$results" "$@"
    python3 - "$results/$row-$server" "$row" "$server" <<'P'
import json, sys
r = json.load(open(sys.argv[1] + ".json"))
others = float(open(sys.argv[1] + ".others").read())
ttft = r["ttft_ms"] or {"p50": float("nan"), "p95": float("nan")}
print(f"{sys.argv[2]:<11} {sys.argv[3]:<9} {r['output_tokens_per_s']:8.1f} output tokens/s  "
      f"TTFT p50 {ttft['p50']:8.1f} p95 {ttft['p95']:8.1f} ms  failed {r['failed']} of {r['requests']}  "
      f"cached {r['tokens']['cached']} of {r['tokens']['prompt']}  others {others:.0f}% of CPU time")
P
  done
}

measure_ours() { # ROW SLOTS CONTEXT ARGUMENTS...
  local row=$1 slots=$2 context=$3
  shift 3
  BENCH_SERVE_RUN="ours $row $slots $context" ${WRAP:-} "$0" "$model" "$results" "$@"
  python3 - "$results" "$row" <<'P'
import json, sys
read = lambda name: json.load(open(f"{sys.argv[1]}/{name}-ours.json"))
row = sys.argv[2]
if row == "memory":
    few, many = (read(f"memory-{n}")["server"]["resident_mib_after"] for n in (1000, 10000))
    print(f"memory      {few:.1f} MiB after 1,000 requests, {many:.1f} after 10,000: "
          f"{100 * (many / few - 1):+.2f}%")
elif row.startswith("idle"):
    r = read(row)
    print(f"{row:<11} {r['streams']} streams: {r['held_mb']:.1f} MB more, {r['cpu_seconds']:.2f} s of "
          f"processor time in {r['seconds']:.1f} s")
else:
    r = read(row)
    s = r["server"]
    print(f"{row:<11} {r['output_tokens_per_s']:.1f} output tokens/s  {s['steps']} steps of "
          f"{s['step_ms']:.2f} ms and {s['tokens_per_step']:.1f} tokens; between them "
          f"{100 * s['between_steps']:.1f}% of their time  failed {r['failed']} of {r['requests']}")
P
}

for row in "${@:-clients16 shared32 cached4000}"; do
  for row in $row; do
    case $row in
      clients16)
        measure "$row" 16 512 --clients 16 --requests 32 --prompt-tokens 128 --output-tokens 128 \
          --warm-up 4 ;;
      shared32)
        measure "$row" 32 1280 --clients 32 --requests 64 --shared-prefix-tokens 1000 \
          --prompt-tokens 16 --output-tokens 64 --warm-up 64 ;;
      overhead16)
        measure_ours "$row" 16 512 --clients 16 --requests 64 --prompt-tokens 2 \
          --output-tokens 128 --warm-up 16 ;;
      memory)
        measure_ours "$row" 16 512 --clients 16 --prompt-tokens 8 --output-tokens 4 --warm-up 16 ;;
      idle1000)
        measure_ours "$row" 64 64 1000 10 ;;
      cached4000)
        measure "$row" 1 4608 --clients 1 --requests 10 --shared-prefix-tokens 3999 \
          --prompt-tokens 1 --output-tokens 4 --warm-up 2 ;;
      *) echo "there is no row $row" >&2; exit 2 ;;
    esac
  done
done
