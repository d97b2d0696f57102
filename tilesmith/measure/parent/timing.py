"""How long a kernel takes: a clock that gives samples in, enough of them out to tell kernels apart,
and no more.

Three things are done with kernels. Each is *screened* alone, with the reference kernel before every
sample, and given up as soon as it is clearly worse than the best. Those near the best *race* in
rounds, in random order, and are compared by the ratio to the incumbent within a round: what slows
the machine down slows down both. A winner of races is *believed* when nearly all its rounds say so.
"""

from __future__ import annotations

import random
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Protocol

from tilesmith.measure.messages import REFERENCE, Sample


class Clock(Protocol):
    def times(self, order: Sequence[tuple[int, int]], seconds: float) -> list[Sample]:
        """A sample each of (slot, calls), one after the other, within so many seconds."""


@dataclass(frozen=True, slots=True)
class ProcessorClock:
    """A clock that stands still while another process has the core."""

    clock: Clock

    def times(self, order: Sequence[tuple[int, int]], seconds: float) -> list[Sample]:
        return [Sample(s.seconds * s.share, 1.0) for s in self.clock.times(order, seconds)]


@dataclass(frozen=True, slots=True)
class TimingRules:
    sample_seconds: float = 0.001  # shorter kernels are called several times per sample
    min_samples: int = 3
    min_seconds: float = 0.006  # of all samples together
    max_seconds: float = 0.1  # after this, fewer samples must do: long ones vary less
    # How much slower than the best one may be after so many samples, and be sampled again.
    cutoffs: tuple[float, ...] = (2.0, 1.6, 1.3)
    first_cutoff: float = 2.5  # of the first call, which meets cold caches
    long_cutoff: float = 1.4  # of a first call that takes so long that caches hardly matter
    long_seconds: float = 0.02
    # A sample with less of the processor, or with more drift either way, is taken again.
    min_share: float = 0.9
    max_drift: float = 1.15
    calm_drift: float = 1.015  # with no more than this the machine is as it usually is
    race_within: float = 1.15  # of the best
    max_entrants: int = 8
    rounds: int = 3  # between two halvings
    margin: float = 0.005  # by which a winner wins
    confirm_rounds: int = 9
    # Count the time that the processor gave, not the clock on the wall: for kernels of one thread,
    # on a machine that is never idle.
    processor_time: bool = False

    def gives_up(self, first: float, best: float) -> bool:
        """Whether a first call tells enough: a slow kernel costs as much as many good ones."""
        cutoff = self.long_cutoff if first >= self.long_seconds else self.first_cutoff
        return first > self.sample_seconds and first > cutoff * best

    def is_clean(self, s: Sample) -> bool:
        return s.share >= self.min_share and 1 / self.max_drift <= s.drift <= self.max_drift


@dataclass(slots=True)
class Timed:
    """What is known of a kernel's time."""

    samples: list[Sample] = field(default_factory=list)
    calls: int = 1  # per sample

    def clean(self, rules: TimingRules) -> list[Sample]:
        return [s for s in self.samples if rules.is_clean(s)]

    def calm(self, rules: TimingRules) -> list[Sample]:
        """Those that were taken while the machine was as it usually is."""
        return [s for s in self.clean(rules) if s.drift <= rules.calm_drift]

    def recorded(self, rules: TimingRules) -> list[Sample]:
        """The calm samples if they suffice, or else the clean ones: what another process or the
        machine's moods took is not the kernel's time.
        """
        for chosen in (self.calm(rules), self.clean(rules)):
            if len(chosen) >= min(rules.min_samples, len(self.samples)):
                return chosen
        return self.samples

    def is_contended(self, rules: TimingRules) -> bool:
        """Whether what is recorded was taken while the machine did something else."""
        if len(self.calm(rules)) >= rules.min_samples:
            return False
        return 2 * len(self.clean(rules)) < len(self.samples)

    @property
    def corrected(self) -> float:
        return statistics.median(s.corrected for s in self.samples)


