"""Whatever ends a run, and wherever: what was measured by then is in the database, Ctrl-C gives the
best so far, and an error of somebody's own part is raised with an account of what there is.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tilesmith as ts
from tests.support.thorough import drawn
from tilesmith.search.protocol import Search
from tilesmith.testing.landscape import MANY, matmul_task, seconds_by_tiles
from tilesmith.testing.measurers import FakeMeasurer, FakeRun
from tilesmith.tune import task_tuner

ROOT = Path(__file__).parent.parent.parent
TASK = matmul_task()


@dataclass
class Bomb:
    """Raises when the point is reached for the n-th time."""

    point: str
    error: type[BaseException]
    left: int

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                raise self.error("boom")


@dataclass(frozen=True)
class Fused:
    """A strategy and a space that pass the bomb on their way."""

    bomb: Bomb

    def sketches(self, task: ts.Task) -> Sequence[ts.Trace]:
        self.bomb("sketches")
        return MANY.sketches(task)

    def start(self, *given: Any) -> Search:
        self.bomb("start")
        return FusedSearch(ts.Random().start(*given), self.bomb)


@dataclass
class FusedSearch:
    inner: Any
    bomb: Bomb

    def ask(self, n: int) -> list[ts.Candidate]:
        self.bomb("ask")
        return self.inner.ask(n)

    def tell(self, measurements: Sequence[ts.Measurement]) -> None:
        self.bomb("tell")
        self.inner.tell(measurements)

    def state(self) -> bytes:
        self.bomb("state")
        return b"{}"

    def resume(self, state: bytes) -> None:
        self.bomb("resume")


@dataclass(frozen=True)
class FusedMeasurer(FakeMeasurer):
    bomb: Bomb = field(default_factory=lambda: Bomb("", ValueError, 0))
    done: list[str] = field(default_factory=list)  # keys of what was measured to the end

    def open(self, task: ts.Task) -> FakeRun:
        self.bomb("open")
        return FusedRun(self)


class FusedRun(FakeRun):
    def __init__(self, settings: FusedMeasurer) -> None:
        super().__init__(settings)
        self._fused = settings

    def _one(self, c: ts.Candidate) -> ts.Measurement:
        self._fused.bomb("measure")
        m = super()._one(c)
        self._fused.done.append(c.key)
        return m

    def close(self) -> None:
        super().close()
        self._fused.bomb("close")


class FusedDatabase:
    """Delegates; an add fails before anything is written, or afterwards."""

    def __init__(self, inner: ts.Database, bomb: Bomb) -> None:
        self._inner, self._bomb = inner, bomb

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def add(self, measurements: Sequence[ts.Measurement]) -> None:
        self._bomb("before add")
        self._inner.add(measurements)
        self._bomb("after add")


@pytest.fixture(autouse=True)
def _stored_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_tuner, "_SAVE_SECONDS", 0.0)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[ts.Database]:
    with ts.open_database(tmp_path / "t.db") as made:
        yield made


@dataclass
class Bombed:
    """A tuning run with a bomb in it, and what came of it."""

    db: ts.Database
    bomb: Bomb
    result: ts.Result | None = None
    error: BaseException | None = None
    done: list[str] = field(default_factory=list)

    def run(self, trials: int = 100) -> Bombed:
        fused, measurer = Fused(self.bomb), FusedMeasurer(seconds_by_tiles, bomb=self.bomb)

        def watch(p: ts.Progress) -> None:
            self.bomb("finish" if p.finished else "observer")

        try:
            self.result = ts.tune(
                TASK.func, TASK.target, budget=ts.Budget(trials=trials), space=fused,
                strategy=fused, measurer=measurer, observers=[watch], quiet=True,
                database=FusedDatabase(self.db, self.bomb),
            )  # fmt: skip
        except BaseException as error:
            self.error = error
        self.done = measurer.done
        return self

    @property
    def stored(self) -> set[str]:
        return {m.candidate.key for m in self.db.of(TASK)}


# Where, at the how-manieth time: early, and in the middle of the run (batches of 4, 8, 16, ...).
POINTS = [
    ("open", 1), ("sketches", 1), ("start", 1), ("ask", 1), ("ask", 2), ("ask", 4), ("tell", 1),
    ("tell", 2), ("tell", 4), ("state", 1), ("state", 3), ("measure", 1), ("measure", 3),
    ("measure", 11), ("measure", 40), ("before add", 1), ("before add", 2), ("before add", 30),
    ("after add", 1), ("after add", 30), ("observer", 1), ("observer", 3), ("finish", 1),
    ("close", 1),
]  # fmt: skip


@pytest.mark.turns(4)
@pytest.mark.parametrize(("point", "count"), POINTS)
def test_ctrl_c_anywhere_loses_nothing(point: str, count: int, db: ts.Database) -> None:
    found = Bombed(db, Bomb(point, KeyboardInterrupt, count)).run()
    assert found.stored == set(found.done)
    if not found.done:
        assert isinstance(found.error, KeyboardInterrupt)
        return
    if point == "finish":  # the observer was told of the end already
        assert isinstance(found.error, KeyboardInterrupt)
    else:
        assert found.result is not None
        assert found.result.interrupted
        assert found.result.trials == len(found.done)
        assert found.result.best.cost == min(m.cost for m in db.of(TASK))
    again = Bombed(db, Bomb("", ValueError, 0)).run()  # goes on from there
    assert again.result is not None
    assert not again.result.interrupted
    assert len(again.stored) == 100
    assert again.result.best.cost <= min(m.cost for m in db.of(TASK))


@pytest.mark.turns(4)
@pytest.mark.parametrize(("point", "count"), POINTS)
def test_an_error_anywhere_is_raised_and_loses_nothing(
    point: str, count: int, db: ts.Database
) -> None:
    found = Bombed(db, Bomb(point, ValueError, count)).run()
    assert found.stored == set(found.done)
    assert isinstance(found.error, ValueError)
    if found.done and point != "finish":
        (note,) = found.error.__notes__
        assert f"{len(found.done)} candidates had been measured" in note
        assert "they are in the database" in note


@pytest.mark.parametrize("count", [1, 2, 30])
@pytest.mark.parametrize("point", ["before add", "after add"])
def test_an_error_of_the_database_gives_a_result(point: str, count: int, db: ts.Database) -> None:
    """It may be a moment's: what was not stored is stored at the end."""
    with pytest.warns(UserWarning, match="ended early: boom"):
        found = Bombed(db, Bomb(point, ts.RecordsError, count)).run()
    assert found.result is not None
    assert isinstance(found.result.error, ts.RecordsError)
    assert found.stored == set(found.done)
    assert found.result.trials == len(found.done)


