#!/usr/bin/env python3
"""Asks whether a program of programs.py ends with the bits that it has without Tidegate: frameworks.py NAME --tidegate
PROGRAM [--software]. Prints answers as the grounds do, a JSON object each line.

Alone under a manager; `large` also twice on too little memory, while another program faults. `deaths` is `large` again, while
its mover and then its manager are killed."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import kit
from kit import MIB, Failed, start
from programs import LARGE

PROGRAMS = Path(__file__).resolve().parent / "programs.py"


def answer(asked, value, unit=None, detail=""):
    kit.answer("11", options.name, asked, value, unit, detail)


def command(name):
    return [sys.executable, str(PROGRAMS), "large" if name == "deaths" else name]


def manager(memory, *arguments):
    return kit.manager(options.tidegate, options.software, memory, *arguments)


def compare(environment):
    bare, _ = kit.end(start(command(options.name), **environment))
    if options.name == "deaths":
        return bare
    with manager(0) as ours:
        shared, _ = kit.end(ours.start(options.name, command(options.name)))
    if options.name != "calls":
        answer("alone under the shim, the same", shared == bare, None, f"{bare}; {shared}")
        return bare
    bare, shared = json.loads(bare), json.loads(shared)
    for call, took in bare.items():
        answer(f"{call}, under the shim to without", shared[call] / took, "x", f"{took:.2f} us without")
    return None


def together(bare):
    """Two that do not fit, beside a fault."""
    with manager(LARGE + LARGE // 2, "--slice", "200ms", "--slice-max", "500ms") as ours:
        jobs = [ours.start(name, command("large")) for name in ("first", "second")]
        time.sleep(3)
        try:
            fault = kit.end(ours.start("fault", command("fault")))[0] == "fault"
        except Failed as failure:
            fault = f"not asked: {failure}"
        ends = [kit.end(job)[0] for job in jobs]
        figures = [ours.figures(name) for name in ("first", "second")]
    answer("a program that faults beside two others has its own error", fault)
    answer("these two, switched, have the same bits", all(end == bare for end in ends))
    for job in figures:
        switches, took = max(job["switches"], 1), job["switch_micros"]
        moved = kit.bytes_of_switch(job)
        rate = moved / max(took["save"], 1) / 1e3
        answer(f"{job['name']}: a save, on average", rate, "GB/s", f"{switches} switches of {moved / MIB:.0f} MiB: {took}")


def deaths(bare):
    """Two that do not fit; first the mover dies, then the manager, each unasked."""
    with manager(LARGE + LARGE // 2, "--slice", "200ms", "--slice-max", "500ms") as ours:
        jobs = [ours.start(name, command("large")) for name in ("first", "second")]
        for dies in (youngest_child_of(ours.process.pid), ours.process.pid):
            time.sleep(3)
            os.kill(dies, signal.SIGKILL)
        ends = [kit.end(job)[0] for job in jobs]
        stop = [options.tidegate, "manager", "stop", "--now", "--socket", ours.socket]
        kit.start(stop).wait(timeout=30)
    answer("the deaths of the mover and then of the manager change no bit", all(end == bare for end in ends))


def youngest_child_of(pid):
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    return max(children)


def main():
    with kit.software_node(options.tidegate, options.software) as environment:
        bare = compare(environment)
    if options.name == "large":
        together(bare)
    if options.name == "deaths":
        deaths(bare)


options = kit.parser("name").parse_args()
kit.run(main, lambda why: answer("could it be run", "error", None, why))
