#!/usr/bin/env bash
# Everything that is checked before a change goes in, in one command:
#
#     scripts/test.sh                the whole of it
#     scripts/test.sh --all-models   also fetch the larger real models and test on them
#     scripts/test.sh --offline      fetch nothing; what needs a missing file is skipped and named
#
# It needs Rust, Python with pip, and a C compiler. Fetched models go to dunlin's cache folder, the
# oracle's Python packages into the build folder; where there is rustup, it gets Rust's standard
# library for 64-bit ARM, for which the kernels are compiled (scripts/test-aarch64.sh runs them).
set -euo pipefail
cd "$(dirname "$0")/.."

offline='' all_models=''
for arg in "$@"; do
  case $arg in
    --offline) offline=1 ;;
    --all-models) all_models=1 ;;
    *) echo "scripts/test.sh: unknown option $arg" >&2; exit 2 ;;
  esac
done

target=${CARGO_TARGET_DIR:-$PWD/target}
mkdir -p "$target"
export DUNLIN_SKIP_LOG=$target/skipped.txt
: > "$DUNLIN_SKIP_LOG"

section() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }
skip() { echo "$1" | tee -a "$DUNLIN_SKIP_LOG"; }

# Installs the oracle's packages once for each version of the requirements and of Python.
oracle_packages() {
  local wants=crates/testkit/oracle/requirements.txt folder=$target/oracle-packages stamp
  stamp=$(python3 --version; cat "$wants")
  if [ "$(cat "$folder/stamp" 2>/dev/null)" != "$stamp" ]; then
    [ -z "$offline" ] || { skip "oracle checks: --offline, and gguf and numpy are not installed yet"; return; }
    rm -rf "$folder"
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
      --target "$folder" --requirement "$wants"
    echo "$stamp" > "$folder/stamp"
  fi
  export DUNLIN_ORACLE_PACKAGES=$folder
}

fetch_models() {
  [ -z "$offline" ] || { skip "fetching models: --offline"; return; }
  # The default model goes the way a user fetches it; without it most of this means little.
  "$target/release/dunlin" pull smollm2-135m
  local names=(gemma3-270m)
  [ -z "$all_models" ] || names+=(qwen2.5-coder-0.5b qwen2.5-coder-1.5b)
  for name in "${names[@]}"; do
    "$target/release/dunlin" pull "$name" || skip "tests on $name: it could not be fetched"
  done
}

section "format"
cargo fmt --all --check

section "lints"
cargo clippy --workspace --all-targets --quiet -- -D warnings

section "other platforms"
arm=aarch64-unknown-linux-gnu
has_arm() { test -d "$(rustc --print target-libdir --target $arm 2>/dev/null)"; }
if ! has_arm && [ -z "$offline" ] && command -v rustup >/dev/null; then
  echo "getting Rust's standard library for $arm (rustup target add $arm)"
  rustup --quiet target add $arm || true
fi
if has_arm; then
  cargo clippy --quiet --target $arm -p dunlin-kernels-cpu -- -D warnings
else
  skip "compiling the kernels for 64-bit ARM: Rust's standard library for $arm is not here"
fi

section "build"
cargo build --release --quiet

section "models and oracle"
fetch_models
oracle_packages

# In the dev profile, which optimizes but keeps overflow checks and assertions, except in the kernels;
# those are tested with them as well.
section "tests"
if cargo nextest --version >/dev/null 2>&1; then
  cargo nextest run --workspace --no-fail-fast --status-level slow
else
  cargo test --workspace --no-fail-fast --quiet --lib --bins --tests
fi
cargo test --workspace --quiet --doc
cargo test --profile checked -p dunlin-kernels-cpu --lib --quiet
# Not on by default, so not among the above.
cargo clippy -p dunlin-server -p dunlin-cli --all-targets --features otel --quiet -- -D warnings
cargo test -p dunlin-server --features otel --quiet --test otel

section "the README's first command"
answer=$("$target/release/dunlin" run -p "The capital of France is" -n 8 --temperature 0 --raw) || answer=''
case $answer in
  *Paris*) echo "The capital of France is$answer" ;;
  *) if [ -z "$offline" ]; then echo "dunlin answered: $answer" >&2; exit 1; fi
     skip "generating text: --offline, and the default model is not here" ;;
esac

section "the clients of others"
if [ -n "$offline" ]; then
  skip "the Python clients of OpenAI, Anthropic and Ollama, and sglang-router: --offline"
else
  folder=${DUNLIN_TEST_MODELS:-${DUNLIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dunlin}/models}
  CARGO_TARGET_DIR=$target scripts/clients-test.sh "$folder/SmolLM2-135M-Instruct.Q4_1.gguf"
  CARGO_TARGET_DIR=$target scripts/router-test.sh "$folder/SmolLM2-135M-Instruct.Q4_1.gguf"
fi

section "the web page in a browser"
if [ -n "$offline" ]; then
  skip "the web page in a browser: --offline"
else
  status=0
  CARGO_TARGET_DIR=$target scripts/web-test.sh "$folder/SmolLM2-135M-Instruct.Q4_1.gguf" | tee "$target/web-test.txt" || status=$?
  case $status in
    0) ;;
    # There is no browser here; the last line says why.
    3) tail -n 1 "$target/web-test.txt" >> "$DUNLIN_SKIP_LOG" ;;
    *) exit "$status" ;;
  esac
fi

section "deployment files"
if [ -n "$offline" ]; then
  skip "schemas of the deployment files: --offline"
else
  CARGO_TARGET_DIR=$target scripts/deploy-test.sh
fi

section "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet

section "done"
if [ -s "$DUNLIN_SKIP_LOG" ]; then
  echo "Passed, but skipped:"
  sort -u "$DUNLIN_SKIP_LOG" | sed 's/^/  /'
else
  echo "Passed; nothing was skipped."
fi
