"""A training in unusual circumstances: `torch_ends.py SITE-PACKAGES [raise | interrupt | wait | workers]`. With
`python -I -S` it finds PyTorch only where it is told to look."""

import os
import signal
import sys

sys.path.append(sys.argv[1])

import torch
from torch.utils.data import DataLoader, TensorDataset

MODE = sys.argv[2] if len(sys.argv) > 2 else ""
WORKERS = 2 if MODE == "workers" else 0


def main():
    data = TensorDataset(torch.arange(640.0).reshape(40, 16))
    loader = DataLoader(data, batch_size=2, num_workers=WORKERS, persistent_workers=WORKERS > 0)
    # Workers are forked here, before there is any CUDA.
    batches = iter(loader)
    first = next(batches)
    model = torch.nn.Linear(16, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for count, (x,) in enumerate([first, *batches]):
        optimizer.zero_grad()
        model(x.cuda()).sum().backward()
        optimizer.step()
        if count == 10 and MODE == "raise":
            raise ValueError("it was told to")
        if count == 10 and MODE == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        if count == 10 and MODE == "wait":
            print("waiting", flush=True)
            signal.pause()
    print("trained", count, flush=True)


main()
