"""A float32 matrix product scheduled by hand, side by side with NumPy: `python examples/matmul.py
[n] [threads]`.
"""

import os
import sys
import time

threads = int(sys.argv[2]) if len(sys.argv) > 2 and __name__ == "__main__" else 1
os.environ.setdefault("OPENBLAS_NUM_THREADS", str(threads))  # before NumPy starts its own threads

from beside_numpy import compare

import tilesmith as ts


def matmul(n: int) -> ts.Function:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    k = ts.reduce_axis(n, name="k")
    c = ts.compute((n, n), lambda i, j: ts.sum(a[i, k] * b[k, j], axis=k), name="C")
    return ts.function([a, b, c], name=f"matmul_{n}")


def schedule(func: ts.Function, target: ts.Target) -> ts.Schedule:
    """A register tile of C stays in registers while a panel of B, packed so that it is read in
    order, goes by.
    """
    # Six rows by four vectors leave room for the operands in 32 registers; half of that in 16.
    rows, columns = 6, target.lanes(32) * (4 if target.num_vector_registers >= 32 else 2)
    sch = ts.Schedule(func)
    packed = sch.cache_read("C", "B")
    i, j, k = sch.loops("C")
    i0, i1 = sch.split(i, [None, rows])
    j0, j1 = sch.split(j, [None, columns])
    k0, k1, k2 = sch.split(k, [None, 512, 2])
    sch.reorder(j0, k0, i0, k1, k2, i1, j1)
    sch.compute_at(packed, k0)
    sch.vectorize(sch.loops(packed)[-1])
    sch.vectorize(j1)
    sch.unroll(k2, i1)
    sch.parallel(j0)
    return sch


def main(n: int) -> None:
    target = ts.cpu(num_cores=threads)
    func = matmul(n)
    start = time.perf_counter()
    kernel = ts.build(schedule(func, target), target)
    built = time.perf_counter() - start
    print(f"float32 matmul {n} x {n} x {n}, {threads} thread(s), built in {built * 1e3:.0f} ms:")
    compare(kernel, func, n)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 512)
