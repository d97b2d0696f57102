"""`tilesmith show tasks | records | trace | source`: a database in, what it knows as text out.

A task is named by the beginning of its key or by its function's name, a record by its place among
the best or by the beginning of its candidate's key.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.base.target import Target
from tilesmith.records.database import TaskSummary
from tilesmith.records.open import open_database
from tilesmith.runtime.build import build
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.task.task import Measurement, Standing, failures_by_kind, standing_of, trust

if TYPE_CHECKING:
    from tilesmith.records.sql import SqlDatabase

_SHORT = 12  # letters of a key that are shown, and that name it

Place = Annotated[str, typer.Option("--db", help="database: a file, or a postgresql:// URL")]
Which = Annotated[
    str,
    typer.Argument(
        help="the task: its key as `show tasks` prints it or the beginning of that, or the "
        "function's name; may be left out where the database has one task only"
    ),
]
Record = Annotated[
    str,
    typer.Option(
        help="its place in `show records`, 1 being the best, or the beginning of the candidate's "
        "key"
    ),
]


def existing(place: str) -> SqlDatabase:
    """To be read: a name without a file is a mistake, not a new database."""
    if "://" not in place and not Path(place).is_file():
        raise ArgumentError(f"there is no database {place}; `tilesmith tune ... --db` makes one")
    return open_database(place)


def tasks(db: Place) -> None:
    """The tasks of a database: how often each was measured, and its best.

    Example: tilesmith show tasks --db tune.db
    """
    with existing(db) as d:
        found = d.tasks()
    wide = max((len(t.task.func.name) for t in found), default=4)
    print(
        f"{'task':{_SHORT}}  {'function':{wide}}  measured  failed  {'best':>12}  GFLOP/s  target"
    )
    for t in found:
        best = "-" if t.best_seconds is None else f"{t.best_seconds * 1e6:.1f} us"
        rate = "-" if t.best_seconds is None else f"{t.task.func.flops / t.best_seconds / 1e9:.1f}"
        print(
            f"{t.key[:_SHORT]:{_SHORT}}  {t.task.func.name:{wide}}  {t.count:8}  {t.failures:6}  "
            f"{best:>12}  {rate:>7}  {_machine(t.task.target)}{_outdated(t)}"
        )


def records(
    db: Place,
    task: Which = "",
    top: Annotated[int, typer.Option(help="show so many of the best; 0: all")] = 20,
) -> None:
    """The records of a task, best first, and its failures by kind.

    The first is the one that `ts.build` takes: the fastest that was confirmed, which means
    repeated in a fresh process against the best so far. Behind it come the others by their time.
    What was measured while the machine did something else is contended, and comes last.

    Example: tilesmith show records matmul_512_512_512 --db tune.db --top 5
    """
    with existing(db) as d:
        summary = _task(d, task)
        known = d.of(summary.task)
    unread = summary.count - len(known)
    good = _ranked(known)
    work = summary.task.func.flops
    print(f"{summary.task.func.name} ({summary.key[:_SHORT]}), {_machine(summary.task.target)}")
    print(f"{'':>5}  {'candidate':{_SHORT}}  {'us':>11}  {'95 % of the median':>25}  GFLOP/s")
    for place, m in enumerate(good[: top or None], 1):
        low, high = (x * 1e6 for x in m.confidence)
        standing = "confirmed" if m.confirmed else "contended" if m.contended else ""
        line = (
            f"{place:5}  {m.candidate.key[:_SHORT]}  {m.cost * 1e6:11.2f}  "
            f"{low:11.2f} - {high:11.2f}  {work / m.cost / 1e9:7.1f}  {standing}"
        )
        print(line.rstrip())
    print(f"{len(good)} measured, {len(known) - len(good)} failed")
    if unread:
        print(f"{unread} cannot be read here (unknown primitives, or no times); they are kept")
    for kind, (count, text) in failures_by_kind(known).items():
        print(f"  {count} by {kind}; the first: {text}")


def trace(
    db: Place,
    task: Which = "",
    record: Record = "1",
    program: Annotated[bool, typer.Option(help="the loops it makes, too")] = False,
    json: Annotated[
        bool, typer.Option(help="as JSON, for Trace.from_json, decisions included")
    ] = False,
) -> None:
    """The schedule of a record, a primitive a line.

    Example: tilesmith show trace matmul_512_512_512 --db tune.db --program
    """
    m = _record(db, task, record)
    steps = m.candidate.trace
    if json:
        print(steps.to_json())
    else:  # a decision says in words what the step after it has in numbers
        shown = [s for s in steps.resolved if not isinstance(s, SampleTile | SampleChoice)]
        print("\n".join(map(str, shown)))
    if program:
        print(f"\n{steps.apply(m.candidate.task.func)}")


def source(
    db: Place,
    task: Which = "",
    record: Record = "1",
    assembly: Annotated[bool, typer.Option(help="the machine code instead of LLVM IR")] = False,
) -> None:
    """The code generated for a record: LLVM IR, or assembly.

    It is built anew for the record's target, which need not be this machine's.

    Example: tilesmith show source matmul_512_512_512 --db tune.db --assembly
    """
    m = _record(db, task, record)
    kernel = build(m.candidate.trace.apply(m.candidate.task.func), m.candidate.task.target)
    print(kernel.assembly if assembly else kernel.source)


def _machine(target: Target) -> str:
    cores = "1 core" if target.num_cores == 1 else f"{target.num_cores} cores"
    return f"{target.model or target.cpu}, {cores}"


def _outdated(t: TaskSummary) -> str:
    return "" if t.key == t.task.key else f" (by code generator {t.codegen}, not today's)"


def _task(d: SqlDatabase, name: str) -> TaskSummary:
    """The one that is meant; an error that lists what there is."""
    found = [t for t in d.tasks() if t.key == t.task.key]
    meant = [t for t in found if t.key.startswith(name) or name in t.names]
    if len(meant) == 1:
        return meant[0]
    shown = ", ".join(f"{t.key[:_SHORT]} {t.task.func.name}" for t in meant or found)
    if not found:
        raise ArgumentError(f"{d.place} holds no task")
    if not name:
        raise ArgumentError(f"{d.place} holds several tasks; name one of {shown}")
    if not meant:
        raise ArgumentError(f"{d.place} holds no task {name!r}; there are {shown}")
    raise ArgumentError(f"{name!r} names {len(meant)} tasks of {d.place}; write the key: {shown}")


def _ranked(known: Sequence[Measurement]) -> list[Measurement]:
    """The one to trust first; behind it the fastest, whether they were ever confirmed or not."""
    good = [m for m in known if standing_of(m) < Standing.FAILED]
    if not good:
        return []
    best = min(good, key=trust)
    rest = (m for m in good if m is not best)
    return [best, *sorted(rest, key=lambda m: (m.contended, m.rank))]


def _record(place: str, task: str, record: str) -> Measurement:
    with existing(place) as d:
        summary = _task(d, task)
        known = d.of(summary.task)
    good = _ranked(known)
    if record.isdigit() and 1 <= int(record) <= len(good):
        return good[int(record) - 1]
    meant = [m for m in known if m.candidate.key.startswith(record)]
    if len({m.candidate.key for m in meant}) == 1 and len(record) >= 4:
        return meant[0]
    raise ArgumentError(
        f"{record!r} names no record of {summary.task.func.name}; it is a place from 1 to "
        f"{len(good)}, or a candidate's key as `show records` prints it"
    )
