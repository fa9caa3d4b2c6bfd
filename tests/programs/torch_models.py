"""Models of all sorts, each trained for a few steps. On software GPUs their kernels compute nothing: what is shown
is that all calls on the way are there, and succeed. With `graphs` it captures and replays one, too."""

import sys

import torch


class Sequence(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, torch.nn.Linear(64, 10)

    def forward(self, x):
        out = self.layer(x)
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


CONVOLUTIONS = [
    torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
    torch.nn.Conv2d(16, 32, 3, stride=2), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 10),
]
MODELS = {
    "convolutions": (torch.nn.Sequential(*CONVOLUTIONS), (3, 32, 32)),
    "transformer": (Sequence(torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)), (16, 64)),
    "lstm": (Sequence(torch.nn.LSTM(64, 64, 2, batch_first=True)), (16, 64)),
    "gru": (Sequence(torch.nn.GRU(64, 32, bidirectional=True, batch_first=True)), (16, 64)),
}


def train(model, shape, mixed):
    model = model.cuda()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler(enabled=mixed)
    inputs, targets = torch.randn(8, *shape).pin_memory(), torch.zeros(8, dtype=torch.long).cuda()
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cuda", enabled=mixed):
            loss = torch.nn.functional.cross_entropy(model(inputs.cuda(non_blocking=True)), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.cuda.synchronize()


def solve():
    matrix = torch.eye(16, device="cuda")
    for name in "cholesky", "inv", "qr", "svd", "eigh":
        # The routines compute nothing here, and write no word on their success: PyTorch reads what was there.
        before = [torch.zeros(128, device="cuda") for _ in range(256)]
        del before
        getattr(torch.linalg, name)(matrix)
    torch.linalg.solve(matrix, matrix)
    torch.cuda.synchronize()


def replay():
    model, x = torch.nn.Linear(64, 64).cuda(), torch.randn(8, 64).cuda()
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        model(x).sum().backward()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x).sum().backward()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()


for name, (model, shape) in MODELS.items():
    for mixed in [False, True] if name in ("convolutions", "transformer") else [False]:
        train(model, shape, mixed)
        print(name, "mixed" if mixed else "single", flush=True)
solve()
print("solvers", flush=True)
if "graphs" in sys.argv:
    replay()
    print("graph", flush=True)
