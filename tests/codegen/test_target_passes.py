"""Passes that depend on the target, on long vectors, turned copies and loops that fetch ahead, with
odd extents: interpreted after each pass for every kind of target, and run here as a machine of
each vector width would, on one core and on two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from lowered import LATE_PASSES, lower
from random_cases import TARGETS, agree

import tilesmith as ts
from tests.support.programs import random_inputs
from tests.support.thorough import by_turns
from tilesmith.codegen.pipeline import PLAIN_PASSES
from tilesmith.codegen.pipeline import lower as plain
from tilesmith.schedule.kinds import AutoPrefetch, PrefetchStreams
from tilesmith.space.sets import default_rules
from tilesmith.space.spaces import SketchSpace, variants

CASES, GROUP = by_turns(40, 160), 20
WIDTHS = (128, 256, 512)
Rng = np.random.Generator


def pick(rng: Rng, *items: Any) -> Any:
    return items[int(rng.integers(len(items)))]


def rows(rng: Rng) -> ts.Function:
    """Element by element, with a part that is cut off."""
    n, m = int(rng.integers(1, 6)), int(rng.integers(1, 300))
    x = ts.placeholder((n, m), pick(rng, "float32", "float64", "int8", "int32"), name="x")
    cut, shift = int(rng.integers(0, m + 1)), int(rng.integers(0, 3))
    one = ts.cast(1, x.dtype)

    def value(i: Any, j: Any) -> Any:
        kept = ts.where((j >= shift) & (j < cut), x[i, j - shift], one)
        return kept + x[i, m - 1 - j] if shift else kept + ts.cast(j // 3 + j % 5, x.dtype)

    return ts.function([x, ts.compute((n, m), value, name="y")])


def sums(rng: Rng) -> ts.Function:
    n, m = int(rng.integers(1, 6)), int(rng.integers(1, 400))
    dtype = pick(rng, "float32", "float64", "int32", "uint8")
    x = ts.placeholder((n, m), dtype, name="x")
    k = ts.reduce_axis(m, name="k")
    join = pick(rng, ts.sum, ts.amax, ts.amin)
    keep = int(rng.integers(1, 4))
    neutral = 0 if join is ts.sum else 1

    def value(i: Any) -> Any:
        masked = ts.where(k % keep == 0, x[i, k], ts.cast(neutral, dtype))
        return join(masked, axis=k)

    return ts.function([x, ts.compute((n,), value, name="y")])


def turned(rng: Rng) -> ts.Function:
    n, m = (int(rng.integers(1, 70)) for _ in range(2))
    dtype = pick(rng, "float32", "float64", "float16", "int8", "int32")
    x, b = ts.placeholder((n, m), dtype, name="x"), ts.placeholder((n,), dtype, name="b")
    back = bool(rng.integers(2))

    def value(j: Any, i: Any) -> Any:
        return x[i, m - 1 - j if back else j] + b[i]

    return ts.function([x, b, ts.compute((m, n), value, name="y")])


def stages(rng: Rng) -> ts.Function:
    """Several passes over each row, as softmax has."""
    n, m = int(rng.integers(2, 8)), int(rng.integers(1, 900))
    x = ts.placeholder((n, m), name="x")
    k = ts.reduce_axis(m, name="k")
    top = ts.compute((n,), lambda i: ts.amax(x[i, k], axis=k), name="top")
    e = ts.compute((n, m), lambda i, j: ts.exp(x[i, j] - top[i]), name="e")
    k2 = ts.reduce_axis(m, name="k2")
    total = ts.compute((n,), lambda i: ts.sum(e[i, k2], axis=k2), name="total")
    y = ts.compute((n, m), lambda i, j: e[i, j] / total[i], name="y")
    return ts.function([x, y])


def schedule(func: ts.Function, rng: Rng) -> ts.Schedule:
    sch = ts.Schedule(func)
    outer = sch.loops(sch.blocks[-1])[0]
    if len(sch.blocks) > 1 and rng.random() < 0.8:
        for block in reversed(sch.blocks[:-1]):
            sch.compute_at(block, outer)
    for block in sch.blocks:
        loops = [f for f in sch.loops(block) if f != outer]
        if not loops or rng.random() < 0.1:
            continue
        loop = loops[-1]
        if rng.random() < 0.4:
            _, loop = sch.split(loop, [None, int(pick(rng, 3, 8, 16, 31, 33, 64, 70))])
        sch.vectorize(loop)
    if len(sch.blocks) == 1 and rng.random() < 0.2 and len(sch.loops(sch.blocks[0])) > 1:
        loops = sch.loops(sch.blocks[0])
        sch.reorder(*loops[::-1])
        outer = loops[-1]
    if rng.random() < 0.5:
        sch.parallel(outer)
    if rng.random() < 0.5:
        sch.apply(AutoPrefetch(int(rng.integers(1, 3))))
    if rng.random() < 0.5:
        sch.apply(PrefetchStreams(sch.blocks[-1], 256))
    return sch


def drawn(seed: int) -> tuple[ts.Function, ts.Schedule, list[Any]]:
    rng = np.random.default_rng(seed)
    func = (rows, sums, turned, stages)[seed % 4](rng)
    while True:
        try:
            return func, schedule(func, rng), random_inputs(func, rng)
        except ts.ScheduleError:
            continue


@pytest.mark.parametrize("group", range(0, len(CASES), GROUP))
def test_kernels_of_every_vector_width(group: int) -> None:
    for seed in CASES[group : group + GROUP]:
        func, sch, arrays = drawn(seed)
        want = ts.evaluate(func, *arrays)
        for bits in WIDTHS:
            target = replace(
                ts.cpu(1 + seed // 4 % 2),
                vector_bits=bits,
                num_vector_registers=32 if bits != 256 else 16,
            )
            agree(ts.build(sch, target)(*arrays), want, f"seed {seed}, {bits} bits\n{sch.trace}")


def partial_vectors() -> tuple[ts.Function, ts.Schedule, list[Any]]:
    """The last vector of each row is short."""
    x = ts.placeholder((3, 10), name="X")
    func = ts.function([x, ts.compute((3, 10), lambda i, j: x[i, j] + 1, name="Y")])
    sch = ts.Schedule(func)
    sch.vectorize(sch.split(sch.loops("Y")[1], [None, 4])[1])
    return func, sch, random_inputs(func, np.random.default_rng(0))


def short_rows() -> tuple[ts.Function, ts.Schedule, list[Any]]:
    """A function of rows that are shorter than the registers that it is computed in at once."""
    x, b = ts.placeholder((19, 12), name="X"), ts.placeholder((12,), name="B")
    y = ts.compute((19, 12), lambda i, j: x[i, j] * ts.exp(x[i, j] + b[j]) + i, name="Y")
    sch = ts.Schedule(ts.function([x, b, y]))
    sch.vectorize(sch.loops("Y")[1])
    return sch.func, sch, random_inputs(sch.func, np.random.default_rng(0))


def tile_sums() -> tuple[ts.Function, ts.Schedule, list[Any]]:
    """A sum in tile registers."""
    a, b = ts.placeholder((16, 64), "int8", name="A"), ts.placeholder((64, 32), "int8", name="B")
    k = ts.reduce_axis(64, name="k")
    c = ts.compute(
        (16, 32),
        lambda i, j: ts.sum(ts.cast(a[i, k], "int32") * ts.cast(b[k, j], "int32"), axis=k),
        name="C",
    )
    func = ts.function([a, b, c])
    task = ts.Task(func, ts.Target.named("sapphirerapids").with_cores(1))
    sketch = next(s for s in SketchSpace(default_rules(task.target)).sketches(task)
                  if "'amx." in str(s))  # fmt: skip
    rng = np.random.default_rng(0)
    variant = next(iter(variants(task, sketch)))
    sch = ts.Schedule(variant.function(variant.sample(rng, 1)[0]))
    return func, sch, random_inputs(func, rng)


def test_every_pass_has_something_to_do() -> None:
    changed = dict.fromkeys((f.__name__ for f in LATE_PASSES), 0)
    special = {1024: partial_vectors, 1025: short_rows, 1026: short_rows, 1027: tile_sums}
    for seed in range(1000, 1028):
        func, sch, arrays = special[seed]() if seed in special else drawn(seed)
        want = ts.evaluate(func, *arrays)
        # `partition` would separate the short vectors; it does not where loops are many.
        lowered = lower(sch.func) if seed != 1024 else plain(sch.func, ts.cpu(1), PLAIN_PASSES)
        targets = TARGETS[seed % 2 :: 2] if seed != 1027 else TARGETS[:1]  # it has many points
        for target in targets:
            stage = lowered
            for fit in LATE_PASSES:
                after = fit(stage, target)
                if after.body != stage.body:
                    changed[fit.__name__] += 1
                    note = f"seed {seed}, after {fit.__name__} for {target.cpu}\n{sch.trace}"
                    agree(ts.interpret(after, *arrays), want, note)
                stage = after
    assert min(changed.values()) > 0, changed
