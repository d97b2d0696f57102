"""A candidate while it is measured, and the Verdict on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilesmith.measure.parent.timing import Timed, TimingRules
from tilesmith.task.task import Candidate, Failure, Measurement


@dataclass(frozen=True, slots=True)
class Verdict:
    """A Measurement without its candidate, because several candidates may give the same code."""

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
    slot: int  # number of its kernel in the run worker
    key: str = ""  # key of its code; empty if it was not built
    build_seconds: float = 0.0
    timed: Timed = field(default_factory=Timed)
    failure: Failure | None = None
    contended: bool = False
    confirmed: bool = False
    finished: bool = False  # whether it is final

    @property
    def entry(self) -> tuple[int, int]:
        """For races: slot, and calls per sample."""
        return self.slot, self.timed.calls

    @property
    def reached(self) -> bool:
        """Whether it failed or was timed; False if the time was up before."""
        return self.failure is not None or bool(self.timed.samples)

    def verdict(self, rules: TimingRules) -> Verdict:
        samples = [] if self.failure else self.timed.recorded(rules)
        return Verdict(
            tuple(s.seconds for s in samples), tuple(s.reference for s in samples),
            self.failure, self.contended, self.confirmed,
        )  # fmt: skip


@dataclass(slots=True)
class TimeSpent:
    """Seconds of a run by activity."""

    building: float = 0.0  # sum over all build workers
    waiting: float = 0.0  # for builds, while no kernel ran
    checking: float = 0.0
    timing: float = 0.0
    racing: float = 0.0  # including confirmation
    evaluations: int = 0  # number of tasks evaluated by the oracle
