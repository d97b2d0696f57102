"""Several GPUs: each has its share, and what is believed was measured on the first one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import planted
import pytest

import tilesmith as ts
from tilesmith.measure.several_gpus import SeveralGpus
from tilesmith.task.task import Candidate, Measurement, Task
from tilesmith.testing.measurers import FakeMeasurer, FakeRun

H200 = ts.Target.named("nvidia-h200")
TASK = Task(planted.task().func, H200)
MANY = [planted.good(k, TASK) for k in range(2, 30)]


def cost(c: Candidate) -> float:
    return 1e-4 + int(c.key[:6], 16) * 1e-12


class Judge(FakeRun):
    """A run that knows its fastest candidate."""

    def best(self, task: Task) -> Measurement | None:
        return min((self._one(c) for c in self.measured), key=lambda m: m.cost, default=None)


@dataclass(frozen=True)
class Judging(FakeMeasurer):
    def open(self, task: Task) -> Judge:
        return Judge(self)


def test_all_are_measured_once_and_reported_as_asked() -> None:
    seen: list[Measurement] = []
    coming: list[int] = []

    def upcoming() -> list[Candidate]:
        coming.append(1)
        return []

    with SeveralGpus((0, 1, 2), Judging(cost)).open(TASK) as run:
        run.report_to(seen.extend)
        measured = run.measure(MANY, upcoming)
        shares = [{c.key for c in r.measured} for r in run._runs]
        devices = [{c.task.target.device for c in r.measured} for r in run._runs]
        best = run.best(TASK)
    assert [m.candidate for m in measured] == MANY
    assert all(m.candidate.task.target.device == 0 for m in measured)
    assert {m.candidate.key for m in seen} == {c.key for c in MANY}
    assert devices == [{0}, {1}, {2}]
    assert set.union(*shares) == {c.key for c in MANY}
    assert all(shares)
    assert coming == [1]
    # The best of all was compared on the first GPU, whoever found it.
    assert best is not None
    assert best.cost == min(m.cost for m in measured)
    assert best.candidate.key in shares[0]


def test_an_error_of_one_is_raised_when_all_have_ended() -> None:
    def broken(c: Candidate) -> float:
        if c.task.target.device == 1:
            raise ts.MeasureError("the second one is gone")
        return cost(c)

    run = SeveralGpus((0, 1), FakeMeasurer(broken)).open(TASK)
    with run, pytest.raises(ts.MeasureError, match="the second one is gone"):
        run.measure(MANY)
    with pytest.raises(ts.MeasureError, match="closed"):
        run.measure(MANY)


def test_it_is_for_gpus() -> None:
    with pytest.raises(ts.MeasureError, match=r"devices=\(0, 1\)"):
        SeveralGpus((0, 1)).open(planted.task())
    with pytest.raises(ts.MeasureError, match=r"devices=\(0, 1\)"):
        SeveralGpus(()).open(Task(TASK.func, replace(H200, device=3)))
