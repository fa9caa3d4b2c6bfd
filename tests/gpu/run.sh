#!/usr/bin/env bash
# Runs the GPU kit on a machine with an NVIDIA GPU; no Rust, no network, no root needed.
#
#   run.sh [--software] [conformance] [grounds] [demo] [shim] [pytorch] [frameworks] [turns]        default: the first three
#
#   --software   on a software GPU: to see that the kit itself works; says nothing about hardware
#
# Everything is written under $OUT (default: ./out): report.md to read, report.json with everything,
# and the output of each run in runs/. Each run has its own time-out and each section its own budget,
# the first three together at most 9 minutes. The exit status is 0 if the kit could run, whatever it found.
#
# KIT_PATIENCE  multiplies all of these times, for a slow machine (default: 1)
# KIT_BIN       the folder of the binaries, if not bin/ beside this file
# KIT_DRIVER    the libcuda.so.1 to ask, if not the one the system finds
# KIT_PYTHON    a Python with PyTorch (default: python3)
# KIT_STEPS     iterations of each training there (default: 200)
# KIT_MODELS    the trainings of the section pytorch (default: all; python/train.py)
# KIT_PROGRAMS  the programs of the section frameworks (default: all; python/programs.py)
# KIT_PAIRS     the pairs of the section turns (default: all; python/turns.py)
# KIT_NVRTC     the folder of libnvrtc.so, if not found by itself
set -uo pipefail

kit=$(cd "$(dirname "$0")" && pwd)
export OUT=${OUT:-$PWD/out}
rm -rf "$OUT/runs" "$OUT/demo.json"
mkdir -p "$OUT/runs"
OUT=$(cd "$OUT" && pwd)
patience=${KIT_PATIENCE:-1}
bin=$(cd "${KIT_BIN:-$kit/bin}" && pwd) || exit 1
scratch=$(mktemp -d "${TMPDIR:-/tmp}/gpu-kit.XXXXXX")
nodes=$scratch
[ -d /dev/shm ] && nodes=$(mktemp -d /dev/shm/gpu-kit.XXXXXX)
# What a run that was cut off leaves behind (a manager, a forked child) is known by this mark.
export KIT_MARK=gpu-kit-$$-$RANDOM
end_leftovers() {
    local environment
    for environment in /proc/[0-9]*/environ; do
        [ "$environment" = "/proc/$$/environ" ] && continue
        grep -qsz "^KIT_MARK=$KIT_MARK$" "$environment" && kill -KILL "$(basename "$(dirname "$environment")")"
    done 2>/dev/null
}
trap 'end_leftovers; rm -rf "$scratch" "$nodes"' EXIT
# The command would build what it needs under cargo; a preloaded shim is for the demo's jobs alone.
unset CARGO LD_PRELOAD

software=
sections=()
for argument in "$@"; do
    case $argument in
    --software) software=yes ;;
    conformance | grounds | demo | shim | pytorch | frameworks | turns) sections+=("$argument") ;;
    *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit 2 ;;
    esac
