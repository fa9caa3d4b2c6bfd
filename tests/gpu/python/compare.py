#!/usr/bin/env python3
"""Asks one model of train.py what Tidegate's design believes of PyTorch: compare.py MODEL --tidegate PROGRAM
[--steps N] [--times] [--software]. Prints answers as the grounds do, a JSON object each line.

The training runs without the shim, under a manager alone with all blocks audited, and twice at once on a GPU that is
too small for both, with everything that is not alive overwritten: at boundaries, and at any instant. With `--times` it is
timed too: one after the other without Tidegate, side by side, and shared."""

import json
import re
import sys
import tempfile
import time
from pathlib import Path

import kit
from kit import MIB, start

HERE = Path(__file__).resolve().parent


def answer(ground, asked, value, unit=None, detail=""):
    kit.answer(ground, options.model, asked, value, unit, detail)


def command():
    return [sys.executable, str(HERE / "train.py"), options.model, str(options.steps)]


def end(job):
    """What a training printed, and what was said on stderr."""
    said, err = kit.end(job)
    return json.loads(said), err


def manager(memory, *arguments):
    return kit.manager(options.tidegate, options.software, memory, *arguments)


def bare(environment):
    """Twice at once, without Tidegate."""
    first, again = [end(job)[0] for job in [start(command(), **environment) for _ in range(2)]]
    answer("5", "the same bits each time, without Tidegate", first["digest"] == again["digest"])
    answer("6", "peak of live bytes without Tidegate", first["peak_bytes"] / MIB, "MiB", f"torch {first['torch']}")
    return first


def times(environment):
    """How long two take one after the other, and side by side, without Tidegate, in seconds; and the time of a step."""
    began = time.monotonic()
    first, again = [end(start(command(), **environment))[0] for _ in range(2)]
    serial = time.monotonic() - began
    began = time.monotonic()
    for job in [start(command(), **environment) for _ in range(2)]:
        end(job)
    side = time.monotonic() - began
    with manager(0) as ours:
        shim, _ = end(ours.start("timed", command()))
    noise = f"same to same {again['step_ms'] / first['step_ms']:.3f}"
    answer("10", "step time under the shim, to without", shim["step_ms"] / first["step_ms"], "x", noise)
    answer("10", "two side by side without Tidegate, to one after the other", side / serial, "x", f"{serial:.1f} s")
    return serial


def alone(plain):
    with manager(0) as ours:
        told, said = end(ours.start("alone", command(), TIDEGATE_AUDIT="1", TIDEGATE_LOG="info"))
        audited = ours.figures("alone")
    boundaries = re.findall(r"boundaries: (.*?) \(0x", said)
    audits = len(re.findall("blocks are as PyTorch has them", said))
    answer("4", "the sum of all blocks is PyTorch's at every event", "add up" not in said)
    detail = f"{audits} of {audited['boundaries']} boundaries"
    answer("4", "the blocks are those of memory_snapshot at every boundary", audits == audited["boundaries"] > 0, None, detail)
    answer("6", "where the boundary is", boundaries[-1] if boundaries else "none")
    answer("5", "alone under the shim, the same bits", told["digest"] == plain["digest"])
    return audited


def shared(plain, footprint, serial):
    modes = {"at boundaries": ["--slice", "50ms"], "at any instant": ["--slice", "20ms", "--boundary-deadline", "1ms"]}
    # One, and a part of another; contexts lie outside of what a job is given.
    memory = (footprint * 4 // 3 + 4 * MIB) // (2 * MIB) * (2 * MIB)
    for mode, arguments in modes.items():
        with manager(memory, "--poison", *arguments) as ours, tempfile.TemporaryDirectory() as place:
            began = time.monotonic()
            jobs = [(name, ours.start(name, command(), KIT_MEET=f"{place}:2")) for name in ("first", "second")]
            ends = [(name, *end(job)) for name, job in jobs]
            took = time.monotonic() - began
            figures = [ours.figures(name) for name, _, _ in ends]
        equal = [told["digest"] == plain["digest"] for _, told, _ in ends]
        switches = sum(job["switches"] for job in figures)
        moved = sum(job["saved_bytes"] + job["preempted_bytes"] for job in figures) / max(switches, 1)
        at = sum(job["at_boundary"] for job in figures)
        answer("5", f"two at once, switched {mode}, the rest overwritten: the same bits", all(equal), None, f"{switches} switches")
        answer("6", f"moved by a switch {mode}, to the peak", moved / plain["peak_bytes"], "x", f"{at} at a boundary")
        if serial:
            answer("10", f"two at once, switched {mode}, to one after the other", took / serial, "x", f"{took:.1f} s")


def main():
    with kit.software_node(options.tidegate, options.software) as environment:
        plain = bare(environment)
        serial = times(environment) if options.times else None
    audited = alone(plain)
    shared(plain, audited["footprint_bytes"], serial)


parser = kit.parser("model")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--times", action="store_true")
options = parser.parse_args()
kit.run(main, lambda why: answer("5", "could it be trained", "error", None, why))
