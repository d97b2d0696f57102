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


cool_down = runpy.run_path(str(EXAMPLE))["CoolDown"]


class TestExample(MeasurerContract):
    """In front of one that starts no processes; of what only others have, of the local one."""

    measurer: Measurer = cool_down(FakeMeasurer(), pause=0.001)

    def test_the_best_is_one_of_those_measured(self) -> None:
        self.measurer = cool_down(LocalMeasurer(), pause=0.001)
        super().test_the_best_is_one_of_those_measured()

    def test_closing_leaves_nothing_behind(self) -> None:
        self.measurer = cool_down(LocalMeasurer(), pause=0.001)
        super().test_closing_leaves_nothing_behind()
