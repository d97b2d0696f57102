"""A hardware instruction of one's own: what it computes, written in the DSL, and its code. This one
multiplies a row of four numbers by a matrix of four rows, in four fused multiply-adds. Tuning
searches with it, and what reads records of it is given PARTS.
"""

from typing import Any

import numpy as np

import tilesmith as ts


def row_by_matrix() -> ts.Function:
    a, b = ts.placeholder((4,), name="A"), ts.placeholder((4, 4), name="B")
    k = ts.reduce_axis(4, name="k")
    c = ts.compute((4,), lambda j: ts.sum(a[k] * b[k, j], axis=k), name="C")
    return ts.function([a, b, c], name="row_by_matrix")


def emit(b: Any, operands: dict[str, Any]) -> Any:
    """Each operand is one vector of all its elements; the new value of C is returned."""
    total = operands["C"]
    for k in range(4):
        number = b.splat(b.part(operands["A"], k), 4)
        total = b.fma(number, b.part(operands["B"], 4 * k, 4), total)
    return total


ROW_BY_MATRIX = ts.Intrinsic("row_by_matrix", row_by_matrix(), emitters={"llvm": emit})
PARTS = ts.Parts(intrinsics=(ROW_BY_MATRIX,))


def by_hand(n: int) -> None:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, 4), name="B")
    sch = ts.Schedule(ts.function([a, b, ts.ops.matmul(a, b, name="C")]))
    i, j, k = sch.loops("C")
    k0, k1 = sch.split(k, [None, 4])
    sch.reorder(i, k0, j, k1)
    sch.tensorize(j, ROW_BY_MATRIX)
    x, y = np.random.rand(n, n).astype("float32"), np.random.rand(n, 4).astype("float32")
    np.testing.assert_allclose(ts.build(sch)(x, y), x @ y, rtol=1e-4)
    assert ts.Trace.from_json(sch.trace.to_json(), PARTS) == sch.trace


def by_search(n: int) -> None:
    """Tuning finds where the instruction fits, pads to its size and tiles around it. The rule that
    does so is ts.TileByInstruction, for a space of your own.
    """
    a, b = ts.placeholder((n + 1, n), name="A"), ts.placeholder((n, n + 2), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], constants=[b])
    x, y = np.random.rand(n + 1, n).astype("float32"), np.random.rand(n, n + 2).astype("float32")
    with ts.open_database(":memory:", parts=PARTS) as db:
        result = ts.tune(func, ts.cpu(1), budget=ts.Budget(trials=8), database=db, quiet=True)
        tried = sum("row_by_matrix" in str(m.candidate.trace) for m in db.of(result.task))
        again = ts.build(func, ts.cpu(1), database=db, strict=True)
    for kernel in (result.kernel, again):
        np.testing.assert_allclose(kernel(x, kernel.pack("B", y)), x @ y, rtol=1e-3)
    print(f"{ROW_BY_MATRIX.name}: right by hand, and in {tried} of {result.trials} trials")


if __name__ == "__main__":
    by_hand(32)
    by_search(32)
