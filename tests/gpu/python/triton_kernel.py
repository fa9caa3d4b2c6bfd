"""A kernel in Triton, which reads its source from a file."""

import triton
import triton.language as tl


@triton.jit
def step(x, y, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < count) * 3 + 1, mask=at < count)


def run(x, steps):
    y = x.clone()
    for _ in range(steps):
        step[(x.numel() // 1024,)](x, y, x.numel(), BLOCK=1024)
        x, y = y % 97, x
    return x
