"""Calls to compare in, paired ratios out. Ours and a peer take turns, so that both meet the same
moods of the machine, and only ratios within a pair are believed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True)
class Turns:
    """How turns are taken.

    A sample is at least `sample_seconds` of calls; `rest` comes before each, because the threads of
    some libraries spin for a while after a call and take the cores from the other. Peers that are
    slower than `close` times the fastest are timed once and not paired. No contest takes much
    longer than `most_seconds`.
    """

    rounds: int = 21
    sample_seconds: float = 0.01
    rest: float = 0.0
    close: float = 1.5
    most_seconds: float = 15.0
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep

    @staticmethod
    def of(threads: int) -> Turns:
        return Turns(rest=0.15 if threads > 1 else 0.0)


@dataclass(frozen=True)
class Duel:
    """Ours against one peer; a ratio above 1 means that ours is faster."""

    peer: str
    ours: float  # seconds, the median
    theirs: float
    ratio: float  # the median of the paired ratios
    spread: float  # half of the distance between their quartiles


def duel_of(peer: str, pairs: Sequence[tuple[float, float]]) -> Duel:
    """`pairs` are seconds of (peer, ours), taken side by side."""
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
    """Duels with the fastest peers, the hardest first, and single times of all."""

    ours: float
    duels: tuple[Duel, ...]
    times: Mapping[str, float]


def contest(ours: Call, peers: Mapping[str, Call], turns: Turns) -> Contest:
    """Ours against each of the fastest peers. Every sample begins with a call that is not timed, so
    that nobody meets the other's cache, and a first call never counts.
    """
    mine = _first(ours, turns)
    first = {name: _first(call, turns) for name, call in peers.items()}
    if not first:
        samples = [_sample(ours, mine, turns) for _ in range(_rounds(2 * mine, turns))]
        return Contest(statistics.median(samples), (), {})
    fastest = min(first.values())
    near = [name for name, seconds in first.items() if seconds <= turns.close * fastest]
    each = sum(_cost(first[name], turns) + _cost(mine, turns) for name in near)
    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in near}
    for _ in range(_rounds(each, turns)):
        for name in near:
            theirs = _sample(peers[name], first[name], turns)
            pairs[name].append((theirs, _sample(ours, mine, turns)))
    duels = sorted((duel_of(name, p) for name, p in pairs.items()), key=lambda d: d.ratio)
    times = {**first, **{d.peer: d.theirs for d in duels}}
    return Contest(duels[0].ours, tuple(duels), times)


def _first(call: Call, turns: Turns) -> float:
    """About how long a call takes, after the first one; which touches memory, starts threads."""
    call()
    turns.sleep(turns.rest)
    call()
    seen = []
    for _ in range(15):
        start = turns.clock()
        call()
        seen.append(turns.clock() - start)
        if sum(seen) > 0.5:
            break
    return max(min(seen), 1e-9)


def _calls(seconds: float, turns: Turns) -> int:
    return max(1, math.ceil(turns.sample_seconds / seconds))


def _cost(seconds: float, turns: Turns) -> float:
    """What a sample takes, with the call before it and the rest."""
    return turns.rest + (1 + _calls(seconds, turns)) * seconds


def _rounds(each: float, turns: Turns) -> int:
    return max(5, min(turns.rounds, int(turns.most_seconds / each)))


def _sample(call: Call, seconds: float, turns: Turns) -> float:
    calls = _calls(seconds, turns)
    turns.sleep(turns.rest)
    call()
    start = turns.clock()
    for _ in range(calls):
        call()
    return (turns.clock() - start) / calls
