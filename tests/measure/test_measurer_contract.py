"""The measurers pass the suite that users can run on theirs."""

from __future__ import annotations

from tilesmith.measure.local import LocalMeasurer
from tilesmith.testing.measurers import FakeMeasurer, MeasurerContract


class TestLocal(MeasurerContract):
    measurer = LocalMeasurer()


class TestFake(MeasurerContract):
    measurer = FakeMeasurer()
