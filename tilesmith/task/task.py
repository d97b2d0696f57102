"""The nouns that later stages share: a Task is what to make fast, a Candidate one way to do it, a
Measurement what that costs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from math import inf

from tilesmith.base.digest import digest
from tilesmith.base.errors import TuneError
from tilesmith.base.target import Target
from tilesmith.ir.function import Function
from tilesmith.ir.rename import structure_of
from tilesmith.schedule.trace import Trace

# Part of every key: code that is generated differently has other timings.
CODEGEN_VERSION = "2"


def task_key(func: Function, target: Target, codegen: str = CODEGEN_VERSION) -> str:
    """A digest of all that can change the answer. Names cannot: tasks that differ in them alone
    have one key, and know of each other's measurements.
    """
    return digest(structure_of(func), target.fingerprint, codegen)


def statement_key(func: Function, target: Target, codegen: str = CODEGEN_VERSION) -> str:
    """A digest of the task as it was stated, names included: traces speak of names."""
    return digest(func.digest, target.fingerprint, codegen)


@dataclass(frozen=True)
class Task:
    """A computation and the machine it is to run on. Equal tasks have equal names, too: what is
    known of another one with the same `key` is first brought under this one's names.
    """

    func: Function
    target: Target

    def __post_init__(self) -> None:
        if not isinstance(self.func, Function):
            kind = type(self.func).__name__
            raise TuneError(f"a Task is of what ts.function made, not of a {kind}")
        if not isinstance(self.target, Target):
            raise TuneError(f"a Task is for a target, as ts.cpu(); it is given {self.target!r}")

    @cached_property
    def key(self) -> str:
        return task_key(self.func, self.target)

    @cached_property
    def statement(self) -> str:
        return statement_key(self.func, self.target)

    def __repr__(self) -> str:
        t = self.target
        cores = "1 core" if t.num_cores == 1 else f"{t.num_cores} cores"
        return f"<Task {self.func.signature}, for {t.model or t.cpu} with {cores}>"

    def __hash__(self) -> int:
        return hash(self.statement)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and self.statement == other.statement


@dataclass(frozen=True)
class Candidate:
    """A task with every decision made."""

    task: Task
    trace: Trace

    @cached_property
    def key(self) -> str:
        return digest(self.task.statement, self.trace.to_json())

    def __repr__(self) -> str:
        return f"<Candidate {self.key[:8]} of {self.task.func.name}, {len(self.trace)} steps>"

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Candidate) and self.key == other.key


# What can go wrong with a candidate, in the order in which it is detected.
FAILURES = ("schedule", "build", "crash", "timeout", "memory", "bounds", "wrong", "error")


@dataclass(frozen=True, slots=True)
class Failure:
    """`kind` is one of FAILURES; `text` is the first error message."""

    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent: measured candidates, wall-clock seconds, or whichever comes first.

    `patience` ends a run early, after so many measured candidates without a better one.
    """

    trials: int | None = None
    seconds: float | None = None
    patience: int | None = None


@dataclass(frozen=True, slots=True)
class TuningRun:
    """One search of one task: what made its measurements. `key` is unique, `settings` is the
    strategy with its settings as text, and `started` is in seconds since 1970.
    """

    key: str
    strategy: str
    settings: str
    seed: int
    budget: Budget
    started: float
    machine: str
    codegen: str = CODEGEN_VERSION


