"""Which networks a task was tuned for, and how often each runs it, so that a report can add up the
tasks of a network; and what a run that tunes networks does next. Both are kept beside the records
of tasks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.records.database import Database
from tilesmith.records.rows import UNREADABLE
from tilesmith.task.task import Task

_STATE, _STEP = "networks", "next step"  # names of states in the database
_MOST = 50  # entries of a task, the latest ones


@dataclass(frozen=True, slots=True)
class LayerUse:
    """A layer of a network in narrow numbers, in which type it was, and why in no narrower one.
    `error` is what it alone loses, `share` its part of the square of the network's error; None if
    unknown (see `graph/layer_notes.py`).
    """

    name: str
    precision: str
    error: float | None = None
    share: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """A network runs the task `weight` times. `started` is when the tuning of the network began, in
    seconds since 1970, which all of its tasks have in common. `run` is the key of the task's own
    TuningRun. `places` are the nodes of the network that each of its kernels computes, and `tasks`
    is how many tasks the network has, 0 if unknown. `layers` are those among the nodes whose types
    were chosen.
    """

    network: str
    weight: int
    started: float
    run: str
    places: tuple[tuple[str, ...], ...] = ()
    tasks: int = 0
    layers: tuple[LayerUse, ...] = ()


def network_uses(db: Database, task: Task) -> tuple[NetworkUse, ...]:
    """Oldest first; empty for a task that was tuned alone, or by an older version."""
    data = db.load_state(task, _STATE)
    if data is None:
        return ()
    try:
        return tuple(_use(**entry) for entry in json.loads(data))
    except UNREADABLE:  # of another version, or damaged
        return ()


def _use(
    network: str, weight: int, started: float, run: str, places: Sequence[Sequence[str]] = (),
    tasks: int = 0, layers: Sequence[Mapping[str, Any]] = (),
) -> NetworkUse:  # fmt: skip
    every = tuple(tuple(map(str, p)) for p in places)
    return NetworkUse(
        str(network), int(weight), float(started), str(run), every, int(tasks),
        tuple(_layer(**x) for x in layers),
    )  # fmt: skip


def _layer(
    name: str, precision: str, error: float | None, share: float | None, why: str
) -> LayerUse:  # fmt: skip
    error, share = (None if x is None else float(x) for x in (error, share))
    return LayerUse(str(name), str(precision), error, share, str(why))


def places_in(uses: Sequence[NetworkUse]) -> tuple[tuple[str, ...], ...]:
    """Those of the latest use that tells them."""
    return next((u.places for u in reversed(uses) if u.places), ())


def store_network_uses(
    db: Database, task: Task, started: float, uses: Sequence[NetworkUse]
) -> None:
    """Replaces what was stored of the same start."""
    old = [u for u in network_uses(db, task) if u.started != started]
    entries = [asdict(u) for u in [*old, *uses][-_MOST:]]
    db.save_state(task, _STATE, json.dumps(entries).encode())


@dataclass(frozen=True, slots=True)
class NetworkStep:
    """What a run that tunes networks did next at the time `when`, in seconds since 1970. `label`,
    `weight`, `best` and `bound`, a time that no kernel beats, are those of the task it chose for a
    `reason`; a call of it is expected to get faster by `gain`. `latency` is the estimate of all
    networks. After so many `seconds` of `budget_seconds` it has measured `trials`. Times are in
    seconds, and None if unknown. A run that has ended has no label.
    """

    networks: tuple[str, ...]
    when: float
    seconds: float
    budget_seconds: float | None
    trials: int
    latency: float | None
    key: str = ""
    label: str = ""
    weight: int = 0
    best: float | None = None
    bound: float | None = None
    reason: str = ""
    gain: float | None = None


def store_network_step(db: Database, task: Task, step: NetworkStep) -> None:
    """Beside a task that has records, in place of the last one there."""
    db.save_state(task, _STEP, json.dumps(asdict(step)).encode())


def latest_step(db: Database, tasks: Iterable[Task]) -> NetworkStep | None:
    """That of the last run which tuned some of these tasks for a network."""
    steps = (_step(data) for t in tasks if (data := db.load_state(t, _STEP)) is not None)
    return max((s for s in steps if s is not None), key=lambda s: s.when, default=None)


def _step(data: bytes) -> NetworkStep | None:
    try:
        given = json.loads(data)
        times = [given[n] for n in ("budget_seconds", "latency", "best", "bound", "gain")]
        budget, latency, best, bound, gain = (None if t is None else float(t) for t in times)
        return NetworkStep(
            tuple(map(str, given["networks"])), float(given["when"]), float(given["seconds"]),
            budget, int(given["trials"]), latency, str(given["key"]), str(given["label"]),
            int(given["weight"]), best, bound, str(given["reason"]), gain,
        )  # fmt: skip
    except UNREADABLE:  # of another version, or damaged
        return None
