"""Used by other examples: times a kernel of a matrix product in turns with NumPy's, and prints
both.
"""

import time

import numpy as np

import tilesmith as ts


def compare(kernel: ts.Kernel, func: ts.Function, n: int) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    c, want = np.empty((n, n), np.float32), np.empty((n, n), np.float32)
    ours, numpy = [], []
    for _ in range(15):  # in turns, so that both meet the same state of the machine
        for call, times in (
            (lambda: np.matmul(a, b, out=want), numpy),
            (lambda: kernel(a, b, out=c), ours),
        ):
            call()  # once untimed: each fills the caches with its own data
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    np.testing.assert_allclose(c, want, rtol=1e-3, atol=1e-3)
    for name, times in (("NumPy", numpy), ("Tilesmith", ours)):
        seconds = float(np.median(times))
        print(f"  {name:10} {seconds * 1e3:8.2f} ms  {func.flops / seconds / 1e9:7.1f} GFLOP/s")
    ratio = np.median(np.divide(numpy, ours))
    print(f"  Tilesmith runs at {ratio:.2f} times the speed of NumPy; the results agree.")
