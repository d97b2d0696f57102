"""The data types that later stages share: Task (a computation and its target), Candidate (a task
with a schedule), Measurement (its timings), Budget and TuningRun. And the one order that decides
which measurement is the best (`trust`, Ranking), also over the time of a run (`curve_of`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from enum import IntEnum
from functools import cached_property
from math import inf

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT16, DType
from tilesmith.base.errors import ScheduleError, TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.html import html_folded, html_pairs
from tilesmith.base.identity import digest
from tilesmith.base.target import Target
from tilesmith.ir.function import Function
from tilesmith.ir.rename import structure_of
from tilesmith.schedule.trace import Parts, Trace

# Part of every key: kernels of another code generator have other timings.
CODEGEN_VERSION = "16"
# The ways in which a candidate can fail, in the order in which they are detected.
FAILURES = ("schedule", "build", "crash", "timeout", "memory", "bounds", "wrong", "error")
_REFERENCE_SECONDS = 1e-4


def codegen_of(target: Target, parts: Parts | None = None) -> str:
    """The code generator of a target's kernels: the version of the built-in ones, and behind it
    the name of a user's own back end, which is built on them.
    """
    builder = "" if parts is None else parts.builder(target.kind)
    return f"{CODEGEN_VERSION}+{builder}" if builder else CODEGEN_VERSION


def builder_of(codegen: str) -> str:
    """The name of the user's back end in what `codegen_of` returned; empty for a built-in one."""
    return codegen.partition("+")[2]


def is_current(codegen: str) -> bool:
    """Whether it is of this version, whatever the back end."""
    return codegen.partition("+")[0] == CODEGEN_VERSION


def task_key(func: Function, target: Target, codegen: str = CODEGEN_VERSION) -> str:
    """A digest of everything that can change the result or its speed. Names cannot: tasks that
    differ only in names have the same key and share their measurements.
    """
    return digest(structure_of(func), target.fingerprint, codegen)


def statement_key(func: Function, target: Target, codegen: str = CODEGEN_VERSION) -> str:
    """A digest of the task including names, because traces refer to names."""
    return digest(func.digest, target.fingerprint, codegen)


@checks_given(error=TuneError)
@dataclass(frozen=True)
class Task:
    """A computation and the machine it is to run on. Equal tasks have equal names, too; the traces
    of another task with the same `key` are first translated to this one's names.

    `parts` are those of your own, whose back end builds its kernels. With None they are the
    built-in ones, or those of the database that is asked.
    """

    func: Function
    target: Target
    parts: Parts | None = None

    @cached_property
    def codegen(self) -> str:
        """What generates the code of its kernels, see `codegen_of`."""
        return codegen_of(self.target, self.parts)

    @cached_property
    def key(self) -> str:
        """A hash of the computation, the target and the code generator, without names: under it
        records are found.
        """
        return task_key(self.func, self.target, self.codegen)

    @cached_property
    def statement(self) -> str:
        """A hash with names, which traces refer to."""
        return digest(self.func_digest, self.target.fingerprint, self.codegen)

    @cached_property
    def func_digest(self) -> str:
        """That of its function, which takes some milliseconds."""
        return self.func.digest

    def with_parts(self, parts: Parts | None) -> Task:
        """The same task with these parts, unless it has its own."""
        return self if self.parts is not None or parts is None else replace(self, parts=parts)

    def __repr__(self) -> str:
        t = self.target
        cores = "1 core" if t.num_cores == 1 else f"{t.num_cores} cores"
        return f"<Task {self.func.signature}, for {t.model or t.cpu} with {cores}>"

    def __hash__(self) -> int:
        return hash(self.statement)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and self.statement == other.statement


@checks_given(error=TuneError)
@dataclass(frozen=True)
class Candidate:
    """A task and a trace in which every decision is made."""

    task: Task
    trace: Trace

    @cached_property
    def key(self) -> str:
        """A hash of the task and the trace."""
        return digest(self.task.statement, self.trace.to_json())

    def __repr__(self) -> str:
        return f"<Candidate {self.key[:8]} of {self.task.func.name}, {len(self.trace)} steps>"

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Candidate) and self.key == other.key


@checks_given(error=TuneError)
@dataclass(frozen=True, slots=True)
class Failure:
    """`kind` is one of FAILURES; `text` is the first error message."""

    kind: str
    text: str = ""


# What is allowed unless a caller says otherwise: the error of any layer over its largest value, if
# it sums in float32, and if it sums in float16.
ACCURACY, HALF_ACCURACY = 1e-5, 5e-3


def require_accuracy(accuracy: object) -> None:
    if accuracy is None:
        return
    if not isinstance(accuracy, float | int) or isinstance(accuracy, bool) or not accuracy >= 0:
        raise ScheduleError(
            f"accuracy is {accuracy!r}; it is the relative error that a layer may have, such as "
            f"{ACCURACY} (0 computes every sum as it is stated)"
        )


def allowed_error(accuracy: float | None, d: DType) -> float:
    """The relative error that a layer may have if it sums in this type: what the caller says, or by
    default 1e-5, and 5e-3 (ten roundings) for sums in float16.
    """
    if accuracy is not None:
        return accuracy
    return HALF_ACCURACY if d is FLOAT16 else ACCURACY


