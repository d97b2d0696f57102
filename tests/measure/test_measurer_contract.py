"""The measurers pass the suite that users can run on theirs; so does the one in examples/."""

from __future__ import annotations

import runpy
from pathlib import Path

from tilesmith.measure.local import LocalMeasurer
from tilesmith.measure.protocol import Measurer
from tilesmith.testing.measurers import FakeMeasurer, MeasurerContract

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "custom_measurer.py"


class TestLocal(MeasurerContract):
    measurer = LocalMeasurer()


class TestFake(MeasurerContract):
    measurer = FakeMeasurer()


class TestExample(MeasurerContract):
    measurer: Measurer = runpy.run_path(str(EXAMPLE))["CoolDown"](LocalMeasurer(), pause=0.001)
