"""`tilesmith show tasks`: the tasks in a database, or those of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.cli.arguments import machine
from tilesmith.cli.databases import PartsOption, existing
from tilesmith.cli.graph_text import INDENT, foot_lines, task_lines
from tilesmith.cli.model_arguments import DimOption, loaded, require_model
from tilesmith.cli.operator_arguments import CoresOption
from tilesmith.cli.show_records import SHORT
from tilesmith.cli.table import Wide, microseconds, output_width, printable, table
from tilesmith.records.database import TaskSummary
from tilesmith.records.networks import network_uses, places_in
from tilesmith.report.graph_view import GraphView, graph_view
from tilesmith.task.describe import is_match, places_text, shapes_text
from tilesmith.task.task import builder_of, is_current

MatchOption = Annotated[
    str,
    typer.Option(
        "--match",
        metavar="TEXT",
        help="only tasks in whose operator, shapes or place in the model all these words occur, as "
        "'conv2d nhwc' or layer1.0",
    ),
]


def tasks(
    model: Annotated[
        str, typer.Argument(metavar="MODEL.onnx", help="list the tasks of this model")
    ] = "",
    db: Annotated[
        str,
        typer.Option(metavar="FILE|URL", help="database file, or postgresql:// URL, to read"),
    ] = "",
    dim: DimOption = None,
    cores: CoresOption = 0,
    parts: PartsOption = "",
    wide: Wide = False,
    match: MatchOption = "",
) -> None:
    """List the tasks in a database, or the tasks of a model.

    A task is a function and the machine it is tuned for. In a database each has a line with how
    many candidates were measured, how many failed, and the best time. Of a model each has a line
    with how many times it occurs, its arithmetic (FLOP) and its share of the whole; with --db also
    its best recorded time, and its share of the sum of these times. Below each stand its shapes,
    dtype and layout, and the nodes of the model that it computes.

    Example: tilesmith show tasks model.onnx --dim batch=1 --db tune.db
    """
    width = None if wide else output_width()
    if model:
        require_model(model)
        _of_model(model, dim, db, cores, width, parts, match)
        return
    if not db:
        raise ArgumentError("show tasks lists those of a model or a database; name MODEL.onnx or "
                            "--db FILE")  # fmt: skip
    if dim or cores:
        raise ArgumentError("--dim and --cores are for the tasks of a model; name MODEL.onnx")
    database_tasks(db, width, parts, match)


def _of_model(
    path: str, dim: Sequence[str] | None, db: str, cores: int, width: int | None, parts: str,
    match: str,
) -> None:  # fmt: skip
    source, _ = loaded(path, dim)
    view = graph_view(source, machine("cpu", cores))
    if match:
        found = (t for t in view.tasks if is_match(match, t.task.func, t.places))
        view = replace(view, tasks=tuple(found))
        _require_some(view.tasks, match, path)
    recorded = _recorded(view, db, parts) if db else None
    if view.tasks:
        for line in task_lines(view, width, keys=True, seconds=recorded):
            print(printable(line))
    for line in foot_lines(view):
        print(printable(line))
    if recorded is not None and view.tasks:
        known = [t for t in view.tasks if t.number in recorded]
        total = sum(t.weight * recorded[t.number] for t in known)
        print(f"{db}: records of {len(known)} of {len(view.tasks)} tasks, {1e3 * total:.2f} ms "
              "together")  # fmt: skip


def _recorded(view: GraphView, db: str, parts: str) -> dict[int, float]:
    """The best recorded seconds, by the number of the task."""
    with existing(db, parts) as d:
        best = {t.number: d.best(t.task) for t in view.tasks}
    return {number: m.cost for number, m in best.items() if m is not None}


def _require_some(tasks: Sequence[object], match: str, place: str) -> None:
    if not tasks:
        raise ArgumentError(f"--match {match!r}: no task of {place} has it")


def database_tasks(db: str, width: int | None, parts: str, match: str = "") -> None:
    """Prints the tasks in a database."""
    with existing(db, parts) as d:
        summaries, place = d.tasks(), d.place
        uses = {t.key: network_uses(d, t.task) for t in summaries}
    places = {key: places_in(own) for key, own in uses.items()}
    if match:
        summaries = [t for t in summaries if is_match(match, t.task.func, places[t.key])]
        _require_some(summaries, match, db)
    header = ("task", "function", "measured", "failed", "best", "GFLOP/s", "target")
    rows = [
        (
            t.key[:SHORT],
            t.task.func.name,
            str(t.count),
            str(t.failures),
            "-" if t.best_seconds is None else microseconds(t.best_seconds),
            "-" if t.best_seconds is None else f"{t.task.func.flops / t.best_seconds / 1e9:.1f}",
            f"{t.task.target.label}{_generator(t)}",
        )
        for t in summaries
    ]
    left = ("task", "function", "target")
    head, *lines = table(header, rows, left=left, shorten="function", drop=("target",), width=width)
    print(head)
    for line, t in zip(lines, summaries, strict=True):
        print(line)
        where = ", ".join(dict.fromkeys(u.network for u in uses[t.key]))
        nodes = places_text(places[t.key])
        come = f"{where}: {nodes}" if nodes else where
        print(printable(f"{INDENT}{shapes_text(t.task.func)}  {come}".rstrip()))
    if not rows:
        print(f"{place} holds no task")
    elif width is not None:
        print("target: " + ("; ".join(sorted({r[-1] for r in rows}))))


def _generator(t: TaskSummary) -> str:
    if t.key != t.task.key and is_current(t.codegen):
        return f" (by the back end {builder_of(t.codegen)} of other --parts)"
    builder = f" (by {builder_of(t.codegen)})" if builder_of(t.codegen) else ""
    return builder if t.key == t.task.key else f" (outdated: code generator {t.codegen})"
