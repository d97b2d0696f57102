"""A pass of one's own: a function from program to program, added to the list that a back end runs.
This one keeps code short: no loop of more than four iterations is written out. What is measured
with it is recorded apart from what the built-in back end made.
"""

from dataclasses import replace

import numpy as np

import tilesmith as ts
from tilesmith.ir import nodes as ir


def fewer_copies(func: ts.Function, target: ts.Target) -> ts.Function:
    def shorten(s: ir.Stmt) -> tuple[ir.Stmt, ...]:
        if isinstance(s, ir.For) and s.kind == "unroll" and s.trips > 4:
            return (replace(s, kind="serial"),)
        return (s,)

    return replace(func, body=ir.rewrite(func.body, shorten))


BACKEND = ts.LlvmBackend(passes=(*ts.CPU_PASSES, fewer_copies))
PARTS = ts.Parts(backends=(BACKEND,))


def main(n: int = 64) -> None:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    sch = ts.Schedule(ts.function([a, b, ts.ops.matmul(a, b, name="C")]))
    i, j, k = sch.loops("C")
    k0, k1 = sch.split(k, [None, 16])
    sch.reorder(i, k0, k1, j)
    sch.vectorize(j)
    sch.unroll(k1)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    for name, kernel in (("built-in", ts.build(sch)), ("shorter", ts.build(sch, parts=PARTS))):
        np.testing.assert_allclose(kernel(x, y), x @ y, rtol=1e-4, atol=1e-4)
        print(f"{name}: {len(kernel.source.splitlines())} lines of LLVM IR")
    func, one = sch.origin, ts.cpu(1)
    with ts.open_database(":memory:") as db:
        result = ts.tune(
            func, one, budget=ts.Budget(trials=2), database=db, parts=PARTS, quiet=True
        )
        kernel = ts.build(func, one, database=db, parts=PARTS, strict=True)
        assert kernel.source == result.kernel.source
        print(f"{len(db.of(ts.Task(func, one, PARTS)))} records of this back end,", end=" ")
        print(f"{len(db.of(ts.Task(func, one)))} of the built-in one")


if __name__ == "__main__":
    main()
