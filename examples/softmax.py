"""Softmax over rows, scheduled by hand: a row stays in the cache, sums and maxima are kept in the
lanes of vectors.
"""

import numpy as np

import tilesmith as ts


def softmax(rows: int, columns: int) -> ts.Function:
    x = ts.placeholder((rows, columns), name="X")
    k = ts.reduce_axis(columns, name="k")
    top = ts.compute((rows,), lambda i: ts.amax(x[i, k], axis=k), name="top")
    e = ts.compute((rows, columns), lambda i, j: ts.exp(x[i, j] - top[i]), name="e")
    total = ts.compute((rows,), lambda i: ts.sum(e[i, k], axis=k), name="total")
    scale = ts.compute((rows,), lambda i: 1 / total[i], name="scale")
    y = ts.compute((rows, columns), lambda i, j: e[i, j] * scale[i], name="Y")
    return ts.function([x, y], name="softmax")


def schedule(func: ts.Function, target: ts.Target) -> ts.Schedule:
    width = 4 * target.lanes(32)
    sch = ts.Schedule(func)
    row = sch.loops("Y")[0]
    for block in ("top", "total"):  # partial results, one per lane
        _, lane = sch.split(sch.loops(block)[-1], [None, width])
        sch.rfactor(lane)
    for block in ("scale", "total", "total.rf", "e", "top", "top.rf"):
        sch.compute_at(block, row)
    for block in ("top.rf", "total.rf"):
        lane, _, outer = sch.loops(block)[1:]
        sch.reorder(outer, lane)
        sch.vectorize(lane)
    for block in ("top", "total"):
        sch.vectorize(sch.loops(block)[-1])
    for block in ("e", "Y"):
        _, inner = sch.split(sch.loops(block)[-1], [None, width])
        sch.vectorize(inner)
    sch.parallel(row)
    sch.prefetch(row, "X", 1)  # the next row comes while this one is computed
    sch.prefetch(row, "Y", 0)
    return sch


def main(rows: int = 1024, columns: int = 1024) -> None:
    func, target = softmax(rows, columns), ts.cpu(num_cores=1)
    kernel = ts.build(schedule(func, target), target)
    x = np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)
    np.testing.assert_allclose(kernel(x), ts.evaluate(func, x), rtol=1e-4)
    print(f"softmax of {rows} x {columns}: {kernel.time(x).median * 1e6:.1f} us")


if __name__ == "__main__":
    main()
