"""ts.compile_model and ts.extract_tasks: a graph in, a Model out, with the best known kernel of
every group and drafts by the analytic score elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from tilesmith.base.digest import digest
from tilesmith.base.errors import GraphError
from tilesmith.base.target import Target, cpu
from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Graph
from tilesmith.graph.model import Model
from tilesmith.graph.partition import Partition, partition
from tilesmith.graph.pipeline import PASSES, Pass, run_passes
from tilesmith.graph.plan import Plan, Step, plan
from tilesmith.graph.program import Program
from tilesmith.ir.function import Function
from tilesmith.records.accurate import AccurateRecords
from tilesmith.records.database import Database
from tilesmith.runtime.kernel import Kernel, Origin
from tilesmith.schedule.rounding import ACCURACY, require_accuracy
from tilesmith.schedule.trace import Trace
from tilesmith.task.task import Candidate, Task, statement_key
from tilesmith.tune.build import known_schedules, no_record
from tilesmith.tune.build_pool import Report, build_all
from tilesmith.tune.build_request import BuildRequest
from tilesmith.tune.cache import Cache, code_digest, default_folder
from tilesmith.tune.inputs import require_database, require_target
from tilesmith.tune.progress import progress_bar

PLAIN_POINTS = 2048  # see BuildRequest
_MAX_FAMILIAR = 64  # tasks whose programs a draft may follow; each costs some milliseconds


def compile_model(
    graph: Graph | Program,
    target: Target | None = None,
    *,
    database: Database | None = None,
    strict: bool = False,
    accuracy: float = ACCURACY,
    passes: Sequence[Pass] = PASSES,
    groups: Partition = partition,
    cache: Cache | str | Path | None = "default",
    progress: bool | None = None,
) -> Model:
    """A Model with the best known kernels, and with drafts by the analytic score where the database
    has no record; with `strict`, that is an error. `accuracy` is the relative error that a layer
    may have because it is computed in another way than it is stated: the largest error over the
    largest value, against float64 (see schedule/rounding.py).

    Built kernels and packed weights are kept in `cache`, a folder (by default that of the user, see
    ts.Cache; None keeps nothing), so that the second start is quick. `progress` shows a bar while
    kernels are built; by default on a terminal.
    """
    require_target(target, "compile_model")
    require_database(database, "compile_model")
    require_accuracy(accuracy)
    if not isinstance(graph, Graph | Program):
        raise GraphError(
            f"compile_model is given a {type(graph).__name__}; it takes what ts.load_onnx returns"
        )
    builder = _ModelBuilder(
        cpu() if target is None else target, database, strict, _cache(cache), progress, accuracy
    )

    def compile_graph(one: Graph) -> Executor:
        lowered = run_passes(one, passes)
        return builder.executor(plan(lowered, groups(lowered)))

    return Model(graph, compile_graph)


def _cache(cache: Cache | str | Path | None) -> Cache | None:
    if cache is None or isinstance(cache, Cache):
        return cache
    return Cache(default_folder() if cache == "default" else Path(cache))


class _ModelBuilder:
    """Kernels of a model, each built once."""

    def __init__(
        self, target: Target, database: Database | None, strict: bool, cache: Cache | None,
        progress: bool | None, accuracy: float,
    ) -> None:  # fmt: skip
        self.target, self.strict, self.accuracy = target, strict, accuracy
        self.database = None if database is None else AccurateRecords(database, accuracy)
        self.cache, self.progress = cache, progress
        self.kernels: dict[str, Kernel] = {}

    def executor(self, made: Plan) -> Executor:
        keys = [s.stored.digest for s in made.steps]
        self.build({k: s for k, s in zip(keys, made.steps, strict=True) if k not in self.kernels})
        return Executor(made, [self.kernels[k] for k in keys], self.cache)

    def build(self, steps: Mapping[str, Step]) -> None:
        requests: dict[str, BuildRequest] = {}
        for key, step in steps.items():
            request = self.request(step.func, step.stored)
            kept = None if self.cache is None else self.cache.get(self.cache_key(request))
            if kept is None:
                requests[key] = request
            else:
                self.kernels[key] = Kernel(*kept)
        if not requests:
            return
        with progress_bar("building kernels", self.progress) as report:
            self.build_missing(requests, report)

    def build_missing(self, requests: Mapping[str, BuildRequest], report: Report) -> None:
        for (key, request), result in zip(
            requests.items(), build_all([*requests.values()], report), strict=True
        ):
            if result.artifact is None:
                assert self.database is not None
                reasons = "; ".join(result.obstacles) or "no record of this task"
                raise no_record(Task(request.func, self.target), self.database, reasons)
            self.kernels[key] = Kernel(result.artifact, result.origin)
            if self.cache is not None:
                self.cache.put(self.cache_key(request), (result.artifact, result.origin))

    def request(self, func: Function, stored: Function) -> BuildRequest:
        if self.strict and self.database is None:
            raise GraphError(
                "compile_model(strict=True) takes recorded kernels only; give a database"
            )
        known: tuple[tuple[Trace, Origin], ...] = ()
        why = "no database"
        if self.database is not None:
            known = tuple(known_schedules(self.database, Task(func, self.target)))
            why = "no record of this task is in the database"
        familiar = () if known or self.strict else self.familiar
        if familiar:
            why += "; similar to records of other tasks where there are any"
        return BuildRequest(
            func, self.target, known, why, not self.strict, stored, familiar, PLAIN_POINTS,
            self.accuracy,
        )  # fmt: skip

    @cached_property
    def familiar(self) -> tuple[Candidate, ...]:
        """The best program of each task that the database has for this target."""
        if self.database is None:
            return ()
        here = self.target.fingerprint
        tasks = [t.task for t in self.database.tasks() if t.task.target.fingerprint == here]
        best = (self.database.best(t) for t in tasks[:_MAX_FAMILIAR])
        return tuple(m.candidate for m in best if m is not None)

    def cache_key(self, request: BuildRequest) -> str:
        traces = (f"{trace.to_json()} {origin}" for trace, origin in request.known)
        statement = statement_key(request.func, self.target)
        how = [str(request.drafts), request.why, request.built.digest]
        how += [str(request.plain_points), str(request.accuracy)]
        similar = (c.key for c in request.familiar)
        return digest(code_digest(), statement, *how, *traces, "similar", *similar)


def extract_tasks(
    graph: Graph | Program,
    target: Target | None = None,
    *,
    passes: Sequence[Pass] = PASSES,
    groups: Partition = partition,
) -> list[tuple[Task, int]]:
    """The tasks of a graph, each with the number of times it occurs."""
    require_target(target, "extract_tasks")
    if not isinstance(graph, Graph):
        open_inputs = [str(s) for s in graph.inputs if s.is_open]
        what = f"its inputs {', '.join(open_inputs)} are open" if open_inputs else "it has stages"
        raise GraphError(
            f"{graph.name} has no tasks yet: {what}; give the sizes, as in "
            'ts.load_onnx(path, dims={"batch": 1})'
        )
    machine = cpu() if target is None else target
    lowered = run_passes(graph, passes)
    found: dict[str, tuple[Task, int]] = {}
    for step in plan(lowered, groups(lowered)).steps:
        task = Task(step.func, machine)
        before = found.get(task.key)
        found[task.key] = (task, 1) if before is None else (before[0], before[1] + 1)
    return list(found.values())
