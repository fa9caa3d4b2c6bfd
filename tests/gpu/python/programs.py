#!/usr/bin/env python3
"""Small programs of frameworks: `programs.py NAME`. The same bits each time, on one machine. Prints, last, a digest of what it
has computed, or figures as JSON."""

import hashlib
import json
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# Of JAX: not three quarters of the GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", ".1")

STEPS = 50
# Of the program `large`: its bytes and steps; little work where only the kit itself is tried.
LARGE, LARGE_STEPS = (64 << 20, 300) if os.environ.get("GROUND_QUICK") else (4 << 30, 1500)
# Of the program `ranks`.
WIDTH, RANK_STEPS = (64, 10) if os.environ.get("GROUND_QUICK") else (2048, 60)


def digest(*arrays):
    import numpy

    return hashlib.sha256(b"".join(numpy.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]


def small():
    import numpy

    return numpy.arange(1 << 20, dtype=numpy.float32).reshape(1024, 1024) % 7


def cupy():
    import cupy

    a = cupy.asarray(small())
    for _ in range(STEPS):
        a = (a @ a.T) % 5 + cupy.sqrt(a)
    return digest(a.get())


def jax():
    import jax
    import jax.numpy
    import numpy

    step = jax.jit(lambda x: jax.numpy.tanh(x @ x.T) + x.sum() * 1e-6)
    x = jax.numpy.asarray(small())
    for _ in range(STEPS):
        x = step(x)
    return digest(numpy.asarray(x))


def numba():
    import numpy
    from numba import cuda

    @cuda.jit
    def step(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = (x[i] * 2 + i) % 97

    x = cuda.to_device(numpy.arange(1 << 20, dtype=numpy.float32))
    y = cuda.device_array_like(x)
    for _ in range(STEPS):
        step[4096, 256](x, y)
        x, y = y, x
    return digest(x.copy_to_host())


def triton():
    import torch
    import triton_kernel

    return digest(triton_kernel.run(torch.arange(1 << 20, device="cuda", dtype=torch.float32), STEPS).cpu().numpy())


def graph():
    import torch

    x, w, graph = torch.ones(1 << 20, device="cuda"), torch.ones(512, 512, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.relu(w @ w)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        x.mul_(3)
        x.remainder_(101)
        y = torch.relu(w @ w)
    for _ in range(STEPS):
        graph.replay()
    torch.cuda.synchronize()
    return digest(x.cpu().numpy(), y.cpu().numpy())


def allocator(setting):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = setting
    import torch

    x = torch.from_numpy(small()).cuda()
    for nth in range(STEPS):
        x = (x @ x.T) % 5
        torch.empty(nth * 3_000_000, device="cuda")
    return digest(x.cpu().numpy())


def transformer():
    import torch
    import transformers

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    config = transformers.GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=1000, attn_implementation="eager")
    model = transformers.GPT2LMHeadModel(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    words = (torch.arange(8 * 128).reshape(8, 128) * 7 % 1000).cuda()
    for _ in range(20):
        loss = model(words, labels=words).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return digest(*(weights.detach().cpu().numpy() for weights in model.parameters()))


def double(inbox, outbox):
    import torch

    x = inbox.get()
    x.mul_(2)
    torch.cuda.synchronize()
    outbox.put(float(x.sum().item()))
    inbox.get()


def shared_tensor(setting):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = setting
    import torch
    import torch.multiprocessing

    torch.multiprocessing.set_start_method("spawn")
    inbox, outbox = torch.multiprocessing.Queue(), torch.multiprocessing.Queue()
    other = torch.multiprocessing.Process(target=double, args=(inbox, outbox))
    other.start()
    x = torch.arange(1 << 20, device="cuda", dtype=torch.float64)
    torch.cuda.synchronize()
    inbox.put(x)
    theirs = outbox.get(timeout=60)
    inbox.put(None)
    ours = float(x.sum().item())
    del x
    other.join(30)
    return f"{theirs} {ours} {other.exitcode}"


def rank(number, folder):
    import torch
    import torch.distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=number, world_size=2)
    torch.manual_seed(3)
    torch.use_deterministic_algorithms(True)
    layers = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.ReLU(), torch.nn.Linear(2 * WIDTH, WIDTH)
    model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
    optimizer = torch.optim.Adam(model.parameters())
    torch.manual_seed(number)
    x = torch.randn(512, WIDTH).cuda()
    for _ in range(RANK_STEPS):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    with open(f"{folder}/{number}", "w") as said:
        said.write(digest(*(weights.detach().cpu().numpy() for weights in model.parameters())))
    torch.distributed.destroy_process_group()


def ranks():
    import tempfile
    from pathlib import Path

    import torch.multiprocessing

    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank, args=(folder,), nprocs=2)
        return " ".join((Path(folder) / str(number)).read_text() for number in range(2))


def large():
    """Memory of which every byte changes in each step."""
    import torch

    torch.manual_seed(7)
    count = LARGE // 8 // 4
    parts = [torch.randint(-(2**31), 2**31 - 1, (count,), device="cuda", dtype=torch.int32) for _ in range(8)]
    for _ in range(LARGE_STEPS):
        for part in parts:
            part.mul_(1664525).add_(1013904223)
        torch.cuda.synchronize()
    return digest(*(part.cpu().numpy() for part in parts))


def fault():
    """Its own error, and no other program's."""
    import cupy

    write = cupy.RawKernel('extern "C" __global__ void write(int *at) { *(int *)((size_t)at * 0 + 16) = 7; }', "write")
    write((1,), (1,), (cupy.zeros(4, cupy.int32),))
    try:
        cupy.cuda.Device().synchronize()
    except Exception:
        # What is left of the process is of no use to the GPU.
        print("fault", flush=True)
        os._exit(0)
    return "no fault"


def calls():
    """How long a small kernel's launch takes, and allocations, in microseconds."""
    import torch

    def time_of(count, call):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / count * 1e6

    def from_driver():
        torch.empty(64 << 20, device="cuda", dtype=torch.uint8)
        torch.cuda.empty_cache()

    x = torch.zeros(16, device="cuda")
    time_of(2000, lambda: x.add_(1))
    return json.dumps({
        "launch": min(time_of(20000, lambda: x.add_(1)) for _ in range(7)),
        "cached": min(time_of(5000, lambda: torch.empty(1 << 14, device="cuda")) for _ in range(7)),
        "from the driver": min(time_of(30, from_driver) for _ in range(7)),
    })


PROGRAMS = {
    "cupy": cupy,
    "jax": jax,
    "numba": numba,
    "triton": triton,
    "graph": graph,
    "async_allocator": lambda: allocator("backend:cudaMallocAsync"),
    "expandable_segments": lambda: allocator("expandable_segments:True"),
    "transformer": transformer,
    "shared_tensor": lambda: shared_tensor(""),
    "shared_expandable": lambda: shared_tensor("expandable_segments:True"),
    "ranks": ranks,
    "large": large,
    "fault": fault,
    "calls": calls,
}

if __name__ == "__main__":
    print(PROGRAMS[sys.argv[1]](), flush=True)
