"""`tilesmith show records | runs | trace | source`: prints the content of a database.

A task is named by the start of its key or of its function's name, a record by its number in the
list or by the start of its candidate's key.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tilesmith.base.dtype import DTYPES
from tilesmith.base.errors import ArgumentError
from tilesmith.cli.arguments import count
from tilesmith.cli.databases import PartsOption, existing
from tilesmith.cli.table import microseconds, table
from tilesmith.records.database import TaskSummary, missing_text
from tilesmith.report.schedule_text import explained_lines, schedule_lines
from tilesmith.runtime.build import compile_for
from tilesmith.runtime.device_kernel import kernel_of
from tilesmith.task.describe import shapes_text
from tilesmith.task.task import Measurement, Ranking, Standing, failures_by_kind, standing_of, trust

if TYPE_CHECKING:
    from tilesmith.records.sql import SqlDatabase

SHORT = 12  # characters of a key that are shown

Place = Annotated[
    str,
    typer.Option("--db", metavar="FILE|URL", help="database file, or postgresql:// URL, to read"),
]
Which = Annotated[
    str,
    typer.Argument(
        metavar="[TASK]",
        help="which task: the beginning of its function's name or of its key, as `show tasks` "
        "prints them; not needed if the database has only one",
    ),
]
Record = Annotated[
    str,
    typer.Option(
        metavar="RECORD",
        help="which record: its number in `show records`, or the beginning of its candidate's key; "
        "if not given, the one that ts.build uses",
    ),
]


def records(
    db: Place,
    task: Which = "",
    parts: PartsOption = "",
    top: Annotated[
        int, typer.Option(metavar="N", parser=count, help="show the N best records; 0: all of them")
    ] = 20,
) -> None:
    """List the measurements of a task by their median time, the fastest first.

    "used" marks the one that ts.build uses: the fastest confirmed one, which means that it was
    timed again in a fresh process against the best one before it. It need not be the first: medians
    of different times are compared through a reference kernel that ran beside each. "same as 1"
    says that a candidate compiles to the code of record 1. Contended ones, measured while the
    machine was busy with something else, come last.

    Example: tilesmith show records matmul --db tune.db --top 5
    """
    with existing(db, parts) as d:
        summary = _task(d, task)
        measured = d.of(summary.task)
    unread = summary.count - len(measured)
    good = _ranked(measured)
    work = summary.task.func.flops
    machine = summary.task.target.label
    print(f"{summary.task.func.name} ({summary.key[:SHORT]}) on {machine}")
    header = ("", "candidate", "median", "95 % interval, us", "GFLOP/s", "status")
    rows = []
    used, first = _used(measured), _first_of_code(good)
    for place, m in enumerate(good[: top or None], 1):
        marks = [
            "used" if m is used
            else "confirmed" if m.confirmed else "contended" if m.contended else "",
            f"same as {first[place]}" if first[place] < place else "",
        ]  # fmt: skip
        low, high = (x * 1e6 for x in m.confidence)
        rows.append(
            (
                str(place),
                m.candidate.key[:SHORT],
                microseconds(m.cost),
                f"{low:.2f} to {high:.2f}",
                f"{work / m.cost / 1e9:.1f}",
                ", ".join(filter(None, marks)),
            )
        )
    for line in table(header, rows, left=("candidate", "status")):
        print(line)
    print(f"{len(good)} measured, {len(measured) - len(good)} failed")
    if unread:
        print(f"{unread} cannot be read here (other --parts, or no times); they are kept")
    for kind, (number, text) in failures_by_kind(measured).items():
        print(f"  {number} failed ({kind}); the first: {text}")


def runs(db: Place, task: Which = "", parts: PartsOption = "") -> None:
    """List the tuning runs of a task, oldest first.

    Each has a line with its strategy and seed, how long it ran, how many candidates it measured,
    and its best time. Records of older versions belong to no run.

    Example: tilesmith show runs matmul --db tune.db
    """
    with existing(db, parts) as d:
        summary = _task(d, task)
        all_runs = d.runs(summary.task)
    print(f"{summary.task.func.name} ({summary.key[:SHORT]})")
    header = ("started", "strategy", "seed", "seconds", "trials", "best")
    rows = [
        (
            time.strftime("%Y-%m-%d %H:%M", time.localtime(r.run.started)),
            r.run.strategy,
            str(r.run.seed),
            f"{r.seconds:.1f}",
            str(r.trials),
            microseconds(r.curve[-1][2]) if r.curve else "-",
        )
        for r in all_runs
    ]
    for line in table(header, rows, left=("started", "strategy")):
        print(line)
    if not all_runs:
        print(f"{d.place} holds no run of it")


def trace(
    db: Place,
    task: Which = "",
    parts: PartsOption = "",
    record: Record = "",
    program: Annotated[
        bool, typer.Option("--program", help="print the resulting loop program as well")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="print the trace as JSON, for ts.Trace.from_json")
    ] = False,
) -> None:
    """Print the schedule of a record, one primitive a line.

    Example: tilesmith show trace matmul --db tune.db --program
    """
    m = _record(db, task, record, parts)
    steps = m.candidate.trace
    if json:
        print(steps.to_json())
    else:
        print("\n".join(schedule_lines(steps)))
    if program:
        print(f"\n{steps.apply(m.candidate.task.func)}")


def explain(
    db: Place,
    task: Which = "",
    parts: PartsOption = "",
    record: Record = "",
) -> None:
    """Explain the schedule of a record.

    Prints the computation, each step with what it does, and the loops that it ends in.

    Example: tilesmith explain matmul --db tune.db
    """
    m = _record(db, task, record, parts)
    func, low_high = m.candidate.task.func, [x * 1e6 for x in m.confidence]
    print(f"{func.name} {shapes_text(func)}")
    if m.failure is None:
        print(f"median {microseconds(m.cost)}, {low_high[0]:.2f} to {low_high[1]:.2f} us")
    print("\nThe computation, as it was stated:\n")
    print(func)
    print(
        "\nThe schedule. A loop that is split, as i, becomes i.0, i.1, ... from the outside in:\n"
    )
    print("\n".join(explained_lines(m.candidate.trace)) or "no step: the loops are as stated")
    print("\nThe loops after it, which code is generated from:\n")
    print(m.candidate.trace.apply(func))


def source(
    db: Place,
    task: Which = "",
    parts: PartsOption = "",
    record: Record = "",
    assembly: Annotated[
        bool, typer.Option("--assembly", help="print assembly instead of LLVM IR")
    ] = False,
) -> None:
    """Print the code generated for a record: LLVM IR, or the C text of a GPU kernel.

    The code is built again for the record's target, which need not be this machine.

    Example: tilesmith show source matmul --db tune.db --assembly
    """
    m = _record(db, task, record, parts)
    func = m.candidate.trace.apply(m.candidate.task.func)
    kernel = kernel_of(compile_for(m.candidate.task, func))
    print(kernel.assembly if assembly else kernel.source)


def _task(d: SqlDatabase, name: str) -> TaskSummary:
    """The task that `name` refers to; an error lists the tasks there are."""
    tasks_here = [t for t in d.tasks() if t.key == t.task.key]
    meant = _meant(tasks_here, name) if name else tasks_here
    if len(meant) == 1:
        return meant[0]
    shown = "; ".join(
        f"{t.key[:SHORT]} {t.task.func.name} ({t.task.target.label})" for t in meant or tasks_here
    )
    if not tasks_here:
        needs = missing_text(d.missing())
        raise ArgumentError(f"{d.place} holds no task{f' for these parts: {needs}' * bool(needs)}")
    if not name:
        raise ArgumentError(f"{d.place} holds {len(tasks_here)} tasks; name one of {shown}")
    if not meant:
        raise ArgumentError(f"{d.place} holds no task {name!r}; it has {shown}")
    raise ArgumentError(
        f"{name!r} names {len(meant)} tasks of {d.place}; use the key of one: {shown}"
    )


def _meant(summaries: Sequence[TaskSummary], name: str) -> list[TaskSummary]:
    """The tasks that match best: by the function's name, by the operator's name that it starts with
    (matmul for matmul_512_512_512), or by the start of either name or key.
    """
    plain = name.replace("-", "_")

    def of_operator(t: TaskSummary) -> bool:
        endings = rf"(_\d+)+(_N[CHW]+)?(_({'|'.join(DTYPES)}))?$"
        return any(re.sub(endings, "", n) == plain for n in t.names)

    def begins(t: TaskSummary) -> bool:
        return t.key.startswith(name) or any(n.startswith(f"{plain}_") for n in t.names)

    return (
        [t for t in summaries if name in t.names]
        or [t for t in summaries if of_operator(t)]
        or [t for t in summaries if begins(t)]
    )


def _ranked(measured: Sequence[Measurement]) -> list[Measurement]:
    """By the median that is shown, whether they were confirmed or not; contended ones last."""
    good = [m for m in measured if standing_of(m) < Standing.FAILED]
    return sorted(good, key=lambda m: (m.contended, m.cost))


def _used(measured: Sequence[Measurement]) -> Measurement | None:
    """The one that ts.build uses."""
    return Ranking(measured).best or min(_ranked(measured), key=trust, default=None)


def _first_of_code(ranked: Sequence[Measurement]) -> dict[int, int]:
    """By the place of each, counted from 1, the first place of the same code. Candidates that
    compile to the same code are measured once, so that all have the very same samples.
    """
    places: dict[tuple[float, ...], int] = {}
    return {k: places.setdefault(m.seconds, k) for k, m in enumerate(ranked, 1)}


def _record(place: str, task: str, record: str, parts: str) -> Measurement:
    with existing(place, parts) as d:
        summary = _task(d, task)
        measured = d.of(summary.task)
    good, used = _ranked(measured), _used(measured)
    if not record and used is not None:
        return used
    if record.isdigit() and 1 <= int(record) <= len(good):
        return good[int(record) - 1]
    meant = [m for m in measured if m.candidate.key.startswith(record)]
    if len({m.candidate.key for m in meant}) == 1 and len(record) >= 4:
        return meant[0]
    raise ArgumentError(
        f"--record {record or '1'!r} names no record of {summary.task.func.name}; give a number "
        f"from 1 to {len(good)}, or a candidate's key as `show records` prints it"
    )
