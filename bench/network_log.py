"""The log of `bench.networks`: one line of JSON for each step, appended when the step is done, so
that a run that is ended loses one step at most and the next run goes on behind it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import inf
from pathlib import Path
from typing import Any

from tilesmith_contest.model_rows import EngineResult, ModelRow

Curve = tuple[tuple[float, float], ...]  # (seconds of tuning, estimated seconds of the network)


@dataclass(frozen=True)
class Case:
    """A network, the number of threads, how long it is tuned, and the type of its products."""

    network: str
    threads: int
    budget: float
    precision: str = "float32"


@dataclass(frozen=True)
class Tuned:
    """How a network got faster. One that is not `done` is the state at some moment of a run.
    `bound` is the sum of the tasks' roofline bounds, in seconds.
    """

    case: Case
    seconds: float
    trials: int
    tasks: int
    curve: Curve
    done: bool = True
    bound: float = 0.0

    @property
    def estimate(self) -> float:
        """Infinite if the budget was too small for every task to have a kernel."""
        return self.curve[-1][1] if self.curve else inf

    def at(self, seconds: float) -> float | None:
        """The estimate after so many seconds; None if not every task had a kernel then."""
        return next((x for t, x in reversed(self.curve) if t <= seconds), None)


@dataclass(frozen=True)
class Compared:
    case: Case
    row: ModelRow


Step = Tuned | Compared


class NetworkLog:
    """Steps of one file, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps: list[Step] = []
        if path.exists():
            for line in path.read_text().splitlines():
                step = _read(line)
                if step is not None:
                    self.steps.append(step)

    def add(self, step: Step) -> None:
        self.steps.append(step)
        kind = "tuned" if isinstance(step, Tuned) else "compared"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a") as f:
            f.write(json.dumps({"step": kind, **asdict(step)}) + "\n")
            f.flush()
            os.fsync(f.fileno())

    def tuned(self, case: Case) -> Tuned | None:
        """The latest of a case, which may be not done."""
        return next(
            (s for s in reversed(self.steps) if isinstance(s, Tuned) and s.case == case), None
        )

    def compared(self, case: Case) -> Compared | None:
        return next(
            (s for s in reversed(self.steps) if isinstance(s, Compared) and s.case == case), None
        )

    @property
    def results(self) -> list[Compared]:
        """The latest comparison of each case, in the order of the first ones."""
        cases = dict.fromkeys(s.case for s in self.steps if isinstance(s, Compared))
        return [found for c in cases if (found := self.compared(c)) is not None]


def _read(line: str) -> Step | None:
    """None for a line that was cut off."""
    try:
        raw = json.loads(line)
        case = Case(**raw["case"])
        if raw["step"] == "tuned":
            curve = tuple((float(t), float(x)) for t, x in raw["curve"])
            return Tuned(
                case, raw["seconds"], raw["trials"], raw["tasks"], curve, raw["done"],
                raw.get("bound", 0.0),
            )  # fmt: skip
        return Compared(case, _row(raw["row"]))
    except (ValueError, KeyError, TypeError):
        return None


def _row(raw: dict[str, Any]) -> ModelRow:
    engines: Sequence[dict[str, Any]] = raw.pop("engines")
    known = {f.name for f in fields(ModelRow)}
    given = {k: v for k, v in raw.items() if k in known}
    return ModelRow(**given, engines=tuple(EngineResult(**e) for e in engines))
