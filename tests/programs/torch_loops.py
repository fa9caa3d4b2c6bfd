"""Training loops as people write them: `torch_loops.py NAME`. Prints how many bytes its parameters and the state
of its optimizers have, rounded as PyTorch's allocator rounds."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

ITERATIONS = 30


def network():
    layers = torch.nn.Linear(256, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 16)
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


def batches(count=ITERATIONS):
    for _ in range(count):
        yield torch.randn(64, 256).cuda()


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
    loader = DataLoader(TensorDataset(torch.randn(64 * 4 * ITERATIONS, 256)), batch_size=64)
    for count, (x,) in enumerate(loader, 1):
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


def evaluation():
    model = network()
    sgd()
    data = TensorDataset(torch.randn(64 * 4 * ITERATIONS, 256))
    with torch.no_grad():
        for (x,) in DataLoader(data, batch_size=64):
            model(x.cuda()).sum()


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
    import ctypes

    sgd(ctypes.CDLL(None).tidegate_boundary)


globals()[sys.argv[1]]()
torch.cuda.synchronize()
print(persistent_bytes(), flush=True)
