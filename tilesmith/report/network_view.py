"""Networks on the page of a database: the latency that the best kernels of their tasks add up to,
while they were tuned.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tilesmith.base.dataclass import dataclass
from tilesmith.records.networks import NetworkUse
from tilesmith.report.decisions import evenly
from tilesmith.task.describe import module_path
from tilesmith.task.task import Measurement, Ranking, falling_costs

_NETWORKS = 30  # the latest ones
_RUNS = 5  # of a network, the latest ones
_POINTS = 300  # of a curve
_LAYERS = 200  # of a network that are the same task
_NARROW = 1000  # layers in narrow numbers of a network
_DEPTH, _LETTERS = 6, 60  # of the modules around a layer, and of their names


@dataclass(frozen=True, slots=True)
class RunCurve:
    """The best time so far of one run: after `seconds` and `trials`, `best` in microseconds.
    `started` is a date and time of day.
    """

    label: str
    started: str
    seconds: tuple[float, ...]
    trials: tuple[int, ...]
    best: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TaskUse:
    """`layers` are the modules and nodes around each of its kernels, from the outside in."""

    task: int  # number of the task on the page
    weight: int
    layers: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer of a network in narrow numbers, as `LayerUse` says, with the `time` of its kernel in
    microseconds; the layers of one kernel have equal parts of it.
    """

    task: int  # number of the task on the page
    name: str
    precision: str
    time: float | None
    error: float | None
    share: float | None
    why: str


@dataclass(frozen=True, slots=True)
class NetworkView:
    """`uses` are those of its latest run. `missing` counts tasks that have no time, or are not on
    the page; the curves do without them. `precision` has the layers of a network in narrow numbers.
    """

    name: str
    uses: tuple[TaskUse, ...]
    curves: tuple[RunCurve, ...]
    missing: int
    precision: tuple[LayerRow, ...] = ()


@dataclass(frozen=True)
class TaskHistory:
    """The best time of a task: (seconds since 1970, seconds of a call) at every change. `trials`
    has the moments of the trials of each run, by its key.
    """

    bests: tuple[tuple[float, float], ...]
    trials: Mapping[str, tuple[float, ...]]
    uses: tuple[NetworkUse, ...]

    def best_at(self, moment: float) -> float | None:
        k = bisect_right(self.bests, moment, key=lambda b: b[0])
        return self.bests[k - 1][1] if k else None


def history_of(measured: Sequence[Measurement], uses: Sequence[NetworkUse]) -> TaskHistory:
    """Times never rise, and are scaled to the machine's speed when the last best was measured, as
    those of curves are.
    """
    ranking = Ranking()
    bests: list[tuple[float, Measurement]] = []
    trials: dict[str, list[float]] = {}
    for m in measured:
        when = m.when if m.moment is None else m.moment.run.started + m.moment.seconds
        if m.moment is not None and m.moment.trial:
            trials.setdefault(m.moment.run.key, []).append(when)
        ranking.add(m)
        if m.failure is not None:
            bests = [b for b in bests if b[1].candidate.key != m.candidate.key]
        if ranking.best is not None and (not bests or bests[-1][1] is not ranking.best):
            bests.append((max(when, bests[-1][0] if bests else when), ranking.best))
    costs = falling_costs([m for _, m in bests])
    return TaskHistory(
        tuple((w, c) for (w, _), c in zip(bests, costs, strict=True) if c is not None),
        {key: tuple(sorted(times)) for key, times in trials.items()},
        tuple(uses),
    )


def networks_of(histories: Sequence[TaskHistory]) -> tuple[NetworkView, ...]:
    """By the numbers of the tasks on the page; the latest tuned network first."""
    runs: dict[str, dict[float, list[tuple[int, NetworkUse]]]] = {}
    for k, h in enumerate(histories):
        for u in h.uses:
            runs.setdefault(u.network, {}).setdefault(u.started, []).append((k, u))
    latest = sorted(runs, key=lambda name: -max(runs[name]))[:_NETWORKS]
    return tuple(_network(name, runs[name], histories) for name in latest)


def _network(
    name: str,
    runs: Mapping[float, Sequence[tuple[int, NetworkUse]]],
    histories: Sequence[TaskHistory],
) -> NetworkView:
    starts = sorted(runs)
    uses = [(k, u) for k, u in runs[starts[-1]] if u.weight > 0]
    curves = [
        _curve(f"run {n}", start, runs[start], histories)
        for n, start in [*enumerate(starts, 1)][-_RUNS:]
    ]
    return NetworkView(
        name,
        tuple(TaskUse(k, u.weight, tuple(map(_layer, u.places[:_LAYERS]))) for k, u in uses),
        tuple(c for c in curves if c is not None),
        _missing([(histories[k], u) for k, u in uses]),
        tuple(row for k, u in uses for row in _precision(k, u, histories[k]))[:_NARROW],
    )


def _precision(task: int, use: NetworkUse, history: TaskHistory) -> Iterator[LayerRow]:
    best = history.bests[-1][1] if history.bests else None
    known = {x.name: x for x in use.layers}
    for nodes in use.places:
        layers = [known[n] for n in nodes if n in known]
        for x in layers:
            time = None if best is None else float(f"{1e6 * best / len(layers):.5g}")
            yield LayerRow(task, x.name, x.precision, time, x.error, x.share, x.why)


def _layer(nodes: Sequence[str]) -> tuple[str, ...]:
    """The innermost modules, without what only the next one repeats: `blocks` of `blocks.3`."""
    path = module_path(nodes)
    last = path[-1:]
    kept = [m for m, below in pairwise(path) if not below.startswith(f"{m}.") or (below,) == last]
    return tuple(m[:_LETTERS] for m in (*kept[-_DEPTH:], *last))


def _missing(uses: Sequence[tuple[TaskHistory, NetworkUse]]) -> int:
    """Tasks without a time, those that no budget has reached included."""
    timed = sum(bool(h.bests) for h, _ in uses)
    return max(len(uses), *(u.tasks for _, u in uses)) - timed if uses else 0


def _curve(
    label: str,
    start: float,
    tasks: Sequence[tuple[int, NetworkUse]],
    histories: Sequence[TaskHistory],
) -> RunCurve | None:
    """From the moment when each task has a time."""
    timed = [(histories[k], u) for k, u in tasks if histories[k].bests]
    trials = sorted(t for h, u in timed for t in h.trials.get(u.run, ()))
    if not trials:
        return None
    first, end = max(start, *(h.bests[0][0] for h, _ in timed)), trials[-1]
    changes = sorted({w for h, _ in timed for w, _ in h.bests if first < w < end})
    points = [(w, _latency(timed, w)) for w in evenly([first, *changes], _POINTS)]
    points.append((max(first, end), _latency(timed, end)))
    return RunCurve(
        label,
        date_text(start),
        tuple(round(max(0.0, w - start), 3) for w, _ in points),
        tuple(bisect_right(trials, w) for w, _ in points),
        tuple(float(f"{1e6 * seconds:.5g}") for _, seconds in points),
    )


def date_text(moment: float) -> str:
    """Seconds since 1970 as a local date and time."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    except (OverflowError, OSError, ValueError):  # of a damaged record
        return ""


def _latency(timed: Sequence[tuple[TaskHistory, NetworkUse]], moment: float) -> float:
    return sum(u.weight * (h.best_at(moment) or 0.0) for h, u in timed)
