"""Times kernels with as few samples as tell them apart.

Each kernel is *screened* alone, with the reference kernel before every sample, and abandoned as
soon as it is clearly slower than the best. Kernels near the best *race* in rounds, each in random
order. They are compared by their ratio to the incumbent within a round, because a slowdown of the
machine affects both. A winner is *believed* if it was faster in three of four rounds.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import ceil, inf
from typing import Protocol

from tilesmith.base.dataclass import dataclass
from tilesmith.measure.messages import REFERENCE, Sample


class Clock(Protocol):
    def times(self, order: Sequence[tuple[int, int]], seconds: float) -> list[Sample]:
        """One sample for each (slot, calls), taken in this order within `seconds`."""


@dataclass(frozen=True, slots=True)
class ProcessorClock:
    """Counts processor time, which excludes the time in which another process has the core."""

    clock: Clock

    def times(self, order: Sequence[tuple[int, int]], seconds: float) -> list[Sample]:
        return [Sample(s.seconds * s.share, 1.0) for s in self.clock.times(order, seconds)]


@dataclass(frozen=True, slots=True)
class TimingRules:
    """How many samples are taken, and how they are judged. Bounds on times are factors."""

    sample_seconds: float = 0.001  # shorter kernels are called several times per sample
    min_samples: int = 3
    min_seconds: float = 0.006  # for all samples of a kernel together
    max_seconds: float = 0.1  # no more samples after this: those of long kernels vary less
    # A kernel slower than the best by this factor after 1, 2, 3 samples gets no more.
    cutoffs: tuple[float, ...] = (2.0, 1.6, 1.3)
    first_cutoff: float = 2.5  # for the first call, with cold caches
    long_cutoff: float = (
        1.4  # for a first call of at least `long_seconds`, where cold caches hardly matter
    )
    long_seconds: float = 0.02
    # A sample with a smaller share of the processor, or more drift up or down, is repeated.
    min_share: float = 0.9
    max_drift: float = 1.15
    calm_drift: float = 1.015  # a sample with less drift is calm: the machine is as usual
    race_within: float = 1.15  # kernels slower than the best by more do not race
    max_entrants: int = 8
    rounds: int = 3  # rounds of a race between two halvings
    margin: float = 0.005  # relative; a winner must be faster by more
    confirm_rounds: int = 9
    min_limit: float = 1.0  # seconds after which a kernel times out at the earliest
    first_limit: float = inf  # seconds after which it does if no other kernel has a time
    # Count processor time instead of wall-clock time: for single-threaded kernels on a machine that
    # is never idle.
    processor_time: bool = False

    def gives_up(self, first: float, best: float) -> bool:
        """Whether a kernel is abandoned after its first call: one sample of a slow kernel takes as
        long as many samples of good ones.
        """
        cutoff = self.long_cutoff if first >= self.long_seconds else self.first_cutoff
        return first > self.sample_seconds and first > cutoff * best

    def is_clean(self, s: Sample) -> bool:
        return s.share >= self.min_share and 1 / self.max_drift <= s.drift <= self.max_drift


@dataclass(slots=True)
class Timed:
    """The samples of one kernel."""

    samples: list[Sample] = field(default_factory=list)
    calls: int = 1  # per sample

    def clean(self, rules: TimingRules) -> list[Sample]:
        return [s for s in self.samples if rules.is_clean(s)]

    def calm(self, rules: TimingRules) -> list[Sample]:
        """Clean samples taken while the machine was about as fast as usual."""
        return [s for s in self.clean(rules) if s.drift <= rules.calm_drift]

    def recorded(self, rules: TimingRules) -> list[Sample]:
        """The calm samples if there are enough, else the clean ones, else all: time lost to other
        processes or a lower clock speed is not the kernel's.
        """
        for chosen in (self.calm(rules), self.clean(rules)):
            if len(chosen) >= min(rules.min_samples, len(self.samples)):
                return chosen
        return self.samples

    def is_contended(self, rules: TimingRules) -> bool:
        """Whether the recorded samples were taken while other processes were using the machine."""
        if len(self.calm(rules)) >= rules.min_samples:
            return False
        return 2 * len(self.clean(rules)) < len(self.samples)

    @property
    def corrected(self) -> float:
        """Median seconds with the machine's drift divided out."""
        return statistics.median(_corrected(s) for s in self.samples)


