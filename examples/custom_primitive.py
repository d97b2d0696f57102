"""A schedule primitive of one's own: a frozen record with a name and an `apply`. It is recorded in
traces and in databases, goes through JSON and takes open decisions like the built-in ones. What
reads it again is given PARTS.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import tilesmith as ts


@dataclass(frozen=True, slots=True)
class Square(ts.Step):
    """The two innermost loops in space become square tiles: i, j -> i.0, j.0, i.1, j.1."""

    name: ClassVar[str] = "square"
    block: str
    size: int | str  # a number, or a decision that is still open

    def apply(self, func: ts.Function) -> ts.Function:
        sch = ts.Schedule(func)
        if len(sch.loops(self.block)) < 2:
            raise ts.ScheduleError(f"square: {self.block} has fewer than two loops")
        i, j = sch.loops(self.block)[-2:]
        (i0, i1), (j0, j1) = (sch.split(loop, [None, self.size]) for loop in (i, j))
        sch.reorder(i0, j0, i1, j1)
        return sch.func


PARTS = ts.Parts(primitives=(Square,))


def template(sch: ts.TemplateSchedule) -> None:
    sch.apply(Square("Y", sch.sample_choice([4, 8, 16], name="size")))


def main(n: int = 60) -> None:
    x = ts.placeholder((n, n), name="X")
    func = ts.function([x, ts.compute((n, n), lambda i, j: x[j, i] + 1, name="Y")])
    task = ts.Task(func, ts.cpu(num_cores=1))
    (sketch,) = ts.TemplateSpace(template).sketches(task)
    (variant,) = ts.variants(task, sketch)
    data = np.random.default_rng(0).standard_normal((n, n), dtype=np.float32)
    for k in range(variant.size):
        text = variant.decided(variant.row(k)).to_json()
        trace = ts.Trace.from_json(text, PARTS)
        np.testing.assert_array_equal(ts.build(trace.apply(func), task.target)(data), data.T + 1)
        print(trace)
    with ts.open_database(":memory:", parts=PARTS) as db:
        for _ in range(2):  # the second run finds what the first has measured
            result = ts.tune(
                func, task.target, space=ts.TemplateSpace(template), database=db,
                budget=ts.Budget(trials=3), quiet=True,
            )  # fmt: skip
            print(f"{result.trials} trials, {len(db.of(task))} records")
        kernel = ts.build(func, task.target, database=db, strict=True)
    np.testing.assert_array_equal(kernel(data), data.T + 1)


if __name__ == "__main__":
    main()
