"""Uses the package `tidegate`: `torch_package.py alone | job`."""

import sys

import tidegate
import torch

IS_JOB = sys.argv[1] == "job"

with tidegate.persistent():
    table = torch.zeros(1 << 20, device="cuda")
    with tidegate.temporary():
        scratch = torch.zeros(1 << 20, device="cuda")
other = torch.ones(1 << 19, device="cuda")


def gpu():
    return tidegate.status()["gpus"][0]


if not IS_JOB:
    assert tidegate.status() is None
else:
    assert gpu()["live_bytes"] == torch.cuda.memory_allocated()
    assert gpu()["persistent_bytes"] == table.nbytes, gpu()
    assert gpu()["allocated_bytes"] >= torch.cuda.memory_reserved() and gpu()["mapped_bytes"] >= gpu()["live_bytes"]

tidegate.tag(other)
tidegate.tag(table, persistent=False)
tidegate.tag(scratch.data_ptr() + 17)
tidegate.hold(scratch)
if IS_JOB:
    assert gpu()["persistent_bytes"] == other.nbytes + scratch.nbytes, gpu()

for _ in range(5):
    tidegate.step()
if IS_JOB:
    assert tidegate.status()["boundaries"] == 5

try:
    tidegate.tag("no tensor")
except TypeError as error:
    print(error)
print("told", flush=True)
