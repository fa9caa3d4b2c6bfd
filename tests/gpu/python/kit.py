"""What the kit's programs in Python share: answers as the grounds give them, programs, and managers."""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MIB = 1 << 20
# How long one program may take.
PATIENCE = 150


class Failed(Exception):
    """A program did not come to its end."""


def answer(ground, part, asked, value, unit=None, detail=""):
    line = {"ground": ground, "part": part, "asked": asked, "answer": value, "unit": unit, "detail": detail}
    print(json.dumps(line), flush=True)


def parser(asked):
    """The arguments of a program that asks something under Tidegate."""
    ours = argparse.ArgumentParser()
    ours.add_argument(asked)
    ours.add_argument("--tidegate", required=True)
    ours.add_argument("--software", action="store_true")
    return ours


def run(main, tell):
    """All that is to be asked; that it could not be is an answer, too."""
    try:
        main()
    except Failed as failure:
        print(failure, file=sys.stderr)
        tell(str(failure))
        sys.exit(1)


def start(words, **environment):
    environment = {**os.environ, **environment}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def end(job, patience=PATIENCE):
    """The last line that a program printed, and what was said on stderr."""
    try:
        out, err = job.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        job.kill()
        raise Failed(f"it took more than {patience} s") from None
    if job.returncode != 0 or not out.strip():
        raise Failed(f"exit status {job.returncode}: {' / '.join(err.strip().splitlines()[-3:])}")
    return out.splitlines()[-1], err


def bytes_of_switch(figures):
    """That a job has saved at each of its switches, on average."""
    return (figures["saved_bytes"] + figures["preempted_bytes"]) / max(figures["switches"], 1)


class Manager:
    def __init__(self, tidegate, directory, *arguments):
        self.tidegate = tidegate
        self.socket = str(Path(directory) / "socket")
        words = [tidegate, "manager", "--socket", self.socket, *arguments]
        # What managers say is kept beside what the runs say, where the kit names a file for it.
        with open(os.environ.get("KIT_MANAGER_LOG", os.devnull), "a") as log:
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=log, text=True)
        if self.process.stdout.readline().strip() != "ready":
            raise Failed("no manager could be started")

    def start(self, name, command, **environment):
        run = [self.tidegate, "run", "--socket", self.socket, "--name", name, "--"]
        return start([*run, *command], **environment)

    def status(self):
        words = [self.tidegate, "status", "--socket", self.socket, "--json", "--wait-idle"]
        return json.loads(subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout)

    def figures(self, name):
        return next(job for job in self.status()["ended"] if job["name"] == name)

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=30)


@contextlib.contextmanager
def manager(tidegate, software, memory, *arguments):
    """A manager of a GPU with so many bytes; 0: all that it has."""
    with tempfile.TemporaryDirectory() as directory:
        size = f"{memory // MIB}MiB"
        if software:
            limit = ["--software-gpu", f"1x{size if memory else '2GiB'}"]
        else:
            limit = ["--gpu-memory", size] if memory else []
        ours = Manager(tidegate, directory, *limit, *arguments)
        try:
            yield ours
        finally:
            ours.end()


@contextlib.contextmanager
def software_node(tidegate, software):
    """Where a program without a manager finds software GPUs."""
    if not software:
        yield {}
        return
    with manager(tidegate, software, 0) as ours:
        words = [tidegate, "run", "--socket", ours.socket, "--", "printenv", "TIDEGATE_SOFTGPU"]
        node = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
        yield {"TIDEGATE_SOFTGPU": node, "LD_LIBRARY_PATH": f"{node}/lib"}
