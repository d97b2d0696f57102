"""What a database knows of tasks similar to those of a network: the start of its cost model, and
fast programs to begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log

from tilesmith.records.database import Database
from tilesmith.schedule.trace import Trace
from tilesmith.space.variant import without_numbers
from tilesmith.task.ranking import Ranking
from tilesmith.task.task import Candidate, Measurement, Task
from tilesmith.tune.network_tasks import NetworkTask, least_seconds, structure

# A variant of another task must be lowered before its programs can be learned from, which takes
# some 40 ms. So there are few: the nearest tasks by size, and of each the variants of the fastest
# programs, with the fastest of these and some others.
_MAX_TASKS = 12
_MAX_VARIANTS = 3
_MAX_EXAMINED = 64  # tasks whose structure is worked out, which takes some milliseconds each
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
    """Tasks of other networks, for the same machine and by the same code generator."""
    if not tasks:
        return []
    own = {t.task.key for t in tasks}
    machine = tasks[0].task.target.fingerprint, tasks[0].task.codegen
    by_structure: dict[str, list[Task]] = {}
    for t in tasks:
        by_structure.setdefault(t.structure, []).append(t.task)
    others = [
        s.task
        for s in database.tasks()
        if s.best_seconds is not None
        and (s.task.target.fingerprint, s.task.codegen) == machine
        and s.task.key not in own
    ]
    every = [t.task for t in tasks]
    others.sort(key=lambda t: _distance(t, every))
    found = [(structure(t.func), t) for t in others[:_MAX_EXAMINED]]
    alike = [(kind, t) for kind, t in found if kind in by_structure]
    alike.sort(key=lambda f: _distance(f[1], by_structure[f[0]]))
    similar = (_similar(database, task, kind) for kind, task in alike[:_MAX_TASKS])
    return [s for s in similar if s is not None]


def _distance(task: Task, others: Sequence[Task]) -> float:
    """log2 of the ratio of the numbers of operations, without its sign."""
    flops = max(1, task.func.flops)
    return min((abs(log(flops / max(1, o.func.flops), 2)) for o in others), default=inf)


def _similar(database: Database, task: Task, kind: str) -> SimilarTask | None:
    records = database.of(task)
    ranked = Ranking(records).ranked
    if not ranked:
        return None
    best = ranked[0]
    variants: dict[Trace, list[Measurement]] = {}
    for m in ranked:
        variants.setdefault(without_numbers(m.candidate.trace), []).append(m)
    few = {id(m) for ms in [*variants.values()][:_MAX_VARIANTS] for m in ms}
    ranked = [m for m in ranked if id(m) in few]
    slower = ranked[_FASTEST:]
    step = max(1, len(slower) // _OTHERS)
    kept = (*ranked[:_FASTEST], *slower[::step][:_OTHERS])
    work = least_seconds(task) or task.func.flops or 1.0
    return SimilarTask(kind, best.cost / work, best.candidate, kept)
