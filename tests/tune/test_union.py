"""A union of spaces is never clearly behind its best part: the best of each by the analytic score
is measured first, and then trials go where kernels are fast, whatever the database holds.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.search.several import UnionSearch
from tilesmith.task.task import Candidate, Measurement
from tilesmith.testing.measurers import FakeMeasurer

ONE_CORE = ts.cpu(1)
SKETCHES = ts.SketchSpace()


def product(n: int = 720) -> ts.Function:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.function([a, b, ts.ops.matmul(a, b, name="C")])


def template(sch: ts.TemplateSchedule) -> None:
    i, j, k = sch.loops("C")
    i0, i1 = sch.split(i, sch.sample_tile(i, parts=2, max_innermost=32))
    j0, j1 = sch.split(j, sch.sample_tile(j, parts=2, max_innermost=64))
    sch.reorder(i0, j0, k, i1, j1)
    sch.unroll(i1)
    sch.vectorize(j1)


FUNC = product()
TASK = ts.Task(FUNC, ONE_CORE)
TEMPLATES = ts.TemplateSpace(template)
BOTH = ts.UnionSpace(SKETCHES, TEMPLATES)


def is_template(c: Candidate) -> bool:
    return "unroll" in str(c.trace) and len(c.trace) == len(TEMPLATES.sketches(TASK)[0])


class Costs:
    """Templates take a millisecond at once. What is sketched gets better trial by trial, and ends
    ahead of them, or behind.
    """

    def __init__(self, end: float) -> None:
        self.end = end
        self.order: list[bool] = []  # whether each trial is of the template

    def __call__(self, c: Candidate) -> float:
        self.order.append(is_template(c))
        tried = len(self.order) - sum(self.order)
        return 1e-3 if is_template(c) else max(self.end, 2e-3 * 0.95**tried)


def tuned(costs: Costs, **settings: Any) -> ts.Result:
    given = {"strategy": ts.Evolution(cost_model=None), "budget": ts.Budget(trials=150), **settings}
    return ts.tune(
        FUNC, ONE_CORE, space=BOTH, quiet=True, measurer=FakeMeasurer(cost=costs), **given
    )


@pytest.mark.parametrize("strategy", [ts.Evolution(cost_model=None), ts.Random()])
def test_each_part_has_the_first_word(strategy: ts.Strategy) -> None:
    costs = Costs(5e-4)
    tuned(costs, strategy=strategy, budget=ts.Budget(trials=4))
    assert costs.order[:2] == [False, True]


def test_a_part_that_begins_slowly_is_not_given_up() -> None:
    costs = Costs(5e-4)
    result = tuned(costs)
    assert Counter(costs.order[-60:])[False] >= 40  # most trials go to the faster part
    assert result.best.cost == pytest.approx(5e-4, rel=0.1)


def test_a_part_that_stays_behind_has_a_small_share() -> None:
    costs = Costs(4e-3)
    tuned(costs)
    assert Counter(costs.order)[True] >= 80


def test_records_of_one_part_do_not_keep_out_the_other(tmp_path: Path) -> None:
    with ts.open_database(tmp_path / "r.db") as db:
        ts.tune(
            FUNC, ONE_CORE, space=TEMPLATES, quiet=True, measurer=FakeMeasurer(cost=Costs(1.0)),
            database=db, budget=ts.Budget(trials=60), strategy=ts.Evolution(cost_model=None),
        )  # fmt: skip
        costs = Costs(5e-4)
        tuned(costs, database=db, budget=ts.Budget(trials=60 + 60))
    assert False in costs.order[:3]  # after the best known one
    assert Counter(costs.order)[False] >= 40


def test_a_small_part_is_exhausted_and_the_other_goes_on() -> None:
    small = ts.Trace(TEMPLATES.sketches(TASK)[0].steps[:0])  # the plain loop nest alone

    class Plain:
        def sketches(self, task: ts.Task) -> tuple[ts.Trace, ...]:
            return (small,)

    union = ts.UnionSpace(Plain(), SKETCHES)
    seen: list[Measurement] = []
    ts.tune(
        FUNC, ONE_CORE, space=union, quiet=True, measurer=FakeMeasurer(),
        budget=ts.Budget(trials=40), strategy=ts.Random(),
        observers=[lambda p: seen.extend(p.latest)],
    )  # fmt: skip
    assert len({m.candidate.key for m in seen}) == 40
    assert sum(m.candidate.trace == small for m in seen) == 1


def test_parts_have_each_sketch_once() -> None:
    parts = ts.UnionSpace(SKETCHES, ts.UnionSpace(TEMPLATES, SKETCHES)).parts(TASK)
    assert [p.traces for p in parts] == [SKETCHES.sketches(TASK), TEMPLATES.sketches(TASK)]


def test_a_search_goes_on_from_its_state() -> None:
    def started() -> UnionSearch:
        parts = [p.traces for p in BOTH.parts(TASK)]
        strategy = ts.Evolution(cost_model=None)
        return UnionSearch([strategy.start(TASK, p, np.random.default_rng(0)) for p in parts])

    one, other = started(), started()
    asked = one.ask(4)
    other.tell([Measurement(c, (1e-3,) * 3) for c in asked])
    other.resume(one.state())
    other.resume(b"damaged")
    assert not {c.key for c in other.ask(6)} & {c.key for c in asked}
