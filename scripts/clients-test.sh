#!/usr/bin/env bash
# The official Python clients of OpenAI, Anthropic and Ollama against `dunlin serve`:
#
#     scripts/clients-test.sh MODEL       a GGUF file
#
# Their packages go into the build folder. It takes the binary that a release build made.
set -euo pipefail
cd "$(dirname "$0")/.."

model=${1:?usage: scripts/clients-test.sh MODEL}
target=${CARGO_TARGET_DIR:-$PWD/target}
dunlin=${DUNLIN:-$target/release/dunlin}
wants=scripts/clients/requirements.txt
venv=$target/clients

stamp=$(python3 --version; cat "$wants")
if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary=:all: -r "$wants"
  echo "$stamp" > "$venv/stamp"
fi

log=$(mktemp)
"$dunlin" serve -m "$model" --port 0 --api-key test-key --alias smollm2 -c 1024 2> "$log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 600); do
  url=$(sed -n 's/^dunlin: .* is served on //p' "$log")
  [ -z "$url" ] || break
  kill -0 "$server" || { cat "$log" >&2; exit 1; }
  sleep 0.1
done
[ -n "$url" ] || { echo "the server did not start" >&2; cat "$log" >&2; exit 1; }
"$venv/bin/python" scripts/clients/check.py "$url" test-key smollm2

# It ends in good order when asked to.
kill -TERM "$server"
wait "$server"
