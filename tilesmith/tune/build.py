"""ts.build: the best recorded kernel of a Function, or one with the best analytic score if there is
no record. `kernel.origin` says which.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from tilesmith.base.errors import BuildError
from tilesmith.base.given import checks_given
from tilesmith.base.target import Target, cpu
from tilesmith.codegen.artifact import Backend
from tilesmith.expr.ints import var
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, For, Stmt
from tilesmith.records.accurate import AccurateRecords
from tilesmith.records.database import (
    Database,
    Explaining,
    likely_best,
    missing_text,
    targets_of,
    with_parts,
)
from tilesmith.runtime.build import backend_of, build
from tilesmith.runtime.device_kernel import kernel_of
from tilesmith.runtime.kernel import Kernel, Origin
from tilesmith.schedule.trace import Parts, Trace
from tilesmith.task.task import Measurement, Ranking, Task, require_accuracy
from tilesmith.tune.arrival import arrived, is_from_pack, near_programs, packed_schedules
from tilesmith.tune.build_request import TOO_SMALL, BuildRequest, fulfil
from tilesmith.tune.open_build import Sizes, open_kernel, records_at_samples
from tilesmith.tune.pinned import pinned_request
from tilesmith.tune.precision import of_operator
from tilesmith.tune.stored_portfolio import stored_kernel

_PLACES = ("global", "constant")  # the scopes of buffers that ts.function creates
_MAX_RECORDS = 3  # tried before drafts


@checks_given(error=BuildError, name="build")
def best_kernel(
    what: Any,
    target: Target | None = None,
    *,
    database: Database | None = None,
    record: str | None = None,
    strict: bool = False,
    accuracy: float | None = None,
    precision: str = "float32",
    checked: bool = False,
    backend: Backend | None = None,
    parts: Parts | None = None,
) -> Kernel:
    """A kernel at once, without tuning: of a Function with the best schedule in the database, or of
    a Schedule as it is.

    - `what`: a Function or a Schedule. With open sizes (`ts.size`) the kernel takes arrays of any
      size.
    - `target`: the machine, by default `ts.cpu()`.
    - `database`: the records. Without one of this task, what the database's packs have for it is
      timed once against the schedule with the best analytic score, which is taken where there is
      nothing; `kernel.origin` says which it was.
    - `record`: the key of a record, as `kernel.origin.record` or `result.best.candidate.key`: its
      kernel and no other, which computes the same bits on every machine with the same instructions.
      A BuildError says why, if it would not.
    - `strict`: without a record raises a BuildError instead.
    - `accuracy`: the relative error that a layer may have because it is computed in another way
      than it is stated (see schedule/winograd.py and schedule/chunks.py); 0 allows none. By default
      1e-5, and 5e-3 for sums of float16.
    - `precision`: "tf32" lets tensor cores of a GPU multiply float32, of which they read 11 binary
      digits: the error of a layer is at most 1e-3 (see schedule/rounding.py), which `accuracy` is
      then by default.
    - `checked`: for debugging, and slow. An index that is loaded from a tensor (`table[ids[i]]`)
      must lie inside its table. Kernels do not check that: an index outside reads arbitrary memory,
      or crashes. A checked kernel is built as given, and raises an ArgumentError that names the
      table and the index.
    - `backend`: a code generator of your own; the argument is built as given.
    - `parts`: your own primitives, intrinsics and back ends, see `ts.Parts`; by default those that
      the database was opened with.

    Example:

        kernel = ts.build(func, ts.cpu(num_cores=1))
        out = kernel(a, b)
        print(kernel.origin, kernel.time(a, b))
    """
    require_accuracy(accuracy)
    if database is not None:
        parts, database = with_parts(parts, database)
    machine = cpu() if target is None else target
    accuracy = of_operator(precision, machine, accuracy, "build")
    if record is not None:
        if not isinstance(what, Function) or what.sizes or not is_plain(what):
            raise BuildError(
                f"build(record={record!r}) takes a Function as ts.function made it, with fixed "
                "sizes; what is scheduled by hand is built as it is"
            )
        if checked or backend is not None:
            raise BuildError(f"build(record={record!r}) takes neither checked= nor backend=")
        return _pinned_kernel(what, machine, record, database, parts)
    if checked or backend is not None:
        backend = backend or backend_of(machine, parts)
        return build(what, machine, checked=checked, backend=backend)
    if isinstance(what, Function) and what.sizes and is_plain(what):
        if strict:
            raise BuildError(
                f"{what.name!r} has the open sizes {', '.join(what.open_sizes)}: strict=True takes "
                "what was measured, for certain sizes; put in numbers with ts.instantiate"
            )
        known_at: Mapping[Sizes, Sequence[tuple[Trace, Origin]]] = {}
        if database is not None:
            known = AccurateRecords(database, accuracy)
            if (kernel := stored_kernel(known, what, machine, parts)) is not None:
                return kernel
            known_at = records_at_samples(what, machine, parts, known, accuracy)
        return open_kernel(what, machine, known_at, parts, accuracy)
    if not isinstance(what, Function) or what.sizes or not is_plain(what):
        return build(what, machine, backend=backend_of(machine, parts))
    task = Task(what, machine, parts)
    if strict and database is None:
        raise BuildError("build(strict=True) takes recorded kernels only; give a database")
    if database is not None:
        database = AccurateRecords(database, accuracy)
    request = BuildRequest(task, why="no database", drafts=not strict, accuracy=accuracy)
    if database is not None:
        request = request_for(task, database, request, strict)
    if database is not None and is_from_pack(request):
        result = arrived(request, database)
    else:
        result = fulfil(request)
    if result.artifact is None:
        assert database is not None
        raise no_record(task, database, result.obstacles)
    warn_of_plain(what, result.origin)
    return kernel_of(result.artifact, result.origin)


def _pinned_kernel(
    func: Function, target: Target, key: str, database: Database | None, parts: Parts | None
) -> Kernel:
    result = fulfil(pinned_request(func, target, key, database, parts))
    if result.artifact is None:
        raise BuildError(f"the record {key} cannot be built: {'; '.join(result.obstacles)}")
    return kernel_of(result.artifact, result.origin)


def request_for(
    task: Task, database: Database, request: BuildRequest, strict: bool
) -> BuildRequest:
    """The request with what a database knows: the task's own records, those of a machine that is
    like it, those of packs; and for a draft, programs of near sizes to follow.
    """
    wrong = wrong_schedules(database, task)
    known = (
        tuple(known_schedules(database, task))
        or tuple(schedules_elsewhere(database, task, relatives(database, task.target, strict)))
        or packed_schedules(database, task, wrong)
    )
    why = "no record of this task is in the database"
    familiar = () if known or strict else near_programs(database, task)
    if familiar:
        why += "; similar to a pack's record of another size"
    return replace(request, known=known, why=why, familiar=familiar, wrong=wrong)


def warn_of_plain(func: Function, origin: Origin) -> None:
    """Warns of a kernel that is as slow as if nothing had been searched."""
    if origin.kind == "naive" and origin.why != TOO_SMALL:
        why = f"{func.name!r} is built as the plain loop nest: {origin.why}"
        warnings.warn(why, stacklevel=3)


def no_record(task: Task, database: Database, obstacles: Sequence[str]) -> BuildError:
    """What strict=True raises where no record can be built."""
    missing = database.missing(task) if isinstance(database, Explaining) else {}
    near = [
        m.num_cores
        for m in relatives(database, task.target)
        if m != task.target and database.best(replace(task, target=m)) is not None
    ]
    reasons = "; ".join(r for r in (*obstacles, missing_text(missing)) if r)
    reasons = reasons or "no record of this task"
    if near:
        reasons += f" with num_cores={task.target.num_cores}; there are some with "
        reasons += ", ".join(map(str, near))
    return BuildError(
        f"there is no kernel of {task.func.name!r} for {task.target.name} "
        f"in {place_of(database)}: {reasons}. Tune it with ts.tune, or build with strict=False"
    )


def known_schedules(database: Database, task: Task) -> Iterator[tuple[Trace, Origin]]:
    """The schedules that a database has for a task, best first."""
    for m in islice(_records(database, task), _MAX_RECORDS):
        yield m.candidate.trace, _origin(database, m)


def likely_schedules(database: Database, task: Task) -> Iterator[tuple[Trace, Origin]]:
    """The first of the known schedules, if there is any. Whether it can be applied is seen when it
    is built.
    """
    if (m := likely_best(database, task)) is not None:
        yield m.candidate.trace, _origin(database, m)


def _origin(database: Database, m: Measurement) -> Origin:
    return Origin("record", m.cost, f"in {place_of(database)}", m.candidate.key)


def wrong_schedules(database: Database, task: Task) -> frozenset[str]:
    """The keys of candidates that crashed or gave a wrong result: no draft may be one of them."""
    kinds = ("crash", "bounds", "wrong")
    measured = database.of(task) if database.count(task) else []
    return frozenset(m.candidate.key for m in measured if m.failure and m.failure.kind in kinds)


def relatives(database: Database, target: Target, strict: bool = False) -> tuple[Target, ...]:
    """Machines whose records count where there are none of the target. Those with nearly as many
    cores come first.

    Records of this processor with another number of cores do, as in a smaller container, unless
    `strict` asks for what was measured. A processor that is only named, as for export to it, has no
    others, as nothing is ever measured for a name: those of processors with its features count.
    """
    if target.kind != "cpu":
        return ()
    have = targets_of(database)
    if target.cpu == "native":
        same = [m for m in have if not strict and replace(m, num_cores=target.num_cores) == target]
    else:
        what = target.kind, target.arch, target.features
        same = [m for m in have if (m.kind, m.arch, m.features) == what]
    return tuple(sorted(same, key=lambda m: abs(m.num_cores - target.num_cores)))


def schedules_elsewhere(
    database: Database, task: Task, machines: Sequence[Target]
) -> Iterator[tuple[Trace, Origin]]:
    """The schedules that a database has for the task on the first of these machines that it has any
    for, best first.
    """
    for machine in machines:
        if machine.fingerprint == task.target.fingerprint:
            continue
        there = replace(task, target=machine)
        found = False
        for trace, origin in known_schedules(database, there):
            found = True
            name, n = machine.model or machine.cpu, machine.num_cores
            where = f"measured on {name} with {n} core{'s' * (n != 1)}"
            yield trace, replace(origin, why=f"{origin.why}, {where}")
        if found:
            return


def _records(database: Database, task: Task) -> Iterator[Measurement]:
    """The records, best first. The whole list is read only if the best cannot be built."""
    best = database.best(task)
    if best is None:
        return
    yield best
    ranked = Ranking(database.of(task)).ranked
    yield from (m for m in ranked if m.candidate != best.candidate)


def place_of(database: Database) -> str:
    return str(getattr(database, "place", "this database"))


def is_plain(func: Function) -> bool:
    """Whether the Function is as ts.function lowered it: one nest of serial loops per stage. One
    that was scheduled by hand is built as given.
    """
    buffers = (*func.params, *func.buffers)
    return (
        not func.facts
        and all(b.layout is None and not b.prepared and b.scope in _PLACES for b in buffers)
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
