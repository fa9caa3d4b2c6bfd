#!/usr/bin/env bash
# Packs the GPU kit: what a machine with an NVIDIA GPU needs to check Tidegate on it, without Rust.
#
#   tests/gpu/pack.sh [FOLDER]      default: target/gpu-kit; also makes FOLDER.tar.gz
set -euo pipefail

repository=$(cd "$(dirname "$0")/../.." && pwd)
kit=$(realpath -m "${1:-$repository/target/gpu-kit}")
limit_mib=60
cd "$repository"

say() { printf 'pack: %s\n' "$*"; }

build() {
    say "building in release (the first time, this takes minutes)"
    cargo build --quiet --release --workspace --lib --bins --examples
    # The path of a test's executable has a hash in it: cargo says which it is.
    conformance=$(cargo test --quiet --release -p tidegate-softgpu-cuda --test conformance --no-run \
        --message-format=json | grep '"name":"conformance"' | grep -o '"executable":"[^"]*"' | cut -d'"' -f4)
    release=$(cargo metadata --no-deps --format-version 1 |
        grep -o '"target_directory":"[^"]*"' | cut -d'"' -f4)/release
}

copy() {
    rm -rf "$kit" "$kit.tar.gz"
    mkdir -p "$kit/bin/examples" "$kit/bin/grounds"
    cp "$release"/{tidegate,libtidegate.so,libsoftgpu_cuda.so,libsoftgpu_cudart.so,libtrain_digits_kernels.so} "$kit/bin/"
    cp "$release/examples/train_digits" "$kit/bin/examples/"
    cp "$conformance" "$kit/bin/conformance"
    rustc --edition=2024 --crate-type=cdylib -Copt-level=2 --crate-name=kernels \
        softgpu/cuda/tests/kernels/lib.rs -o "$kit/bin/libconformance_kernels.so"
    cp -r tests/gpu/{run.sh,report.py,kernels.ptx,README.md,grounds,python,turns} "$kit/"
    cp manager/src/mover/copy/gather.ptx "$kit/"
    cp softgpu/cuda/tests/conformance/{software_only,under_a_manager,one_at_a_time}.txt "$kit/"
    git describe --always --dirty >"$kit/COMMIT"
}

# For a machine without a C compiler; run.sh prefers to compile them there.
compile_grounds() {
    local source
    for source in tests/gpu/grounds/{[0-9]*,device}.c; do
        cc -std=gnu11 -O2 -Wall -Wextra -Werror -o "$kit/bin/grounds/$(basename "$source" .c)" \
            "$source" -ldl -lpthread
    done
    cc -std=gnu11 -O2 -Wall -Wextra -Werror -o "$kit/bin/turns" tests/gpu/turns/turns.c -ldl -lpthread
    cc -std=gnu11 -O2 -Wall -Wextra -Werror -shared -fPIC -o "$kit/bin/grounds/libkernels.so" \
        tests/gpu/grounds/kernels.c
}

binaries() { find "$kit/bin" -type f; }

# The machine may be older than this one: its C library must know these names.
say_needs() {
    local file newest
    say "libraries needed, and the newest glibc symbols:"
    binaries | sort | while read -r file; do
        newest=$(objdump -T "$file" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
        printf '  %-34s %-11s %s\n' "${file#"$kit"/bin/}" "$newest" \
            "$(objdump -p "$file" | awk '/NEEDED/ { printf "%s ", $2 }')"
    done
    for file in $(binaries); do
        if ldd "$file" | grep -q 'not found'; then
            say "$file needs libraries that are not here:" && ldd "$file" && exit 1
        fi
    done
    newest=$(binaries | xargs objdump -T | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
    say "the kit runs where glibc is at least ${newest#GLIBC_}"
    echo "${newest#GLIBC_}" >"$kit/GLIBC"
}

check_size() {
    local kib
    kib=$(du -sk "$kit" | cut -f1)
    tar -C "$(dirname "$kit")" -czf "$kit.tar.gz" "$(basename "$kit")"
    say "$kit: $((kib / 1024)).$((kib % 1024 * 10 / 1024)) MiB; $kit.tar.gz: $(du -k "$kit.tar.gz" | cut -f1) KiB"
    if ((kib > limit_mib * 1024)); then
        say "that is more than $limit_mib MiB"
        exit 1
    fi
}

build
copy
compile_grounds
binaries | xargs strip
say_needs
check_size