@dataclass(frozen=True, slots=True)
class Moment:
    """When in a run a candidate was measured: seconds since the start, and the number of the trial,
    from 1 on. 0 is a candidate that was known before the run and was measured again.
    """

    run: TuningRun
    seconds: float
    trial: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of single calls, or why there are none. `references` are those of a kernel that is
    always the same, just before each of them: they tell how fast the machine was at that moment.

    A contended measurement was taken while the machine did something else: it may teach, and wins
    only where nothing else was measured. `confirmed` means that it was repeated in a fresh process
    against the incumbent.

    Scales: a measurement with references is *normal*, its costs are those of a machine whose
    reference kernel takes 100 us. One without is *raw*. A raw time and a normal one say nothing
    about each other, so they are never compared: `rank` puts every normal one before every raw one,
    and all that orders measurements (`trust`, the database, tables, curves) goes by it.
    """

    candidate: Candidate
    seconds: tuple[float, ...] = ()
    failure: Failure | None = None
    contended: bool = False
    confirmed: bool = False
    build_seconds: float = 0.0
    when: float = field(default_factory=time.time)
    references: tuple[float, ...] = ()
    # In which run it was made, if in one: equal measurements may come from different runs.
    moment: Moment | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        c = self.candidate
        if self.failure is not None:
            text = f"{self.failure.kind}: {self.failure.text}"
        else:
            text = f"{self.cost * 1e6:.4g} us of {len(self.seconds)} samples"
        text += ", confirmed" if self.confirmed else ""
        text += ", contended" if self.contended else ""
        return f"<Measurement {c.key[:8]} of {c.task.func.name}: {text}>"

    @property
    def cost(self) -> float:
        """The median; infinite where there are no samples, or one of them is no time at all."""
        return statistics.median(self.seconds) if _are_times(self.seconds) else inf

    @property
    def confidence(self) -> tuple[float, float]:
        return _confidence(self.seconds)

    @property
    def is_normal(self) -> bool:
        """Whether there is a reference time for each sample, to correct for the machine's speed."""
        same = len(self.references) == len(self.seconds)
        return same and _are_times(self.references) and _are_times(self.seconds)

    @property
    def normal_seconds(self) -> tuple[float, ...]:
        """Scaled to a machine whose reference kernel takes 100 us, so that a change of clock speed
        or load cancels out. The seconds unchanged if the measurement is raw.
        """
        if not self.is_normal:
            return self.seconds
        pairs = zip(self.seconds, self.references, strict=True)
        return tuple(s * (_REFERENCE_SECONDS / r) for s, r in pairs)

    @property
    def normal_cost(self) -> float:
        """The median of those: what measurements of one scale are compared by."""
        normal = self.normal_seconds
        return statistics.median(normal) if _are_times(normal) else inf

    @property
    def normal_confidence(self) -> tuple[float, float]:
        return _confidence(self.normal_seconds)

    @property
    def rank(self) -> tuple[bool, float]:
        """What sorts the fastest to the front without comparing across scales."""
        return not self.is_normal, self.normal_cost


_REFERENCE_SECONDS = 1e-4


def _are_times(samples: tuple[float, ...]) -> bool:
    """Whether there are any, and all are finite and more than nothing."""
    return bool(samples) and all(0 < s < inf for s in samples)


def _confidence(samples: tuple[float, ...]) -> tuple[float, float]:
    """A 95 % interval of the median, from the order of the samples alone."""
    if not _are_times(samples):
        return inf, inf
    n = len(samples)
    order = sorted(samples)
    reach = 0.98 * n**0.5  # 1.96 * sqrt(n) / 2: the binomial spread of the median's rank
    low, high = int(max(0, (n - 1) / 2 - reach)), int(min(n - 1, (n - 1) / 2 + reach + 0.999))
    return order[low], order[high]


class Standing(IntEnum):
    """How far a measurement is to be trusted, the most first. Behind a comparison side by side, in
    a fresh process, come times of a calm machine, then those of a busy one; within each, what has
    references comes before what has none, since the two scales are never compared.
    """

    CONFIRMED = 0
    CONFIRMED_RAW = 1
    MEASURED = 2
    MEASURED_RAW = 3
    CONTENDED = 4
    CONTENDED_RAW = 5
    FAILED = 6  # or without a time


def standing_of(m: Measurement) -> Standing:
    if m.failure is not None or m.normal_cost == inf:
        return Standing.FAILED
    calm = Standing.CONFIRMED if m.confirmed else Standing.MEASURED
    return Standing((Standing.CONTENDED if m.contended else calm) + (not m.is_normal))


def trust(m: Measurement) -> tuple[int, float]:
    """What sorts the best to the front, and the only order by which one is called the best: by
    standing, and the faster one of equal standing. A database orders its rows by the same two.
    """
    return int(standing_of(m)), m.normal_cost


def failures_by_kind(measurements: Iterable[Measurement]) -> dict[str, tuple[int, str]]:
    """By kind: the count, and the text of the first."""
    by_kind: dict[str, tuple[int, str]] = {}
    for m in measurements:
        if m.failure is not None:
            count, text = by_kind.get(m.failure.kind, (0, m.failure.text))
            by_kind[m.failure.kind] = count + 1, text
    return by_kind
