"""Compares contestants by paired ratios. Ours and a peer take turns, so that both see the same
state of the machine, and only ratios within a pair are used.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from tilesmith.base.dataclass import dataclass


@dataclass(frozen=True)
class Timing:
    """One sample of a contestant."""

    seconds: float  # per call
    share: float = 1.0  # processor time / wall time, over all threads

    @property
    def processor_seconds(self) -> float:
        return self.seconds * self.share


# Makes one untimed call, which warms the caches, then so many timed ones.
Sampler = Callable[[int], Timing]


@dataclass(frozen=True)
class Turns:
    """How turns are taken.

    A sample is at least `sample_seconds` of calls. Peers that are slower than `close` times the
    fastest are timed once and not paired, except those in `paired`. In every `alone_every`-th round
    a contestant takes a second turn in a row: what it takes then is what it takes alone. No contest
    takes much longer than `most_seconds`. `processor_time` counts that instead of wall time, which
    is fair on a machine that others use too, but only where all have one thread.
    """

    rounds: int = 21
    sample_seconds: float = 0.01
    close: float = 1.5
    alone_every: int = 2
    most_seconds: float = 15.0
    paired: tuple[str, ...] = ()
    processor_time: bool = False


@dataclass(frozen=True)
class Duel:
    """Ours against one peer; a ratio above 1 means that ours is faster."""

    peer: str
    ours: float  # median seconds
    theirs: float
    ratio: float  # the median of the paired ratios
    spread: float  # half the distance between their quartiles


def duel_of(peer: str, pairs: Sequence[tuple[float, float]]) -> Duel:
    """`pairs` are seconds of (peer, ours), measured side by side."""
    ratios = sorted(p / o for p, o in pairs)
    low, high = ratios[len(ratios) // 4], ratios[(3 * len(ratios)) // 4]
    return Duel(
        peer,
        statistics.median(o for _, o in pairs),
        statistics.median(p for p, _ in pairs),
        statistics.median(ratios),
        (high - low) / 2,
    )


def geometric_mean(ratios: Iterable[float]) -> float | None:
    logs = [math.log(r) for r in ratios]
    return math.exp(statistics.fmean(logs)) if logs else None


@dataclass(frozen=True)
class Contest:
    """Duels with the fastest peers, the hardest first; and for each contestant its seconds, its
    share of the processor, and its time in turns relative to its time alone. Ours is named "".
    """

    ours: float
    duels: tuple[Duel, ...]
    times: Mapping[str, float]
    shares: Mapping[str, float]
    disturbance: Mapping[str, float]


class _Contestant:
    """The samples of one contestant."""

    def __init__(self, sampler: Sampler, turns: Turns) -> None:
        self._sampler, self._turns = sampler, turns
        self._shares: list[float] = []
        self._disturbance: list[float] = []
        self.seconds = self._first()

    def _first(self) -> float:
        """The approximate time of a call: the minimum, because first calls map memory."""
        seen: list[Timing] = []
        while len(seen) < 15 and sum(t.seconds for t in seen) < 0.25:
            seen.append(self._sampler(1))
        return min(map(self._clock, seen))

    def _clock(self, timing: Timing) -> float:
        seconds = timing.processor_seconds if self._turns.processor_time else timing.seconds
        return max(seconds, 1e-9)

    @property
    def calls(self) -> int:
        return max(1, math.ceil(self._turns.sample_seconds / self.seconds))

    @property
    def cost(self) -> float:
        """The expected seconds of a turn, with the warm-up call and the second turns."""
        return (1 + self.calls) * self.seconds * (1 + 1 / self._turns.alone_every)

    def turn(self, again: bool) -> float:
        timing = self._sampler(self.calls)
        self._shares.append(timing.share)
        if again:
            alone = self._clock(self._sampler(self.calls))
            self._disturbance.append(self._clock(timing) / alone)
        return self._clock(timing)

    @property
    def share(self) -> float:
        return statistics.median(self._shares) if self._shares else 1.0

    @property
    def disturbance(self) -> float:
        return statistics.median(self._disturbance) if self._disturbance else 1.0


def contest(ours: Sampler, peers: Mapping[str, Sampler], turns: Turns) -> Contest:
    """Ours against each of the fastest peers."""
    mine = _Contestant(ours, turns)
    others = {name: _Contestant(sampler, turns) for name, sampler in peers.items()}
    fastest = min((c.seconds for c in others.values()), default=0.0)
    near = {
        name: c
        for name, c in others.items()
        if c.seconds <= turns.close * fastest or name in turns.paired
    }
    each = sum(c.cost + mine.cost for c in near.values()) or 2 * mine.cost
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in near}
    alone: list[float] = []
    for k in range(_rounds(each, turns)):
        again = k % turns.alone_every == 0
        if not near:
            alone.append(mine.turn(again))
        for name, peer in near.items():
            theirs = peer.turn(again)
            pairs[name].append((theirs, mine.turn(again)))
    duels = sorted((duel_of(name, p) for name, p in pairs.items()), key=lambda d: d.ratio)
    times = {name: c.seconds for name, c in others.items()}
    times.update({d.peer: d.theirs for d in duels})
    seated = {"": mine, **near}
    return Contest(
        duels[0].ours if duels else statistics.median(alone),
        tuple(duels),
        times,
        {name: c.share for name, c in seated.items()},
        {name: c.disturbance for name, c in seated.items()},
    )


def _rounds(each: float, turns: Turns) -> int:
    return max(5, min(turns.rounds, int(turns.most_seconds / each)))
