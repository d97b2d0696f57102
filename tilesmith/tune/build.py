"""ts.build: the best recorded kernel of a Function, or one with the best analytic score if there is
no record. `kernel.origin` says which.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from tilesmith.base.errors import BuildError
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.backend import Backend
from tilesmith.expr.ints import var
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, For, Stmt
from tilesmith.records.database import Database
from tilesmith.runtime.build import build
from tilesmith.runtime.kernel import Kernel, Origin
from tilesmith.schedule.trace import Trace
from tilesmith.search.evolution import Evolution
from tilesmith.space.spaces import SketchSpace
from tilesmith.task.ranking import Ranking
from tilesmith.task.task import Measurement, Task
from tilesmith.tune.inputs import require_database, require_target

_PLACES = ("global", "constant")  # the scopes of buffers that ts.function creates
_MAX_RECORDS, _MAX_DRAFTS = 3, 3  # tried before the next source of kernels


def best_kernel(
    what: Any,
    target: Target | None = None,
    *,
    database: Database | None = None,
    strict: bool = False,
    checked: bool = False,
    backend: Backend | None = None,
) -> Kernel:
    """A kernel of a Schedule as given, or of a Function with the best schedule in the database.
    Without a record it has the schedule with the best analytic score; with `strict` that is an
    error.

    An index that is loaded from a tensor (`table[ids[i]]`) must lie inside its table. Kernels do
    not check that: an index outside reads arbitrary memory, or crashes. With `checked`, which is
    slow and meant for debugging, the argument is built as given, and its kernel raises an
    ArgumentError that names the table and the index. With your own `backend`, too, the argument is
    built as given.
    """
    require_target(target, "build")
    require_database(database, "build")
    if checked or backend is not None:
        return build(what, target, checked=checked, backend=backend)
    if not isinstance(what, Function) or what.sizes or not is_plain(what):
        return build(what, target)
    task = Task(what, cpu() if target is None else target)
    if task.target.kind != "cpu":
        return build(what, task.target)
    if strict and database is None:
        raise BuildError("build(strict=True) takes recorded kernels only; give a database")
    obstacles: list[str] = []
    if database is not None:
        for m in islice(_records(database, task), _MAX_RECORDS):
            origin = Origin("record", m.cost, f"in {_place(database)}")
            if (kernel := _try(m.candidate.trace, task, origin, obstacles)) is not None:
                return kernel
        reasons = "; ".join(obstacles) or "no record of this task"
        if strict:
            raise BuildError(
                f"there is no kernel of {what.name!r} for {task.target.model or task.target.cpu} "
                f"in {_place(database)}: {reasons}. Tune it with ts.tune, or build with "
                "strict=False"
            )
    why = "no record of this task is in the database" if database is not None else "no database"
    for trace in _drafts(task, obstacles):
        origin = Origin("draft", why="; ".join([why, *obstacles]))
        if (kernel := _try(trace, task, origin, obstacles)) is not None:
            return kernel
    reasons = "; ".join(obstacles) or "nothing was proposed"
    warnings.warn(f"{what.name!r} is built as the plain loop nest: {reasons}", stacklevel=2)
    return build(what, task.target, Origin("naive", why=reasons))


def _records(database: Database, task: Task) -> Iterator[Measurement]:
    """The records, best first. The whole list is read only if the best cannot be built."""
    best = database.best(task)
    if best is None:
        return
    yield best
    ranked = Ranking(database.of(task)).ranked
    yield from (m for m in ranked if m.candidate != best.candidate)


def _drafts(task: Task, obstacles: list[str]) -> Iterator[Trace]:
    for n in range(1, _MAX_DRAFTS + 1):
        try:
            traces = _proposals(task, n)
        except Exception as error:  # in a rule or in the search; the plain loop nest remains
            obstacles.append(f"drafting failed: {type(error).__name__}: {error}")
            return
        if len(traces) < n:
            return
        yield traces[-1]


@lru_cache(maxsize=256)
def _proposals(task: Task, n: int) -> tuple[Trace, ...]:
    """The n schedules with the best analytic scores, best first."""
    sketches = SketchSpace().sketches(task)
    strategy = Evolution(epsilon=0, cost_model=None)
    search = strategy.start(task, sketches, np.random.default_rng(0))
    return tuple(c.trace for _ in range(n) for c in search.ask(1))


def _try(trace: Trace, task: Task, origin: Origin, obstacles: list[str]) -> Kernel | None:
    """The kernel; None if it does not build, with the reason added to `obstacles`."""
    try:
        return build(trace.apply(task.func), task.target, origin)
    except Exception as error:  # whatever it is, another schedule may build
        first = str(error).strip().splitlines()[:1]
        text = ": ".join([type(error).__name__, *first])
        obstacles.append(f"a {origin.kind} does not build ({text})")
        return None


def _place(database: Database) -> str:
    return str(getattr(database, "place", "this database"))


def is_plain(func: Function) -> bool:
    """Whether the Function is as ts.function lowered it: one nest of serial loops per stage. One
    that was scheduled by hand is built as given.
    """
    buffers = (*func.params, *func.buffers)
    return (
        not func.facts
        and all(b.layout is None and not b.basis and b.scope in _PLACES for b in buffers)
        and all(_is_plain_nest(s) for s in func.body)
    )


def _is_plain_nest(stmt: Stmt) -> bool:
    loops = []
    while isinstance(stmt, For):
        if stmt.kind != "serial" or stmt.notes or len(stmt.body) != 1:
            return False
        loops.append(var(stmt.name))
        (stmt,) = stmt.body
    return isinstance(stmt, Block) and [i.bind for i in stmt.iters] == loops and not stmt.tile