done
[ ${#sections[@]} -gt 0 ] || sections=(conformance grounds demo)

# Seconds that each section may take, all its runs together.
declare -A budget=([device]=20 [conformance]=150 [grounds]=270 [demo]=110 [shim]=400 [pytorch]=520 [frameworks]=520 [turns]=520)

say() { printf '%s  %s\n' "$(date +%T)" "$*"; }

# run SECTION NAME LIMIT COMMAND...: a run with its own time-out, at most what is left of the
# section's budget. Its outputs and how it ended lie in $OUT/runs.
run() {
    local section=$1 name=$2 limit=$(($3 * patience)) left=$((section_end - SECONDS))
    shift 3
    local files=$OUT/runs/$section.${name//[^A-Za-z0-9_.-]/_} began ended status
    [ "$left" -lt "$limit" ] && limit=$left
    began=$(date +%s.%N)
    if [ "$limit" -lt 1 ]; then
        : >"$files.out" && : >"$files.err"
        status=not-run
    else
        timeout -k 3 "$limit" "$@" </dev/null >"$files.out" 2>"$files.err"
        status=$?
    fi
    ended=$(date +%s.%N)
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$section" "$name" "$status" "$limit" "$began" "$ended" >>"$OUT/runs/list.tsv"
    say "$section $name: $status"
}

# ---- The machine ----

# Everything finds the driver in a folder of its own: as libcuda.so and libcuda.so.1.
find_driver() {
    local found=${KIT_DRIVER:-}
    if [ -n "$software" ]; then
        found=$bin/libsoftgpu_cuda.so
        make_node
    elif [ -z "$found" ]; then
        found=$( (ldconfig -p || /sbin/ldconfig -p) 2>/dev/null |
            awk '/libcuda\.so\.1 .*x86-64/ { print $NF; exit }')
        [ -n "$found" ] || found=$(ls /usr/lib/x86_64-linux-gnu/libcuda.so.1 /usr/lib64/libcuda.so.1 \
            /usr/local/nvidia/lib64/libcuda.so.1 /usr/local/cuda/compat/libcuda.so.1 2>/dev/null | head -1)
    fi
    if [ -z "$found" ] || [ ! -e "$found" ]; then
        say "there is no libcuda.so.1: name it in KIT_DRIVER, or try --software"
        exit 1
    fi
    mkdir -p "$scratch/driver"
    ln -s "$(realpath "$found")" "$scratch/driver/libcuda.so.1"
    ln -s libcuda.so.1 "$scratch/driver/libcuda.so"
    driver=$(realpath "$found")
    export LD_LIBRARY_PATH=$scratch/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}

make_node() {
    mkdir -p "$nodes/node"
    printf '[[gpu]]\nuuid = "GPU-00000000-0000-0000-0000-000000000001"\nmemory = 268435456\n' \
        >"$nodes/node/gpus.toml"
    export TIDEGATE_SOFTGPU=$nodes/node
}

# The demo's programs compile their kernels: NVRTC comes with the toolkit or with PyTorch's wheels.
find_nvrtc() {
    local place
    for place in ${KIT_NVRTC:-} /usr/local/cuda*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib \
        $(python3 -c 'import site, sys
for base in site.getsitepackages() + [site.getusersitepackages()] + sys.path:
    print(base + "/nvidia/cuda_nvrtc/lib", base + "/nvidia/cu13/lib", base + "/torch/lib")' 2>/dev/null); do
        if compgen -G "$place/libnvrtc.so*" >/dev/null; then
            nvrtc=$place
            break
        fi
    done
    [ -n "${nvrtc:-}" ] || return 0
    # A program looks for libnvrtc.so; a wheel has only the name with its version.
    mkdir -p "$scratch/nvrtc"
    ln -s "$(ls "$nvrtc"/libnvrtc.so* | head -1)" "$scratch/nvrtc/libnvrtc.so"
    export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$nvrtc:$scratch/nvrtc
}

describe_machine() {
    {
        printf 'date\t%s\n' "$(date -u +%FT%TZ)"
        printf 'software\t%s\n' "${software:-no}"
        printf 'commit\t%s\n' "$(cat "$kit/COMMIT" 2>/dev/null || echo unknown)"
        printf 'sections\t%s\n' "${sections[*]}"
        printf 'driver_library\t%s\n' "$(basename "$driver")"
        printf 'nvrtc\t%s\n' "${nvrtc:+found}"
        printf 'kernel\t%s\n' "$(uname -r)"
        printf 'glibc\t%s\n' "$(getconf GNU_LIBC_VERSION 2>/dev/null)"
        printf 'cores\t%s\n' "$(nproc)"
        if [ -z "$software" ]; then
            timeout -k 2 20 nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,compute_mode,mig.mode.current \
                --format=csv,noheader 2>/dev/null | head -1 |
                awk -F', *' '{ print "gpu\t" $1 "\ndriver_version\t" $2 "\ngpu_memory\t" $3 "\ngpu_memory_used_before\t" $4 "\ncompute_mode\t" $5 "\nmig\t" $6 }'
            # Where that program is missing, the kernel's driver tells.
            sed -n 's/^Model:[[:space:]]*/kernel_says_gpu\t/p' /proc/driver/nvidia/gpus/*/information | head -1
            sed -n 's/^NVRM version:.*  \([0-9][0-9.]*\)  .*/kernel_says_driver\t\1/p' /proc/driver/nvidia/version
        fi
    } >"$OUT/runs/machine.tsv" 2>/dev/null
}

# ---- Sections ----

# Each promise in a run of its own: one that crashes or hangs leaves the others their turn.
# promises SECTION WIDTH LIST...: all but those of the lists, in files of "promise | reason"; so many at once,
# except those of one_at_a_time.txt.
promises() {
    local section=$1 width=$2 image=$kit/kernels.ptx
    shift 2
    [ -x "$bin/conformance" ] || { say "the kit has no bin/conformance" && return; }
    export TIDEGATE_CONFORMANCE_DRIVER=$scratch/driver
    [ -z "$software" ] || image=$bin/libconformance_kernels.so
    export SOFTGPU_KERNELS_IMAGE=$image
    cat "$@" | grep -v '^#' | sort -u >"$OUT/runs/skipped.txt"
    cut -d' ' -f1 "$OUT/runs/skipped.txt" >"$scratch/skipped"
    "$bin/conformance" --list 2>/dev/null | sed -n 's/: test$//p' | grep -v '^support::' |
        grep -vxFf "$scratch/skipped" >"$scratch/promises"
    grep -v '^#' "$kit/one_at_a_time.txt" | cut -d' ' -f1 >"$scratch/alone"
    grep -vxFf "$scratch/alone" "$scratch/promises" | ask_promises "$section" "$width"
    grep -xFf "$scratch/alone" "$scratch/promises" | ask_promises "$section" 1
    unset TIDEGATE_CONFORMANCE_DRIVER SOFTGPU_KERNELS_IMAGE
}

# ask_promises SECTION WIDTH: those whose names it reads, so many at once.
ask_promises() {
    local name under_way=0
    while read -r name; do
        if [ "$under_way" -eq "$2" ]; then wait -n; else under_way=$((under_way + 1)); fi
        run "$1" "$name" 20 "$bin/conformance" --exact "$name" --test-threads=1 &
    done
    wait
}

conformance() { promises conformance 4 "$kit/software_only.txt"; }

# The same promises, asked of a job under a manager: one at a time, for jobs wait for each other's memory.
shim() {
    local options=() ready=$scratch/ready
    export TIDEGATE_SOCKET=$scratch/shim/socket
    mkdir -p "$scratch/shim"
    printf '#!/bin/sh\nshift\nexec "%s" run -- "$@"\n' "$bin/tidegate" >"$scratch/launcher"
    chmod +x "$scratch/launcher"
    [ -z "$software" ] || options=(--software-gpu 1x64MiB --unit 256KiB)
    mkfifo "$ready"
    # With all that is said and done: why a promise timed out can be read there.
    TIDEGATE_LOG=debug "$bin/tidegate" manager --socket "$TIDEGATE_SOCKET" "${options[@]}" \
        >"$ready" 2>"$OUT/runs/shim.manager.err" &
    if read -r _ <"$ready"; then
        export TIDEGATE_CONFORMANCE_LAUNCHER=$scratch/launcher
        promises shim 1 "$kit/software_only.txt" "$kit/under_a_manager.txt"
    else
        say "no manager could be started: $(cat "$OUT/runs/shim.manager.err")"
    fi
    kill %% 2>/dev/null
    unset TIDEGATE_SOCKET TIDEGATE_CONFORMANCE_LAUNCHER
}

declare -A ground_limit=([0_killed]=45 [0_stolen_time]=40 [1_shared_piece]=50 [3_map_cost]=65 [8_swap_bandwidth]=40)

# ground SECTION NAME: compiles it, or takes it as it was packed, and runs it.
ground() {
    local name=$2 program=$scratch/grounds/$2 words=$OUT/runs/compile.$2.err
    mkdir -p "$scratch/grounds"
    cc -std=gnu11 -O2 -Wall -Wextra -Werror -o "$program" "$kit/grounds/$name.c" -ldl -lpthread 2>"$words" ||
        cp "$bin/grounds/$name" "$program" 2>/dev/null
    [ -s "$words" ] || rm -f "$words"
    run "$1" "$name" "${ground_limit[$name]:-20}" "$program"
}

# What driver and device these are, by their own word.
device() { ground device device; }

# Without GPU the grounds' kernels come from a library.
kernels_for_the_host() {
    export TIDEGATE_SOFTGPU_KERNELS=$scratch/libkernels.so
    cc -std=gnu11 -O2 -shared -fPIC -o "$scratch/libkernels.so" "$kit/grounds/kernels.c" 2>/dev/null ||
        cp "$bin/grounds/libkernels.so" "$scratch/"
}

grounds() {
    local source
    export GROUND_KERNELS=$kit/kernels.ptx GROUND_GATHER=$kit/gather.ptx
    # In the repository it is where the mover has it.
    [ -f "$GROUND_GATHER" ] || GROUND_GATHER=$kit/../../manager/src/mover/copy/gather.ptx
    [ -z "$software" ] || kernels_for_the_host
    for source in "$kit"/grounds/[0-9]*.c; do
        ground grounds "$(basename "$source" .c)"
    done
    unset TIDEGATE_SOFTGPU_KERNELS
}

# Three trainings that do not fit together: a sixteenth of the demo's own work on a GPU, in 272 MiB
# of its memory; contexts take theirs from the rest of the GPU.
demo() {
    local options=(--hidden 2048 --batch 1920 --unit 2MiB --offset 4MiB --gpu-memory "272MiB" --steps 60)
    [ -z "$software" ] || options=(--software --steps 4)
    run demo demo 100 "$bin/tidegate" demo "${options[@]}" --json "$OUT/demo.json" --picture "$OUT/demo.svg"
}

# PyTorch, as it is installed there: each training alone and shared; one of them is timed too.
pytorch() {
    local model options
    for model in ${KIT_MODELS:-gpt mlp resnet amp gan lightning compile_eager compile_inductor compile_reduce_overhead}; do
        options=(${software:+--software})
        [ "$model" = gpt ] && options+=(--times)
        run pytorch "$model" 120 "${KIT_PYTHON:-python3}" "$kit/python/compare.py" "$model" --tidegate "$bin/tidegate" \
            --steps "${KIT_STEPS:-200}" "${options[@]}"
    done
}

# Small programs of the frameworks that are installed there, without Tidegate and under it.
frameworks() {
    local name programs="large deaths calls cupy jax numba triton graph async_allocator expandable_segments transformer"
    for name in ${KIT_PROGRAMS:-$programs shared_tensor shared_expandable ranks}; do
        run frameworks "$name" 120 "${KIT_PYTHON:-python3}" "$kit/python/frameworks.py" "$name" \
            --tidegate "$bin/tidegate" ${software:+--software}
    done
}

# Programs that wait for nothing, and programs with pauses, beside one that works step by step.
turns() {
    local pair greedy="one threads streams host graphs slow mixed long processes reset capture managed"
    local program=$scratch/turns
    export GROUND_KERNELS=$kit/kernels.ptx
    [ -z "$software" ] || kernels_for_the_host
    cc -std=gnu11 -O2 -Wall -Wextra -Werror -o "$program" "$kit/turns/turns.c" -ldl -lpthread || program=$bin/turns
    for pair in ${KIT_PAIRS:-alone:tiny:160 alone:busy:160 $(printf '%s:busy:160 ' $greedy gap10 gap20 gap50 busy) gap20:gap20:160 tiny:tiny:160 busy:busy:4096}; do
        run turns "$pair" 60 python3 "$kit/python/turns.py" "$pair" --tidegate "$bin/tidegate" --turns "$program" \
            ${software:+--software}
    done
    unset TIDEGATE_SOFTGPU_KERNELS
}

: >"$OUT/runs/list.tsv"
find_driver
[ -n "$software" ] || find_nvrtc
describe_machine
for section in device "${sections[@]}"; do
    section_end=$((SECONDS + budget[$section] * patience))
    "$section"
    end_leftovers
done
python3 "$kit/report.py" "$OUT" && say "see $OUT/report.md and $OUT/report.json"
