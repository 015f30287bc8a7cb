#!/usr/bin/env bash
# Builds for 64-bit ARM and runs tests, under qemu where this is no ARM machine.
#
# Usage: scripts/test-aarch64.sh [CARGO_TEST_ARGS...]
#   By default: all tests of the block formats and of the kernels, then whole models against the
#   fingerprints recorded on x86-64 and against the laws that the same bits obey.
# Environment:
#   DUNLIN_AARCH64_CPUS   qemu's CPUs to test, default "cortex-a72 neoverse-n1 max": plain NEON,
#                         NEON with dot products, and those with int8 matrix products as well
#   DUNLIN_AARCH64_TOOLS  where downloaded tools are kept, default ~/.cache/dunlin/aarch64
#
# It takes the rustup target, the cross linker and the qemu that are installed. What is missing
# comes from Debian's archive (apt-get download, unpacked into the tools folder, about 1 GB): no
# root needed, nothing installed. Exit status 77 says that the tests could not be run here, and
# the line before it what was missing. Not part of the default tests: it takes minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
tools=${DUNLIN_AARCH64_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/dunlin/aarch64}
root=$tools/root
cpus=${DUNLIN_AARCH64_CPUS:-cortex-a72 neoverse-n1 max}

# What to test; on the machine itself if it is the right one.
run_tests() {
    if [[ $# -gt 0 ]]; then
        cargo test "${cargo_target[@]}" "$@"
        return
    fi
    cargo test "${cargo_target[@]}" --lib --tests -p dunlin-quant -p dunlin-kernels-cpu
    cargo test "${cargo_target[@]}" -p dunlin-testkit --test fingerprints --test same_bits -- logits tiny
}

skip() {
    echo "skipped: $*" >&2
    exit 77
}

if [[ $(uname -m) == aarch64 ]]; then
    cargo_target=()
    run_tests "$@"
    exit
fi

apt_ready=
# Package lists of this machine's releases for both architectures, apart from apt's own.
prepare_apt() {
    [[ -z $apt_ready ]] || return 0
    command -v apt-get dpkg >/dev/null || skip "$1 is missing, and there is no apt to fetch it with"
    [[ $(dpkg --print-architecture) == amd64 ]] || skip "$1 is missing; fetching it is only known on amd64"
    mkdir -p "$tools/lists/partial" "$tools/archives/partial" "$tools/debs" "$root" "$tools/bin"
    cat >"$tools/apt.conf" <<EOF
APT::Architecture "amd64";
APT::Architectures { "amd64"; "arm64"; };
APT::Sandbox::User "";
Dir::State::Lists "$tools/lists";
Dir::Cache "$tools";
EOF
    export APT_CONFIG=$tools/apt.conf
    apt-get update -qq || skip "$1 is missing, and Debian's package lists cannot be fetched"
    apt_ready=yes
}

candidate() { apt-cache policy "$1" | sed -n 's/^ *Candidate: //p' | grep -v '(none)'; }

# Unpacks packages into the tools folder.
unpack() {
    local package deb
    for package in "$@"; do
        (cd "$tools/debs" && apt-get download -qq "$package") || skip "cannot fetch $package"
    done
    for deb in "$tools"/debs/*.deb; do
        dpkg -x "$deb" "$root"
        rm "$deb"
    done
}

# A program of the tools folder, which finds the libraries that were unpacked beside it.
wrap() {
    local name=$1
    shift
    printf '#!/bin/sh\nexport LD_LIBRARY_PATH=%q\nexec %s "$@"\n' \
        "$root/usr/lib/x86_64-linux-gnu" "$*" >"$tools/bin/$name"
    chmod +x "$tools/bin/$name"
}

# Debian's compiler, of which it has ARM's standard library too: the first that is new enough.
fetch_rust() {
    prepare_apt "the Rust target $target (rustup target add $target)"
    local needed suffix version std llvm
    needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    for suffix in "" -web; do
        version=$(candidate "rustc$suffix") || continue
        dpkg --compare-versions "$version" ge "$needed" || continue
        std=$(apt-cache depends "libstd-rust$suffix-dev" | grep -o "libstd-rust$suffix-[0-9][0-9.]*" | head -1)
        llvm=$(apt-cache depends "$std" | grep -o 'libllvm[0-9]*' | head -1)
        unpack "rustc$suffix=$version" "$std" "$llvm" "libstd-rust$suffix-dev=$version" \
            "libstd-rust$suffix-dev:arm64=$version"
        wrap rustc "$root/usr/bin/rustc"
        return
    done
    skip "the Rust target $target is missing, and Debian has no compiler from $needed on"
}

fetch_linker() {
    prepare_apt "aarch64-linux-gnu-gcc"
    local version
    version=$(apt-cache depends gcc-aarch64-linux-gnu | grep -o 'gcc-[0-9]*-' | head -1 | tr -dc 0-9)
    unpack binutils-aarch64-linux-gnu "gcc-$version-aarch64-linux-gnu" \
        "libgcc-$version-dev-arm64-cross" libgcc-s1-arm64-cross libc6-arm64-cross libc6-dev-arm64-cross
    wrap cc "$root/usr/bin/aarch64-linux-gnu-gcc-$version --sysroot=$root"
}

fetch_qemu() {
    prepare_apt "qemu-aarch64"
    unpack qemu-user-static
    wrap qemu "$root/usr/bin/qemu-aarch64-static"
}

if [[ ! -d $(rustc --print sysroot)/lib/rustlib/$target ]]; then
    [[ -x $tools/bin/rustc ]] || fetch_rust
    export RUSTC=$tools/bin/rustc
fi
if command -v aarch64-linux-gnu-gcc >/dev/null; then
    linker=aarch64-linux-gnu-gcc
    libraries=/usr/aarch64-linux-gnu
else
    [[ -x $tools/bin/cc ]] || fetch_linker
    linker=$tools/bin/cc
    libraries=$root/usr/aarch64-linux-gnu
fi
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
if [[ -z $qemu ]]; then
    [[ -x $tools/bin/qemu ]] || fetch_qemu
    qemu=$tools/bin/qemu
fi

echo "compiler: $("${RUSTC:-rustc}" --version); emulator: $("$qemu" --version | head -1)"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$linker
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -L $libraries"
cargo_target=(--target "$target")
for cpu in $cpus; do
    echo "== $cpu"
    QEMU_CPU=$cpu run_tests "$@"
done
