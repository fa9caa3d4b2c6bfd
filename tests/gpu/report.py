#!/usr/bin/env python3
"""Makes report.json and report.md of what run.sh left: report.py OUT

OUT/runs/machine.tsv   key, value
OUT/runs/list.tsv      section, name, exit status of timeout(1) or "not-run", limit, begin, end
OUT/runs/SECTION.NAME.out, .err
OUT/runs/skipped.txt   promise | reason
OUT/demo.json          the demo's figures, if it came to its end
"""

import json
import re
import signal
import sys
from pathlib import Path

LAST_LINES = 12
SECTIONS = ["device", "conformance", "grounds", "demo", "shim", "pytorch", "frameworks", "turns"]
# Sections of promises, and of whom they are asked.
ASKED = {"conformance": "this driver", "shim": "a job under a manager on this driver"}
FIELDS = {"ground", "part", "asked", "answer", "unit", "detail"}
# A line of a promise's error output that begins so tells what was left open to the driver.
NOTED = "noted: "
# A run that ended so found out what it was to find out.
GOOD = "ended"


def pairs(path, separator):
    if not path.exists():
        return []
    lines = path.read_text().splitlines()
    return [line.split(separator, 1) for line in lines if separator in line]


def how_it_ended(status, seconds, limit):
    """In words, of an exit status as timeout(1) gives it: 137 may be its own last means, or another's."""
    if status == "not-run":
        return "not run: its section's time was up"
    status = int(status)
    if status == 0:
        return GOOD
    if status == 124 or (status == 137 and seconds >= limit):
        return "timed out"
    if status > 128:
        try:
            return f"crashed: {signal.Signals(status - 128).name}"
        except ValueError:
            pass
    return f"failed: exit status {status}"


def answers(text):
    """The lines of a ground, and those that are not as agreed."""
    good, bad = [], []
    for line in text.splitlines():
        try:
            answer = json.loads(line)
            (good if isinstance(answer, dict) and set(answer) == FIELDS else bad).append(answer)
        except json.JSONDecodeError:
            bad.append(line)
    return good, bad


def last_lines(*texts):
    lines = [line for text in texts for line in text.splitlines() if line.strip()]
    return lines[-LAST_LINES:]


def complaints(runs, name):
    """The compiler's, if a ground could not be compiled on that machine."""
    path = runs / f"compile.{name}.err"
    return path.read_text(errors="replace") if path.exists() else ""


def read_run(runs, line):
    section, name, status, limit, began, ended = line.split("\t")
    seconds = round(float(ended) - float(began), 2)
    stem = section + "." + re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    out, err = (
        (runs / f"{stem}.{kind}").read_text(errors="replace") for kind in ("out", "err")
    )
    run = {
        "section": section,
        "name": name,
        "result": how_it_ended(status, seconds, int(limit)),
        "began": float(began),
        "ended": float(ended),
        "seconds": seconds,
        "limit_seconds": int(limit),
        "last_lines": last_lines(complaints(runs, name), out, err),
    }
    if section in ASKED:
        run["noted"] = [line[len(NOTED):] for line in err.splitlines() if line.startswith(NOTED)]
    if section in ASKED and run["result"] == GOOD and "1 passed" not in out:
        run["result"] = "failed: it ran no promise"
    if section in ("device", "grounds", "pytorch", "frameworks", "turns"):
        run["answers"], bad = answers(out)
        if run["result"] == GOOD and (bad or not run["answers"]):
            run["result"] = "failed: its output is not as agreed"
    return run


def read_all(out):
    runs = out / "runs"
    machine = dict(pairs(runs / "machine.tsv", "\t"))
    report = {
        "machine": machine,
        "runs": [read_run(runs, line) for line in (runs / "list.tsv").read_text().splitlines()],
        "skipped": [
            {"name": name.strip(), "reason": reason.strip()}
            for name, reason in pairs(runs / "skipped.txt", "|")
        ],
    }
    report["ran_on"], report["gpu"] = device(report)
    demo = out / "demo.json"
    if demo.exists():
        report["demo"] = json.loads(demo.read_text())
        if report["demo"]["software_gpu"] and report["ran_on"] == "hardware":
            for run in report["runs"]:
                if run["section"] == "demo":
                    run["result"] = "failed: it found no GPU, and took a software one"
    report["runs"].sort(key=lambda run: run["result"] == GOOD)
    report["failed"] = [f"{run['section']} {run['name']}" for run in failed(report)]
    return report


def device(report):
    """On what this ran, by the driver's word: nothing else makes it hardware."""
    for run in report["runs"]:
        for answer in run.get("answers", []):
            if (answer["ground"], answer["asked"]) == ("device", "name"):
                software = str(answer["answer"]).startswith("Software GPU")
                return "software GPU" if software else "hardware", answer["answer"]
    return "unknown", "an unknown device"


def failed(report):
    return [run for run in report["runs"] if run["result"] != GOOD]


