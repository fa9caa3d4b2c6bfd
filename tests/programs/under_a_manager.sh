#!/bin/sh
# Runs a program under a manager with software GPUs like those of a node, for the conformance suite:
#
#   under_a_manager.sh NODE PROGRAM ARGUMENTS…
#
# TIDEGATE is the command. The exit status is the program's.
node=$1
shift
home=$(mktemp -d)
gpus=$(grep -c '^\[\[gpu' "$node/gpus.toml")
mkfifo "$home/ready"
"$TIDEGATE" manager --socket "$home/socket" --software-gpu "${gpus}x16MiB" --unit 256KiB \
    >"$home/ready" 2>"$home/said" &
manager=$!
read -r _ <"$home/ready"
"$TIDEGATE" run --socket "$home/socket" -- "$@"
status=$?
kill "$manager" 2>/dev/null
wait "$manager"
[ "$status" -eq 0 ] || cat "$home/said" >&2
rm -rf "$home"
exit $status
