"""A hardware instruction of one's own: what it computes, written in the DSL, and its code. This one
multiplies a row of four numbers by a matrix of four rows, in four fused multiply-adds.
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


def main(n: int = 32) -> None:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, 4), name="B")
    sch = ts.Schedule(ts.function([a, b, ts.ops.matmul(a, b, name="C")]))
    i, j, k = sch.loops("C")
    k0, k1 = sch.split(k, [None, 4])
    sch.reorder(i, k0, j, k1)
    sch.tensorize(j, ROW_BY_MATRIX)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape, dtype=np.float32) for shape in ((n, n), (n, 4)))
    np.testing.assert_allclose(ts.build(sch)(x, y), x @ y, rtol=1e-4, atol=1e-4)
    text = sch.trace.to_json()
    assert ts.Trace.from_json(text, intrinsics=(*ts.INTRINSICS, ROW_BY_MATRIX)) == sch.trace
    print(f"{n} x 4 product by {ROW_BY_MATRIX.name}: right")
    search(n)


def search(n: int) -> None:
    """The same without a schedule: a rule finds where the instruction fits, and tiles around it.
    Extents and layouts need not fit, so that any product will do.
    """
    a, b = ts.placeholder((n + 1, n), name="A"), ts.placeholder((n, n + 2), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], constants=[b])
    target = ts.cpu(num_cores=1)
    rule = ts.TileByInstruction((ROW_BY_MATRIX,))
    space = ts.SketchSpace(rules=(rule, *ts.default_rules(target)))
    task = ts.Task(func, target)
    found = [s for s in space.sketches(task) if ROW_BY_MATRIX.name in str(s)]
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape, dtype=np.float32) for shape in ((n + 1, n), (n, n + 2)))
    for sketch in found:
        variant = next(iter(ts.variants(task, sketch)))
        kernel = ts.build(variant.function(variant.sample(rng, 1)[0]), target)
        np.testing.assert_allclose(kernel(x, kernel.pack("B", y)), x @ y, rtol=1e-3, atol=1e-4)
    result = ts.tune(func, target, budget=ts.Budget(trials=4), space=space, quiet=True)
    print(f"{len(found)} sketches of a {n + 1} x {n + 2} product use it: right")
    print(f"the best of {result.trials} trials: {result.best.seconds[0] * 1e6:.1f} us")


if __name__ == "__main__":
    main()
