"""`tune_model`: tunes all tasks of one or more networks within one budget, and compiles them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Unpack, overload

from tilesmith.base.errors import GraphError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target, cpu
from tilesmith.expr.sizes import OpenSize
from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Graph
from tilesmith.graph.layer_notes import WHOLE, PrecisionReport
from tilesmith.graph.model import Model
from tilesmith.graph.partition import Partition, partition
from tilesmith.graph.pipeline import Pass
from tilesmith.graph.plan import Plan
from tilesmith.graph.program import Program
from tilesmith.measure.local import LocalMeasurer
from tilesmith.measure.protocol import Measurer, Measuring, stream_of
from tilesmith.records.accurate import AccurateRecords
from tilesmith.records.database import Database, with_parts
from tilesmith.records.open import open_database
from tilesmith.runtime.kernel import Origin
from tilesmith.schedule.trace import Parts
from tilesmith.search.evolution import Evolution
from tilesmith.search.protocol import Strategy
from tilesmith.search.shared_model import with_shared_model
from tilesmith.space.spaces import Space, default_space
from tilesmith.task.task import Budget, codegen_of, require_accuracy
from tilesmith.tune.build import place_of
from tilesmith.tune.build_request import first_draft
from tilesmith.tune.cache import Cache
from tilesmith.tune.compile_model import (
    ModelBuilder,
    ReadyKernel,
    cache_of,
    in_precision,
    places_of,
    plan_of,
    tasks_of,
)
from tilesmith.tune.network_run import NetworkObserver, NetworkRun
from tilesmith.tune.network_table import NetworkNotes, NetworkTable
from tilesmith.tune.network_tasks import merged, similar_tasks, with_places, with_rivals
from tilesmith.tune.objectives import Objective, total_latency
from tilesmith.tune.open_model import require_open_sizes, sizes_for, warn_of_defaults
from tilesmith.tune.open_model_tune import tuned_open_model
from tilesmith.tune.opened import Opened, require_made, run_opened
from tilesmith.tune.partition_choice import RecordedPartition, all_rivals, offered
from tilesmith.tune.run_state import require_finite
from tilesmith.tune.scheduler import Scheduler, gradient, seeded
from tilesmith.tune.specialise import graphs_for, text_of
from tilesmith.tune.task_tuner import TaskTuner, require_seed
from tilesmith.tune.tune import TuneOptions

_DEFAULT = Budget(seconds=600)
_PACKED_NBYTES = 3e8  # of weights that are packed and stored in a second


class ModelOptions(TuneOptions, total=False):
    """All keyword arguments of `tune_model` except for `inputs`."""

    scheduler: Scheduler | None
    objective: Objective
    observers: Sequence[NetworkObserver]
    passes: Sequence[Pass] | None
    groups: Partition
    cache: Cache | str | Path | None
    precision: str
    calibration: Sequence[Any]


@overload
def tune_model(
    graph: Graph | Program,
    target: Target | None = ...,
    *,
    inputs: Mapping[str, Any] | None = ...,
    sizes: Mapping[str, Any] | None = ...,
    **options: Unpack[ModelOptions],
) -> Model: ...  # fmt: skip


@overload
def tune_model(
    graph: Sequence[Graph | Program],
    target: Target | None = ...,
    *,
    inputs: Sequence[Mapping[str, Any] | None] | None = ...,
    **options: Unpack[ModelOptions],
) -> list[Model]: ...  # fmt: skip


@checks_given(error=GraphError)
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
    accuracy: float | None = None,
    strategy: Strategy | None = None,
    measurer: Measurer | None = None,
    observers: Sequence[NetworkObserver] = (),
    quiet: bool = False,
    passes: Sequence[Pass] | None = None,
    groups: Partition = partition,
    cache: Cache | str | Path | None = "default",
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    precision: str = "float32",
    calibration: Sequence[Any] = (),
    parts: Parts | None = None,
    batch_size: int | None = None,
    sizes: Mapping[str, Any] | None = None,
) -> Model | list[Model]:
    """Tunes all tasks of a graph within one budget, and returns its Model; for a list of graphs, a
    list of them. Equal tasks of several graphs are tuned once. `model.tuning` says how the latency
    fell.

    - `graph`: what `ts.load_onnx` or `ts.from_torch` returns, or a list of that.
    - `budget`: the limits of the whole run, by default 600 seconds, from this call to its return:
      drafts of all tasks are built first, so that each has a kernel, and the model at the end.
    - `database`: every measurement is stored at once. What it knows of a task is where that task
      starts, so a run that was killed goes on where it was, and its records count towards the
      trials of the budget.
    - `scheduler`: chooses, batch by batch, the task that is next; by default `ts.gradient()`, which
      takes the one that makes the objective smaller soonest.
    - `objective`: what is to become small, by default `ts.total_latency`.
    - `inputs`: arrays by name, for a model with open sizes, or whose contents decide what it
      computes. It is tuned for their shapes, and runs
      with others by drafts (see `model.tuning.sizes`).
    - `sizes`: the range of each open dimension by its name, as in `ts.compile_model`: the model is
      tuned at samples of them, and gets a portfolio of kernels for each operator that covers all
      sizes. On CPUs, for one model. One with open sizes that is given neither these nor inputs has
      ranges from 1 to 1024, with a warning.
    - `target`, `seed`, `space`, `strategy`, `measurer`, `observers`, `quiet`, `parts`,
      `batch_size`: as in `ts.tune`.
    - `passes`, `groups`, `cache`, `accuracy`, `precision`, `calibration`: as in `ts.compile_model`;
      for a list of graphs, `calibration` has a list of inputs for each. With "auto", types are
      chosen by the times of kernels before this run, and then tuned.

    Where a group may be one kernel or several, as attention, or a product with gelu behind it, both
    ways are measured and the faster stays; the records tell compile_model. All searches share one
    cost model, which also learns from the database's records of similar tasks, and each begins with
    what is fast in those. A strategy whose cost model is not a ts.Gbdt keeps its own. Every task's
    first kernel is the one that ts.compile_model takes without tuning.

    The run ends when the budget is spent, when nothing is left to measure, or when the objective
    can gain nothing, as when all of ts.latency_targets are met. Ctrl-C ends it early, with the best
    so far; so does an error of the measurer or the database (see `model.tuning`). A task that
    cannot be measured keeps its draft.

    Example:

        db = ts.open_database("tune.db")
        graph = ts.load_onnx("model.onnx", dims={"batch": 1})
        model = ts.tune_model(graph, budget=ts.Budget(seconds=60), database=db)
        print(model.tuning)
    """
    start = time.monotonic()
    require_finite(budget)
    require_seed(seed)
    require_accuracy(accuracy)
    graphs = [graph] if isinstance(graph, Graph | Program) else [*graph]
    if not graphs:
        raise GraphError(
            "tune_model is given an empty list; it takes what ts.load_onnx or ts.from_torch returns"
        )
    require_made(scheduler, "scheduler")
    require_made(objective, "objective")
    machine = cpu() if target is None else target
    if database is not None:
        parts, database = with_parts(parts, database)
    if sizes is None and inputs is None and machine.kind == "cpu" and precision == "float32":
        is_open = isinstance(graph, Program) and sizes_for(graph, None, "tune_model")
        sizes = {} if is_open else None
    if sizes is not None:
        _require_one(graph, inputs)
        require_open_sizes(machine, precision, calibration, "tune_model")
        assert isinstance(graph, Program)
        inside = in_precision(graph, machine, precision, passes, accuracy, (), "tune_model")
        passes, accuracy = inside.passes, inside.accuracy
        return _tuned_at_samples(
            graph, sizes_for(graph, sizes, "tune_model"), machine, passes, groups, cache, start,
            budget, database=database, parts=parts, accuracy=accuracy, scheduler=scheduler,
            objective=objective, seed=seed, space=space, strategy=strategy, measurer=measurer,
            observers=observers, quiet=quiet, batch_size=batch_size,
        )  # fmt: skip
    typical = [calibration] if isinstance(graph, Graph | Program) else [*calibration]
    if typical and len(typical) != len(graphs):
        raise GraphError(
            f"tune_model is given calibration inputs for {len(typical)} models, and {len(graphs)} "
            "models; give a list of them for each"
        )
    done = []
    for k, one in enumerate(graphs):
        inside = in_precision(
            one, machine, precision, passes, accuracy, typical[k] if typical else (), "tune_model",
            database=database, cache=cache, groups=groups, parts=parts,
        )  # fmt: skip
        done.append(inside)
    graphs = [d.graph for d in done]
    every = [d.passes for d in done]
    accuracy = done[0].accuracy
    groups = offered(groups, machine)
    feeds = _inputs_of(graphs, inputs, isinstance(graph, Graph | Program))
    plans = [
        [plan_of(one, machine, own, groups) for one in graphs_for(g, given)]
        for g, given, own in zip(graphs, feeds, every, strict=True)
    ]
    rivals = [r for own in plans for p in own for r in all_rivals(p.graph, groups, machine, parts)]
    tasks, rival_tasks = with_rivals(
        merged([tasks_of(own, machine, parts) for own in plans]),
        [(r.whole, r.parts) for r in rivals],
    )
    found = [p for own in plans for p in own]
    tasks = with_places(tasks, rival_tasks, places_of(found, machine, parts))
    with ExitStack() as stack:
        records = database
        if records is None:
            records = open_database(":memory:", parts)
            if all(isinstance(g, Graph) for g in graphs):  # others ask it for kernels when called
                stack.callback(records.close)
        known = AccurateRecords(records, accuracy)
        similar = similar_tasks(known, tasks)
        others = [m for s in similar for m in s.records]
        how = with_shared_model(strategy or Evolution(), others, len(tasks))
        builder = ModelBuilder(
            machine, records, False, cache_of(cache), False if quiet else None, {}, accuracy, parts
        )
        opened = Opened(measurer or LocalMeasurer(), tasks[0].task if tasks else None)
        stack.callback(opened.close)
        builder.build_drafts([p for own in plans for p in own])
        tuners = [
            TaskTuner(
                t.task,
                database=known,
                space=default_space(machine, accuracy, parts) if space is None else space,
                strategy=how,
                seed=seed,
                drafts=partial(first_draft, accuracy),
                batch_size=batch_size,
                drafted=[d] if (d := builder.draft_of(t.task)) is not None else [],
            )
            for t in tasks
        ]
        watching = [*observers] if quiet else [NetworkTable(), *observers]
        run = NetworkRun(
            [g.name for g in graphs], tasks, tuners, seeded(scheduler or gradient(), seed),
            objective, budget, start, watching, similar, rival_tasks,
            _finishing_seconds(plans, budget),
        )  # fmt: skip
        if database is not None:
            reports = [
                PrecisionReport.of(
                    g.precision if isinstance(g, Graph) else WHOLE, [p.graph.precision for p in own]
                )
                for g, own in zip(graphs, plans, strict=True)
            ]
            run.observers = [*watching, NetworkNotes(run, database, reports)]
        ready: dict[str, ReadyKernel] = {}
        place = place_of(records)
        interrupted, error = run_opened(
            run, opened, lambda measuring: ready.update(_kept_kernels(tuners, measuring, place))
        )
        run.report(finished=True)
        builder.ready = ready
        builder.replace_drafts({t.task.statement for t in tuners if t.trials or t.best})
        best = RecordedPartition(groups, known, machine, own=parts, kept=builder.cache)
        models = []
        for k, g in enumerate(graphs):
            own = plans[k][0] if isinstance(g, Graph) and not run.divided else None
            model = Model(g, partial(_executor, builder, own, every[k], best))
            model.tuning = run.tuning(k, interrupted, error, text_of(g, feeds[k]))
            if not isinstance(g, Graph) and feeds[k] is not None:
                model(feeds[k])  # builds the kernels of the stages that were tuned
            models.append(model)
    return models[0] if isinstance(graph, Graph | Program) else models


def _require_one(graph: Any, inputs: Any) -> None:
    """Raises where sizes= is given with something that it does not go with."""
    if isinstance(graph, Graph):
        sizes_for(graph, {"": None}, "tune_model")
    if not isinstance(graph, Program):
        raise GraphError("tune_model(sizes=...) takes one model, what ts.load_onnx returns")
    if inputs is not None:
        raise GraphError("tune_model takes inputs= or sizes=, and is given both")


def _tuned_at_samples(
    program: Program, sizes: Mapping[str, OpenSize], target: Target, passes: Sequence[Pass],
    groups: Partition, cache: Cache | str | Path | None, start: float, budget: Budget,
    *, database: Database | None, parts: Parts | None, accuracy: float | None, quiet: bool,
    **options: Any,
) -> Model:  # fmt: skip
    warn_of_defaults(program, sizes, stacklevel=5)
    folder = cache_of(cache)
    builder = ModelBuilder(
        target, database, False, folder, False if quiet else None, {}, accuracy, parts
    )
    staged = partial(_executor, builder, None, passes, groups)
    with ExitStack() as stack:
        records = database or stack.enter_context(open_database(":memory:", parts))
        known = AccurateRecords(records, accuracy)
        chosen = RecordedPartition(offered(groups, target), known, target, accuracy, parts, folder)
        how = {**options, "database": records, "parts": parts, "accuracy": accuracy,
               "quiet": quiet}  # fmt: skip
        codegen = codegen_of(target, parts)
        return tuned_open_model(
            program, sizes, builder, passes, chosen, staged, codegen, budget, start, how
        )


def _finishing_seconds(plans: Sequence[Sequence[Plan]], budget: Budget) -> float:
    """What is left of the seconds of a budget for building the model: kernels that the measurer has
    not kept, and weights in the layouts of the kernels. A tenth of them at most.
    """
    if budget.seconds is None:
        return 0.0
    weights = sum(a.nbytes for own in plans for p in own for a in p.graph.constants.values())
    return min(0.1 * budget.seconds, 0.2 + weights / _PACKED_NBYTES)


def _executor(
    builder: ModelBuilder,
    made: Plan | None,
    passes: Sequence[Pass],
    groups: Partition,
    graph: Graph,
) -> Executor:
    return builder.executor(
        plan_of(graph, builder.target, passes, groups) if made is None else made
    )


def _inputs_of(graphs: Sequence[Graph | Program], inputs: Any, is_one: bool) -> list[Any]:
    """The inputs that each model is tuned for, None where none are given."""
    every = [inputs] if is_one or inputs is None else list(inputs)
    if inputs is None:
        return [None] * len(graphs)
    if len(every) != len(graphs):
        raise GraphError(
            f"tune_model is given inputs for {len(every)} models, and {len(graphs)} models; give "
            "one dict of arrays, or None, for each"
        )
    return every


def _kept_kernels(
    tuners: Sequence[TaskTuner], measuring: Measuring, place: str
) -> Iterator[tuple[str, ReadyKernel]]:
    """The best kernels by the statement of their tasks, as far as the measurer has their code.
    `place` is where their records are.
    """
    stream = stream_of(measuring)
    for t in tuners:
        winner = stream.winner(t.task)
        if winner is None or winner.artifact is None or t.best is None:
            continue
        if winner.measurement.candidate == t.best.candidate:
            origin = Origin("record", t.best_cost, f"in {place}", t.best.candidate.key)
            yield t.task.statement, ReadyKernel(t.best.candidate.trace, winner.artifact, origin)
