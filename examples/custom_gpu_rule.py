"""A rule for GPUs with a note of its own: the rule marks the loop around each sum, and a pass of a
back end reads the mark and keeps that loop rolled, whatever else is unrolled. Short code stays in
the instruction cache. Candidates run in the interpreter of GPU programs, so no GPU is needed.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

import tilesmith as ts
from tilesmith.ir import nodes as ir


@dataclass(frozen=True, slots=True)
class KeepRolled(ts.Note):
    """Written by `RollSums`, read by the pass `keep_rolled`."""

    key: ClassVar[str] = "keep_rolled"


class RollSums:
    """Asked like every rule; `finish` adds steps to what the others have derived."""

    def __call__(self, state: ts.State) -> ts.Derived | None:
        return None

    def finish(self, state: ts.State) -> ts.State:
        sch = ts.Schedule(state.func)
        for path, block in ir.walk(state.func.body):
            sums = [f.name for f in path if f.name in block.reducing_loops and f.kind == "serial"]
            if sums:
                sch.annotate(sums[0], KeepRolled())
        return state.then(*sch.trace)


def keep_rolled(func: ts.Function, target: ts.Target) -> ts.Function:
    def roll(s: ir.Stmt) -> tuple[ir.Stmt, ...]:
        if isinstance(s, ir.For) and s.kind == "unroll" and s.note(KeepRolled) is not None:
            return (replace(s, kind="serial"),)
        return (s,)

    return replace(func, body=ir.rewrite(func.body, roll))


# Right behind the pass that decides what is unrolled.
PASSES = tuple(
    q for p in ts.GPU_PASSES for q in ((p, keep_rolled) if p.__name__ == "resolve_notes" else (p,))
)
PARTS = ts.Parts(notes=(KeepRolled,), backends=(ts.CudaBackend(passes=PASSES),))


def unrolled(func: ts.Function) -> int:
    return sum(isinstance(s, ir.For) and s.kind == "unroll" for s in ir.statements(func.body))


def main(n: int = 16) -> None:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")
    task = ts.Task(func, ts.Target.named("nvidia-h200"), PARTS)
    space = ts.SketchSpace(rules=(*ts.ansor_rules(task.target), RollSums()))
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
    for sketch in space.sketches(task):
        variant = next(iter(ts.variants(task, sketch)))
        for row in variant.sample(rng, 6):
            text = variant.decided(row).to_json()
            program = ts.Trace.from_json(text, PARTS).apply(func)  # as a database reads it again
            plain, rolled = (ts.lower(program, task.target, p) for p in (ts.GPU_PASSES, PASSES))
            np.testing.assert_allclose(ts.run_simt(rolled, x, y), x @ y, rtol=1e-3, atol=1e-3)
            print(f"unrolled loops: {unrolled(plain)}, with the note {unrolled(rolled)}")


if __name__ == "__main__":
    main()
