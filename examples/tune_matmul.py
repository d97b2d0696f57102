"""Tunes a float32 matrix product for the time given, and compares the kernel with NumPy's:
`python examples/tune_matmul.py [size] [seconds] [threads]`, by default 512 40 1.
"""

import os
import sys
import textwrap

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
    print(f"Tuning a {n} x {n} x {n} float32 matrix product for {seconds} s, {threads} thread(s).")
    print("Every candidate is compiled, run on this machine and checked.\n", flush=True)
    result = ts.tune(func, ts.cpu(num_cores=threads), budget=ts.Budget(seconds=seconds))
    print(f"\nThe best of {result.trials} candidates beside NumPy, in turns:")
    compare(result.kernel, func, n)
    print("\nThe schedule it found:")
    sampled = ("sample_tile", "sample_choice")  # what they decided stands in the steps after them
    for step in result.best.candidate.trace.resolved:
        if step.name not in sampled:
            print(textwrap.fill(str(step), 80, initial_indent="  ", subsequent_indent="      "))


if __name__ == "__main__":
    main()
