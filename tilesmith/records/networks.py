"""Which networks a task was tuned for, and how often each runs it. It is kept beside the records of
the task, so that a report can add up the tasks of a network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tilesmith.records.database import Database
from tilesmith.records.rows import UNREADABLE
from tilesmith.task.task import Task

_STATE = "networks"  # the name of the state in the database
_MOST = 50  # entries of a task, the latest ones


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """A network runs the task `weight` times. `started` is when the tuning of the network began, in
    seconds since 1970, which all of its tasks have in common. `run` is the key of the task's own
    TuningRun. `places` are the nodes of the network that each of its kernels computes, and `tasks`
    is how many tasks the network has, 0 if unknown.
    """

    network: str
    weight: int
    started: float
    run: str
    places: tuple[tuple[str, ...], ...] = ()
    tasks: int = 0


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
    tasks: int = 0,
) -> NetworkUse:  # fmt: skip
    every = tuple(tuple(map(str, p)) for p in places)
    return NetworkUse(str(network), int(weight), float(started), str(run), every, int(tasks))


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
