"""What a build takes and gives: a Function, the schedules to try in order, and the artifact of the
first one that builds. Plain data, so that it may travel to another process.

Where no rule gives a schedule, a CPU has the plain loop nest, and on a GPU each thread computes one
element of every stage:

    for i in 100:                 for i_j.0 in 16:  # blockIdx.x
      for j in 20:          ->      for i_j.1 in 128:  # threadIdx.x
        for k in 30:                  for k in 30:
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.base.target import Target
from tilesmith.codegen.artifact import Artifact
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, For, Path, walk
from tilesmith.runtime.build import compile_for
from tilesmith.runtime.kernel import Origin
from tilesmith.schedule.open_trace import open_schedule
from tilesmith.schedule.roll import Roll
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.trace import Trace
from tilesmith.search.evolution import DRAFT_ROWS, Evolution
from tilesmith.space.spaces import SketchSpace
from tilesmith.space.variant import reopen
from tilesmith.task.task import Candidate, Task

PLAIN_POINTS = 2048  # of a model's kernels, see BuildRequest
TOO_SMALL = "it is too small for a schedule to matter"
_MAX_DRAFTS = 3  # tried before the plain loop nest
# Of a task, the structures of which some are tried for those like it. Over the tasks of five
# networks, the analytic score of the result is then between 0.97 and 1.06 times that of a search of
# all structures.
_NUM_STRUCTURES = 3
_THREADS = 128
_MOST_IN_ORDER = 16  # of a GPU's plain loop nest, see BuildRequest


@dataclass(frozen=True)
class BuildRequest:
    """`known` are recorded schedules, best first; drafts by the analytic score follow, for the
    reason `why`. What is built is `stored`, the same function with parameters that lie elsewhere.
    """

    task: Task
    known: tuple[tuple[Trace, Origin], ...] = ()
    why: str = ""
    drafts: bool = True
    stored: Function | None = None
    familiar: tuple[Candidate, ...] = ()  # fast programs of other tasks: similar ones come first
    # Functions of at most so many loop iterations are built as the plain loop nest: they take a few
    # microseconds in any case, and a draft takes longer to find than it would ever save.
    plain_points: int = 0
    accuracy: float | None = None  # the relative error that drafts may have
    # A task of the same form (tune/forms.py): the structures that are best for it are the only ones
    # that are looked at here, which takes a fifth of the time. `structures` has them if they are
    # known; else they are looked for.
    like: Task | None = None
    structures: tuple[Trace, ...] = ()
    wrong: frozenset[str] = frozenset()  # keys of candidates that are known to be no kernels

    @property
    def built(self) -> Function:
        return self.task.func if self.stored is None else self.stored

    @property
    def is_plain(self) -> bool:
        func = self.task.func
        if self.task.target.kind != "cpu" and _points_in_order(func) > _MOST_IN_ORDER:
            return False
        return points(func) <= self.plain_points

    @property
    def expected_seconds(self) -> float:
        """Of a core. Within a factor of three: whether processes are worth it depends on it."""
        if self.known or not self.drafts:
            return 0.1
        return 0.02 if self.is_plain else 0.5 if self.like is None else 0.2


@dataclass(frozen=True)
class BuildResult:
    """`artifact` is None where nothing was left to try; `obstacles` says what did not build;
    `structures` are the best ones of a draft, for tasks that are like this one.
    """

    artifact: Artifact | None
    origin: Origin
    obstacles: tuple[str, ...] = ()
    structures: tuple[Trace, ...] = ()
    trace: Trace | None = None  # the schedule, if it is a draft


def fulfil(request: BuildRequest) -> BuildResult:
    """The first schedule that builds: a recorded one, a draft, or the plain loop nest."""
    obstacles: list[str] = []
    for trace, origin in request.known:
        if (artifact := _try(trace, request, origin, obstacles)) is not None:
            return BuildResult(artifact, with_schedule(origin, trace), tuple(obstacles))
    if not request.drafts:
        return BuildResult(None, Origin("naive"), tuple(obstacles))
    if request.is_plain:
        origin = Origin("naive", why=TOO_SMALL)
        return BuildResult(_plain(request), origin)
    for trace, structures in _drafts(request, obstacles):
        if request.wrong and Candidate(request.task, trace).key in request.wrong:
            obstacles.append("a draft was wrong when it was measured")
            continue
        origin = Origin("draft", why="; ".join(dict.fromkeys([request.why, *obstacles])))
        if (artifact := _try(trace, request, origin, obstacles)) is not None:
            origin = with_schedule(origin, trace)
            return BuildResult(artifact, origin, tuple(obstacles), structures, trace)
    reasons = "; ".join(dict.fromkeys(obstacles)) or "nothing was proposed"
    return BuildResult(_plain(request), Origin("naive", why=reasons), tuple(obstacles))


def with_schedule(origin: Origin, trace: Trace) -> Origin:
    return replace(origin, schedule=trace.to_json())


def _plain(request: BuildRequest) -> Artifact:
    return compile_for(request.task, plain_schedule(request.built, request.task.target))


def points(func: Function) -> int:
    """The iterations of all its loop nests together."""
    return sum(prod(i.extent.number for i in b.iters) for _, b in walk(func.body))


def _points_in_order(func: Function) -> int:
    """The most iterations that one thread of a GPU takes in the plain loop nest."""
    return max(
        prod(f.extent.number for f in path[len(_spread_loops(path, block)) :])
        for path, block in walk(func.body)
    )


def _drafts(
    request: BuildRequest, obstacles: list[str]
) -> Iterator[tuple[Trace, tuple[Trace, ...]]]:
    """The first builds in nearly all cases. If not, programs like it may not either: then come the
    best of other sketches, and the next best of all. Where parameters lie elsewhere, it may be that
    none of the task's does: then come those of the function as it is stored. With each, the
    structures that are best for the task.
    """
    if request.like is not None:
        yield from ((trace, ()) for trace in _similar(request, request.like))
    of_stored = replace(request.task, func=request.built)
    for task in dict.fromkeys((request.task, of_stored)):
        tried: list[Trace] = []
        for n in (1,) * _MAX_DRAFTS + (_MAX_DRAFTS,):
            try:
                among: tuple[Trace, ...] = ()
                if not tried and request.built.sizes:
                    among = sketches_for_open_sizes(task, request.accuracy)
                if tried and n == 1 and not (among := _unlike(task, tried, request.accuracy)):
                    continue
                familiar = () if tried else request.familiar
                traces = drafts_of(task, n, familiar, request.accuracy, among=among)
            except Exception as error:  # of a rule, or of the search: there is still the plain nest
                obstacles.append(f"drafting failed: {type(error).__name__}: {error}")
                break
            for trace in traces:
                if trace not in tried:
                    tried.append(trace)
                    yield trace, traces.structures


def _unlike(task: Task, tried: Sequence[Trace], accuracy: float | None) -> tuple[Trace, ...]:
    """The sketches that are made by other steps than these programs."""
    made = {tuple(map(type, t.steps)) for t in tried}
    sketches = SketchSpace(accuracy=accuracy).sketches(task)
    return tuple(s for s in sketches if tuple(map(type, s.steps)) not in made)


def sketches_for_open_sizes(task: Task, accuracy: float | None) -> tuple[Trace, ...]:
    """The sketches to draft from where the task is a sample of open sizes; nothing stands for all.
    On CPUs not those that `roll`, if there are others: the part of a tile of keys that is behind
    the end takes as long as one with keys, and few keys are less than one tile.
    """
    if task.target.kind != "cpu":
        return ()
    every = SketchSpace(accuracy=accuracy).sketches(task)
    others = tuple(t for t in every if not any(isinstance(s, Roll) for s in t.steps))
    return others if len(others) < len(every) else ()


def _similar(request: BuildRequest, like: Task) -> Drafts:
    """The draft with a structure that is good for another task; none where no such structure is
    possible for this one.
    """
    try:
        structures = request.structures
        if not structures:
            among = sketches_for_open_sizes(like, request.accuracy) if request.built.sizes else ()
            structures = drafts_of(like, accuracy=request.accuracy, among=among).structures
        return drafts_of(request.task, accuracy=request.accuracy, among=structures)
    except Exception:  # of a rule, or of the search: the task's own draft may do
        return Drafts()


class Drafts(tuple[Trace, ...]):
    """Schedules, best first; and the structures with the best scores, whose numbers are open."""

    structures: tuple[Trace, ...] = ()


@lru_cache(maxsize=256)
def drafts_of(
    task: Task, n: int = 1, familiar: tuple[Candidate, ...] = (), accuracy: float | None = None,
    variants: int | None = None, rows: int = DRAFT_ROWS, among: tuple[Trace, ...] = (),
) -> Drafts:  # fmt: skip
    """The n schedules with the best analytic scores, best first; those similar to what was fast
    for other sizes come before all others. With `among`, of these structures instead of all.
    """
    sketches = among or SketchSpace(accuracy=accuracy).sketches(task)
    search = Evolution(cost_model=None).start(task, sketches, np.random.default_rng(0))
    drafting = search.drafting(variants, rows, familiar)
    asked = (c for _ in range(n) for c in drafting.ask(1))
    drafts = Drafts(c.trace for c in asked)
    drafts.structures = _for_other_sizes(task, drafting.best_structures(_NUM_STRUCTURES))
    return drafts


def _for_other_sizes(task: Task, structures: Sequence[Trace]) -> tuple[Trace, ...]:
    """Of the best structures of a task, best first, those to try for other sizes. The structures of
    a reduction that are made by the same steps differ in where stages are computed: the better one
    is so for other sizes, too, so the best of them is enough. What only moves elements has all of
    them, because sizes decide which dimension should be contiguous.
    """
    if all(b.combiner is None for _, b in walk(task.func.body)):
        return tuple(structures)
    best: dict[tuple[type, ...], Trace] = {}
    for trace in structures:
        best.setdefault(tuple(map(type, trace.steps)), trace)
    return tuple(best.values())


def first_draft(accuracy: float | None, task: Task) -> list[Candidate]:
    """What is built for a task without a record; tuning measures it first."""
    return [Candidate(task, trace) for trace in drafts_of(task, accuracy=accuracy)]


def _try(
    trace: Trace, request: BuildRequest, origin: Origin, obstacles: list[str]
) -> Artifact | None:
    """None if it does not build; why not is added to the obstacles."""
    try:
        return compile_for(request.task, _scheduled(trace, request, origin))
    except Exception as error:  # whatever it is, another schedule may do
        first = str(error).strip().splitlines()[:1]
        text = ": ".join([type(error).__name__, *first])
        obstacles.append(f"a {origin.kind} does not build ({text})")
        return None


def _scheduled(trace: Trace, request: BuildRequest, origin: Origin) -> Function:
    """The Function with a schedule. The search of a draft has lowered it already, with numbers left
    open.
    """
    if origin.kind == "draft" and request.built is request.task.func and not request.built.sizes:
        variant, row = reopen(Candidate(request.task, trace))
        return variant.function(np.array(row))
    return open_schedule(trace, request.built)


def plain_schedule(func: Function, target: Target) -> Function:
    if target.kind == "cpu":
        return func
    schedule = Schedule(func)
    for path, block in walk(func.body):
        spatial = _spread_loops(path, block)
        elements = prod(loop.trips for loop in spatial)
        if elements == 1:
            continue
        try:
            _spread(schedule, [loop.name for loop in spatial], min(elements, _THREADS))
        except ScheduleError:  # loops that several blocks share: one thread computes it
            continue
    return schedule.func


def _spread_loops(path: Path, block: Block) -> list[For]:
    """The loops that the plain nest spreads over threads: those around any that reduces."""
    in_order = (f.name in block.reducing_loops or f.kind != "serial" for f in path)
    return list(path[: next((k for k, is_in in enumerate(in_order) if is_in), len(path))])


def _spread(schedule: Schedule, loops: list[str], threads: int) -> None:
    one = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
    outer, inner = schedule.split(one, [None, threads])
    schedule.bind(outer, "blockIdx.x")
    schedule.bind(inner, "threadIdx.x")
