"""Products of matrices on the GPU, compared with the CPU's, and a training whose own kernels do nothing."""

import torch

torch.manual_seed(0)
CLOSE = {torch.float32: 1e-4, torch.float64: 1e-10, torch.float16: 2e-1, torch.bfloat16: 1.0}


def same(product, *matrices):
    there = product(*(matrix.cuda() for matrix in matrices)).cpu()
    here = product(*matrices)
    torch.testing.assert_close(there, here, rtol=1e-2, atol=CLOSE[here.dtype])


for dtype in CLOSE:
    a, b, bias = (torch.randn(*shape).to(dtype) for shape in [(65, 33), (33, 17), (17,)])
    same(torch.matmul, a, b)
    same(lambda a, b: a.t() @ b.t(), b, a)
    same(torch.addmm, bias, a, b)
    same(lambda x, w, b: torch.nn.functional.linear(x, w.t(), b), a, b, bias)
    same(torch.bmm, torch.randn(5, 7, 9).to(dtype), torch.randn(5, 9, 3).to(dtype))
print("products are right", flush=True)

model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
inputs, targets = torch.randn(64, 256).cuda(), torch.zeros(64, dtype=torch.long).cuda()
for _ in range(10):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
torch.cuda.synchronize()
print("trained", flush=True)
