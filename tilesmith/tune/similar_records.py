"""What a database knows of tasks similar to those of a network: the start of its cost model, and
fast programs to begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

from tilesmith.records.database import Database
from tilesmith.task.ranking import Ranking
from tilesmith.task.task import Candidate, Measurement, Task
from tilesmith.tune.network_tasks import NetworkTask, least_seconds, structure

# A program of another task costs about as much to look at as one to measure, so the number is
# bounded: the nearest tasks by size, and of each the fastest programs and some others.
_MAX_TASKS = 16
_FASTEST = 32
_OTHERS = 16


@dataclass(frozen=True)
class SimilarTask:
    """A task of the database that has the structure of a task to tune. `slowness` is the seconds of
    its best program over its work, to compare tasks of different sizes.
    """

    structure: str
    slowness: float
    best: Candidate
    records: tuple[Measurement, ...]


def similar_tasks(database: Database, tasks: Sequence[NetworkTask]) -> list[SimilarTask]:
    """Tasks of other networks, for the same machine."""
    if not tasks:
        return []
    own = {t.task.key for t in tasks}
    machine = tasks[0].task.target.fingerprint
    by_structure: dict[str, list[Task]] = {}
    for t in tasks:
        by_structure.setdefault(t.structure, []).append(t.task)
    found: list[tuple[float, str, Task]] = []
    for summary in database.tasks():
        task = summary.task
        if task.key in own or task.target.fingerprint != machine or summary.best_seconds is None:
            continue
        kind = structure(task.func)
        if kind in by_structure:
            found.append((_distance(task, by_structure[kind]), kind, task))
    found.sort(key=lambda f: f[0])
    similar = (_similar(database, task, kind) for _, kind, task in found[:_MAX_TASKS])
    return [s for s in similar if s is not None]


def _distance(task: Task, others: Sequence[Task]) -> float:
    """By the number of operations, in doublings."""
    flops = max(1, task.func.flops)
    return min((abs(log(flops / max(1, o.func.flops), 2)) for o in others), default=inf)


def _similar(database: Database, task: Task, kind: str) -> SimilarTask | None:
    records = database.of(task)
    ranked = Ranking(records).ranked
    if not ranked:
        return None
    best = ranked[0]
    slower = ranked[_FASTEST:]
    step = max(1, len(slower) // _OTHERS)
    kept = (*ranked[:_FASTEST], *slower[::step][:_OTHERS])
    work = least_seconds(task) or task.func.flops or 1.0
    return SimilarTask(kind, best.cost / work, best.candidate, kept)