def cell(value):
    return str(value).replace("|", "\\|").replace("\n", " ")


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell(value) for value in line) + " |" for line in lines] + [""]


def in_words(answer):
    value = answer["answer"]
    words = {True: "yes", False: "no", None: "no figure"}
    if value is None or isinstance(value, bool):
        return words[value]
    return f"{value} {answer['unit']}" if answer["unit"] else str(value)


def title(report):
    machine = report["machine"]
    if report["ran_on"] == "unknown":
        return ["# The GPU kit on an unknown device", "", "**The driver did not say what it drives.**", ""]
    if report["ran_on"] == "software GPU":
        return [
            "# The GPU kit on a software GPU",
            "",
            "**This shows that the kit works. It says nothing about any hardware.**",
            "",
        ]
    driver = machine.get("driver_version") or machine.get("kernel_says_driver", "unknown")
    return [f"# The GPU kit on {report['gpu']}, driver {driver}", ""]


def section_summary(report):
    rows = []
    for section in SECTIONS:
        runs = [run for run in report["runs"] if run["section"] == section]
        if not runs:
            continue
        ended = sum(run["result"] == GOOD for run in runs)
        took = max(run["ended"] for run in runs) - min(run["began"] for run in runs)
        rows.append([section, ended, len(runs) - ended, f"{took:.0f} s"])
    return table(["section", "ended well", "did not", "took"], rows)


def what_failed(report):
    lines = ["## What failed", ""]
    runs = failed(report)
    if not runs:
        lines += ["Nothing.", ""]
    for run in runs:
        words = f"### {run['section']} {run['name']}: {run['result']}"
        lines += [words, "", "```", *run["last_lines"], "```", ""]
    errors = [
        [run["name"], answer["part"], answer["asked"], answer["detail"]]
        for run in report["runs"]
        for answer in run.get("answers", [])
        if answer["answer"] in ("error", "not asked")
    ]
    if errors:
        lines += ["Questions that could not be asked:", ""]
        lines += table(["ground", "part", "asked", "why not"], errors)
    return lines


def answered(report, section):
    rows = [
        [answer["ground"], answer["part"], answer["asked"], in_words(answer), answer["detail"]]
        for run in sorted(report["runs"], key=lambda run: run["name"])
        if run["section"] == section
        for answer in run.get("answers", [])
    ]
    return table(["", "part", "asked", "answer", "detail"], rows) if rows else []


def grounds(report):
    lines = []
    for section, heading in [("grounds", "## Grounds"), ("pytorch", "## PyTorch"), ("frameworks", "## Frameworks"), ("turns", "## Turns")]:
        rows = answered(report, section)
        lines += [heading, "", *rows] if rows else []
    return lines


def promises(report, section):
    rows = [
        [run["name"], "kept" if run["result"] == GOOD else run["result"], f"{run['seconds']} s"]
        for run in report["runs"]
        if run["section"] == section
    ]
    if not rows:
        return []
    lines = [f"## {section.capitalize()}: what the software GPU promises, asked of {ASKED[section]}", ""]
    lines += table(["promise", "result", "took"], rows)
    noted = [
        [run["name"], line]
        for run in report["runs"]
        if run["section"] == section
        for line in run["noted"]
    ]
    return lines + (["Left open:", "", *table(["promise", "answer"], noted)] if noted else [])


def conformance(report):
    lines = [line for section in ASKED for line in promises(report, section)]
    if not lines:
        return []
    lines += ["Not asked:", ""]
    return lines + table(["promise", "why"], [[skip["name"], skip["reason"]] for skip in report["skipped"]])


def demo(report):
    if "demo" not in report:
        return []
    figures = report["demo"]
    rows = [
        ["at boundaries" if leg["at_boundary"] else "by deadline", job["name"], job["switches"],
         job["saved_bytes"], "yes" if job["weights_equal_solo"] and job["losses_equal_solo"] else "NO"]
        for leg in figures["legs"]
        for job in leg["jobs"]
    ]
    times = ", ".join(f"{leg['seconds']:.1f} s" for leg in figures["legs"])
    words = (
        f"{figures['gpu']}: footprints add up to {figures['footprint_sum_bytes'] / 2**20:.0f} MiB of "
        f"{figures['gpu_memory_bytes'] / 2**20:.0f} MiB; {figures['serial_seconds']:.1f} s one after "
        f"another, together {times}."
    )
    head = ["switched", "job", "switches", "bytes saved", "equal to solo"]
    return ["## Demo", "", words, "", *table(head, rows)]


def markdown(report):
    machine = ["## Machine", "", *answered(report, "device"), *table(["", ""], report["machine"].items())]
    parts = [title, section_summary, what_failed, grounds, demo, conformance]
    return "\n".join(line for part in parts for line in part(report)) + "\n" + "\n".join(machine)


def main():
    out = Path(sys.argv[1])
    report = read_all(out)
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "report.md").write_text(markdown(report))


main()
