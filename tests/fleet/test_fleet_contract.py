"""A fleet of one machine passes the suite of measurers; so does one whose tuner compiles."""

from __future__ import annotations

import pytest
from fleet_pools import LocalFleet

from tilesmith.measure.fleet.host import DeviceHost
from tilesmith.measure.fleet.offer import ACCEPTS_CODE
from tilesmith.testing.measurers import MeasurerContract, small_task, split_by


class TestFleet(MeasurerContract):
    build = "worker"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _host(cls):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ACCEPTS_CODE, "1")
            host = DeviceHost("cpu")
        cls.measurer = LocalFleet(hosts={"here": host}, build=cls.build)
        with cls.measurer.open(small_task()) as run:  # the processes of the host start now
            run.measure([split_by(2, small_task())])
        yield
        host.close()


class TestCompiledByTheTuner(TestFleet):
    build = "tuner"