class DriftMonitor:
    """How much slower the machine is than usual, from the times of the reference kernel."""

    def __init__(self) -> None:
        self._history: deque[float] = deque(maxlen=200)
        # A slowdown lasts, so the median of a few samples distinguishes it from an outlier.
        self._recent: deque[float] = deque(maxlen=9)

    def annotate(
        self, reference: Sample, samples: Sequence[Sample], rules: TimingRules
    ) -> list[Sample]:
        """The samples taken just after `reference`, with its drift and time filled in."""
        drift = self.drift(reference, rules)
        # Processor time: time lost to another process says nothing about the machine's speed.
        self._recent.append(reference.seconds * reference.share)
        return [replace(s, drift=drift, reference=self.latest) for s in samples]

    @property
    def latest(self) -> float:
        """The median of its last 9 times, in seconds; 0 if it never ran."""
        return statistics.median(self._recent) if self._recent else 0.0

    def drift(self, reference: Sample, rules: TimingRules) -> float:
        """The reference kernel's time relative to its usual one, which is the 20 % quantile of the
        last 200: a clock that stays slower becomes the usual one after a while. A shared core or a
        throttled clock costs less than a factor of two; more is an outlier and is clipped.
        """
        if reference.share < rules.min_share:
            return 1.0  # contention shows in the share of the kernel's own sample
        self._history.append(reference.seconds)
        order = sorted(self._history)
        return min(1.6, max(0.6, reference.seconds / order[len(order) // 5]))


def screen(
    clock: Clock, slot: int, first: float, best: float, rules: TimingRules, monitor: DriftMonitor,
    timeout: float,
) -> Timed:  # fmt: skip
    """`first` is the time of a first call; `best` that of the fastest known kernel, or infinite."""
    if rules.gives_up(first, best):
        return Timed([Sample(first, 1.0, reference=monitor.latest)])
    timed = Timed(calls=_calls(first, rules))
    spent = 0.0
    for n in range(4 * rules.min_samples):
        expected = timed.calls * first
        order = ((REFERENCE, 1), (slot, timed.calls))
        reference, sample = clock.times(order, timeout + 10 * expected)
        spent += sample.seconds * timed.calls
        better = _calls(sample.seconds, rules)
        if better > 2 * timed.calls and n == 0:  # the first call was not typical
            timed.calls = better
            continue
        timed.samples += monitor.annotate(reference, [sample], rules)
        if _is_hopeless(timed.samples, best, rules):
            break
        enough = len(timed.clean(rules)) >= rules.min_samples and spent >= rules.min_seconds
        if enough or spent >= rules.max_seconds:
            break
    return timed


def retime(
    clock: Clock, slot: int, timed: Timed, rules: TimingRules, monitor: DriftMonitor, timeout: float
) -> float:
    """The present time of a kernel measured before, with drift divided out, from few samples."""
    most = ceil(rules.max_seconds / (timed.corrected * timed.calls))
    order = ((REFERENCE, 1), (slot, timed.calls)) * min(rules.min_samples, most)
    samples = clock.times(order, timeout)
    pairs = zip(samples[0::2], samples[1::2], strict=True)
    return statistics.median(s.seconds / monitor.drift(r, rules) for r, s in pairs)


def _calls(seconds: float, rules: TimingRules) -> int:
    return max(1, ceil(rules.sample_seconds / max(seconds, 1e-8)))


def _is_hopeless(samples: Sequence[Sample], best: float, rules: TimingRules) -> bool:
    cutoff = rules.cutoffs[min(len(samples), len(rules.cutoffs)) - 1]
    return min(map(_corrected, samples)) > cutoff * best


class Race:
    """Samples of each entrant, and its ratios to the pivot within each round. Entrants and the
    pivot are given as slots with their calls per sample.
    """

    def __init__(self, entrants: Mapping[int, int], pivot: tuple[int, int]) -> None:
        self._pivot, self._calls = pivot[0], dict([*entrants.items(), pivot])
        self.samples: dict[int, list[Sample]] = {s: [] for s in self._calls}
        self.ratios: dict[int, list[float]] = {s: [] for s in entrants}

    def run(
        self, clock: Clock, alive: Sequence[int], count: int, rules: TimingRules,
        monitor: DriftMonitor, rng: random.Random, timeout: float,
    ) -> None:  # fmt: skip
        spent = 0.0
        for _ in range(count):
            if spent >= rules.max_seconds:
                break
            slots = sorted({self._pivot, *alive})
            rng.shuffle(slots)
            order = [(REFERENCE, 1), *((s, self._calls[s]) for s in slots)]
            reference, *samples = clock.times(order, timeout * len(order))
            by_slot = dict(zip(slots, monitor.annotate(reference, samples, rules), strict=True))
            spent += by_slot[self._pivot].seconds * self._calls[self._pivot]
            for s, sample in by_slot.items():
                self.samples[s].append(sample)
            for s in alive:
                self.ratios[s].append(by_slot[s].seconds / by_slot[self._pivot].seconds)

    @property
    def winner(self) -> int:
        """The fastest among those that ran in the most rounds."""
        return min(self.ratios, key=lambda s: (-len(self.ratios[s]), self.median(s)))

    def median(self, slot: int) -> float:
        return statistics.median(self.ratios[slot])


def race(
    clock: Clock, entrants: Mapping[int, int], pivot: tuple[int, int], rules: TimingRules,
    monitor: DriftMonitor, rng: random.Random, timeout: float,
) -> Race:  # fmt: skip
    """Successive halving of `entrants`, which may include the pivot."""
    result = Race(entrants, pivot)
    alive = list(entrants)
    while True:
        result.run(clock, alive, rules.rounds, rules, monitor, rng, timeout)
        if len(alive) == 1:
            break
        alive.sort(key=lambda s: statistics.median(result.ratios[s]))
        alive = alive[: (len(alive) + 1) // 2]
        # An entrant that was slower than the pivot in every round cannot win.
        alive = [s for s in alive if s == pivot[0] or min(result.ratios[s]) < 1.0] or alive[:1]
    return result


def duel(
    clock: Clock, challenger: tuple[int, int], pivot: tuple[int, int], rules: TimingRules,
    monitor: DriftMonitor, rng: random.Random, timeout: float,
) -> Race:  # fmt: skip
    """Challenger against pivot, round by round, until `confirm_rounds` were calm, or two or more
    rounds have taken 2 * `max_seconds`.
    """
    result = Race(dict([challenger]), pivot)
    slot, calls = challenger
    for done in range(1, 3 * rules.confirm_rounds + 1):
        result.run(clock, [slot], 1, rules, monitor, rng, timeout)
        samples = result.samples[slot]
        spent = calls * sum(s.seconds for s in samples)
        calm = len(Timed(samples).calm(rules))
        if calm >= rules.confirm_rounds or (done >= 2 and spent > 2 * rules.max_seconds):
            break
    return result


def is_believed(ratios: Sequence[float], rules: TimingRules) -> bool:
    """Whether a challenger beats the incumbent: by the margin in the median, and in at least three
    of four rounds. With nine rounds, that happens between equal kernels in one of eleven cases.
    """
    wins = sum(r < 1.0 for r in ratios)
    return statistics.median(ratios) < 1.0 - rules.margin and 4 * wins >= 3 * len(ratios)


def _corrected(s: Sample) -> float:
    """Seconds with the machine's drift divided out. For decisions; records hold `seconds`."""
    return s.seconds / s.drift
