"""Objectives: what tuning several tasks of one or more networks is to make small.

An objective is a function of the networks with the seconds of their tasks, `Callable[[Sequence[
NetworkCosts]], float]`. A scheduler spends time on the tasks whose seconds change it most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, inf, isfinite, log

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TuneError
from tilesmith.base.given import checks_given

_CHANGE = 1e-4  # the relative change of a task's seconds by which slopes are found


@checks_given(error=TuneError)
@dataclass(frozen=True, slots=True)
class NetworkCosts:
    """A network and its tasks: how often it runs each, the seconds of each, and the number of steps
    since each got faster. `reached` are the seconds of the best kernels; `seconds` are the same,
    or what they might be.
    """

    name: str
    weights: tuple[float, ...]
    seconds: tuple[float, ...]
    reached: tuple[float, ...]
    stalled: tuple[int, ...]

    @property
    def latency(self) -> float:
        """The seconds of a run: those of all its kernels."""
        return sum(w * s for w, s in zip(self.weights, self.seconds, strict=True))


Objective = Callable[[Sequence[NetworkCosts]], float]


@checks_given(error=TuneError)
def total_latency(networks: Sequence[NetworkCosts]) -> float:
    """The sum of the latencies of all networks."""
    return sum(n.latency for n in networks)


@dataclass(frozen=True, slots=True)
class LatencyTargets:
    """A network that is as fast as its target needs to get no faster."""

    seconds: tuple[float, ...]

    def __call__(self, networks: Sequence[NetworkCosts]) -> float:
        _require_as_many("latency_targets", self.seconds, networks)
        return sum(max(t, n.latency) for t, n in zip(self.seconds, networks, strict=True))


@dataclass(frozen=True, slots=True)
class GeomeanSpeedup:
    """The geometric mean of the networks' speed-ups, negative, because it is to be large."""

    references: tuple[float, ...]

    def __call__(self, networks: Sequence[NetworkCosts]) -> float:
        _require_as_many("geomean_speedup", self.references, networks)
        ratios = (r / n.latency for r, n in zip(self.references, networks, strict=True))
        return -exp(sum(map(log, ratios)) / len(networks))


@dataclass(frozen=True, slots=True)
class EarlyStopping:
    """The total latency, where a task that got no faster for some steps cannot get faster."""

    rounds: int

    def __call__(self, networks: Sequence[NetworkCosts]) -> float:
        return sum(map(self._latency, networks))

    def _latency(self, n: NetworkCosts) -> float:
        tasks = zip(n.weights, n.seconds, n.reached, n.stalled, strict=True)
        return sum(w * max(s, r if k >= self.rounds else 0.0) for w, s, r, k in tasks)


@checks_given(error=TuneError)
def latency_targets(seconds: Sequence[float]) -> Objective:
    """Makes each network as fast as its target, in seconds, and no faster."""
    return LatencyTargets(_times("latency_targets", seconds))


@checks_given(error=TuneError)
def geomean_speedup(references: Sequence[float]) -> Objective:
    """Makes the geometric mean of the networks' speed-ups over these latencies large."""
    return GeomeanSpeedup(_times("geomean_speedup", references))


@checks_given(error=TuneError)
def early_stopping(rounds: int) -> Objective:
    """Makes the total latency small; tasks that got no faster in `rounds` steps are left alone."""
    if not isinstance(rounds, int) or rounds < 1:
        raise TuneError(f"early_stopping({rounds!r}): it takes a number of steps from 1 on")
    return EarlyStopping(rounds)


def _times(who: str, seconds: Sequence[float]) -> tuple[float, ...]:
    try:
        times = tuple(map(float, seconds))
    except (TypeError, ValueError):
        times = ()
    if not times or not all(0 < t < inf for t in times):
        raise TuneError(f"{who}({seconds!r}): it takes a list of seconds, one for each network")
    return times


def _require_as_many(
    who: str, times: tuple[float, ...], networks: Sequence[NetworkCosts]
) -> None:  # fmt: skip
    if len(times) != len(networks):
        raise TuneError(
            f"{who} has {len(times)} times, but there are {len(networks)} networks; give one for "
            "each, in their order"
        )


def value_of(objective: Objective, networks: Sequence[NetworkCosts]) -> float:
    """The objective, which must be a number."""
    value = objective(networks)
    if not isinstance(value, int | float) or not isfinite(value):
        name = getattr(objective, "__name__", type(objective).__name__)
        raise TuneError(
            f"the objective {name} gave {value!r}; it gives a finite number, the smaller the better"
        )
    return float(value)


def slopes(objective: Objective, networks: Sequence[NetworkCosts]) -> tuple[float, ...]:
    """By how much the objective falls for each second that each task gets faster. All networks
    have the same tasks, with a weight of 0 where they do not run them.
    """
    if objective is total_latency:
        return tuple(map(float, map(sum, zip(*(n.weights for n in networks), strict=True))))
    now = value_of(objective, networks)
    return tuple(_slope(objective, networks, k, now) for k in range(len(networks[0].seconds)))


def _slope(objective: Objective, networks: Sequence[NetworkCosts], k: int, now: float) -> float:
    seconds = networks[0].seconds[k]
    if not seconds:
        return 0.0
    less = seconds * (1 - _CHANGE)
    faster = [
        replace(n, seconds=(*n.seconds[:k], less, *n.seconds[k + 1 :])) if n.weights[k] else n
        for n in networks
    ]
    return max(0.0, now - value_of(objective, faster)) / (seconds * _CHANGE)
