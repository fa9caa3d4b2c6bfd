"""Times a training: `torch_times.py WIDTH STEPS`. Prints the median of a step in microseconds; or with
`torch_times.py start`, how long it takes until PyTorch has memory on the GPU, import apart."""

import statistics
import sys
import time

import torch

begin = time.perf_counter()
torch.zeros(1, device="cuda")
if sys.argv[1] == "start":
    print((time.perf_counter() - begin) * 1e6, flush=True)
    sys.exit()

WIDTH, STEPS = int(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(16, WIDTH).cuda()
times = []
for _ in range(STEPS):
    begin = time.perf_counter()
    optimizer.zero_grad()
    model(x).relu().sum().backward()
    optimizer.step()
    torch.cuda.synchronize()
    times.append(time.perf_counter() - begin)
print(statistics.median(times[STEPS // 10 :]) * 1e6, flush=True)
