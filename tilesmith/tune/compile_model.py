"""ts.compile_model and ts.extract_tasks: a graph in, a Model out, with the best known kernel of
every group and drafts by the analytic score elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError, GraphError, ScheduleError
from tilesmith.base.given import checks_given
from tilesmith.base.identity import digest, identity
from tilesmith.base.process import few_collections
from tilesmith.base.target import Target, cpu
from tilesmith.base.waits import told_wait
from tilesmith.codegen.artifact import Artifact
from tilesmith.graph.device_executor import DeviceExecutor
from tilesmith.graph.executor import Executor
from tilesmith.graph.graph import Graph
from tilesmith.graph.memory import ALIGNMENT
from tilesmith.graph.model import Model
from tilesmith.graph.partition import Partition, partition
from tilesmith.graph.pipeline import Pass, passes_for, run_passes
from tilesmith.graph.plan import Plan, Step, plan
from tilesmith.graph.profile import node_names
from tilesmith.graph.program import Program
from tilesmith.graph.size_fit import CannotOpen
from tilesmith.ir.function import Function
from tilesmith.measure.this_machine import usable_cores
from tilesmith.records.accurate import AccurateRecords
from tilesmith.records.database import Database, with_parts
from tilesmith.runtime.affinity import cores_of
from tilesmith.runtime.build import compile_for
from tilesmith.runtime.device_kernel import kernel_of
from tilesmith.runtime.kernel import Kernel, Origin
from tilesmith.schedule.trace import Parts, Trace
from tilesmith.task.task import Candidate, Task, codegen_of, require_accuracy
from tilesmith.tune.arrival import (
    PACK,
    near_programs,
    packed_schedules,
    raced,
    rivals,
)
from tilesmith.tune.build import (
    known_schedules,
    likely_schedules,
    no_record,
    relatives,
    schedules_elsewhere,
    warn_of_plain,
    wrong_schedules,
)
from tilesmith.tune.build_pool import Early, Report, build_all
from tilesmith.tune.build_request import PLAIN_POINTS, BuildRequest, points, with_schedule
from tilesmith.tune.cache import (
    Cache,
    code_digest,
    default_folder,
    kernel_from_bytes,
    kernel_to_bytes,
)
from tilesmith.tune.forms import share_structures
from tilesmith.tune.kept_plan import KeptPlans, KnownWeights, LaterConstants
from tilesmith.tune.open_model import (
    open_run,
    require_open_sizes,
    sizes_for,
    warn_of_defaults,
)
from tilesmith.tune.partition_choice import RecordedPartition, offered
from tilesmith.tune.pinned import LockedKernels, LockedPartition
from tilesmith.tune.precision import Settled, settled
from tilesmith.tune.precision_choice import runs_here
from tilesmith.tune.progress import notebook_output, progress_bar
from tilesmith.tune.specialise import known_graphs

_GPU_ALIGNMENT = 256  # bytes; OpenCL devices ask for up to 128
# So many kernels take much longer than a process takes to start: drafts, and recorded ones.
_DRAFTS_OF_A_PROCESS, _RECORDED_OF_A_PROCESS = 6, 12
_MAX_FAMILIAR = 64  # tasks whose programs a draft may follow; each costs some milliseconds


@dataclass(frozen=True)
class ReadyKernel:
    """A kernel that was built before, as while tuning: its schedule and its code."""

    trace: Trace
    artifact: Artifact
    origin: Origin


class RecordedKernel(Kernel):
    """A kernel whose artifact may lack its source, as those of the measurer do: it is generated
    again when somebody asks for it.
    """

    def __init__(
        self, artifact: Artifact, origin: Origin, task: Task, func: Function, trace: Trace
    ) -> None:
        super().__init__(artifact, origin)
        self._task, self._func, self._trace = task, func, trace

    @cached_property
    def _whole(self) -> Kernel:
        if self.artifact.source:
            return Kernel(self.artifact)
        return Kernel(compile_for(self._task, self._trace.apply(self._func)))

    @property
    def source(self) -> str:
        return self._whole.artifact.source

    @cached_property
    def assembly(self) -> str:
        return self._whole.assembly


@checks_given(error=GraphError)
def compile_model(
    graph: Graph | Program,
    target: Target | None = None,
    *,
    database: Database | None = None,
    strict: bool = False,
    accuracy: float | None = None,
    passes: Sequence[Pass] | None = None,
    groups: Partition = partition,
    cache: Cache | str | Path | None = "default",
    progress: bool | None = None,
    precision: str = "float32",
    calibration: Sequence[Mapping[str, Any]] = (),
    parts: Parts | None = None,
    threads: int | None = None,
    affinity: Sequence[int] | None = None,
    lock: str | os.PathLike[str] | None = None,
    sizes: Mapping[str, Any] | Literal["each"] | None = None,
) -> Model:
    """A Model that runs a graph, without tuning: with the best known kernels, and with drafts by
    the analytic score where the database has no record.

    - `graph`: what `ts.load_onnx` or `ts.from_torch` returns.
    - `target`: the machine, by default `ts.cpu()`. On a GPU (`ts.cuda()`), weights are uploaded
      once, and a call is one graph of launches.
    - `database`: the records. For a target that is only named, records of machines with the same
      features count, too.
    - `strict`: a task without a record is an error.
    - `cache`: the folder for built kernels and packed weights, so that the second start is quick.
      By default it is that of the user, see `ts.Cache`; None keeps nothing.
    - `progress`: shows a bar while kernels are built; by default on a terminal.
    - `passes`, `groups`: your own graph passes and partition; by default those for the kind of
      target.
    - `accuracy`: the relative error that a layer may have because it is computed in another way
      than it is stated: the largest error over the largest value, against float64 (see
      schedule/winograd.py and schedule/chunks.py). By default 1e-5, and 5e-3 for sums of float16.
    - `precision`: the type in which products are computed. "tf32" lets tensor cores of a GPU
      multiply float32, of which they read 11 binary digits: the error of a layer is at most 1e-3
      (see schedule/rounding.py). "float16" and "bfloat16" store weights
      and activations in it, too; "int8" is what `ts.quantize` makes; "auto" gives each layer the
      type that is fastest on this machine, as long as the outputs differ from float32 by at most
      `accuracy` of the largest value (by default 1e-2; with "int8" there is a bound if you give
      one). Inputs and outputs stay as they are. Layers with numbers beyond float16 stay in
      float32; a warning and the summary name them. Types that the machine does not compute
      faster are said, too.
    - `calibration`: inputs that are typical of the model's use, for "int8", "auto", "float16" and
      "bfloat16". Without them, float16 knows the range of constants alone.
    - `parts`: your own primitives, intrinsics and back ends, see `ts.Parts`; by default those that
      the database was opened with.
    - `threads`: how many threads a call runs on, on a CPU; by default as many as the target has
      cores. It is short for a target with so many cores.
    - `affinity`: the cores that calls run on, by number, as [2, 3], with a thread for each by
      default. By default they are those of the thread that calls.

    - `lock`: a file that `model.save_lock` wrote. Every kernel has the schedule that stands there
      and computes the same bits, also on another machine with the same instructions; if it cannot,
      an error says why. Records are not asked. Where sizes are open, the file has their ranges.
    - `sizes`: the range of each open dimension by its name, as `{"sequence": (1, 512)}`, or
      `(1, 512, {16: 1, 128: 4})` with the values that matter most and their weights, or a ts.size.
      The model is compiled once for all sizes, on CPUs; sizes outside of the range run, too. Where
      that cannot be, `model.summary()` says why, and it is compiled at the first call with each.
      What has no range gets one from 1 to 1024, with a warning. "each" compiles it at the first
      call with each size, which is best for few sizes.

    All models of a process share one pool of threads.

    Example:

        model = ts.compile_model(ts.load_onnx("model.onnx", dims={"batch": 1}))
        outputs = model({"x": np.zeros((1, 8), np.float32)})
        print(model.summary())
    """
    require_accuracy(accuracy)
    machine = cpu() if target is None else target
    cores = cores_of(affinity)
    if threads is not None or cores is not None:
        if machine.kind != "cpu":
            raise GraphError("threads and affinity are for CPUs; leave them out for a GPU")
        machine = with_threads(machine, len(cores or ()) if threads is None else threads)
    if database is not None:
        parts, database = with_parts(parts, database)
    locked = None if lock is None else LockedKernels(lock, machine, parts)
    opens = machine.kind == "cpu" and precision == "float32"
    if locked is not None and sizes is None:
        opens = opens and bool(locked.lock.sizes)
    if sizes == "each" or (sizes is None and not opens):
        ranges = {}
    else:
        if sizes is not None:
            require_open_sizes(machine, precision, calibration, "compile_model")
        ranges = sizes_for(graph, sizes, "compile_model")
    if locked is not None:
        if sizes is None:
            ranges = {n: locked.lock.sizes.get(n, s) for n, s in ranges.items()}
        locked.require_sizes(ranges, graph.name)
    done = in_precision(
        graph, machine, precision, passes, accuracy, calibration, "compile_model",
        database=database, cache=cache, groups=groups, parts=parts, affinity=affinity,
    )  # fmt: skip
    graph, passes, accuracy = done.graph, done.passes, done.accuracy
    known = None if database is None else AccurateRecords(database, accuracy)
    folder = cache_of(cache)
    ways = offered(groups, machine)
    chosen = (
        RecordedPartition(ways, known, machine, accuracy, parts, folder)
        if locked is None
        else LockedPartition(ways, locked)
    )
    builder = ModelBuilder(
        machine, database, strict, folder, progress, accuracy=accuracy, parts=parts,
        locked=locked,
    )  # fmt: skip

    plans = None
    if folder is not None and isinstance(chosen, RecordedPartition) and machine.kind == "cpu":
        plans = plans_of(folder, builder.code, machine, passes, chosen)

    def compile_graph(one: Graph) -> Executor:
        with few_collections(), builder.starting_early(one):
            return builder.compiled(one, passes, chosen, cores, plans)

    codegen = codegen_of(machine, parts)
    if not ranges or not isinstance(graph, Program):
        return Model(graph, compile_graph, codegen)
    try:
        with few_collections():
            opened = open_run(graph, ranges, builder, passes, chosen, compile_graph, cores)
    except CannotOpen as error:
        if locked is not None:
            raise GraphError(
                f"{locked.lock.place} is for a model that is compiled once for all of its sizes, "
                f"and {graph.name} cannot be: {error}"
            ) from None
        return Model(graph, compile_graph, codegen, opening=str(error))
    if locked is None:
        warn_of_defaults(graph, ranges)
    return Model(graph, compile_graph, codegen, opened)


def with_threads(target: Target, threads: int) -> Target:
    """The target with so many cores, which this machine must have if it is the target."""
    if target.cpu == "native" and target == cpu(1).with_cores(target.num_cores):
        return cpu(threads)
    return target.with_cores(threads)


def in_precision(
    graph: Graph | Program, target: Target, precision: str, passes: Sequence[Pass] | None,
    accuracy: float | None, calibration: Sequence[Mapping[str, Any]], who: str, **options: Any,
) -> Settled:  # fmt: skip
    """The model in the type that was asked for, and the passes that make the rest of it. `options`
    are those of `compile_model`, with which models for calibration are made.
    """
    here = target if target.kind != "cpu" or runs_here(target) else cpu()
    own = tuple(passes_for(target) if passes is None else passes)

    def compiled(graph: Graph, passes: Sequence[Pass] | None = None) -> Model:
        own_passes = own if passes is None else passes
        return compile_model(graph, here, passes=own_passes, sizes="each", **options)

    return settled(graph, target, precision, own, accuracy, calibration, compiled, who)


def plan_of(
    graph: Graph,
    target: Target,
    passes: Sequence[Pass] | None = None,
    groups: Partition = partition,
) -> Plan:
    """The kernels of a graph, before any of them is built."""
    lowered = run_passes(graph, passes_for(target) if passes is None else passes)
    return plan(lowered, groups(lowered), ALIGNMENT if target.kind == "cpu" else _GPU_ALIGNMENT)


def plans_of(
    folder: Cache, code: str, target: Target, passes: Sequence[Pass] | None,
    groups: RecordedPartition,
) -> KeptPlans | None:  # fmt: skip
    """None for passes or a partition that cannot be told from others."""
    own = tuple(passes_for(target) if passes is None else passes)
    try:
        # Without a database, other divisions were not looked at.
        how = identity((own, groups.base, groups.accuracy, groups.database is None))
    except ArgumentError:
        return None
    key = digest(code, target.fingerprint, how)
    return KeptPlans(folder, key, lambda graph: run_passes(graph, own), groups)


def cache_of(cache: Cache | str | Path | None) -> Cache | None:
    if cache is None or isinstance(cache, Cache):
        return cache
    return Cache(default_folder() if cache == "default" else Path(cache))


class ModelBuilder:
    """Kernels of a model, each built once."""

    def __init__(
        self, target: Target, database: Database | None, strict: bool, cache: Cache | None,
        progress: bool | None, ready: Mapping[str, ReadyKernel] | None = None,
        accuracy: float | None = None, parts: Parts | None = None,
        locked: LockedKernels | None = None,
    ) -> None:  # fmt: skip
        """`ready` has kernels by the statement of their task."""
        self.locked = locked
        self.target, self.strict, self.accuracy = target, strict, accuracy
        self.parts = parts
        self.database = None if database is None else AccurateRecords(database, accuracy)
        self.cache, self.progress, self.ready = cache, progress, ready or {}
        self.kernels: dict[str, Kernel] = {}
        self._early: Early | None = None
        self._places: dict[str, str] = {}  # in the cache, by the keys of kernels
        self._drafts: dict[str, str] = {}  # statements of tasks, by the keys of their kernels
        self._drafted: dict[str, Trace | str] = {}  # schedules or their keys, by statements
        # By the identity of their functions, which they keep alive: digests take long.
        self._tasks: dict[int, Task] = {}

    def task(self, func: Function) -> Task:
        if (known := self._tasks.get(id(func))) is None:
            known = self._tasks[id(func)] = Task(func, self.target, self.parts)
        return known

    def key(self, step: Step) -> str:
        """Of what is built, equal for equal steps."""
        return self.task(step.stored).func_digest

    def compiled(
        self, graph: Graph, passes: Sequence[Pass] | None, groups: Partition,
        affinity: frozenset[int] | None, plans: KeptPlans | None,
    ) -> Executor:  # fmt: skip
        """A graph as it runs, by the plan of an earlier start where there is one."""
        key = None if plans is None else plans.key(graph)
        if plans is None or key is None:
            return self.executor(plan_of(graph, self.target, passes, groups), affinity)
        if (found := plans.get(key, graph)) is not None:
            kept, weights = found
            made, decisions, keys = kept.plan, kept.decisions, kept.keys
            self.take_drafts(kept.drafts)
        else:
            weights, lowered = None, plans.made(graph)
            chosen, decisions = plans.groups.decided(lowered)
            made = plan(lowered, chosen, ALIGNMENT)
            keys = tuple(map(self.key, made.steps))
        done = self.executor(made, affinity, keys, weights)
        constants = made.graph.constants
        # Other kernels than those of the earlier start may want other weights.
        if not isinstance(constants, LaterConstants) or constants.are_made:
            drafts = self._places if self.database is None else {}
            plans.put(key, graph, done, decisions, keys, drafts)
        return done

    def take_drafts(self, places: Mapping[str, str]) -> None:
        """Kernels of an earlier start, by their places in the cache. Without a database, they are
        what would be built.
        """
        if self.database is None and not self.strict:
            for key, place in places.items():
                if (found := self.kept(place)) is not None:
                    self.kernels[key], self._places[key] = kernel_of(*found), place

    def executor(
        self, made: Plan, affinity: frozenset[int] | None = None, keys: Sequence[str] = (),
        weights: KnownWeights | None = None,
    ) -> Executor:  # fmt: skip
        """`keys` are those of the steps, where they are known."""
        keys = keys or [self.key(s) for s in made.steps]
        self.build({k: s for k, s in zip(keys, made.steps, strict=True) if k not in self.kernels})
        kernels = [self.kernels[k] for k in keys]
        if self.target.kind != "cpu":
            return DeviceExecutor(made, kernels, self.target, self.cache)
        return Executor(made, kernels, self.cache, affinity=affinity, known=weights)

    @contextmanager
    def starting_early(self, graph: Graph) -> Iterator[None]:
        """Within the block the kernels of a graph are planned and built. The processes that build
        take half a second to start, so they do while it is planned: unless it was compiled before,
        when the cache has most kernels.
        """
        key = self.graph_key(graph)
        is_known = self.cache is not None and self.cache.get(key) is not None
        count = 0
        if not is_known and self.target.kind == "cpu" and self.parts is None:
            each = _DRAFTS_OF_A_PROCESS if self.database is None else _RECORDED_OF_A_PROCESS
            count = min(len(usable_cores()) - 1, num_weighted(graph) // each)
        early = self._early = Early(count) if count > 0 else None
        try:
            yield
        finally:
            self._early = None
            if early is not None:
                early.close()
        if self.cache is not None and not is_known:
            self.cache.put(key, b"compiled")

    def graph_key(self, graph: Graph) -> str:
        """Equal for graphs of equal kernels, as far as nodes tell."""
        nodes = (f"{n.op} {[graph.values[x].shape for x in n.inputs]}" for n in graph.nodes)
        return digest(self.code, self.target.fingerprint, str(self.accuracy), "graph", *nodes)

    def build(self, steps: Mapping[str, Step]) -> None:
        wanted: dict[str, BuildRequest] = {}
        for key, step in steps.items():
            ready = self.ready_kernel(step)
            if ready is None:
                wanted[key] = self.request(step.func, step.stored)
            else:
                self.kernels[key] = ready
        self.take_or_build(wanted)

    def take_or_build(self, wanted: Mapping[str, BuildRequest]) -> None:
        """Kernels from the cache, and others."""
        requests: dict[str, BuildRequest] = {}
        for key, request in zip(wanted, share_structures([*wanted.values()]), strict=True):
            found = self._places[key] = self.cache_key(request)
            kept = self.kept(found)
            if kept is None:
                requests[key] = request
            else:
                artifact, origin = kept
                if request.known and self.target.kind == "cpu":
                    trace, origin = request.known[0]
                    origin = with_schedule(origin, trace)
                if request.known and self.target.kind == "cpu" and not request.built.sizes:
                    self.kernels[key] = RecordedKernel(
                        artifact, origin, request.task, request.built, trace
                    )
                else:
                    self.kernels[key] = kernel_of(artifact, origin)
                if origin.kind == "draft":
                    self._drafted[request.task.statement] = draft_key(found)
        if not requests:
            return
        text = f"building {len(requests)} kernels, which are kept for the next start"
        if self.cache is None:
            text = f"building {len(requests)} kernels, which no cache keeps for the next start"
        is_shown = self.progress is not None or sys.stderr.isatty() or notebook_output() is not None
        told = nullcontext() if is_shown else told_wait(text)
        with told, progress_bar("building kernels", self.progress) as report:
            self.build_missing(requests, report)

    def build_drafts(self, plans: Sequence[Plan]) -> None:
        """Builds the kernels of all tasks without a record, so that they have one whatever the
        time is that is left for tuning them. `draft_of` has their schedules.
        """
        wanted = {}
        for step in (s for p in plans for s in p.steps):
            request = replace(self.request(step.func, step.stored), familiar=())
            if not request.known and self.key(step) not in self.kernels:
                wanted[self.key(step)] = request
        self.take_or_build(wanted)
        self._drafts |= {key: r.task.statement for key, r in wanted.items()}

    def replace_drafts(self, tuned: Collection[str]) -> None:
        """Kernels of tasks that were measured, by their statements, are built by what is known
        now: a record, or at least that a draft was wrong.
        """
        for key, statement in self._drafts.items():
            if statement in tuned:
                self.kernels.pop(key, None)

    def kept(self, key: str) -> tuple[Artifact, Origin] | None:
        """A kernel that was built before."""
        data = None if self.cache is None else self.cache.get(key)
        return None if data is None else kernel_from_bytes(data, self.target)

    def draft_of(self, task: Task) -> Trace | None:
        """The schedule of a draft, if the task has one and it is known."""
        found = self._drafted.get(task.statement)
        if isinstance(found, str):  # built before
            data = None if self.cache is None else self.cache.get(found)
            found = None
            if data is not None:
                with suppress(ScheduleError, UnicodeDecodeError):  # of another version, or damaged
                    found = Trace.from_json(data.decode(), self.parts)
        return found

    def ready_kernel(self, step: Step) -> Kernel | None:
        """Code that was built for arrays of their own does not fit parts of others."""
        task = self.task(step.func)
        found = self.ready.get(task.statement) if self.ready else None
        if found is None or self.target.kind != "cpu" or self.key(step) != task.func_digest:
            return None
        if self.cache is not None:
            key = self.schedule_key(task, step.stored, found.trace)
            self.cache.put(key, kernel_to_bytes(found.artifact, found.origin))
        origin = with_schedule(found.origin, found.trace)
        return RecordedKernel(found.artifact, origin, task, step.func, found.trace)

    def build_missing(self, requests: Mapping[str, BuildRequest], report: Report) -> None:
        drafts = rivals(requests)
        both = build_all([*requests.values(), *drafts.values()], report, self._early)
        results = dict(zip(requests, both, strict=False))
        opponents = dict(zip(drafts, both[len(requests) :], strict=True))
        for key, request in requests.items():
            if self.locked is not None and results[key].artifact is None:
                raise self.locked.does_not_build(request.task, results[key].obstacles)
            if key in opponents:
                assert self.database is not None
                results[key] = raced(request, results[key], opponents[key], self.database)
            elif request.known and results[key].origin.kind not in ("record", PACK):
                # others may build
                request = self.request(request.task.func, request.built, only_best=False)
                results[key] = build_all([request], report)[0]
            result = results[key]
            if result.artifact is None:
                assert self.database is not None
                raise no_record(request.task, self.database, result.obstacles)
            self.kernels[key] = kernel_of(result.artifact, result.origin)
            if result.trace is not None:
                self._drafted[request.task.statement] = result.trace
            warn_of_plain(request.task.func, result.origin)
            # Another schedule than the one that names the file is not kept: the next start tries
            # the best again.
            if self.cache is not None and (not request.known or not result.obstacles):
                kernel = kernel_to_bytes(result.artifact, result.origin)
                place = self.cache_key(request)
                self.cache.put(place, kernel)
                if result.trace is not None:
                    self.cache.put(draft_key(place), result.trace.to_json().encode())

    def request(self, func: Function, stored: Function, only_best: bool = True) -> BuildRequest:
        """With the best record alone, unless that does not build: the others take long to read."""
        if self.locked is not None:
            return self.locked.request(self.task(func), stored)
        if self.strict and self.database is None:
            raise GraphError(
                "compile_model(strict=True) takes recorded kernels only; give a database"
            )
        known: tuple[tuple[Trace, Origin], ...] = ()
        wrong: frozenset[str] = frozenset()
        why = "no database"
        if self.database is not None:
            known = self.known(func, self.database, only_best)
            why = "no record of this task is in the database"
            if not known:
                wrong = wrong_schedules(self.database, self.task(func))
        is_drafted = not known and not self.strict and points(func) > PLAIN_POINTS
        familiar = self.familiar if is_drafted else ()
        if familiar:
            why += "; similar to records of other tasks where there are any"
        near = near_programs(self.database, self.task(func)) if is_drafted and self.database else ()
        if near:
            familiar = (*near, *familiar)
            why += "; similar to a pack's record of another size"
        return BuildRequest(
            self.task(func), known, why, not self.strict, stored, familiar, PLAIN_POINTS,
            self.accuracy, wrong=wrong,
        )  # fmt: skip

    def known(
        self, func: Function, database: Database, only_best: bool
    ) -> tuple[tuple[Trace, Origin], ...]:
        """Recorded schedules: of the target, or else of a machine that is like it."""
        task = self.task(func)
        schedules = likely_schedules if only_best else known_schedules
        if own := tuple(schedules(database, task)):
            return own
        elsewhere = schedules_elsewhere(database, task, self.relatives)
        found = tuple(islice(elsewhere, 1 if only_best else None))
        return found or packed_schedules(database, task, wrong_schedules(database, task))

    @cached_property
    def relatives(self) -> tuple[Target, ...]:
        """Machines whose records count for this one."""
        return () if self.database is None else relatives(self.database, self.target, self.strict)

    @cached_property
    def familiar(self) -> tuple[Candidate, ...]:
        """The best program of each task that the database has for this target."""
        if self.database is None:
            return ()
        here = self.target.fingerprint, codegen_of(self.target, self.parts)
        every = (t.task for t in self.database.tasks() if t.key == t.task.key)
        tasks = [t for t in every if (t.target.fingerprint, t.codegen) == here]
        best = (self.database.best(t) for t in tasks[:_MAX_FAMILIAR])
        return tuple(m.candidate for m in best if m is not None)

    def cache_key(self, request: BuildRequest) -> str:
        if request.known:
            return self.schedule_key(request.task, request.built, request.known[0][0])
        how = [str(request.drafts), request.why, self.task(request.built).func_digest]
        how += [str(request.plain_points), str(request.accuracy), *sorted(request.wrong)]
        what = self.code, request.task.statement
        like = "" if request.like is None else request.like.statement
        return digest(*what, *how, "like", like, "similar", *(c.key for c in request.familiar))

    def schedule_key(self, task: Task, stored: Function, trace: Trace) -> str:
        """Of the kernel of a recorded schedule."""
        stored_digest = self.task(stored).func_digest
        return digest(self.code, "schedule", task.statement, stored_digest, trace.to_json())

    @cached_property
    def code(self) -> str:
        return code_digest(self.parts)


def num_weighted(graph: Graph) -> int:
    """How many different kernels, about, have weights: products and convolutions, which take the
    longest to build.
    """
    return len({
        (n.op, *(graph.values[x].shape for x in n.inputs))
        for n in graph.nodes
        if any(x in graph.constants and len(graph.values[x].shape) > 1 for x in n.inputs)
    })  # fmt: skip


def draft_key(kernel: str) -> str:
    """Of the schedule of a draft, by the key of its kernel."""
    return digest(kernel, "schedule of the draft")


@checks_given(error=GraphError)
def extract_tasks(
    graph: Graph | Program,
    target: Target | None = None,
    *,
    passes: Sequence[Pass] | None = None,
    groups: Partition = partition,
    precision: str = "float32",
    calibration: Sequence[Mapping[str, Any]] = (),
    accuracy: float | None = None,
) -> list[tuple[Task, int]]:
    """The tasks of a graph, each with the number of times it occurs. The arguments are those of
    `ts.compile_model`.

    Example:

        for task, count in ts.extract_tasks(ts.load_onnx("model.onnx", dims={"batch": 1})):
            print(count, task)
    """
    machine = cpu() if target is None else target
    require_accuracy(accuracy)
    done = in_precision(graph, machine, precision, passes, accuracy, calibration, "extract_tasks")
    graph, passes = done.graph, done.passes
    ways = offered(groups, machine)
    plans = [plan_of(one, machine, passes, ways) for one in known_graphs(graph)]
    return tasks_of(plans, machine)


def places_of(
    plans: Sequence[Plan], target: Target, parts: Parts | None = None
) -> dict[str, list[tuple[str, ...]]]:
    """By the key of a task, the nodes of the model that each of its kernels computes."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for step in (s for p in plans for s in p.steps):
        found.setdefault(Task(step.func, target, parts).key, []).append(node_names(step))
    return found


def tasks_of(
    plans: Sequence[Plan], target: Target, parts: Parts | None = None
) -> list[tuple[Task, int]]:
    """The tasks of some plans, each with the number of its steps."""
    found: dict[str, tuple[Task, int]] = {}
    for step in (s for p in plans for s in p.steps):
        task = Task(step.func, target, parts)
        before = found.get(task.key)
        found[task.key] = (task, 1) if before is None else (before[0], before[1] + 1)
    return list(found.values())
