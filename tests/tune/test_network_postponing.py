"""Tuning of networks with a measurer that does not wait for the slowest builds of a batch: what it
leaves out is measured with the next batch of the same task, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

import tilesmith as ts
from tilesmith.graph.builder import GraphBuilder
from tilesmith.measure.protocol import Results, Upcoming
from tilesmith.ops.elementwise import relu
from tilesmith.ops.matmul import matmul
from tilesmith.search.protocol import Search
from tilesmith.testing.measurers import FakeMeasurer, FakeRun


def network() -> ts.Graph:
    """Two dense layers of different sizes."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("net")
    x = b.input("x", (8, 8), "float32")
    for m, n in pairwise((8, 16, 32)):
        weights = rng.standard_normal((m, n)).astype(np.float32)
        x = b.add(relu, b.add(matmul, x, b.constant(weights)))
    return b.finish({"y": x})


def tune(measurer: Leaving, **settings: Any) -> Any:
    given = {
        "budget": ts.Budget(trials=80), "strategy": ts.Random(), "quiet": True, "cache": None,
        **settings,
    }  # fmt: skip
    return ts.tune_model(network(), ts.cpu(1), measurer=measurer, **given)


@dataclass
class Batch:
    task: str
    given: list[str]
    left: list[str]


@dataclass(frozen=True)
class Leaving(FakeMeasurer):
    """Leaves out the last quarter of a batch, if it may and others come. It is interrupted after
    `most` batches.
    """

    batches: list[Batch] = field(default_factory=list)
    most: float = inf

    def open(self, task: ts.Task) -> FakeRun:
        return LeavingRun(self)

    @property
    def measured(self) -> list[str]:
        return [key for b in self.batches for key in b.given if key not in b.left]


class LeavingRun(FakeRun):
    capacity = 0

    def __init__(self, settings: Leaving) -> None:
        super().__init__(settings)
        self.settings = settings
        self._left: Sequence[ts.Candidate] = ()

    def prepare(self, task: ts.Task) -> None:
        return None

    def submit(self, candidates: Sequence[ts.Candidate]) -> None:
        self._batch = candidates

    def results(
        self, task: ts.Task, until: float | None, upcoming: Upcoming | None, every: bool
    ) -> Results:
        if len(self.settings.batches) >= self.settings.most:
            raise KeyboardInterrupt
        batch = self._batch
        coming = upcoming() if upcoming is not None else ()
        count = len(batch) - (len(batch) // 4 if coming and not every else 0)
        self._left = batch[count:]
        left = [c.key for c in self._left]
        self.settings.batches.append(Batch(batch[0].task.key, [c.key for c in batch], left))
        yield from self.measure(batch[:count])

    def left(self, task: ts.Task) -> Sequence[ts.Candidate]:
        return self._left

    def winner(self, task: ts.Task) -> None:
        return None


def test_what_is_left_comes_first_in_the_next_batch_of_its_task() -> None:
    watched = Leaving()
    model = tune(watched, scheduler=ts.round_robin())
    assert model.tuning.trials == len(watched.measured) == len(set(watched.measured)) == 80
    assert any(b.left for b in watched.batches)
    last: dict[str, list[str]] = {}
    others = 0
    for before, b in pairwise([watched.batches[0], *watched.batches]):
        late = last.get(b.task, [])
        assert b.given[: len(late)] == late[: len(b.given)]
        others += bool(late) and before.task != b.task and len(b.given) > len(late)
        last[b.task] = b.left
    assert others  # batches of the other task came between, and new candidates beside


@dataclass(frozen=True)
class Few:
    """A search that has `most` candidates."""

    most: int
    strategy: Any = field(default_factory=ts.Random)

    def start(self, task: ts.Task, sketches: Any, rng: Any) -> Search:
        return FewSearch(self.strategy.start(task, sketches, rng), self.most)


@dataclass
class FewSearch:
    search: Any
    left: int

    def ask(self, n: int) -> list[ts.Candidate]:
        asked: list[ts.Candidate] = self.search.ask(min(n, self.left))
        self.left -= len(asked)
        return asked

    def tell(self, measurements: Sequence[ts.Measurement]) -> None:
        self.search.tell(measurements)


def test_at_the_end_nothing_is_left() -> None:
    watched = Leaving()
    model = tune(watched, strategy=Few(21), budget=ts.Budget(seconds=600))
    assert any(b.left for b in watched.batches)
    left = {key for b in watched.batches for key in b.left}
    assert left <= set(watched.measured)
    assert len(watched.measured) == len(set(watched.measured)) == model.tuning.trials
    assert model.tuning.trials >= 2 * 21


def test_a_run_that_goes_on_measures_nothing_twice() -> None:
    with ts.open_database(":memory:") as db:
        first = Leaving(most=5)
        model = tune(first, database=db)
        assert model.tuning.interrupted
        stored = {m.candidate.key for t in db.tasks() for m in db.of(t.task)}
        assert stored == set(first.measured)
        second = Leaving()
        model = tune(second, database=db)
        again = set(first.measured) & set(second.measured)
        assert len(again) <= 2  # the best of each task, which is measured beside the new ones
        assert len(set(first.measured) | set(second.measured)) == 80
