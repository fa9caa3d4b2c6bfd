"""A pipeline of RANKS stages on one GPU, each a process that `mp.spawn` starts, with NCCL's stand-in (which must be told that
they may share a GPU): `torch_stages.py STEPS`. In each step some batches go forward through all stages, and their gradients
back. No stage waits for its GPU but the first, which copies its batches there: the others submit work that waits for that of
their neighbours, some steps ahead. Prints each stage's rank and the digest of its weights."""

import hashlib
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS, BATCHES, WIDTH = 4, 4, 64


def forward(rank, stage, step, batch, device):
    if rank == 0:
        torch.manual_seed(1000 * step + batch)
        inputs = torch.randn(16, WIDTH).to(device)
    else:
        inputs = torch.empty(16, WIDTH, device=device)
        dist.recv(inputs, rank - 1)
        inputs.requires_grad_()
    outputs = stage(inputs)
    if rank < RANKS - 1:
        dist.send(outputs.detach(), rank + 1)
    return inputs, outputs


def backward(rank, inputs, outputs):
    if rank < RANKS - 1:
        gradient = torch.empty_like(outputs)
        dist.recv(gradient, rank + 1)
        outputs.backward(gradient)
    else:
        torch.nn.functional.mse_loss(outputs, torch.zeros_like(outputs)).backward()
    if rank > 0:
        dist.send(inputs.grad, rank - 1)


def run(rank, steps, meeting, results):
    torch.set_num_threads(1)
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=dist.FileStore(meeting, RANKS), rank=rank, world_size=RANKS)
    torch.manual_seed(rank)
    stage = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()).to(device)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        passed = [forward(rank, stage, step, batch, device) for batch in range(BATCHES)]
        for inputs, outputs in reversed(passed):
            backward(rank, inputs, outputs)
        optimizer.step()
    torch.cuda.synchronize()
    words = b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in stage.parameters())
    results.put((rank, hashlib.sha256(words).hexdigest()))
    dist.destroy_process_group()


if __name__ == "__main__":
    results = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run, (int(sys.argv[1]), os.path.join(directory, "store"), results), RANKS)
    for rank, digest in sorted(results.get() for _ in range(RANKS)):
        print(rank, digest, flush=True)
