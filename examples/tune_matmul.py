"""Tunes a float32 matrix product for the time given, and compares the kernel with NumPy:
`python examples/tune_matmul.py [n] [seconds] [threads]`.
"""

import os
import sys
import time

defaults = ["512", "40", "1"]
n, seconds, threads = map(int, [*sys.argv[1:4], *defaults[len(sys.argv) - 1 :]])
os.environ.setdefault("OPENBLAS_NUM_THREADS", str(threads))  # before NumPy starts its own threads

import numpy as np

import tilesmith as ts


def matmul(n: int) -> ts.Function:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.function([a, b, ts.ops.matmul(a, b, name="C")], name=f"matmul_{n}")


def main() -> None:
    func = matmul(n)
    result = ts.tune(func, ts.cpu(num_cores=threads), budget=ts.Budget(seconds=seconds))
    kernel = result.kernel
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    c, want = np.empty((n, n), np.float32), np.empty((n, n), np.float32)
    ours, numpy = [], []
    for _ in range(15):  # taken in turns, so that both see the same machine
        for call, times in (
            (lambda: np.matmul(a, b, out=want), numpy),
            (lambda: kernel(a, b, out=c), ours),
        ):
            call()
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    np.testing.assert_allclose(c, want, rtol=1e-3, atol=1e-3)
    print(f"float32 matmul {n} x {n} x {n}, {threads} thread(s), {result.trials} trials")
    for name, times in (("numpy", numpy), ("tilesmith", ours)):
        median = float(np.median(times))
        print(f"  {name:10} {median * 1e3:8.2f} ms  {func.flops / median / 1e9:7.1f} GFLOP/s")
    ratio = np.median(np.divide(numpy, ours))
    print(f"  tilesmith is {ratio:.2f} times as fast as NumPy; results agree")
    print("the schedule it found:")
    numbers = ("sample_tile", "sample_choice")
    steps = [s for s in result.best.candidate.trace if s.name not in numbers]
    print("\n".join(f"  {s}" for s in steps))


if __name__ == "__main__":
    main()
