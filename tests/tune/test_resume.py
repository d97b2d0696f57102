"""More tuning never makes the answer slower: the best of the database is the incumbent of the next
run, and what is called best afterwards has won against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.search.protocol import Search
from tilesmith.testing.landscape import MANY, matmul_task, seconds_by_tiles
from tilesmith.testing.measurers import FakeMeasurer, FakeRun

TASK = matmul_task()


@dataclass(frozen=True)
class Moody(FakeMeasurer):
    """As LocalMeasurer: the incumbent is the first that ran, and then each that beats it side by
    side; it is confirmed, and says that it is the best. Seconds depend on the machine's mood, which
    the records do not know of.
    """

    mood: float = 1.0
    opened: list[MoodyRun] = field(default_factory=list)

    def open(self, task: ts.Task) -> FakeRun:
        self.opened.append(MoodyRun(self))
        return self.opened[-1]


class MoodyRun(FakeRun):
    def __init__(self, settings: Moody) -> None:
        super().__init__(settings)
        self._mood = settings.mood
        self._incumbent: ts.Measurement | None = None

    def _one(self, c: ts.Candidate) -> ts.Measurement:
        m = super()._one(c)
        if m.failure is not None:
            return m
        m = ts.Measurement(
            c, tuple(s * self._mood for s in m.seconds), confirmed=m.confirmed, when=0.0
        )
        if m.confirmed:
            self._incumbent = m
        return m

    def best(self, task: ts.Task) -> ts.Measurement | None:
        return self._incumbent


@dataclass(frozen=True)
class Proposing:
    """A strategy that proposes what a test wants."""

    candidates: list[ts.Candidate]

    def start(self, *given: Any) -> Search:
        return ProposingSearch(list(self.candidates))


@dataclass
class ProposingSearch:
    left: list[ts.Candidate]
    told: list[ts.Measurement] = field(default_factory=list)

    def ask(self, n: int) -> list[ts.Candidate]:
        out, self.left = self.left[:n], self.left[n:]
        return out

    def tell(self, measurements: Any) -> None:
        self.told += measurements


def candidates(count: int, seed: int = 0) -> list[ts.Candidate]:
    search = ts.Random().start(TASK, MANY.sketches(TASK), np.random.default_rng(seed))
    return sorted(search.ask(count), key=seconds_by_tiles)


def tune(db: ts.Database, measurer: FakeMeasurer, proposed: list[ts.Candidate]) -> ts.Result:
    return ts.tune(
        TASK.func, TASK.target, budget=ts.Budget(trials=1000), database=db, space=MANY,
        strategy=Proposing(proposed), measurer=measurer, quiet=True,
    )  # fmt: skip


@pytest.fixture
def db(tmp_path: Path) -> Any:
    with ts.open_database(tmp_path / "t.db") as made:
        yield made


@pytest.mark.parametrize("kind", [FakeMeasurer, Moody])
@pytest.mark.parametrize("mood", [0.2, 1.0, 5.0])
def test_the_best_after_a_resume_is_never_slower(
    kind: Callable[..., FakeMeasurer], mood: float, db: ts.Database
) -> None:
    """On a machine that is faster or slower than at the first run: what the best candidate costs
    by the landscape never grows, run after run of worse candidates.
    """
    found = candidates(40)
    before = seconds_by_tiles(tune(db, FakeMeasurer(seconds_by_tiles), found[10:20]).best.candidate)
    for proposed in (found[20:30], found[30:40]):  # all of them slower
        settings = {"mood": mood} if kind is Moody else {}
        result = tune(db, kind(seconds_by_tiles, **settings), proposed)
        best = db.best(TASK)
        assert best is not None
        for m in (result.best, best):
            assert seconds_by_tiles(m.candidate) == before
        assert result.trials == 10
    result = tune(db, kind(seconds_by_tiles), found[:10])  # better ones
    assert seconds_by_tiles(result.best.candidate) == seconds_by_tiles(found[0])


def test_the_best_known_is_measured_first_and_is_no_trial(db: ts.Database) -> None:
    found = candidates(20)
    first = tune(db, FakeMeasurer(seconds_by_tiles), found[5:10])
    measurer = Moody(seconds_by_tiles, mood=3.0)
    seen: list[ts.Progress] = []
    result = ts.tune(
        TASK.func, TASK.target, budget=ts.Budget(trials=12), database=db, space=MANY,
        strategy=Proposing(found[10:]), measurer=measurer, quiet=True, observers=[seen.append],
    )  # fmt: skip
    assert measurer.opened[0].measured[0] == first.best.candidate
    assert result.trials == 7
    assert (seen[-1].trials, seen[-1].known) == (7, 5)
    assert db.count(TASK) == 5 + 7 + 1
    assert result.best.candidate == first.best.candidate
    assert result.best.cost == pytest.approx(3 * first.best.cost)  # as the machine is today
    assert result.near == 0.0


def of_other_version(db: ts.Database, folder: Path, measured: list[ts.Measurement]) -> None:
    """Stores them as another version of the code generator would have."""
    file = folder / "other.jsonl"
    with ts.open_database(":memory:") as other:
        other.add(measured)
        other.export(file)
    file.write_text(file.read_text().replace('"codegen":"', '"codegen":"other-'))
    assert db.import_(file).added == len(measured)  # type: ignore[attr-defined]


def test_the_best_of_another_code_generator_are_measured_first(
    db: ts.Database, tmp_path: Path
) -> None:
    found = candidates(30)
    costs = [4.0, 1.0, 3.0, 2.0, 5.0]
    of_other_version(
        db, tmp_path, [ts.Measurement(c, (s,)) for c, s in zip(found, costs, strict=False)]
    )
    assert db.of(TASK) == []
    measurer = Moody(seconds_by_tiles)
    result = tune(db, measurer, found[20:])
    first = [found[1], found[3], found[2]]
    assert measurer.opened[0].measured[:3] == first
    assert result.trials == 3 + len(found[20:])  # they are trials, unlike what is known
    assert result.best.candidate == found[1]
    assert {m.candidate for m in db.of(TASK)} == {*first, *found[20:]}
    # From now on this version has records of its own.
    again = Moody(seconds_by_tiles)
    tune(db, again, found[5:8])
    assert again.opened[0].measured == [found[1], *found[5:8]]


def test_few_trials_measure_few_of_another_code_generator(db: ts.Database, tmp_path: Path) -> None:
    found = candidates(30)
    of_other_version(db, tmp_path, [ts.Measurement(c, (1.0,)) for c in found[:5]])
    measurer = Moody(seconds_by_tiles)
    result = ts.tune(
        TASK.func, TASK.target, budget=ts.Budget(trials=2), database=db, space=MANY,
        strategy=Proposing(found[20:]), measurer=measurer, quiet=True,
    )  # fmt: skip
    assert result.trials == 2
    assert measurer.opened[0].measured == found[:2]


@pytest.mark.parametrize("kind", ["build", "wrong", "crash", "timeout"])
@pytest.mark.parametrize("measurer", [FakeMeasurer, Moody])
def test_a_known_best_that_fails_now_gives_way_to_the_next(
    kind: str, measurer: Callable[..., FakeMeasurer], db: ts.Database
) -> None:
    found = candidates(30)
    tune(db, FakeMeasurer(seconds_by_tiles), found[:10])
    broken = {c.key for c in found[:2]}

    def cost(c: ts.Candidate) -> float | ts.Failure:
        return ts.Failure(kind, "today") if c.key in broken else seconds_by_tiles(c)

    result = tune(db, measurer(cost), found[10:20])
    assert result.best.candidate == found[2]
    assert result.failures == {kind: (2, "today")}
    # a later run does not return to them either
    again = tune(db, measurer(cost), found[20:30])
    assert again.best.candidate == found[2]
    assert again.failures == {kind: (2, "today")}  # as the database knows


def test_when_no_known_one_works_the_new_ones_count(db: ts.Database) -> None:
    found = candidates(30)
    tune(db, FakeMeasurer(seconds_by_tiles), found[:10])
    known = {c.key for c in found[:10]}

    def cost(c: ts.Candidate) -> float | ts.Failure:
        return ts.Failure("crash", "today") if c.key in known else seconds_by_tiles(c)

    measurer = Moody(cost)
    result = tune(db, measurer, found[10:20])
    assert [c for c in measurer.opened[0].measured if c.key in known] == found[:3]
    assert result.trials == 10
    assert result.best.candidate == found[10]


def test_an_incumbent_that_fails_during_the_run_is_not_the_best(db: ts.Database) -> None:
    """The measurer tells of it beside what it was asked for."""
    found = candidates(20)
    tune(db, FakeMeasurer(seconds_by_tiles), found[:4])

    class Betrayed(MoodyRun):
        def measure(self, asked: Any, *rest: Any) -> list[ts.Measurement]:
            out = super().measure(asked, *rest)
            if found[5] in asked:
                assert self._listener is not None
                self._listener([ts.Measurement(found[0], failure=ts.Failure("crash", "later"))])
                self._incumbent = None
            return out

    class Betraying(Moody):
        def open(self, task: ts.Task) -> FakeRun:
            return Betrayed(self)

    result = tune(db, Betraying(seconds_by_tiles), found[5:6])
    assert result.best.candidate == found[1]
    assert result.failures["crash"] == (1, "later")
    assert [m.failure.text for m in db.of(TASK) if m.failure] == ["later"]


def test_records_of_a_contended_moment_do_not_hide_a_confirmed_one(db: ts.Database) -> None:
    found = candidates(20)
    tune(db, FakeMeasurer(seconds_by_tiles), found[5:10])

    class Noisy(MoodyRun):
        def _one(self, c: ts.Candidate) -> ts.Measurement:
            m = super()._one(c)
            return ts.Measurement(c, m.seconds, contended=True, when=0.0)

    class Busy(Moody):
        def open(self, task: ts.Task) -> FakeRun:
            return Noisy(self)

    result = tune(db, Busy(seconds_by_tiles, mood=0.1), found[10:])
    assert result.best.candidate == found[5]
    assert result.best.confirmed


def test_with_real_kernels_a_run_of_bad_ones_changes_nothing(tmp_path: Path) -> None:
    """The second run proposes only candidates that are many times slower."""
    a, b = ts.placeholder((64, 64), name="A"), ts.placeholder((64, 64), name="B")
    func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="product")
    task = ts.Task(func, ts.cpu(1))

    def scheduled(part: int, vector: bool) -> ts.Candidate:
        sch = ts.Schedule(func)
        i, j, k = sch.loops("C")
        j0, j1 = sch.split(j, [None, part])
        sch.reorder(j0, i, k, j1) if vector else sch.reorder(k, j0, j1, i)
        if vector:
            sch.vectorize(j1)
        return ts.Candidate(task, sch.trace)

    good = [scheduled(part, True) for part in (8, 16)]
    bad = [scheduled(part, False) for part in (2, 4, 8, 16)]
    with ts.open_database(tmp_path / "t.db") as db:

        def run(proposed: list[ts.Candidate]) -> ts.Result:
            return ts.tune(
                func, ts.cpu(1), budget=ts.Budget(trials=50), database=db, quiet=True,
                strategy=Proposing(proposed),
            )  # fmt: skip

        first = run(good)
        second = run(bad)
        assert first.best.candidate in good
        assert second.best.candidate in good
        best = db.best(task)
        assert best is None or best.candidate in good
        assert second.trials == len(bad)
        repeated = [m for m in db.of(task) if m.candidate == first.best.candidate]
        assert len(repeated) == 2
    x, y = np.eye(64, dtype=np.float32), np.full((64, 64), 2, np.float32)
    np.testing.assert_allclose(second.kernel(x, y), y)
