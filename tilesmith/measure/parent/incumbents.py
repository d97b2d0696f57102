"""What a run knows of one task: finished trials in; the incumbent, and verdicts on all kernels that
were measured, out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilesmith.measure.messages import Built
from tilesmith.measure.parent.timing import DriftMonitor
from tilesmith.measure.parent.trial import Trial, Verdict
from tilesmith.task.task import Failure, Measurement

_MAX_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best kernel so far, with what is needed to run it again."""

    trial: Trial
    built: Built


@dataclass(slots=True)
class Incumbents:
    """Of one task: the current incumbent, and earlier ones that failed. `known` holds verdicts by
    the key of the kernel's code.
    """

    known: dict[str, Verdict] = field(default_factory=dict)
    current: Incumbent | None = None
    best: Measurement | None = None  # of the current incumbent
    deposed: list[Measurement] = field(default_factory=list)  # failures of earlier incumbents
    monitor: DriftMonitor = field(default_factory=DriftMonitor)

    def remember(self, key: str, verdict: Verdict) -> None:
        self.known[key] = verdict

    def depose(self, incumbent: Incumbent, failure: Failure) -> None:
        """The incumbent has failed, and with it all candidates that have its code."""
        self.current = None
        self.known[incumbent.trial.key] = Verdict((), (), failure, False, False)
        if self.best is not None:
            self.deposed.append(Measurement(self.best.candidate, failure=failure))
            self.best = None

    def trim(self) -> None:
        """Drops the oldest verdicts: a search returns to recent candidates."""
        while len(self.known) > _MAX_KNOWN:
            del self.known[next(iter(self.known))]
