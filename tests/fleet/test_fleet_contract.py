"""A fleet of one machine passes the suite of measurers; and its tuner may compile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fleet_pools import LocalFleet

from tilesmith.measure.fleet.host import DeviceHost
from tilesmith.measure.fleet.offer import ACCEPTS_CODE
from tilesmith.schedule.loops import Split
from tilesmith.schedule.trace import Trace
from tilesmith.task.task import Candidate
from tilesmith.testing.measurers import MeasurerContract, small_task, split_by


class TestFleet(MeasurerContract):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _host(cls):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ACCEPTS_CODE, "1")
            host = DeviceHost("cpu")
        cls.measurer = LocalFleet(hosts={"here": host}, build="worker")
        with cls.measurer.open(small_task()) as run:  # the processes of the host start now
            run.measure([split_by(2, small_task())])
        yield
        host.close()

    def test_what_the_tuner_compiles_is_measured(self) -> None:
        task = small_task()
        wrong = Candidate(task, Trace((Split("Y.nowhere", (None, 4)),)))
        candidates = [split_by(8, task), wrong, split_by(2, task), split_by(6, task)]
        with replace(self.measurer, build="tuner").open(task) as run:
            measured = run.measure(candidates, lambda: [split_by(12, task)])
            (ahead,) = run.measure([split_by(12, task)])
        assert [m.candidate for m in measured] == candidates
        assert [m.failure.kind if m.failure else None for m in measured] == [
            None, "schedule", None, None,
        ]  # fmt: skip
        assert all(m.references and m.machine for m in [*measured, ahead] if m.failure is None)