@pytest.mark.parametrize("count", [1, 20])
def test_an_error_of_the_measurer_gives_a_result_if_there_is_one(
    count: int, db: ts.Database
) -> None:
    bomb = Bomb("measure", ts.MeasureError, count)
    if count == 1:
        found = Bombed(db, bomb).run()
        assert isinstance(found.error, ts.MeasureError)
        return
    with pytest.warns(UserWarning, match="ended early: boom"):
        found = Bombed(db, bomb).run()
    assert found.result is not None
    assert isinstance(found.result.error, ts.MeasureError)
    assert found.stored == set(found.done)
    assert len(found.done) == count - 1


def test_a_row_that_the_database_refuses_keeps_no_other_out(db: ts.Database) -> None:
    class Picky(FusedDatabase):
        refused: str | None = None

        def add(self, measurements: Sequence[ts.Measurement]) -> None:
            for m in measurements:
                self.refused = self.refused or m.candidate.key
            if any(m.candidate.key == self.refused for m in measurements):
                raise ts.RecordsError("this one is not taken")
            self._inner.add(measurements)

    class Silent(FakeMeasurer):
        """Says nothing before a batch is done."""

        def open(self, task: ts.Task) -> Any:
            run = FakeRun(self)

            class Quiet:
                measure, close = staticmethod(run.measure), staticmethod(run.close)

                def __enter__(self) -> Any:
                    return self

                def __exit__(self, *error: object) -> None:
                    run.close()

            return Quiet()

    picky = Picky(db, Bomb("", ValueError, 0))
    with pytest.warns(UserWarning, match="this one is not taken"):
        result = ts.tune(
            TASK.func, TASK.target, budget=ts.Budget(trials=100), space=MANY, quiet=True,
            strategy=ts.Random(), measurer=Silent(seconds_by_tiles), database=picky,
        )  # fmt: skip
    assert isinstance(result.error, ts.RecordsError)
    assert result.trials == 4
    assert db.count() == 3


