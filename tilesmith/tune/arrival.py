"""What a record pack has for a task is a schedule that was fast elsewhere. Where it arrives, its
kernel is timed once against the draft, side by side; the times are stored, so that from then on
the database decides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from tilesmith.base.errors import RecordsError
from tilesmith.base.target import cpu
from tilesmith.ir.function import Function
from tilesmith.measure.this_machine import usable_cores
from tilesmith.records.database import Database
from tilesmith.records.pack import Packed, WithPacks
from tilesmith.runtime.device_kernel import kernel_of
from tilesmith.runtime.kernel import Kernel, Origin
from tilesmith.schedule.trace import Trace
from tilesmith.task.inputs import example_inputs
from tilesmith.task.task import Candidate, Measurement, Task
from tilesmith.tune.build_request import BuildRequest, BuildResult, fulfil
from tilesmith.tune.open_build import is_close

PACK = "pack"  # the kind of the origin of a pack's kernel
_ROUNDS, _SECONDS = 3, 4e-3  # samples of each kernel, and how long each takes at least
_RACE_SECONDS = 2.0  # of all cores, for building the drafts of a model that are raced


def packed_schedules(
    database: Database, task: Task, wrong: Collection[str] = ()
) -> tuple[tuple[Trace, Origin], ...]:
    """What packs have for exactly this computation, the nearest machine first, without the keys of
    `wrong` candidates.
    """
    found = database.packed(task) if isinstance(database, WithPacks) else []
    return tuple((p.candidate.trace, _origin(p)) for p in found if p.candidate.key not in wrong)


def _origin(p: Packed) -> Origin:
    return Origin(PACK, p.seconds, p.origin, p.key)


def near_programs(database: Database, task: Task) -> tuple[Candidate, ...]:
    """What packs have for the same structure and near sizes: drafts may follow them."""
    found = database.near(task) if isinstance(database, WithPacks) else []
    return tuple(p.candidate for p in found)


def is_from_pack(request: BuildRequest) -> bool:
    return bool(request.known) and request.known[0][1].kind == PACK


def without_pack(request: BuildRequest) -> BuildRequest:
    """The request for the draft that a pack's kernel is raced against."""
    return replace(request, known=(), why="no record of this task is in the database")


def rivals(requests: Mapping[str, BuildRequest]) -> dict[str, BuildRequest]:
    """The drafts that kernels of packs are raced against, as many as are built in about
    _RACE_SECONDS: those of the tasks that take longest.
    """
    from_packs = [pair for pair in requests.items() if is_from_pack(pair[1]) and can_race(pair[1])]
    from_packs.sort(key=lambda pair: -(pair[1].known[0][1].seconds or 0.0))
    left = _RACE_SECONDS * len(usable_cores())
    out = {}
    for key, request in from_packs:
        draft = without_pack(request)
        left -= draft.expected_seconds
        if left >= 0:
            out[key] = draft
    return out


def can_race(request: BuildRequest) -> bool:
    """Whether there is a draft to race against, and kernels for this target run on this machine. A
    kernel whose parameters lie in other arrays cannot be called by itself.
    """
    target = request.task.target
    runs_here = target.kind != "cpu" or (target.cpu == "native" and target.arch == cpu().arch)
    alone = request.stored is None or request.stored.digest == request.task.func_digest
    return request.drafts and not request.is_plain and runs_here and alone


def arrived(request: BuildRequest, database: Database) -> BuildResult:
    """The faster one of a pack's kernel and the draft."""
    packed = fulfil(replace(request, drafts=False))
    if packed.artifact is None:  # none of its schedules builds
        return fulfil(replace(without_pack(request), why="; ".join(packed.obstacles)))
    if not can_race(request):
        return packed
    return raced(request, packed, fulfil(without_pack(request)), database)


def raced(
    request: BuildRequest, packed: BuildResult, draft: BuildResult, database: Database
) -> BuildResult:
    """The faster of two kernels of a task. Its times are stored."""
    if packed.artifact is None or draft.artifact is None:
        return draft if packed.artifact is None else packed
    task = request.task
    one, other = kernel_of(packed.artifact), kernel_of(draft.artifact)
    times = race(request.built, one, other)
    if times is None:
        why = f"the schedule {packed.origin.why} does not compute the same here"
        return replace(draft, origin=replace(draft.origin, why=why))
    traces = (_trace_of(request, packed), draft.trace)
    _store(database, [
        Measurement(Candidate(task, trace), tuple(seconds))
        for trace, seconds in zip(traces, times, strict=True)
        if trace is not None
    ])  # fmt: skip
    ours, theirs = (float(np.median(t)) for t in times)
    text = f"here {ours * 1e6:.4g} us, the draft {theirs * 1e6:.4g} us"
    if ours <= theirs:
        why = f"{packed.origin.why}; {text}"
        return replace(packed, origin=replace(packed.origin, seconds=ours, why=why))
    why = f"faster than the schedule {packed.origin.why}: {text}"
    return replace(draft, origin=replace(draft.origin, why=why))


def _trace_of(request: BuildRequest, packed: BuildResult) -> Trace | None:
    """The schedule that was built: the first one, unless that does not build."""
    found = (t for t, origin in request.known if origin.record == packed.origin.record)
    return next(found, None)


def _store(database: Database, measurements: Sequence[Measurement]) -> None:
    with suppress(RecordsError):  # it may be open for reading only
        database.add(measurements)


def race(func: Function, one: Kernel, other: Kernel) -> tuple[list[float], list[float]] | None:
    """The seconds of both, in turns, on the same inputs; None if their results differ."""
    arrays = example_inputs(func)
    given = [
        [k.pack(b.name, a) for b, a in zip(func.inputs, arrays, strict=True)] for k in (one, other)
    ]
    results = [_outputs(k(*own)) for k, own in zip((one, other), given, strict=True)]
    if not all(is_close(a, b) for a, b in zip(*results, strict=True)):
        return None
    times: tuple[list[float], list[float]] = [], []
    for _ in range(_ROUNDS):
        for kernel, own, seconds in zip((one, other), given, times, strict=True):
            took = kernel.time(*own, repeats=1, min_seconds=_SECONDS).best
            seconds.append(took)
    return times


def _outputs(result: object) -> tuple[np.ndarray, ...]:
    return tuple(map(np.asarray, result if isinstance(result, tuple) else (result,)))
