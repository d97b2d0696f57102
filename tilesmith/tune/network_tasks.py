"""The tasks of one or more networks, each once, with what a scheduler asks of them; and what a
database knows of similar tasks: the start of their cost model, and fast programs to begin with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, log, prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.identity import digest
from tilesmith.base.target import CpuConstants, GpuConstants, Target, cpu
from tilesmith.expr.nodes import Binary, Load, Unary, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.function import Function, operations
from tilesmith.ir.nodes import Block, walk
from tilesmith.measure.this_machine import peak_of
from tilesmith.records.database import Database
from tilesmith.schedule.trace import Trace
from tilesmith.schedule.winograd import filtering_of
from tilesmith.space.variant import without_numbers
from tilesmith.task.task import Candidate, Measurement, Ranking, Task

_SAFETY = 0.95  # share of a bound that counts, because peaks are measured
_FASTER = 1.5  # bandwidths may be higher than those of the machines where they were measured
# GPUs: cycles per second, and the speed of matrix instructions relative to others.
_GPU_CLOCK, _TENSOR_CORES = 2.0e9, 16.0
# A variant of another task must be lowered before its programs can be learned from, which takes
# some 40 ms. So there are few: the nearest tasks by size, and of each the variants of the fastest
# programs, with the fastest of these and some others.
_MAX_TASKS = 12
_MAX_VARIANTS = 3
_MAX_EXAMINED = 64  # tasks whose structure is worked out, which takes some milliseconds each
_FASTEST = 32
_OTHERS = 16
MOST_SUGGESTED = 4  # programs of tasks of the same structure that a search is told of


@dataclass(frozen=True)
class NetworkTask:
    """`weights` says how often each network runs it. For the rest see TaskState."""

    task: Task
    weights: tuple[float, ...]
    bound: float
    structure: str
    places: tuple[tuple[str, ...], ...] = ()  # the nodes of each of its kernels

    @property
    def weight(self) -> float:
        return sum(self.weights)


@dataclass(frozen=True)
class RivalTasks:
    """Numbers of tasks: one, and those that compute the same together."""

    whole: int
    parts: tuple[int, ...]


def with_rivals(
    tasks: Sequence[NetworkTask], rivals: Sequence[tuple[Task, Sequence[Task]]]
) -> tuple[list[NetworkTask], list[RivalTasks]]:
    """The tasks, and behind them the parts of some, which no network runs yet."""
    every = {t.task.key: t for t in tasks}
    nobody = (0,) * len(tasks[0].weights) if tasks else ()
    for _, parts in rivals:
        for p in parts:
            if p.key not in every:
                every[p.key] = NetworkTask(p, nobody, least_seconds(p), structure(p.func))
    number = {key: k for k, key in enumerate(every)}
    found = [
        RivalTasks(number[whole.key], tuple(number[p.key] for p in parts))
        for whole, parts in {w.key: (w, p) for w, p in rivals}.values()
    ]
    return list(every.values()), found


def with_places(
    tasks: Sequence[NetworkTask],
    rivals: Sequence[RivalTasks],
    places: Mapping[str, Sequence[tuple[str, ...]]],
) -> list[NetworkTask]:
    """With the nodes of the models that each computes, by the keys of tasks. Parts of a task that
    no network runs yet have its own.
    """
    found = {t.task.key: tuple(places.get(t.task.key, ())) for t in tasks}
    for r in rivals:
        for k in r.parts:
            found[tasks[k].task.key] = found[tasks[k].task.key] or found[tasks[r.whole].task.key]
    return [replace(t, places=found[t.task.key]) for t in tasks]


def merged(networks: Sequence[Sequence[tuple[Task, float]]]) -> list[NetworkTask]:
    """The tasks of all networks. Equal ones of several networks are one, also if their names
    differ.
    """
    tasks: dict[str, Task] = {}
    weights: dict[str, list[float]] = {}
    for k, network in enumerate(networks):
        for task, weight in network:
            tasks.setdefault(task.key, task)
            weights.setdefault(task.key, [0] * len(networks))[k] += weight
    return [
        NetworkTask(t, tuple(weights[key]), least_seconds(t), structure(t.func))
        for key, t in tasks.items()
    ]


def alone(task: Task) -> NetworkTask:
    """A task that is tuned by itself."""
    return NetworkTask(task, (1,), least_seconds(task), structure(task.func))


def structure(func: Function) -> str:
    """A digest of the block with most work, without sizes: equal for convolutions or products that
    differ in their sizes and in what is computed before and after.
    """
    blocks = [b for _, b in walk(func.body)]
    if not blocks:
        return ""
    b = max(blocks, key=_work)
    at = {i.name: k for k, i in enumerate(b.iters)}
    # A dimension of one element is none: a window of one differs from a larger one.
    parts = [f"{i.kind}{'' if i.extent.const == 1 else 's'}" for i in b.iters]
    for w in b.writes:
        parts.append(str(w.value.dtype))
        for e in preorder(w.value, children):
            if isinstance(e, Load):
                parts.append(str([sorted(at.get(n, -1) for n in p.names) for p in e.index]))
            elif isinstance(e, Binary | Unary):
                parts.append(e.op)
    parts += [str(b.combiner.op) if b.combiner is not None else "", str(_filtered_windows(func, b))]
    return str(digest(*parts))


def _work(b: Block) -> int:
    each = sum(operations(w.value) for w in b.writes) + (b.combiner is not None)
    return (each + 1) * prod(i.extent.number for i in b.iters)


def least_seconds(task: Task) -> float:
    """A time that no kernel beats on this machine: of the arithmetic at the peak rate, and of
    moving all parameters once from the cache that holds them. 0 if the peak is unknown.
    """
    func, target = task.func, task.target
    if target.kind == "cuda":
        return _least_on_gpu(task)
    if target.kind != "cpu" or not _is_here(target):
        return 0.0
    dtype = func.outputs[0].dtype
    peak = peak_of(dtype, target.num_cores)
    if peak is None:
        return 0.0
    constants = CpuConstants.of(target)
    cycles = peak / (2 * constants.ports * target.lanes(dtype.bits))  # per second, of all cores
    nbytes = func.nbytes
    rate = 2.0 * target.vector_bits / 8  # bytes per cycle and core
    for cache in constants.caches:
        if nbytes > cache.nbytes * (target.num_cores if cache is not constants.caches[2] else 1):
            rate = _FASTER * cache.bandwidth_below
    return _SAFETY * max(_arithmetic(func) / peak, nbytes / (rate * cycles))


def _least_on_gpu(task: Task) -> float:
    """Of a launch, and of the arithmetic, for 16 bits at the rate of tensor cores, or of moving all
    parameters once from L2.
    """
    gpu = GpuConstants.of(task.target)
    each = 2.0 * gpu.issue * gpu.warp_size  # operations of a multiprocessor in a cycle
    if any(b.dtype.bits <= 16 for b in task.func.inputs):
        each *= _TENSOR_CORES
    # Of a table from which rows are gathered, no more is read than there are iterations.
    most = sum(prod(i.extent.number for i in b.iters) for _, b in walk(task.func.body))
    params = task.func.params
    nbytes = sum(min(most, b.size.number) * b.dtype.nbytes for b in params)
    work = max(task.func.flops / each, nbytes / (_FASTER * gpu.l2_rate))
    cycles = gpu.launch_cycles + work / gpu.num_multiprocessors
    return _SAFETY * cycles / _GPU_CLOCK


def _arithmetic(func: Function) -> float:
    """Operations that are needed. Minimal filtering saves about half of them along a window."""
    total = float(func.flops)
    for _, b in walk(func.body):
        windows = _filtered_windows(func, b)
        if windows:
            each = sum(operations(w.value) for w in b.writes) + 1
            every = each * prod(i.extent.number for i in b.iters)
            total -= every * (1 - 0.5**windows)
    return max(0.0, total)


def _filtered_windows(func: Function, b: Block) -> int:
    """The number of windows along which minimal filtering pays."""
    filtering = filtering_of(func, b)
    return 0 if filtering is None else sum(w.stride == 1 for w in filtering.windows)


def _is_here(target: Target) -> bool:
    here = cpu()
    return target.model == here.model and target.arch == here.arch


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
    """Other tasks that a database has for the same machine and by the same code generator."""
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


def fastest_of(similar: Sequence[SimilarTask]) -> list[Candidate]:
    """The best programs of some of them, those of the fastest for their work first."""
    return [s.best for s in sorted(similar, key=lambda s: s.slowness)[:MOST_SUGGESTED]]


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
