"""Training loops as people write them: `torch_loops.py NAME [SWITCHES]`. Goes on until it was stopped so often.
Prints how many bytes its parameters and the state of its optimizers have, rounded as PyTorch's allocator
rounds, and the most bytes that its tensors had at once."""

import ctypes
import sys

import torch
from stopped import switches
from torch.utils.data import DataLoader, TensorDataset

ITERATIONS = 30
SWITCHES = int((sys.argv + ["0"])[2])


class Activations(torch.nn.Module):
    """So many bytes that its backward pass needs, and nothing to compute."""

    def __init__(self, bytes=24 << 20):
        super().__init__()
        self.rows = bytes // (2048 * 4)

    def forward(self, x):
        wide = torch.tanh(x.new_empty(self.rows, 2048, requires_grad=True))
        return x + (wide * wide)[: len(x)]


def network():
    layers = torch.nn.Linear(256, 2048), Activations(), torch.nn.Linear(2048, 16)
    return torch.nn.Sequential(*layers).cuda()


optimizers = []


def optimized(kind, model):
    optimizers.append(kind(model.parameters(), lr=0.01))
    return optimizers[-1]


def persistent_bytes():
    tensors = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    for optimizer in optimizers:
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if torch.is_tensor(value) and value.is_cuda]
    return sum(-(-tensor.nbytes // 512) * 512 for tensor in tensors)


def batches(*shape):
    count = 0
    while count < ITERATIONS or switches() < SWITCHES:
        yield torch.randn(*(shape or (64, 256))).cuda()
        count += 1


def loaded(count, **options):
    """Batches of a data loader, in at least one epoch."""
    data = TensorDataset(torch.randn(64 * count, 256))
    epochs = 0
    while epochs < 1 or switches() < SWITCHES:
        yield from DataLoader(data, batch_size=64, **options)
        epochs += 1


def sgd(at_its_end=lambda: None):
    model = network()
    optimizer = optimized(torch.optim.SGD, model)
    for x in batches():
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        at_its_end()


def adam():
    model = network()
    optimizer = optimized(torch.optim.Adam, model)
    for x in batches():
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def keeps_its_gradients():
    model = network()
    optimizer = optimized(torch.optim.SGD, model)
    for x in batches():
        optimizer.zero_grad(set_to_none=False)
        model(x).sum().backward()
        del x
        optimizer.step()


def accumulation():
    model = network()
    optimizer = optimized(torch.optim.AdamW, model)
    for count, (x,) in enumerate(loaded(4 * ITERATIONS), 1):
        model(x.cuda()).sum().backward()
        if count % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


def gan():
    maker, judge = network(), torch.nn.Linear(16, 1).cuda()
    makes, judges = optimized(torch.optim.Adam, maker), optimized(torch.optim.Adam, judge)
    for x in batches():
        judges.zero_grad()
        judge(maker(x).detach()).sum().backward()
        judges.step()
        makes.zero_grad()
        judge(maker(x)).sum().backward()
        makes.step()


def mixed_precision():
    model = network()
    optimizer = optimized(torch.optim.SGD, model)
    scaler = torch.amp.GradScaler("cuda")
    for x in batches():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def trained(model, *shape, optimizer=torch.optim.Adam):
    """Trains a model whose results do not matter."""
    model = model.cuda()
    optimizer = optimized(optimizer, model)

    def loss(x):
        out = model(x)
        return (out[0] if isinstance(out, tuple) else out).sum()

    for x in batches(*shape):
        optimizer.zero_grad()
        loss(x).backward()
        optimizer.step()


def large():
    trained(torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4))), 4, 2048)


def convolutions():
    layers = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3)
    trained(torch.nn.Sequential(*layers), 16, 3, 64, 64)


def transformer():
    trained(torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), 8, 128, 256)


def lstm():
    trained(torch.nn.LSTM(256, 256, 2, batch_first=True), 8, 128, 256)


def workers():
    model = network()
    optimizer = optimized(torch.optim.SGD, model)
    for (x,) in loaded(ITERATIONS, num_workers=2):
        optimizer.zero_grad()
        model(x.cuda()).sum().backward()
        optimizer.step()


def compiled():
    model = network()
    optimizer = optimized(torch.optim.SGD, model)

    def iteration(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    iteration = torch.compile(iteration, backend="eager")
    for x in batches():
        iteration(x)


def evaluation():
    model = network()
    sgd()
    with torch.no_grad():
        for (x,) in loaded(4 * ITERATIONS):
            model(x.cuda()).sum()


def inference():
    model = network()
    with torch.no_grad():
        for x in batches():
            for _ in range(3):
                model(x).cpu()
        # So often a loop has to wait that is stopped where it waits.
        before = switches()
        while switches() < before + SWITCHES:
            model(x).cpu()


def emptied():
    """Garbage is given back before the first step, that the optimizer's state does not lie in it, and never again."""
    model = network()
    optimizer = optimized(torch.optim.Adam, model)
    for step in range(3):
        model(next(batches())).sum().backward()
        garbage = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        del garbage
        before = torch.cuda.memory_reserved()
        optimizer.step()
        assert (torch.cuda.memory_reserved() < before) == (step == 0), step


def graph():
    model, x = network(), torch.empty(64, 256, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        model(x).sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        model(x).sum().backward()
    for batch in batches():
        x.copy_(batch)
        captured.replay()


def told():
    sgd(ctypes.CDLL(None).tidegate_boundary)


globals()[sys.argv[1]]()
torch.cuda.synchronize()
print(persistent_bytes(), torch.cuda.max_memory_allocated(), flush=True)
