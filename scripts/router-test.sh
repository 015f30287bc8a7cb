#!/usr/bin/env bash
# Two servers behind sglang-router; one is killed while requests are under way, and nothing that can
# be asked again is lost:
#
#     scripts/router-test.sh MODEL        a GGUF file
#
# The router's package goes into the build folder. It takes the binary that a release build made.
set -euo pipefail
cd "$(dirname "$0")/.."

model=${1:?usage: scripts/router-test.sh MODEL}
target=${CARGO_TARGET_DIR:-$PWD/target}
dunlin=${DUNLIN:-$target/release/dunlin}
wants=scripts/clients/router-requirements.txt
venv=$target/router

stamp=$(python3 --version; cat "$wants")
if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary=:all: -r "$wants"
  echo "$stamp" > "$venv/stamp"
fi

logs=$(mktemp -d)
pids=()
finish() {
  kill "${pids[@]}" 2>/dev/null || true
  rm -rf "$logs"
}
trap finish EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
urls=()
for i in 1 2; do
  "$dunlin" serve -m "$model" --port 0 --alias m -c 512 --threads 1 2> "$logs/server$i" &
  pids+=($!)
done
for i in 1 2; do
  for _ in $(seq 600); do
    url=$(sed -n 's/^dunlin: .* is served on //p' "$logs/server$i")
    [ -z "$url" ] || break
    sleep 0.1
  done
  [ -n "$url" ] || { cat "$logs/server$i" >&2; exit 1; }
  urls+=("$url")
done

port=$(free_port)
"$venv/bin/sglang-router" launch --worker-urls "${urls[@]}" --host 127.0.0.1 --port "$port" \
  --prometheus-port "$(free_port)" --policy round_robin --log-level error > "$logs/router" 2>&1 &
pids+=($!)
python3 scripts/clients/router.py "http://127.0.0.1:$port" m "${pids[0]}" "${urls[@]}" \
  || { tail -20 "$logs/router" >&2; exit 1; }