@checks_given(error=TuneError)
@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a run; give at least one of the first two.

    - `trials`: measured candidates.
    - `seconds`: wall-clock time.
    - `patience`: the run also ends after so many measured candidates without an improvement.

    Example:

        ts.Budget(trials=500, seconds=60)
    """

    trials: int | None = None
    seconds: float | None = None
    patience: int | None = None

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 1:
            raise TuneError(
                f"Budget(trials={self.trials!r}): how many candidates may be measured, from 1 on"
            )
        if self.patience is not None and self.patience < 1:
            raise TuneError(
                f"Budget(patience={self.patience!r}): after how many trials without a better one "
                "to stop, from 1 on"
            )
        if self.seconds is not None and not 0 < self.seconds < inf:
            raise TuneError(f"Budget(seconds={self.seconds!r}): a number of seconds above 0")


@checks_given(error=TuneError)
@dataclass(frozen=True, slots=True)
class TuningRun:
    """One search of one task, to which measurements refer. `key` is unique, `settings` is the
    strategy with its parameters as text, and `started` is in seconds since 1970.
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
    """When in a run a candidate was measured: seconds since the start, and the number of the trial
    from 1. Trial 0 is a candidate that was known before the run and was measured again.
    """

    run: TuningRun
    seconds: float
    trial: int


@checks_given(error=TuneError)
@dataclass(frozen=True, slots=True)
class Measurement:
    """The seconds of single calls, or why there are none. `references` are the seconds of a fixed
    reference kernel, run directly before each call: they tell how fast the machine was then.

    A contended measurement was taken while the machine was busy. Cost models learn from it, but it
    is the best only if nothing else was measured. `confirmed` means that it was repeated in a fresh
    process, side by side with the incumbent.

    Scales: a measurement with references is *normal*; its costs are those of a machine whose
    reference kernel takes 100 us. One without is *raw*. Raw and normal times are never compared:
    `rank` puts every normal one before every raw one, and everything that orders measurements
    (`trust`, the database, tables, curves) uses it.
    """

    candidate: Candidate
    seconds: tuple[float, ...] = ()
    failure: Failure | None = None
    contended: bool = False
    confirmed: bool = False
    build_seconds: float = 0.0
    when: float = field(default_factory=time.time)
    references: tuple[float, ...] = ()
    # When it was taken, if in a run: equal measurements may come from different runs.
    moment: Moment | None = field(default=None, compare=False)
    machine: str = field(default="", compare=False)  # of a fleet; empty if it was taken here

    def __repr__(self) -> str:
        c = self.candidate
        if self.failure is not None:
            text = f"{self.failure.kind}: {self.failure.text}"
        else:
            text = f"{self.cost * 1e6:.4g} us of {len(self.seconds)} samples"
        text += ", confirmed" if self.confirmed else ""
        text += ", contended" if self.contended else ""
        return f"<Measurement {c.key[:8]} of {c.task.func.name}: {text}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        if self.failure is not None:
            pairs = [("failed", self.failure.kind), ("message", self.failure.text[:300])]
        else:
            low, high = (1e6 * s for s in self.confidence)
            pairs = [
                ("median", f"{self.cost * 1e6:.4g} us of {len(self.seconds)} samples"),
                ("95 % interval", f"{low:.4g} to {high:.4g} us"),
                ("confirmed", "yes" if self.confirmed else "no"),
            ]
        if self.machine:
            pairs.append(("machine", self.machine))
        schedule = str(self.candidate.trace) or "the loops as stated"
        title = f"Measurement of {self.candidate.task.func.name}"
        return html_pairs(title, pairs) + html_folded("schedule", schedule)

    @property
    def cost(self) -> float:
        """The median in seconds; infinite without samples, or if one is not a positive number."""
        return statistics.median(self.seconds) if _are_times(self.seconds) else inf

    @property
    def confidence(self) -> tuple[float, float]:
        """A 95 % interval of the median of `seconds`."""
        return _confidence(self.seconds)

    @property
    def is_normal(self) -> bool:
        """Whether there is a reference time for each sample, to correct for the machine's speed."""
        same = len(self.references) == len(self.seconds)
        return same and _are_times(self.references) and _are_times(self.seconds)

    @property
    def normal_seconds(self) -> tuple[float, ...]:
        """The seconds scaled to a machine whose reference kernel takes 100 us, so that changes of
        clock speed and load cancel out. Unchanged if the measurement is raw.
        """
        if not self.is_normal:
            return self.seconds
        pairs = zip(self.seconds, self.references, strict=True)
        return tuple(s * (_REFERENCE_SECONDS / r) for s, r in pairs)

    @property
    def normal_cost(self) -> float:
        """The median of `normal_seconds`, by which measurements of one scale are compared."""
        normal = self.normal_seconds
        return statistics.median(normal) if _are_times(normal) else inf

    @property
    def normal_confidence(self) -> tuple[float, float]:
        """A 95 % interval of the median of `normal_seconds`."""
        return _confidence(self.normal_seconds)

    @property
    def rank(self) -> tuple[bool, float]:
        """A sort key: the fastest first, without comparing across scales."""
        return not self.is_normal, self.normal_cost


