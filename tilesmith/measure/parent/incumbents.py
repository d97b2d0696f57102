"""The state of one task in a run: the incumbent, and verdicts on all kernels that were measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilesmith.measure.messages import Built
from tilesmith.measure.parent.timing import DriftMonitor
from tilesmith.measure.parent.trial import Trial, Verdict
from tilesmith.task.task import Failure, Measurement

_MAX_VERDICTS = 4096


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best kernel so far, with what is needed to run it again."""

    trial: Trial
    built: Built


@dataclass(slots=True)
class Incumbents:
    """The current incumbent of a task, and earlier ones that failed. `verdicts` are by the key of
    the kernel's code.
    """

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    current: Incumbent | None = None
    best: Measurement | None = None  # the current incumbent's
    deposed: list[Measurement] = field(default_factory=list)  # failures of earlier incumbents
    monitor: DriftMonitor = field(default_factory=DriftMonitor)

    def remember(self, key: str, verdict: Verdict) -> None:
        self.verdicts[key] = verdict

    def depose(self, incumbent: Incumbent, failure: Failure) -> None:
        """Records that the incumbent, and so all candidates with its code, have failed."""
        self.current = None
        self.verdicts[incumbent.trial.key] = Verdict((), (), failure, False, False)
        if self.best is not None:
            self.deposed.append(Measurement(self.best.candidate, failure=failure))
            self.best = None

    def trim(self) -> None:
        """Drops the oldest verdicts: a search mostly returns to recent candidates."""
        while len(self.verdicts) > _MAX_VERDICTS:
            del self.verdicts[next(iter(self.verdicts))]
