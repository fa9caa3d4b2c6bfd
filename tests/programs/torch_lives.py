"""Keeps tensors alive in all the ways a program does, while their memory's neighbours die, and looks at every
bit of them again and again: `torch_lives.py SWITCHES`, until it was stopped so often. Prints `alive`, and the most
bytes that were alive at once. With `lie` a block is reported that there is not.

Between what it does it waits, so that a job of its kind is switched in every state that it has."""

import ctypes
import itertools
import sys
import time

import torch
from stopped import switches

SWITCHES = int(sys.argv[1])
# In the first round not everything is there yet.
ROUNDS = 2
PAUSE = 0.012

runtime = ctypes.CDLL("libcudart.so.13")
generator = torch.Generator().manual_seed(7)


def random(*shape):
    return torch.randn(*shape, generator=generator)


def pause():
    time.sleep(PAUSE)


def read_at(address, like):
    """What lies at an address on the GPU, by the runtime and behind PyTorch's back; `like` a tensor of the CPU."""
    found = torch.empty_like(like)
    size = ctypes.c_size_t(found.numel() * found.element_size())
    pause()
    assert runtime.cudaMemcpy(ctypes.c_void_p(found.data_ptr()), ctypes.c_void_p(address), size, 2) == 0
    return found


class Kept:
    """Tensors on the GPU, and what must be in them."""

    def __init__(self):
        self.pairs = []

    def keep(self, tensor, value):
        self.pairs.append((tensor, value))
        return tensor

    def check(self, what):
        for tensor, value in self.pairs:
            assert torch.equal(tensor.cpu(), value), f"{what}: {tuple(value.shape)} has changed"


def garbage():
    """Leaves holes of all sizes where tensors were."""
    tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (100, 5000, 300_000, 3 << 20, 9 << 20)]
    del tensors[::2]
    del tensors
    # What was just freed may be about to be used: that is over when more is submitted.
    some = torch.empty(100, device="cuda")
    for value in range(10):
        some.fill_(value)
    pause()


def parameters(kept):
    model = torch.nn.Sequential(torch.nn.Linear(70, 900), torch.nn.BatchNorm1d(900), torch.nn.Linear(900, 30))
    values = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
    model.cuda()
    for tensor, value in zip((*model.parameters(), *model.buffers()), values):
        kept.keep(tensor.detach(), value)
    for parameter in model.parameters():
        value = random(*parameter.shape)
        parameter.grad = kept.keep(value.cuda(), value)
    return model


def optimizer_state(kept, model):
    state = {}
    for parameter in model.parameters():
        first, second = random(*parameter.shape), random(*parameter.shape)
        state[parameter] = {"m": kept.keep(first.cuda(), first), "v": kept.keep(second.cuda(), second)}
    return state


def containers(kept):
    values = [random(1000 + 77 * i) for i in range(8)]
    tensors = [kept.keep(value.cuda(), value) for value in values]
    return {"list": tensors[:3], "tuple": (tensors[3], {"dict": tensors[4:6]}), "closure": lambda: tensors[6:]}


def prefetched(kept):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        value = random(64, 1000).pin_memory()
        batch = value.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(stream)
    batch.record_stream(torch.cuda.current_stream())
    return kept.keep(batch, value)


def views_of_reused_blocks(kept):
    first = torch.empty(2 << 20, dtype=torch.uint8, device="cuda")
    address = first.data_ptr()
    del first
    value = random(512, 1024)
    again = value.cuda()
    assert again.data_ptr() == address, "the block was not used again"
    return kept.keep(again[100:200, ::2], value[100:200, ::2])


def freed_before_use():
    value = random(400, 600)
    x = value.cuda()
    found = read_at(x.t().contiguous().data_ptr(), value.t().contiguous())
    assert torch.equal(found, value.t().contiguous()), "what was freed before it was used has changed"


def captured(kept):
    """A graph's own memory, which its tensors do not show."""
    value = random(5000)
    x, graph = value.cuda(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x + x
        address = y.data_ptr()
        del y
    graph.replay()
    kept.keep(x, value)

    def check():
        assert torch.equal(read_at(address, value), value + value), "what a graph has written has changed"

    return graph, check


def lie():
    """As PyTorch reports a block: its address and bytes, all bytes, those of segments, and CUDA device 0."""
    report = ctypes.CDLL(None)._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
    report(ctypes.c_void_p(4096), ctypes.c_int64(512), ctypes.c_size_t(77), ctypes.c_size_t(0), ctypes.c_int16(1))


def main():
    kept = Kept()
    model = parameters(kept)
    keep = [optimizer_state(kept, model), containers(kept), views_of_reused_blocks(kept)]
    graph, check_graph = captured(kept)
    if "lie" in sys.argv:
        lie()
    state = torch.cuda.get_rng_state()
    most = 0
    for round in itertools.count():
        if round >= ROUNDS and (SWITCHES == 0 or switches() >= SWITCHES):
            break
        garbage()
        batches = Kept()
        keep.append(prefetched(batches))
        most = max(most, torch.cuda.memory_allocated())
        pause()
        freed_before_use()
        check_graph()
        batches.check("a prefetched batch")
        kept.check(f"round {round}")
        keep.pop()
    assert torch.equal(torch.cuda.get_rng_state(), state)
    print(f"alive {most}", flush=True)


main()
