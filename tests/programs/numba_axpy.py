"""y += a x by a kernel that numba compiles, as any user of numba would write it; it says a word at each step
and waits after the first."""

import sys

import numpy as np
from numba import cuda

COUNT = (4 << 20) // 2 // 4  # two arrays of float32 are 4 MiB


@cuda.jit
def axpy(n, a, x, y):
    i = cuda.grid(1)
    if i < n:
        y[i] += a * x[i]


values = np.arange(COUNT, dtype=np.float32) % 1000
x = cuda.to_device(values)
y = cuda.to_device(np.ones(COUNT, dtype=np.float32))
cuda.synchronize()
print("filled", flush=True)
sys.stdin.readline()
axpy[COUNT // 256, 256](np.int32(COUNT), np.float32(2), x, y)
result = y.copy_to_host()
wrong = np.flatnonzero(result != 2 * values + 1)
if wrong.size:
    sys.exit(f"value {wrong[0]} is {result[wrong[0]]}")
print("as expected")