def _are_times(samples: tuple[float, ...]) -> bool:
    """Whether there are samples, and all are finite and positive."""
    return bool(samples) and all(0 < s < inf for s in samples)


def _confidence(samples: tuple[float, ...]) -> tuple[float, float]:
    """A 95 % confidence interval of the median, from order statistics."""
    if not _are_times(samples):
        return inf, inf
    n = len(samples)
    order = sorted(samples)
    reach = 0.98 * n**0.5  # 1.96 * sqrt(n) / 2: the binomial spread of the median's rank
    low, high = int(max(0, (n - 1) / 2 - reach)), int(min(n - 1, (n - 1) / 2 + reach + 0.999))
    return order[low], order[high]


class Standing(IntEnum):
    """How reliable a measurement is, the most reliable first: compared side by side in a fresh
    process, then timed on a calm machine, then on a busy one. Within each, measurements with
    references come first, because the two scales are never compared.
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
    """A sort key with the best first, and the only order that defines the best: by standing, then
    by speed. A database orders its rows by the same two.
    """
    return int(standing_of(m)), m.normal_cost


def failures_by_kind(measurements: Iterable[Measurement]) -> dict[str, tuple[int, str]]:
    """For each kind of failure, the count and the text of the first one."""
    by_kind: dict[str, tuple[int, str]] = {}
    for m in measurements:
        if m.failure is not None:
            count, text = by_kind.get(m.failure.kind, (0, m.failure.text))
            by_kind[m.failure.kind] = count + 1, text
    return by_kind


class Ranking:
    """For each candidate, the latest of its most reliable measurements counts: confirmed ones
    before those on a calm machine before contended ones. A failure cancels everything before it.
    """

    def __init__(self, measurements: Iterable[Measurement] = ()) -> None:
        self._valid: dict[str, Measurement] = {}
        self._trust: dict[str, tuple[int, float]] = {}  # of each, because medians take time
        self.best: Measurement | None = None  # the first by `trust` of those that count
        for m in measurements:
            self.add(m)

    def add(self, m: Measurement) -> None:
        key, rank = m.candidate.key, trust(m)
        old = self._valid.get(key)
        if m.failure is not None:
            self._valid.pop(key, None)
            self._trust.pop(key, None)
        elif rank[0] < Standing.FAILED and (
            old is None or rank[0] // 2 <= self._trust[key][0] // 2
        ):
            self._valid[key], self._trust[key] = m, rank
        else:
            return
        if old is not None and old is self.best:
            first = min(self._trust, key=self._trust.__getitem__, default=None)
            self.best = None if first is None else self._valid[first]
        elif m.failure is None and (
            self.best is None or rank < self._trust[self.best.candidate.key]
        ):
            self.best = m

    def __contains__(self, m: Measurement) -> bool:
        """Whether a measurement of its candidate counts."""
        return m.candidate.key in self._valid

    @property
    def ranked(self) -> list[Measurement]:
        """The measurements that count, the best first."""
        return [self._valid[key] for key in sorted(self._trust, key=self._trust.__getitem__)]


def is_as_reliable(m: Measurement, other: Measurement) -> bool:
    """Whether m is of the same or a better kind, regardless of times and scales."""
    return standing_of(m) // 2 <= standing_of(other) // 2


Curve = tuple[tuple[float, int, float], ...]


def curve_of(measurements: Iterable[Measurement]) -> Curve:
    """(seconds, trials, best cost) at every improvement, from the measurements of one run in their
    order. Candidates known before the run and measured again are points at 0 s.

    All costs are scaled to the machine's speed when the last best was measured. Measurements of
    another scale (see Measurement) are left out, and so are candidates that failed later. Costs
    never rise: a time that a more careful measurement did not confirm is the confirmed one.
    """
    ranking = Ranking()
    bests: list[tuple[float, int, Measurement]] = []
    for m in measurements:
        if m.moment is None:
            continue
        ranking.add(m)
        if m.failure is not None:
            bests = [b for b in bests if b[2].candidate.key != m.candidate.key]
        best = ranking.best
        if best is not None and (not bests or bests[-1][2] is not best):
            seconds = m.moment.seconds if m.moment.trial else 0.0
            bests.append((seconds, m.moment.trial, best))
    costs = falling_costs([m for *_, m in bests])
    points = (
        (seconds, trial, cost)
        for (seconds, trial, _), cost in zip(bests, costs, strict=True)
        if cost is not None
    )
    return tuple(points)


def falling_costs(bests: Sequence[Measurement]) -> list[float | None]:
    """The costs of measurements that were the best one after the other, at the machine's speed of
    the last one. None on another scale. Each is at least the one after it.
    """
    if not bests:
        return []
    last = bests[-1]
    speed, cost = last.cost / last.normal_cost, 0.0
    out: list[float | None] = []
    for m in reversed(bests):
        if m.is_normal is last.is_normal:
            cost = max(cost, m.normal_cost * speed)
            out.append(cost)
        else:
            out.append(None)
    return out[::-1]
