"""What a run knows of a task: the incumbent, kernels that were measured before, and how the machine
behaves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilesmith.measure.messages import Built
from tilesmith.measure.parent.timing import DriftMonitor, Timed, TimingRules
from tilesmith.task.task import Candidate, Failure, Measurement

_MAX_KNOWN = 4096


@dataclass(slots=True)
class TimeSpent:
    """Seconds, for those who want to know where time goes."""

    building: float = 0.0  # by all build workers together
    waiting: float = 0.0  # for a build, with nothing to run
    checking: float = 0.0
    timing: float = 0.0
    racing: float = 0.0  # confirming included
    evaluations: int = 0  # how often the oracle evaluated a task


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is kept of a kernel."""

    seconds: tuple[float, ...]
    references: tuple[float, ...]
    failure: Failure | None
    contended: bool
    confirmed: bool

    def of(self, candidate: Candidate, build_seconds: float) -> Measurement:
        return Measurement(
            candidate,
            self.seconds,
            self.failure,
            self.contended,
            self.confirmed,
            build_seconds,
            references=self.references,
        )


@dataclass(slots=True)
class Trial:
    """A candidate on its way to a measurement."""

    slot: int
    key: str = ""  # of its code; empty when there is none
    build_seconds: float = 0.0
    timed: Timed = field(default_factory=Timed)
    failure: Failure | None = None
    contended: bool = False
    confirmed: bool = False
    finished: bool = False  # nothing more will be known of it

    @property
    def entry(self) -> tuple[int, int]:
        return self.slot, self.timed.calls

    @property
    def reached(self) -> bool:
        """Whether there is something to say about it; not if time ran out before."""
        return self.failure is not None or bool(self.timed.samples)

    def verdict(self, rules: TimingRules) -> Verdict:
        samples = [] if self.failure else self.timed.recorded(rules)
        return Verdict(
            tuple(s.seconds for s in samples), tuple(s.reference for s in samples),
            self.failure, self.contended, self.confirmed,
        )  # fmt: skip


@dataclass(slots=True)
class Incumbent:
    """The best that was confirmed, ready to be run again."""

    trial: Trial
    built: Built


@dataclass(slots=True)
class Incumbents:
    """Of one task. `known` holds verdicts by the code of their kernels."""

    known: dict[str, Verdict] = field(default_factory=dict)
    current: Incumbent | None = None
    best: Measurement | None = None  # the incumbent's
    deposed: list[Measurement] = field(default_factory=list)  # failures of earlier incumbents
    monitor: DriftMonitor = field(default_factory=DriftMonitor)

    def remember(self, key: str, verdict: Verdict) -> None:
        self.known[key] = verdict

    def depose(self, keep: Incumbent, failure: Failure) -> None:
        """The incumbent has failed: so have all candidates with its code."""
        self.current = None
        self.known[keep.trial.key] = Verdict((), (), failure, False, False)
        if self.best is not None:
            self.deposed.append(Measurement(self.best.candidate, failure=failure))
            self.best = None

    def trim(self) -> None:
        """The oldest go: a search returns to what is recent."""
        while len(self.known) > _MAX_KNOWN:
            del self.known[next(iter(self.known))]
