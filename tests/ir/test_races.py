"""The race finder for CPU programs: what may not run at the same time is refused, however a loop
came to run that way, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tests.support.programs import random_program
from tests.support.strict import concurrent, races
from tests.support.traces import CPU_WEIGHTS, MOVING_WEIGHTS, random_trace, work
from tilesmith.expr.ints import var
from tilesmith.ir.dependence import ONE_BY_ONE
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, For, Stmt, rewrite, rewrite_blocks
from tilesmith.ir.notes import ParallelDepth
from tilesmith.ir.verify import check_races, verify
from tilesmith.schedule.kinds import AutoParallel

KINDS = {
    "parallel": {"kind": "parallel"},
    "vectorize": {"kind": "vectorize"},
    "noted": {"notes": (ParallelDepth(1, 0),)},
}


def marked(func: Function, loop: str, how: str) -> Function:
    """The loop runs that way, without any check."""

    def go(s: Stmt) -> tuple[Stmt, ...]:
        mine = isinstance(s, For) and s.name == loop
        return (replace(s, **KINDS[how]),) if mine else (s,)  # type: ignore[type-var]

    return replace(func, body=rewrite(func.body, go))


def two_stages() -> ts.Schedule:
    x = ts.placeholder((6,), name="X")
    p = ts.compute((6,), lambda i: x[i] * 2, name="P")
    c = ts.compute((6,), lambda i: p[i] + 1, name="C")
    return ts.Schedule(ts.function([x, c], name="stages"))


def column_sums() -> Function:
    a, r = ts.placeholder((5, 6), name="A"), ts.reduce_axis(5, name="r")
    b = ts.compute((6,), lambda j: ts.sum(a[r, j], axis=r), name="B")
    sch = ts.Schedule(ts.function([a, b], name="sums"))
    sch.reorder("B.r", "B.j")
    return sch.func


def in_one_loop(outputs: bool) -> Function:
    """P and C in the loop of P; P is an output as well, or not."""
    sch = two_stages()
    if outputs:
        sch = ts.Schedule(replace(sch.func, params=(*sch.func.params, *sch.func.buffers),
                                  buffers=(), num_outputs=2))  # fmt: skip
    sch.reverse_compute_at("C", "P.i")
    return sch.func


def bound(func: Function, block: str, change: Callable[[Block], Block]) -> Function:
    return replace(
        func, body=rewrite_blocks(func.body, lambda b: change(b) if b.name == block else b)
    )


def shifted(func: Function) -> Function:
    """C reads what the iteration before has written."""

    def back(b: Block) -> Block:
        (i,) = b.iters
        return replace(b, iters=(replace(i, bind=i.bind - 1),))

    return bound(func, "C", back)


def written_at(func: Function, index: Callable[[], ts.Expr]) -> Function:
    return bound(func, "C", lambda b: replace(b, writes=(replace(b.writes[0], index=(index(),)),)))


def scattered() -> Function:
    """C adds where an input says, perhaps twice at the same place."""
    ids, x = ts.placeholder((6,), "int64", name="ids"), ts.placeholder((6,), name="X")
    c = ts.updated(x, (6,), lambda i: ((ids[i],), x[i]), "add", name="C")
    return ts.function([ids, x, c], name="scattered")


RACES: dict[str, tuple[Callable[[], Function], str]] = {
    "a reduction": (column_sums, "B.r"),
    "a read of the iteration before": (lambda: shifted(in_one_loop(outputs=True)), "P.i"),
    "a private buffer": (lambda: shifted(in_one_loop(outputs=False)), "P.i"),
    "one element for all": (lambda: written_at(two_stages().func, lambda: var("i") * 0), "C.i"),
    "one element for two": (lambda: written_at(two_stages().func, lambda: var("i") // 2), "C.i"),
    "a remainder": (lambda: written_at(two_stages().func, lambda: var("i") % 4), "C.i"),
    "a scatter": (scattered, "C.updates.i"),
}


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("name", RACES)
def test_a_race_is_refused(name: str, how: str) -> None:
    make, loop = RACES[name]
    func = make()
    check_races(func)
    if how == "vectorize" and name == "a reduction":
        check_races(marked(func, loop, how))  # a horizontal sum
        return
    with pytest.raises(ts.VerifyError, match=f"run loop {loop} as"):
        verify(marked(func, loop, how))
    with pytest.raises(ts.VerifyError, match=f"run loop {loop} as"):
        ts.build(marked(func, loop, how), ts.cpu(2))


@pytest.mark.parametrize("how", KINDS)
def test_a_buffer_that_is_used_outside_is_shared(how: str) -> None:
    """Each iteration of C fills all of P, which D reads later."""
    x = ts.placeholder((6,), name="X")
    p = ts.compute((6,), lambda i: x[i] * 2, name="P")
    c = ts.compute((4,), lambda i: p[i] + p[i + 1], name="C")
    d = ts.compute((6,), lambda i: p[i] - 1, name="D")
    sch = ts.Schedule(ts.function([x, c, d], name="shared"))
    (first, second, third) = sch.func.body
    assert isinstance(second, For)
    inside = replace(second, body=(first, *second.body))
    func = replace(sch.func, body=(inside, third))
    check_races(func)
    with pytest.raises(ts.VerifyError, match="may write elements of P"):
        verify(marked(func, second.name, how))


@pytest.mark.parametrize("how", KINDS)
def test_what_stays_apart_is_accepted(how: str) -> None:
    verify(marked(in_one_loop(outputs=True), "P.i", how))
    verify(marked(in_one_loop(outputs=False), "P.i", how))
    for index in (lambda: 5 - var("i"), lambda: (var("i") + 0) % 6):
        verify(marked(written_at(two_stages().func, index), "C.i", how))


def test_guards_keep_iterations_apart() -> None:
    """The second part of a tile of 3 would reach into the next tile, but for its guard."""
    sch = two_stages()
    sch.split("P.i", [None, 3])
    sch.reverse_compute_at("C", "P.i.1")
    sch.parallel("P.i.0")
    sch.split("P.i.1", [None, 2])
    verify(sch.func)
    loose = rewrite_blocks(sch.func.body, lambda b: replace(b, where=frozenset()))
    with pytest.raises(ts.VerifyError, match="C may write elements of C"):
        verify(replace(sch.func, body=loose))


def test_a_parallel_loop_inside_lanes_is_refused() -> None:
    sch = ts.Schedule(column_sums())
    sch.reorder("B.j", "B.r")
    sch.vectorize("B.j")
    with pytest.raises(ts.VerifyError, match="inside the vectorized loop"):
        verify(marked(sch.func, "B.r", "noted"))


@pytest.mark.parametrize("start", range(50_000, 50_160, 40))
def test_it_agrees_with_what_iterations_touch(start: int) -> None:
    """Of random schedules whose loops are marked at random: what has a race is refused, what the
    schedule would allow is not.
    """
    found = 0
    for seed in range(start, start + 40):
        rng = np.random.default_rng(seed)
        func = random_program(rng)
        sch = random_trace(
            func, rng, int(rng.integers(1, 10)), (CPU_WEIGHTS, MOVING_WEIGHTS)[seed % 2]
        )
        verify(sch.func)
        if work(sch.func) > 1500:
            continue
        loops = [s for s in _loops(sch.func.body) if s.kind in ONE_BY_ONE]
        for k in rng.permutation(len(loops))[:3]:
            bad = marked(sch.func, loops[k].name, "parallel")
            if races(bad):
                found += 1
                with pytest.raises(ts.VerifyError):
                    verify(bad)
    assert found > 10


def _loops(body: tuple[Stmt, ...]) -> list[For]:
    return [f for s in body if isinstance(s, For) for f in (s, *_loops(s.body))]


def test_whatever_auto_parallel_marks_is_accepted() -> None:
    marks = 0
    for seed in range(60_000, 60_060):
        rng = np.random.default_rng(seed)
        sch = random_trace(random_program(rng), rng, int(rng.integers(1, 9)), CPU_WEIGHTS)
        sch.apply(AutoParallel(int(rng.integers(1, 5))))
        verify(sch.func)
        marks += "parallel_depth" in str(sch.func)
    assert marks > 40
    assert not list(concurrent(two_stages().func.body))
