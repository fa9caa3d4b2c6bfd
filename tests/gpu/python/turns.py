#!/usr/bin/env python3
"""Watches turns on the GPU: turns.py PAIR --tidegate PROGRAM --turns PROGRAM [--software]. Prints answers as the grounds do.

A PAIR is two kinds of ../turns/turns.c with a colon between them and what each has of memory, in MiB: `threads:busy:160`.
Both do not fit. The second's steps are set against those that it makes alone under the same manager; the first's too, if
it makes steps. `alone:KIND:MIB` sets them against those without Tidegate."""

import json
import os

import kit
from kit import MIB, Failed

WITHOUT_STEPS = {"one", "threads", "streams", "host", "graphs", "slow", "mixed", "long", "processes", "reset", "capture"}
ALONE_SECONDS = 3
# The first seconds are the longest: nothing is known of either yet.
PAIR_SECONDS = 12


def answer(part, asked, value, unit=None, detail=""):
    kit.answer("12", part, asked, value, unit, detail)


def words(kind, seconds, mib):
    return [options.turns, kind, str(round(seconds * 1e3)), str(mib)]


def steps(job):
    line, _ = kit.end(job, 60)
    return json.loads(line)


def rate(job):
    return job["steps"] / job["seconds"]


def begun(job):
    if job.stdout.readline().strip() != "begun":
        raise Failed(f"it did not begin: {job.stderr.read()}")
    return job


def seconds(whole):
    return whole / 4 if os.environ.get("GROUND_QUICK") else whole


def compare_alone(part, kind, mib, environment):
    bare = steps(kit.start(words(kind, seconds(ALONE_SECONDS), mib), **environment))
    with kit.manager(options.tidegate, options.software, 4 * mib * MIB) as manager:
        ours = steps(manager.start("alone", words(kind, seconds(ALONE_SECONDS), mib)))
    answer(part, "alone under the shim, to without: steps", rate(ours) / rate(bare), "x", f"{rate(bare):.1f} a second without")


def compare_pair(part, kinds, mib):
    named = [(f"{i}-{kind}", kind) for i, kind in enumerate(kinds)]
    with kit.manager(options.tidegate, options.software, 8 * mib // 5 * MIB) as manager:
        alone = {
            kind: rate(steps(manager.start(f"alone-{kind}", words(kind, seconds(ALONE_SECONDS), mib))))
            for kind in dict.fromkeys(kinds) if kind not in WITHOUT_STEPS
        }
        endless, of_steps = [], []
        for name, kind in named:
            job = manager.start(name, words(kind, seconds(PAIR_SECONDS), mib))
            if kind in alone:
                of_steps.append((kind, job))
            else:
                endless.append(begun(job))
        for kind, job in of_steps:
            made = steps(job)
            answer(part, f"{kind}, the part of its speed alone", rate(made) / alone[kind], None,
                   f"{made['steps']} steps, {alone[kind]:.1f} a second alone")
            answer(part, f"{kind}, the longest time without a step", made["longest"], "s")
        for job in endless:
            job.kill()
            job.communicate(timeout=60)
        for name, _ in named:
            tell_moves(part, name, manager.figures(name))


def tell_moves(part, name, figures):
    moved, took = kit.bytes_of_switch(figures), figures["switch_micros"]
    answer(part, f"{name}: switches", figures["switches"], None, f"{moved / MIB:.0f} MiB each; on average, us: {took}")


def main():
    first, second, mib = options.pair.split(":")
    if first != "alone":
        return compare_pair(options.pair, [first, second], int(mib))
    with kit.software_node(options.tidegate, options.software) as environment:
        compare_alone(options.pair, second, int(mib), environment)


parser = kit.parser("pair")
parser.add_argument("--turns", required=True)
options = parser.parse_args()
kit.run(main, lambda why: answer(options.pair, "could it be run", "error", None, why))
