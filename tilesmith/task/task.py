"""The nouns that later stages share: a Task is what to make fast, a Candidate one way to do it, a
Measurement what that costs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from tilesmith.base.digest import digest
from tilesmith.base.errors import TuneError
from tilesmith.base.target import Target
from tilesmith.ir.function import Function
from tilesmith.schedule.trace import Trace

# Part of every key: code that is generated differently has other timings.
CODEGEN_VERSION = "1"


def task_key(func: Function, target: Target, codegen: str = CODEGEN_VERSION) -> str:
    """A digest of all that can change the answer."""
    return digest(func.digest, target.fingerprint, codegen)


@dataclass(frozen=True)
class Task:
    """A computation and the machine it is to run on."""

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

    def __repr__(self) -> str:
        t = self.target
        cores = "1 core" if t.num_cores == 1 else f"{t.num_cores} cores"
        return f"<Task {self.func.signature}, for {t.model or t.cpu} with {cores}>"

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and self.key == other.key


@dataclass(frozen=True)
class Candidate:
    """A task with every decision made."""

    task: Task
    trace: Trace

    @cached_property
    def key(self) -> str:
        return digest(self.task.key, self.trace.to_json())

    def __repr__(self) -> str:
        return f"<Candidate {self.key[:8]} of {self.task.func.name}, {len(self.trace)} steps>"

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Candidate) and self.key == other.key


# What can go wrong with a candidate, in the order in which it is found out.
FAILURES = ("schedule", "build", "crash", "timeout", "memory", "bounds", "wrong", "error")


@dataclass(frozen=True, slots=True)
class Failure:
    """`kind` is one of FAILURES; `text` is the first thing that was said about it."""

    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Seconds of single calls, or why there are none. `references` are those of a kernel that is
    always the same, just before each of them: they tell how fast the machine was at that moment.

    A contended measurement was taken while the machine did something else: it may teach, but
    never win. `confirmed` means that it was repeated in a fresh process against the incumbent.
    """

    candidate: Candidate
    seconds: tuple[float, ...] = ()
    failure: Failure | None = None
    contended: bool = False
    confirmed: bool = False
    build_seconds: float = 0.0
    when: float = field(default_factory=time.time)
    references: tuple[float, ...] = ()

    def __repr__(self) -> str:
        c = self.candidate
        if self.failure is not None:
            said = f"{self.failure.kind}: {self.failure.text}"
        else:
            said = f"{self.cost * 1e6:.4g} us of {len(self.seconds)} samples"
        said += ", confirmed" if self.confirmed else ""
        said += ", contended" if self.contended else ""
        return f"<Measurement {c.key[:8]} of {c.task.func.name}: {said}>"

    @property
    def cost(self) -> float:
        """The median, infinite for a failure."""
        return statistics.median(self.seconds) if self.seconds else float("inf")

    @property
    def confidence(self) -> tuple[float, float]:
        return _confidence(self.seconds)

    @property
    def normal_seconds(self) -> tuple[float, ...]:
        """As on a machine whose reference kernel takes 100 us: what the machine's moods do to both
        is taken out. The seconds as they are where there are no references.
        """
        if len(self.references) != len(self.seconds) or min(self.references, default=0.0) <= 0:
            return self.seconds
        pairs = zip(self.seconds, self.references, strict=True)
        return tuple(s * (_REFERENCE_SECONDS / r) for s, r in pairs)

    @property
    def normal_cost(self) -> float:
        """The median of those: what measurements of different moments are compared by."""
        normal = self.normal_seconds
        return statistics.median(normal) if normal else float("inf")

    @property
    def normal_confidence(self) -> tuple[float, float]:
        return _confidence(self.normal_seconds)


_REFERENCE_SECONDS = 1e-4


def _confidence(samples: tuple[float, ...]) -> tuple[float, float]:
    """A 95 % interval of the median, from the order of the samples alone."""
    n = len(samples)
    if n == 0:
        return float("inf"), float("inf")
    order = sorted(samples)
    reach = 0.98 * n**0.5  # 1.96 * sqrt(n) / 2: the binomial spread of the median's rank
    low, high = int(max(0, (n - 1) / 2 - reach)), int(min(n - 1, (n - 1) / 2 + reach + 0.999))
    return order[low], order[high]


def trust(m: Measurement) -> tuple[bool, bool, float]:
    """What sorts the best to the front: what was confirmed is believed before what was not, and
    that before what was contended; the faster one otherwise.
    """
    return not m.confirmed, m.contended, m.normal_cost


def failures_by_kind(measurements: Iterable[Measurement]) -> dict[str, tuple[int, str]]:
    """How many of each kind, and the first text."""
    found: dict[str, tuple[int, str]] = {}
    for m in measurements:
        if m.failure is not None:
            count, text = found.get(m.failure.kind, (0, m.failure.text))
            found[m.failure.kind] = count + 1, text
    return found


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent: measured candidates, wall-clock seconds, or whichever comes first."""

    trials: int | None = None
    seconds: float | None = None
