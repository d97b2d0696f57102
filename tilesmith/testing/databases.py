"""The contract suite of databases of measurements: subclass it and define `open`.

class TestMine(DatabaseContract):
    def open(self, place): return MyDatabase(place / "records")
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import RecordsError
from tilesmith.ir.function import Function
from tilesmith.records.database import Database, Surveyed, likely_best, targets_of
from tilesmith.schedule.kinds import Vectorize
from tilesmith.schedule.loops import Split
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import Parts, Trace
from tilesmith.task.task import (
    Budget,
    Candidate,
    Failure,
    Measurement,
    Moment,
    Task,
    TuningRun,
    trust,
)
from tilesmith.testing.measurements import measured, task_of, tuning_run


@dataclass(frozen=True, slots=True)
class _Twist(Step):
    """A primitive that is not built in."""

    name: ClassVar[str] = "twist"
    loop: str

    def apply(self, func: Function) -> Function:
        return func


@dataclass(frozen=True, slots=True)
class _Unwritable(Step):
    name: ClassVar[str] = "unwritable"

    def to_json(self) -> list[object]:
        raise ValueError("this step has no text")


class DatabaseContract:
    """`open` returns a database that keeps its records at `place`, a separate folder for each test;
    a second `open` returns another one on the same records. `lasting = False` is for databases that
    end when closed: a second one must then be empty.
    """

    lasting = True

    def open(self, place: Path) -> Database:
        raise NotImplementedError

    def test_nothing_is_known_at_first(self, tmp_path: Path) -> None:
        db = self.open(tmp_path)
        assert db.of(task_of()) == []
        assert db.best(task_of()) is None
        assert db.tasks() == []
        assert (db.count(), db.count(task_of())) == (0, 0)
        assert db.load_state(task_of(), "search") is None
        db.close()

    def test_what_was_added_comes_back_in_order(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        every = [measured(task, k) for k in (5, 3, 9, 1)]
        db.add(every[:3])
        db.add(every[3:])
        assert db.of(task) == every
        assert [m.candidate.trace for m in db.of(task)] == [m.candidate.trace for m in every]
        assert db.count(task) == db.count() == 4
        db.close()

    def test_every_field_comes_back_exactly(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        every = [
            measured(task, 0, (0.1, 1 / 3, 5e-324, 1.7976931348623157e308)),
            measured(task, 1, (), Failure("wrong", "größer 😀 than\n\t'\"; DROP TABLE --")),
            measured(task, 2, (2.0,), contended=True, confirmed=True),
            measured(task, 3, (), Failure("crash")),
            measured(task, 4, ()),
            measured(task, 5, (1.0, 2.0), Failure("timeout", "x" * 100_000)),
            replace(measured(task, 6, (1.0, 2.0)), references=(1e-4, 1 / 3)),
        ]
        db.add(every)
        assert db.of(task) == every
        db.close()

    def test_text_that_is_no_text_is_kept_as_well_as_it_can_be(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        db.add([measured(task, 0, (), Failure("crash", "a\0b \udc80 c"))])
        (got,) = db.of(task)
        assert got.failure is not None
        assert got.failure.kind == "crash"
        assert got.failure.text.startswith("a")
        assert got.failure.text.endswith("c")
        db.close()

    def test_an_add_may_be_repeated(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        one, other = measured(task, 1), measured(task, 2)
        db.add([one, one])
        db.add([one, other])
        assert db.of(task) == [one, other]
        again = replace(one, when=one.when + 1)  # the same result at another time is a new record
        db.add([again])
        assert db.of(task) == [one, other, again]
        db.add([])
        assert db.count() == 3
        db.close()

    def test_an_add_that_fails_adds_nothing(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        bad = replace(measured(task, 2), candidate=Candidate(task, Trace((_Unwritable(),))))
        with pytest.raises(ValueError, match="no text"):
            db.add([measured(task, 1), bad])
        assert db.of(task) == []
        assert db.tasks() == []
        db.close()

    def test_the_fastest_is_best(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        every = [measured(task, k, (s,)) for k, s in enumerate((3.0, 1.0, 2.0))]
        db.add(every)
        assert db.best(task) == every[1]
        median = measured(task, 5, (0.9, 0.1, 5.0))
        db.add([median])
        assert db.best(task) == median
        db.close()

    def test_what_a_slow_moment_took_does_not_count_against_it(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        slow = replace(measured(task, 1, (3.0,) * 3), references=(4e-4,) * 3)
        fast = replace(measured(task, 2, (2.0,) * 3), references=(1e-4,) * 3)
        db.add([fast, slow])
        assert db.best(task) == slow
        db.close()

    def test_the_first_of_equals_is_best(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        every = [measured(task, k, (1.0,)) for k in (7, 2)]
        db.add(every)
        assert db.best(task) == every[0]
        db.close()

    def test_failures_never_win(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        db.add([measured(task, 0, (), Failure("build", "no"))])
        db.add([measured(task, 1, (0.1,), Failure("wrong", "off by one"))])
        db.add([measured(task, 2, (0.1,), Failure("wrong"), confirmed=True)])
        db.add([measured(task, 4, ())])
        assert db.best(task) is None
        assert [t.best_seconds for t in db.tasks()] == [None]
        slow = measured(task, 5, (9.0,))
        db.add([slow])
        assert db.best(task) == slow
        db.close()

    def test_contended_ones_win_only_where_there_is_nothing_else(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        busy = [measured(task, k, (s,), contended=True) for k, s in ((1, 0.3), (2, 0.2))]
        db.add([*busy, measured(task, 3, (), Failure("crash"))])
        assert db.best(task) == busy[1]
        assert [t.best_seconds for t in db.tasks()] == [0.2]
        # Confirmation on a busy machine does not count.
        db.add([measured(task, 4, (0.25,), contended=True, confirmed=True)])
        assert db.best(task) == busy[1]
        calm = measured(task, 5, (9.0,))
        db.add([calm])
        assert db.best(task) == calm
        assert [t.best_seconds for t in db.tasks()] == [9.0]
        db.close()

    def test_times_with_and_without_references_are_not_compared(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        raw = [measured(task, k, (s,)) for k, s in ((1, 2e-3), (2, 1e-3))]
        db.add(raw)
        assert db.best(task) == raw[1]
        # Ten times the seconds on a machine that is ten times as slow: not comparable.
        normal = replace(measured(task, 3, (1e-2,)), references=(1e-3,))
        db.add([normal])
        assert db.best(task) == normal
        assert [t.best_seconds for t in db.tasks()] == [1e-2]  # as measured, of the best one
        slower = replace(measured(task, 4, (1e-4,)), references=(5e-6,))
        db.add([slower])
        assert db.best(task) == normal
        confirmed = measured(task, 5, (5.0,), confirmed=True)
        db.add([confirmed])
        assert db.best(task) == confirmed
        db.close()

    def test_the_best_is_the_first_by_trust(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        flags = [(c, b) for c in (True, False) for b in (True, False)]
        every: list[Measurement] = []
        for k, ((contended, confirmed), references) in enumerate(
            product(flags, ((), (1e-4, 1e-4), (3e-4, 3e-4), (1e-4,), (0.0, 1e-4)))
        ):
            m = measured(task, k, (1e-3 / (k + 1),) * 2, None, contended, confirmed)
            every.append(replace(m, references=references))
        every += [
            measured(task, 100, (float("nan"),), confirmed=True),
            measured(task, 101, (float("inf"),), confirmed=True),
            measured(task, 102, (0.0, 0.0), confirmed=True),
            measured(task, 103, (-1.0,), confirmed=True),
        ]
        for k in range(len(every)):
            db.add([every[k]])
            timed = [m for m in every[: k + 1] if m.normal_cost < float("inf")]
            assert db.best(task) == min(timed, key=trust)
            assert db.tasks()[0].best_seconds == min(timed, key=trust).cost
        db.close()

    def test_a_confirmed_one_is_preferred(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        slow, fast = (measured(task, k, (s,), confirmed=True) for k, s in ((1, 5.0), (2, 4.0)))
        db.add([measured(task, 0, (1.0,)), slow, fast])
        assert db.best(task) == fast
        db.close()

    def test_a_trace_that_does_not_apply_is_only_the_likely_best(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        assert (targets_of(db), likely_best(db, task)) == ([], None)
        usual = measured(task, 1, (2.0,))
        stale = Measurement(Candidate(task, Trace((Vectorize("not a loop"),))), (1.0,))
        db.add([usual, stale])
        assert targets_of(db) == [task.target]
        assert db.best(task) == usual
        likely = likely_best(db, task)
        assert likely is not None
        assert likely.candidate in (usual.candidate, stale.candidate)
        if isinstance(db, Surveyed):
            assert likely.candidate == stale.candidate
        db.close()

    def test_a_candidate_that_failed_since_is_not_the_best(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        fast = measured(task, 1, (1.0,), confirmed=True)
        slow = measured(task, 2, (2.0,))
        db.add([fast, slow])
        assert db.best(task) == fast
        db.add([replace(fast, seconds=(), failure=Failure("crash"), when=fast.when + 1)])
        assert db.best(task) == slow
        assert [t.best_seconds for t in db.tasks()] == [2.0]
        db.add([replace(slow, seconds=(), failure=Failure("wrong"), when=slow.when + 1)])
        assert db.best(task) is None
        assert [t.best_seconds for t in db.tasks()] == [None]
        again = replace(fast, seconds=(3.0,), confirmed=False, when=fast.when + 2)
        db.add([again])  # it works again; times from before the failure no longer count
        assert db.best(task) == again
        db.close()

    def test_a_failure_under_other_names_counts_too(self, tmp_path: Path) -> None:
        db, one = self.open(tmp_path), task_of()
        other = task_of(names=("in", "out", "a", "b", "named_otherwise"))
        fast, slow = measured(one, 1, (1.0,)), measured(one, 2, (2.0,))
        db.add([fast, slow])
        theirs = Candidate(other, Trace((Split("out.a", (None, 2)), Vectorize("out.b"))))
        db.add([Measurement(theirs, failure=Failure("crash"), when=fast.when + 1)])
        assert db.best(one) == slow
        best = db.best(other)
        assert best is not None
        assert best.seconds == slow.seconds
        assert [t.best_seconds for t in db.tasks()] == [2.0]
        db.close()

    def test_the_latest_confirmed_measurement_of_a_candidate_counts(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        lucky = measured(task, 1, (1.0,), confirmed=True)
        later = replace(lucky, seconds=(3.0,), when=lucky.when + 1)
        other = measured(task, 2, (2.0,), confirmed=True)
        db.add([lucky, other])
        assert db.best(task) == lucky
        db.add([later])
        assert db.best(task) == other
        assert [t.best_seconds for t in db.tasks()] == [2.0]
        # A less reliable one replaces nothing.
        busy = replace(other, seconds=(9.0,), confirmed=False, contended=True, when=other.when + 1)
        db.add([busy, replace(busy, contended=False, when=other.when + 2)])
        assert db.best(task) == other
        newest = replace(later, seconds=(1.5,), when=later.when + 1)
        db.add([newest])
        assert db.best(task) == newest
        db.close()

    def test_tasks_are_kept_apart(self, tmp_path: Path) -> None:
        db = self.open(tmp_path)
        every = [task_of(8), task_of(9), task_of(8, "zen3")]
        many = Task(every[0].func, every[0].target.with_cores(64))
        for k, task in enumerate((*every, many)):
            db.add([measured(task, k, (1.0 + k,))])
        mixed = [measured(task, 10 + k) for k, task in enumerate(every)]
        db.add(mixed)
        for k, task in enumerate(every):
            assert db.of(task) == [measured(task, k, (1.0 + k,)), mixed[k]]
            assert db.count(task) == 2
        assert db.best(many) == measured(many, 3, (4.0,))
        assert db.count() == 7
        db.close()

    def test_tasks_are_summed_up(self, tmp_path: Path) -> None:
        db, one, other = self.open(tmp_path), task_of(8), task_of(9)
        db.add([measured(one, 0, (3.0,)), measured(other, 1, (), Failure("build"))])
        db.add([measured(one, 2, (2.0,)), measured(one, 3, (), Failure("wrong"))])
        db.add([measured(one, 4, (0.5,), contended=True)])
        first, second = db.tasks()
        assert first.task == one
        assert first.task.func == one.func
        assert first.task.target == one.target
        assert first.key == one.key
        assert (first.count, first.failures, first.best_seconds) == (4, 1, 2.0)
        assert second.task == other
        assert (second.count, second.failures, second.best_seconds) == (1, 1, None)
        db.add([measured(one, 5, (2.5,), confirmed=True)])
        assert db.tasks()[0].best_seconds == 2.5
        db.close()

    def test_state_is_kept_by_task_and_name(self, tmp_path: Path) -> None:
        db, one, other = self.open(tmp_path), task_of(8), task_of(9)
        everything = bytes(range(256)) * 1000
        db.save_state(one, "search", everything)
        db.save_state(one, "model", b"")
        db.save_state(other, "search", b"other")
        assert db.load_state(one, "search") == everything
        assert db.load_state(one, "model") == b""
        assert db.load_state(other, "search") == b"other"
        assert db.load_state(other, "model") is None
        db.save_state(one, "search", b"new")
        assert db.load_state(one, "search") == b"new"
        assert db.load_state(other, "search") == b"other"
        assert db.count() == 0
        db.close()

    def test_a_users_primitive_is_read_with_its_class(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        trace = Trace((Split("y.i", (None, 2)), _Twist("y.i.0")))
        m = replace(measured(task, 1), candidate=Candidate(task, trace))
        db.add([m])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a database may say what is missing
            assert db.of(task) == []
            assert db.best(task) is None
        assert db.unread(task) == db.unread() == 1
        mine = replace(task, parts=Parts(primitives=(_Twist,)))
        assert db.of(mine) == [m]
        assert db.unread(mine) == 0
        best = db.best(mine)
        assert best is not None
        assert best.candidate.trace == trace
        assert [t.count for t in db.tasks()] == [1]
        db.close()

    def test_what_cannot_be_read_is_no_hindrance(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        trace = Trace((Split("y.i", (None, 2)), _Twist("y.i.0")))
        fast = replace(measured(task, 1, (1e-6,), confirmed=True), candidate=Candidate(task, trace))
        slow = measured(task, 2, (1.0,))
        no_times = [measured(task, 3 + k, (s,)) for k, s in enumerate((0.0, -1.0, float("nan")))]
        db.add([fast, slow, *no_times])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a database may say what is missing
            assert db.of(task) == [slow]
            assert db.best(task) == slow
        assert db.unread(task) == 4
        assert db.count(task) == 5
        (summary,) = db.tasks()
        assert (summary.count, summary.failures, summary.best_seconds) == (5, 0, 1.0)
        db.close()

    def test_a_trace_that_does_not_apply_is_never_the_best(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        no_loop = Candidate(task, Trace((Vectorize("nowhere"),)))
        fast = [replace(measured(task, k, (1e-6,)), candidate=no_loop) for k in range(20)]
        db.add(fast)
        assert db.best(task) is None
        slow = measured(task, 50, (1.0,))
        db.add([slow])
        assert db.best(task) == slow
        assert db.of(task) == [*fast, slow]
        db.close()

    def test_names_do_not_matter(self, tmp_path: Path) -> None:
        db, one = self.open(tmp_path), task_of()
        other = task_of(names=("in", "out", "a", "b", "named_otherwise"))
        assert one.key == other.key
        db.add([measured(one, 1, (2.0,)), measured(one, 2, (), Failure("build"))])
        theirs = Trace((Split("out.a", (None, 2)), Vectorize("out.b")))
        (first, second) = db.of(other)
        assert first == replace(measured(one, 1, (2.0,)), candidate=Candidate(other, theirs))
        assert second.failure == Failure("build")
        assert db.best(other) == first
        mine = replace(measured(one, 3, (1.0,)), candidate=Candidate(other, theirs))
        db.add([mine])
        assert db.of(other) == [first, second, mine]
        assert db.best(other) == mine
        assert db.best(one) == replace(mine, candidate=measured(one, 1).candidate)
        assert db.count(one) == db.count(other) == 3
        assert db.unread(one) == db.unread(other) == 0
        (summary,) = db.tasks()
        assert summary.task == one
        assert summary.names == ("clip8", "named_otherwise")
        assert (summary.count, summary.best_seconds) == (3, 1.0)
        db.close()

    def test_runs_come_back_with_what_they_measured(self, tmp_path: Path) -> None:
        db, task, other = self.open(tmp_path), task_of(8), task_of(9)
        first, second = tuning_run(Budget(trials=5)), tuning_run(Budget(1, 2.5, 3), number=1)
        assert db.runs(task) == []

        def taken(run: TuningRun, k: int, seconds: float, trial: int, cost: float) -> Measurement:
            moment = Moment(run, seconds, trial)
            return replace(measured(task, k, (cost,), confirmed=True), moment=moment)

        of_first = [taken(first, 1, 0.1, 1, 3.0), taken(first, 2, 0.75, 2, 4.0)]
        later = taken(first, 3, 1.5, 3, 1.0)
        of_second = [taken(second, 4, 0.25, 0, 2.0), taken(second, 5, 0.5, 1, 1.5)]
        db.add([*of_first, measured(task, 9), measured(other, 6)])
        db.add(of_second)
        assert [r.seconds for r in db.runs(task) if r.run == first] == [0.75]
        db.add([later])
        db.add([of_first[0]])
        runs = db.runs(task)
        assert [r.run for r in runs] == [second, first]  # by start time
        assert [r.seconds for r in runs] == [0.5, 1.5]
        assert [r.measurements for r in runs] == [tuple(of_second), (*of_first, later)]
        moments = [m.moment for r in runs for m in r.measurements]
        assert moments == [m.moment for m in (*of_second, *of_first, later)]
        assert [r.trials for r in runs] == [1, 3]
        assert runs[0].curve == ((0.0, 0, 2.0), (0.5, 1, 1.5))
        assert runs[1].curve == ((0.1, 1, 3.0), (1.5, 3, 1.0))
        assert db.runs(other) == []
        assert [m.moment for m in db.of(task) if m.moment is None] == [None]
        db.close()

    def test_threads_lose_nothing(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()

        def work(first: int) -> None:
            for k in range(first, first + 20, 2):
                db.add([measured(task, k), measured(task, k + 1)])
                db.best(task)

        threads = [Thread(target=work, args=(100 * t,)) for t in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        stored = [m.candidate.key for m in db.of(task)]
        for n in range(6):  # each thread's records in order, and each add contiguous
            own = [measured(task, k).candidate.key for k in range(100 * n, 100 * n + 20)]
            assert [k for k in stored if k in own] == own
            places = [stored.index(k) for k in own]
            assert all(b == a + 1 for a, b in zip(places[::2], places[1::2], strict=True))
        assert len(stored) == 120
        db.close()

    def test_a_closed_one_says_so(self, tmp_path: Path) -> None:
        db = self.open(tmp_path)
        db.close()
        db.close()
        with pytest.raises(RecordsError, match="closed"):
            db.count()
        with pytest.raises(RecordsError, match="closed"):
            db.add([measured(task_of(), 1)])

    def test_all_is_there_when_it_is_opened_again(self, tmp_path: Path) -> None:
        db, task = self.open(tmp_path), task_of()
        every = [measured(task, k, (1.0 + k,)) for k in range(5)]
        db.add(every)
        db.save_state(task, "search", b"\0\1")
        db.close()
        again = self.open(tmp_path)
        if self.lasting:
            assert again.of(task) == every
            assert again.best(task) == every[0]
            assert again.load_state(task, "search") == b"\0\1"
            assert [t.task for t in again.tasks()] == [task]
        else:
            assert again.of(task) == []
            assert again.best(task) is None
            assert again.load_state(task, "search") is None
            assert again.tasks() == []
        again.close()

    def test_two_on_one_place_see_each_other(self, tmp_path: Path) -> None:
        one, other, task = self.open(tmp_path), self.open(tmp_path), task_of()
        one.add([measured(task, 0)])
        assert other.of(task) == ([measured(task, 0)] if self.lasting else [])
        other.add([measured(task, 1), measured(task, 0)])
        second = [measured(task, 0), measured(task, 1)] if self.lasting else [measured(task, 0)]
        assert one.of(task) == second
        one.close()
        other.close()
