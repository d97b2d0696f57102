"""`tune_tasks`: tunes several Functions within one budget. A scheduler gives each batch of
measurements to the one that promises most.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from math import inf
from typing import overload

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import TilesmithError, TuneError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target, cpu
from tilesmith.ir.function import Function
from tilesmith.measure.local import LocalMeasurer
from tilesmith.measure.protocol import Measurer
from tilesmith.records.accurate import AccurateRecords
from tilesmith.records.database import Database, with_parts
from tilesmith.records.open import open_database
from tilesmith.schedule.trace import Parts
from tilesmith.search.evolution import Evolution
from tilesmith.search.protocol import Strategy
from tilesmith.search.shared_model import with_shared_model
from tilesmith.space.spaces import Space, default_space
from tilesmith.task.network import ModelTuning
from tilesmith.task.task import Budget, Task, require_accuracy
from tilesmith.tune.build_request import first_draft
from tilesmith.tune.network_run import NetworkObserver, NetworkRun
from tilesmith.tune.network_table import NetworkTable
from tilesmith.tune.network_tasks import merged, similar_tasks
from tilesmith.tune.objectives import Objective, total_latency
from tilesmith.tune.open_build import samples_of, task_at
from tilesmith.tune.open_tune import SEARCH_SHARE, tune_open
from tilesmith.tune.opened import Opened, require_made, run_opened
from tilesmith.tune.precision import of_operator
from tilesmith.tune.result import Result
from tilesmith.tune.run_state import require_finite
from tilesmith.tune.scheduler import Scheduler, gradient, seeded
from tilesmith.tune.task_tuner import TaskTuner, require_seed

_DEFAULT = Budget(seconds=600)
_MOST_NAMED = 3  # functions without a kernel that an error names


@checks_given(error=TuneError)
@dataclass(frozen=True)
class TasksResult(Sequence[Result]):
    """The outcome of `ts.tune_tasks`: a Result for each function, in the order they were given.

    - `results[k]`, and a loop over them: the Result of a function. A function of which nothing
      could be measured has none: that raises its error, which is also in `errors[k]`.
    - `results.failures[k]`: how candidates of a function failed, by kind: the count and the first
      text.
    - `results.tuning`: how the sum of all seconds fell, and what was spent on which task.
    """

    results: tuple[Result | None, ...]
    errors: dict[int, TilesmithError]
    failures: tuple[dict[str, tuple[int, str]], ...]
    tuning: ModelTuning

    def __len__(self) -> int:
        return len(self.results)

    @overload
    def __getitem__(self, k: int) -> Result: ...

    @overload
    def __getitem__(self, k: slice) -> list[Result]: ...

    def __getitem__(self, k: int | slice) -> Result | list[Result]:
        if isinstance(k, slice):
            return [self[i] for i in range(*k.indices(len(self)))]
        result = self.results[k]
        if result is None:
            raise self.errors[k % len(self)]
        return result

    def __iter__(self) -> Iterator[Result]:
        return (self[k] for k in range(len(self)))

    def __repr__(self) -> str:
        failed = f", {len(self.errors)} without a kernel" if self.errors else ""
        return f"<TasksResult of {len(self)} functions{failed}: {self.tuning!r}>"

    def __str__(self) -> str:
        lines = [str(self.tuning)]
        return "\n".join([*lines, *(f"failed: {error}" for error in self.errors.values())])


@checks_given(error=TuneError)
def tune_tasks(
    funcs: Sequence[Function | tuple[Function, float]],
    target: Target | None = None,
    *,
    budget: Budget = _DEFAULT,
    database: Database | None = None,
    scheduler: Scheduler | None = None,
    objective: Objective = total_latency,
    space: Space | None = None,
    strategy: Strategy | None = None,
    measurer: Measurer | None = None,
    accuracy: float | None = None,
    precision: str = "float32",
    observers: Sequence[NetworkObserver] = (),
    seed: int = 0,
    quiet: bool = False,
    parts: Parts | None = None,
    batch_size: int | None = None,
) -> TasksResult:
    """Searches for the fastest kernels of several Functions within one budget, and returns a Result
    for each. Batch by batch, a scheduler chooses the function that is next.

    - `funcs`: Functions, or pairs of a Function and its weight: how often it is called beside the
      others; 1 if not given. Equal ones are tuned once. One with open sizes is tuned at its samples
      and gets a portfolio, as by `ts.tune`; on CPUs.
    - `budget`: the limits of the whole run, by default 600 seconds. Records that the database has
      already count towards its trials.
    - `scheduler`: by default `ts.gradient()`, which takes the function that makes the objective
      smaller soonest; or `ts.round_robin()`, or a function of the ts.TaskState of all tasks.
    - `objective`: what is to become small, by default `ts.total_latency`, the weighted sum of all
      seconds. For an objective each Function is a network of its own that runs it `weight` times:
      `ts.latency_targets([...])` and `ts.geomean_speedup([...])` take one time for each, in order.
    - `target`, `database`, `space`, `accuracy`, `precision`, `strategy`, `measurer`, `seed`,
      `quiet`, `parts`, `batch_size`: as in `ts.tune`. `observers` get a ts.NetworkProgress after
      each batch.

    All searches share one cost model, which also learns from the database's records of similar
    tasks, and each begins with what is fast in those.

    Every measurement is stored at once, so a run with the same database goes on where one ended.
    Ctrl-C ends it early, with the best so far. A Function of which nothing can be measured does not
    stop the others (see `errors` of the result); if nothing can be measured at all, that is raised.

    Example:

        X = ts.placeholder((64, 256), name="X")
        softmax = ts.function([X, ts.ops.softmax(X, name="Y")])
        results = ts.tune_tasks([softmax, (func, 4)], budget=ts.Budget(seconds=60))
        print(results.tuning)
        out = results[1].kernel(a, b)
    """
    start = time.monotonic()
    require_finite(budget)
    require_seed(seed)
    require_accuracy(accuracy)
    require_made(scheduler, "scheduler")
    require_made(objective, "objective")
    weighted = [_weighted(each) for each in funcs]
    if not weighted:
        raise TuneError("tune_tasks is given an empty list; it takes what ts.function made")
    machine = cpu() if target is None else target
    accuracy = of_operator(precision, machine, accuracy, "tune_tasks")
    for func, _ in weighted:
        if machine.kind != "cpu" or not func.declared:
            func.require_closed("ts.tune_tasks", TuneError)
    if database is not None:
        parts, database = with_parts(parts, database)
    fixed = [_at_samples(func, weight, machine, parts, accuracy) for func, weight in weighted]
    tasks = merged(fixed)
    number = {t.task.key: k for k, t in enumerate(tasks)}
    with ExitStack() as stack:
        records = database
        if records is None:
            records = stack.enter_context(open_database(":memory:", parts))
        known = AccurateRecords(records, accuracy)
        opened = Opened(measurer or LocalMeasurer(), tasks[0].task)
        stack.callback(opened.close)
        similar = similar_tasks(known, tasks)
        others = [m for s in similar for m in s.records]
        how = with_shared_model(strategy or Evolution(), others, len(tasks))
        plain = space is None and strategy is None
        tuners = [
            TaskTuner(
                t.task,
                database=known,
                space=default_space(machine, accuracy, parts) if space is None else space,
                strategy=how,
                seed=seed,
                drafts=partial(first_draft, accuracy) if plain else None,
                batch_size=batch_size,
            )
            for t in tasks
        ]
        names = [func.name for func, _ in weighted]
        watching = [*observers] if quiet else [NetworkTable(), *observers]
        run = NetworkRun(
            names, tasks, tuners, seeded(scheduler or gradient(), seed), objective, budget, start,
            watching, similar, finishing_seconds=_finishing_seconds(weighted, budget),
        )  # fmt: skip
        interrupted, error = run_opened(run, opened)
        run.report(finished=True)
        found = [_outcome(t, run.errors.get(k), interrupted, error) for k, t in enumerate(tuners)]
        if all(isinstance(o, TilesmithError) for o in found):
            if interrupted:
                raise KeyboardInterrupt
            raise error or _nothing_ran([o for o in found if isinstance(o, TilesmithError)])
        outcomes = []
        for (func, _), own in zip(weighted, fixed, strict=True):
            at = {t.key: found[number[t.key]] for t, _ in own}
            outcomes.append(_of_function(func, machine, parts, accuracy, budget, at, database))
        results = tuple(None if isinstance(o, TilesmithError) else o for o in outcomes)
        errors = {k: o for k, o in enumerate(outcomes) if isinstance(o, TilesmithError)}
        failures = tuple(_failures([tuners[number[t.key]] for t, _ in own]) for own in fixed)
        return TasksResult(results, errors, failures, run.tuning(None, interrupted, error))


def _weighted(given: Function | tuple[Function, float]) -> tuple[Function, float]:
    func, weight = given if isinstance(given, tuple) else (given, 1)
    if not 0 < weight < inf:
        raise TuneError(
            f"{func.name!r} has the weight {weight!r}; it is how often the function is called, "
            "beside the others: a number above 0"
        )
    return func, weight


def _at_samples(
    func: Function, weight: float, target: Target, parts: Parts | None, accuracy: float | None
) -> list[tuple[Task, float]]:
    """The task of a Function; with open sizes, one for each sample."""
    if not func.sizes:
        return [(Task(func, target, parts), weight)]
    samples = samples_of(func)
    total = sum(samples.values())
    return [
        (task_at(func, sizes, target, parts, accuracy), weight * share / total)
        for sizes, share in samples.items()
    ]


def _finishing_seconds(weighted: Sequence[tuple[Function, float]], budget: Budget) -> float:
    """What is left of the seconds for timing the kernels of open sizes at all samples."""
    if budget.seconds is None:
        return 0.0
    share = sum(bool(func.sizes) for func, _ in weighted) / len(weighted)
    return (1 - SEARCH_SHARE) * share * budget.seconds


def _outcome(
    tuner: TaskTuner, why: TilesmithError | None, interrupted: bool, error: TilesmithError | None
) -> Result | TilesmithError:
    """The result of a task, or why there is none."""
    if tuner.best is None and why is not None:
        return why
    try:
        return tuner.result(interrupted, error)
    except TuneError as nothing:
        return nothing


def _of_function(
    func: Function, target: Target, parts: Parts | None, accuracy: float | None, budget: Budget,
    at: dict[str, Result | TilesmithError], database: Database | None,
) -> Result | TilesmithError:  # fmt: skip
    """The result of a Function from those of its tasks."""

    def searched(fixed: Function, _: Budget) -> Result:
        result = at[Task(fixed, target, parts).key]
        if isinstance(result, TilesmithError):
            raise result
        return result

    if not func.sizes:
        return next(iter(at.values()))
    try:
        return tune_open(func, target, parts, budget, searched, accuracy, database)
    except TilesmithError as error:
        return error


def _failures(tuners: Sequence[TaskTuner]) -> dict[str, tuple[int, str]]:
    out: dict[str, tuple[int, str]] = {}
    for tuner in tuners:
        for kind, (count, text) in tuner.failures.items():
            before, first = out.get(kind, (0, text))
            out[kind] = before + count, first
    return out


def _nothing_ran(errors: Sequence[TilesmithError]) -> TilesmithError:
    if len(errors) == 1:
        return errors[0]
    texts = "; ".join(map(str, errors[:_MOST_NAMED]))
    more = f"; and {len(errors) - _MOST_NAMED} more" if len(errors) > _MOST_NAMED else ""
    return TuneError(f"no candidate of any of {len(errors)} tasks could be measured: {texts}{more}")