def test_an_interrupt_before_the_first_measurement_of_a_resumed_run(db: ts.Database) -> None:
    """There is a best already."""
    first = Bombed(db, Bomb("", ValueError, 0)).run(trials=20).result
    assert first is not None
    for point in ("open", "sketches", "start", "measure"):
        found = Bombed(db, Bomb(point, KeyboardInterrupt, 1)).run()
        assert found.result is not None
        assert found.result.interrupted
        assert found.result.best.candidate == first.best.candidate


TUNER = """
import signal, sys, tilesmith as ts
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs it behind
a, b = ts.placeholder((24, 24), name="A"), ts.placeholder((24, 24), name="B")
func = ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="product")
db = ts.open_database(sys.argv[1])
print("ready", flush=True)
try:
    result = ts.tune(func, ts.cpu(1), budget=ts.Budget(trials=100000), database=db, quiet=True)
except KeyboardInterrupt:
    print("none", db.count(), flush=True)
else:
    print(result.interrupted, result.trials, db.count(), flush=True)
"""


def interrupted(tuner: subprocess.Popen[str]) -> tuple[str, str]:
    """Python loses an interrupt that comes while it collects garbage: a person presses again."""
    for _ in range(5):
        tuner.send_signal(signal.SIGINT)
        try:
            return tuner.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            continue
    tuner.kill()
    raise AssertionError(f"it does not end: {tuner.communicate()}")


def test_real_interrupts_at_random_moments(tmp_path: Path) -> None:
    """SIGINT to a process that tunes: it ends with a result as soon as there is one, and never
    with an error; what it counted is in the database.
    """
    rng = random.Random(int.from_bytes(os.urandom(4)))
    for turn in range(drawn(2, 6)):
        file = tmp_path / f"{turn}.db"
        with subprocess.Popen(
            [sys.executable, "-c", TUNER, str(file)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as tuner:  # fmt: skip
            assert tuner.stdout is not None
            assert tuner.stdout.readline() == "ready\n"
            time.sleep(2 * rng.random())
            out, err = interrupted(tuner)
        word, *numbers = out.split()
        if word == "none":
            # If an interrupt came while modules were imported, whose dataclasses are made by exec,
            # CPython ends by the signal though the exception was caught.
            assert tuner.returncode in (0, -signal.SIGINT), err
            assert numbers == ["0"]
        else:
            assert tuner.returncode == 0, err
            assert word == "True"
            assert numbers[0] == numbers[1]


class Careless:
    """Python drops what is raised in a finalizer: here it is the user's Ctrl-C."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_still_ends_the_run() -> None:
    seen: list[ts.Progress] = []

    def watch(progress: ts.Progress) -> None:
        seen.append(progress)
        if len(seen) == 3:
            Careless()

    result = ts.tune(
        TASK.func, TASK.target, budget=ts.Budget(trials=2000), space=MANY, strategy=ts.Random(),
        measurer=FakeMeasurer(), observers=[watch], quiet=True,
    )  # fmt: skip
    assert result.interrupted
    assert result.trials < 200
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