class DriftMonitor:
    """What the reference kernel tells: how much slower the machine is than it mostly was."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=200)
        # Moods last: the median of a few tells them from an accident of one sample.
        self._recent: deque[float] = deque(maxlen=9)

    def judge(
        self, reference: Sample, samples: Sequence[Sample], rules: TimingRules
    ) -> list[Sample]:
        """The samples that followed it, with what it says about them."""
        drift = self.drift(reference, rules)
        # what another process took of the reference's time says nothing of how fast the machine is
        self._recent.append(reference.seconds * reference.share)
        return [replace(s, drift=drift, reference=self.latest) for s in samples]

    @property
    def latest(self) -> float:
        """Seconds that the reference took of late; 0 if it never ran."""
        return statistics.median(self._recent) if self._recent else 0.0

    def drift(self, reference: Sample, rules: TimingRules) -> float:
        """The usual time is a low quantile of the latest ones, so that a clock that settles down is
        not taken for a neighbour for ever. A machine has moods (a shared core, a throttled clock)
        that differ by less than a factor of two; more is an accident of this one sample.
        """
        if reference.share < rules.min_share:
            return 1.0  # the kernel's own share will tell
        self._seen.append(reference.seconds)
        order = sorted(self._seen)
        return min(1.6, max(0.6, reference.seconds / order[len(order) // 5]))


def screen(
    clock: Clock, slot: int, first: float, best: float, rules: TimingRules, monitor: DriftMonitor,
    timeout: float,
) -> Timed:  # fmt: skip
    """`first` is the time of a first call, `best` that of the fastest kernel known, or infinite."""
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
        if better > 2 * timed.calls and n == 0:  # the first call was slow, or took no time
            timed.calls = better
            continue
        timed.samples += monitor.judge(reference, [sample], rules)
        if _is_hopeless(timed.samples, best, rules):
            break
        enough = len(timed.clean(rules)) >= rules.min_samples and spent >= rules.min_seconds
        if enough or spent >= rules.max_seconds:
            break
    return timed


def retime(
    clock: Clock, slot: int, timed: Timed, rules: TimingRules, monitor: DriftMonitor, timeout: float
) -> float:
    """A known kernel's time as the machine usually is, from a few samples."""
    most = ceil(rules.max_seconds / (timed.corrected * timed.calls))
    order = ((REFERENCE, 1), (slot, timed.calls)) * min(rules.min_samples, most)
    samples = clock.times(order, timeout)
    pairs = zip(samples[0::2], samples[1::2], strict=True)
    return statistics.median(s.seconds / monitor.drift(r, rules) for r, s in pairs)


def _calls(seconds: float, rules: TimingRules) -> int:
    return max(1, ceil(rules.sample_seconds / max(seconds, 1e-8)))


def _is_hopeless(samples: Sequence[Sample], best: float, rules: TimingRules) -> bool:
    cutoff = rules.cutoffs[min(len(samples), len(rules.cutoffs)) - 1]
    return min(s.corrected for s in samples) > cutoff * best


class Race:
    """Samples of each entrant, and its ratios to the pivot within each round."""

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
            got = dict(zip(slots, monitor.judge(reference, samples, rules), strict=True))
            spent += got[self._pivot].seconds * self._calls[self._pivot]
            for s, sample in got.items():
                self.samples[s].append(sample)
            for s in alive:
                self.ratios[s].append(got[s].seconds / got[self._pivot].seconds)

    @property
    def winner(self) -> int:
        """The one that stayed longest and was fastest."""
        return min(self.ratios, key=lambda s: (-len(self.ratios[s]), self.median(s)))

    def median(self, slot: int) -> float:
        return statistics.median(self.ratios[slot])


def race(
    clock: Clock, entrants: Mapping[int, int], pivot: tuple[int, int], rules: TimingRules,
    monitor: DriftMonitor, rng: random.Random, timeout: float,
) -> Race:  # fmt: skip
    """Successive halving of `entrants`, which may hold the pivot; slots with calls per sample."""
    result = Race(entrants, pivot)
    alive = list(entrants)
    while True:
        result.run(clock, alive, rules.rounds, rules, monitor, rng, timeout)
        if len(alive) == 1:
            break
        alive.sort(key=lambda s: statistics.median(result.ratios[s]))
        alive = alive[: (len(alive) + 1) // 2]
        # Slower than the pivot in every round: no more to learn.
        alive = [s for s in alive if s == pivot[0] or min(result.ratios[s]) < 1.0] or alive[:1]
    return result


def duel(
    clock: Clock, challenger: tuple[int, int], pivot: tuple[int, int], rules: TimingRules,
    monitor: DriftMonitor, rng: random.Random, timeout: float,
) -> Race:  # fmt: skip
    """Round by round, until there are enough of them in which the machine was calm, or two have
    taken long.
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
    """Whether a challenger beats the incumbent: by a margin in the median, and in at least three of
    four rounds, as happens to equals in nine rounds once in eleven times.
    """
    wins = sum(r < 1.0 for r in ratios)
    return statistics.median(ratios) < 1.0 - rules.margin and 4 * wins >= 3 * len(ratios)
