"""`tune_model`: tunes all tasks of one or more networks within one budget, and compiles them."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, overload

from tilesmith.base.errors import GraphError, MeasureError, RecordsError, TilesmithError, TuneError
from tilesmith.base.interrupts import noticed
from tilesmith.base.target import Target, cpu
from tilesmith.graph.graph import Graph
from tilesmith.graph.model import Model
from tilesmith.graph.partition import Partition, partition
from tilesmith.graph.pipeline import PASSES, Pass
from tilesmith.graph.program import Program
from tilesmith.measure.local import LocalMeasurer
from tilesmith.measure.protocol import Measurer
from tilesmith.records.accurate import AccurateRecords
from tilesmith.records.database import Database
from tilesmith.records.open import open_database
from tilesmith.schedule.rounding import ACCURACY, require_accuracy
from tilesmith.search.protocol import Strategy
from tilesmith.space.spaces import SketchSpace, Space
from tilesmith.task.task import Budget, Candidate, Task
from tilesmith.tune.build_request import drafts_of
from tilesmith.tune.cache import Cache
from tilesmith.tune.compile_model import compile_model, extract_tasks
from tilesmith.tune.inputs import (
    require_budget,
    require_database,
    require_finite,
    require_observers,
    require_part,
    require_seed,
    require_target,
)
from tilesmith.tune.network_run import NetworkObserver, NetworkRun
from tilesmith.tune.network_table import NetworkTable
from tilesmith.tune.network_tasks import merged
from tilesmith.tune.objectives import (
    Objective,
    early_stopping,
    geomean_speedup,
    latency_targets,
    total_latency,
)
from tilesmith.tune.scheduler import Scheduler, gradient, round_robin
from tilesmith.tune.task_tuner import TaskTuner

_DEFAULT = Budget(seconds=600)
_MAKERS = (gradient, round_robin, latency_targets, geomean_speedup, early_stopping)


@overload
def tune_model(
    graph: Graph | Program,
    target: Target | None = ...,
    *,
    budget: Budget = ...,
    database: Database | None = ...,
    scheduler: Scheduler | None = ...,
    objective: Objective = ...,
    seed: int = ...,
    space: Space | None = ...,
    accuracy: float = ...,
    strategy: Strategy | None = ...,
    measurer: Measurer | None = ...,
    observers: Sequence[NetworkObserver] = ...,
    quiet: bool = ...,
    passes: Sequence[Pass] = ...,
    groups: Partition = ...,
    cache: Cache | str | Path | None = ...,
) -> Model: ...  # fmt: skip


@overload
def tune_model(
    graph: Sequence[Graph | Program],
    target: Target | None = ...,
    *,
    budget: Budget = ...,
    database: Database | None = ...,
    scheduler: Scheduler | None = ...,
    objective: Objective = ...,
    seed: int = ...,
    space: Space | None = ...,
    accuracy: float = ...,
    strategy: Strategy | None = ...,
    measurer: Measurer | None = ...,
    observers: Sequence[NetworkObserver] = ...,
    quiet: bool = ...,
    passes: Sequence[Pass] = ...,
    groups: Partition = ...,
    cache: Cache | str | Path | None = ...,
) -> list[Model]: ...  # fmt: skip


def tune_model(
    graph: Graph | Program | Sequence[Graph | Program],
    target: Target | None = None,
    *,
    budget: Budget = _DEFAULT,
    database: Database | None = None,
    scheduler: Scheduler | None = None,
    objective: Objective = total_latency,
    seed: int = 0,
    space: Space | None = None,
    accuracy: float = ACCURACY,
    strategy: Strategy | None = None,
    measurer: Measurer | None = None,
    observers: Sequence[NetworkObserver] = (),
    quiet: bool = False,
    passes: Sequence[Pass] = PASSES,
    groups: Partition = partition,
    cache: Cache | str | Path | None = "default",
) -> Model | list[Model]:
    """A Model whose kernels were tuned within the budget; for a list of graphs, a list of them.
    Equal tasks of several graphs are tuned once. `model.tuning` says how the latency fell.

    The `scheduler` (by default ts.gradient()) chooses, batch by batch, the task that makes the
    `objective` smaller soonest. Every task's first kernel is the one that ts.compile_model takes
    without tuning. The run ends when the budget is spent, when nothing is left to measure, or when
    the objective can gain nothing, as when all of ts.latency_targets are met. Building the model
    comes after that. `accuracy` is that of ts.compile_model; a `space` of your own has its own.

    With a database every measurement is stored at once. What it knows of a task is where that task
    starts, so a run that was killed goes on where it was, and its records count towards the trials
    of the budget. Ctrl-C ends a run early, with the best so far; so does an error of the measurer
    or the database (see `model.tuning`). A task that cannot be measured keeps its draft.
    """
    start = time.monotonic()
    require_target(target, "tune_model")
    require_budget(budget)
    require_finite(budget)
    require_database(database, "tune")
    require_part(measurer, "open", "measurer", "ts.LocalMeasurer()", "measure/protocol.py")
    require_seed(seed)
    require_accuracy(accuracy)
    require_observers(observers)
    graphs = _graphs(graph)
    _require_callable(scheduler, "scheduler", "ts.gradient()")
    _require_callable(objective, "objective", "ts.total_latency")
    machine = cpu() if target is None else target
    tasks = merged([extract_tasks(g, machine, passes=passes, groups=groups) for g in graphs])
    with ExitStack() as stack:
        records = database
        if records is None:
            records = stack.enter_context(open_database(":memory:"))
        known = AccurateRecords(records, accuracy)
        tuners = [
            TaskTuner(
                t.task,
                database=known,
                space=space or SketchSpace(accuracy=accuracy),
                strategy=strategy,
                seed=seed,
                drafts=partial(_draft, accuracy),
            )
            for t in tasks
        ]
        watching = [*observers] if quiet else [NetworkTable(), *observers]
        run = NetworkRun(
            [g.name for g in graphs], tasks, tuners, scheduler or gradient(), objective, budget,
            start, watching,
        )  # fmt: skip
        interrupted, error = _tuned(run, measurer or LocalMeasurer())
        run.report(finished=True)
        tunings = [run.tuning(k, interrupted, error) for k in range(len(graphs))]
        models = []
        for g, tuning in zip(graphs, tunings, strict=True):
            model = compile_model(
                g, machine, database=records, accuracy=accuracy, passes=passes, groups=groups,
                cache=cache, progress=False if quiet else None,
            )  # fmt: skip
            model.tuning = tuning
            models.append(model)
    return models[0] if isinstance(graph, Graph | Program) else models


def _tuned(run: NetworkRun, measurer: Measurer) -> tuple[bool, TilesmithError | None]:
    """Runs it; whether it was interrupted, and what error ended it."""
    if not run.tuners:
        return False, None
    try:
        with measurer.open(run.tuners[0].task) as measuring, noticed() as interrupts:
            run.run(measuring, interrupts)
    except KeyboardInterrupt:
        return True, None
    except (MeasureError, RecordsError) as error:
        warnings.warn(f"tuning of {', '.join(run.networks)} ended early: {error}", stacklevel=3)
        return False, error
    for k, why in run.errors.items():
        name = run.tuners[k].task.func.name
        warnings.warn(f"{name} is not tuned: {why}", stacklevel=3)
    return False, None


def _draft(accuracy: float, task: Task) -> list[Candidate]:
    """What compile_model takes for a task without a record."""
    return [Candidate(task, trace) for trace in drafts_of(task, accuracy=accuracy)]


def _graphs(graph: Any) -> list[Graph | Program]:
    graphs = [graph] if isinstance(graph, Graph | Program) else graph
    if isinstance(graphs, str | bytes) or not isinstance(graphs, Sequence) or not graphs:
        raise GraphError(
            f"tune_model is given a {type(graph).__name__}; it takes what ts.load_onnx returns, or "
            "a list of that"
        )
    for g in graphs:
        if not isinstance(g, Graph | Program):
            raise GraphError(
                f"tune_model is given a list with a {type(g).__name__}; it takes what ts.load_onnx "
                "returns"
            )
    return list(graphs)


def _require_callable(part: Any, who: str, example: str) -> None:
    if part is not None and not callable(part):
        raise TuneError(f"{who} is given {part!r}; give a function, as {example}")
    if isinstance(part, type) or part in _MAKERS:
        raise TuneError(f"{who} is given {part.__name__}; call it: {part.__name__}(...)")
