"""Tunes a float32 matrix product for the time given, and compares the kernel with NumPy:
`python examples/tune_matmul.py [n] [seconds] [threads]`.
"""

import os
import sys

defaults = ["512", "40", "1"]
n, seconds, threads = map(int, [*sys.argv[1:4], *defaults[len(sys.argv) - 1 :]])
os.environ.setdefault("OPENBLAS_NUM_THREADS", str(threads))  # before NumPy starts its own threads

from beside_numpy import compare

import tilesmith as ts


def matmul(n: int) -> ts.Function:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.function([a, b, ts.ops.matmul(a, b, name="C")], name=f"matmul_{n}")


def main() -> None:
    func = matmul(n)
    result = ts.tune(func, ts.cpu(num_cores=threads), budget=ts.Budget(seconds=seconds))
    print(f"float32 matmul {n} x {n} x {n}, {threads} thread(s), {result.trials} trials")
    compare(result.kernel, func, n)
    print("the schedule it found:")
    numbers = ("sample_tile", "sample_choice")
    steps = [s for s in result.best.candidate.trace.resolved if s.name not in numbers]
    print("\n".join(f"  {s}" for s in steps))


if __name__ == "__main__":
    main()
