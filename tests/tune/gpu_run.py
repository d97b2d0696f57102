"""A tuning run on PoCL, as a process of its own that a test kills: `python gpu_run.py DATABASE`."""

from __future__ import annotations

import sys

import tilesmith as ts


def product() -> ts.Function:
    a, b = ts.placeholder((20, 24), name="A"), ts.placeholder((24, 28), name="B")
    return ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="product")


def template(sch: ts.TemplateSchedule) -> None:
    """Little code, because PoCL compiles slowly."""
    i, j, _ = sch.loops("C")
    fused = sch.fuse(i, j)
    outer, inner = sch.split(fused, [None, sch.sample_choice([*range(2, 40)], name="threads")])
    sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")


SPACE = ts.TemplateSpace(template)


def tune(database: ts.Database, trials: int) -> ts.Result:
    def say(progress: ts.Progress) -> None:
        print(database.count(), flush=True)

    return ts.tune(
        product(), ts.opencl(), budget=ts.Budget(trials=trials), database=database, space=SPACE,
        strategy=ts.Random(), observers=[say], quiet=True,
    )  # fmt: skip


if __name__ == "__main__":
    with ts.open_database(sys.argv[1]) as database:
        tune(database, 1000)
