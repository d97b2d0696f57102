"""`tilesmith bench`: the operator suite, or one of its operators, in; how our kernels do beside
other libraries out, as ratios of one run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.base.target import cpu
from tilesmith.cli.operators import layouts, numbers, operator, with_batch
from tilesmith.cli.tune import seconds_of
from tilesmith.records.open import open_database
from tilesmith.report.compare import Case, Contestants, compare, machine_of
from tilesmith.report.page import page as page_text
from tilesmith.report.peers import PEERS, installed_peers
from tilesmith.report.rows import Row, is_done, ordered, read_rows, table, with_row, write_rows
from tilesmith.report.suite import SUITE, Entry

_NAMES = {e.operator: op for op, e in SUITE.items()}


def case_of(op: str, shape: Sequence[int], batch: int = 1, wanted: Sequence[str] = ()) -> Case:
    """`op` is a name of the suite (C2D) or of an operator (conv2d); `wanted` are our layouts."""
    entry = _entry(op)
    name = entry.operator
    full = with_batch(name, shape, batch)
    values = numbers(name, full)
    ours: Sequence[str | None] = [w for w in wanted if w in layouts(name)] or entry.layouts
    lanes = cpu().lanes(32)
    if not wanted and ours and values.get("CO", lanes) < lanes:
        ours = layouts(name)  # channels do not fill a vector; places may
    functions = {w: operator(name, full, w, prepared=True) for w in ours or [None]}
    return Case(_NAMES[name], name, tuple(shape), batch, values, operator(name, full), functions)


def _entry(op: str) -> Entry:
    found = SUITE.get(_NAMES.get(op, op.upper()))
    if found is None:
        known = ", ".join(f"{op} ({e.operator})" for op, e in SUITE.items())
        raise ArgumentError(f"unknown operator {op!r}; the suite has {known}")
    return found


def cases_of(ops: str, batch: int, pick: str, wanted: Sequence[str]) -> list[Case]:
    """All shapes of the named operators, or those whose numbers (from 1) are picked."""
    picked = _numbers("--shapes", pick) if pick else [1, 2, 3, 4]
    made = []
    for op in ops.split(",") if ops else SUITE:
        for k, shape in enumerate(_entry(op).shapes, 1):
            if k in picked:
                made.append(case_of(op, shape, batch, wanted))
    return made


def _numbers(option: str, text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise ArgumentError(f"{option} {text!r}: write numbers from 1, as in 1,2")
    return found


def bench(
    what: Annotated[str, typer.Argument(help="suite, or an operator: C2D, conv2d, ...")],
    shape: Annotated[list[int] | None, typer.Argument(help="the operator's numbers")] = None,
    ops: Annotated[str, typer.Option(help="of the suite, as in C2D,GMM; all if empty")] = "",
    shapes: Annotated[str, typer.Option(help="which shapes of each, as in 1,3; all if empty")] = "",
    threads: Annotated[str, typer.Option(help="as in 1,2; 1 and all cores if empty")] = "",
    batch: Annotated[int, typer.Option(help="how many images, products, ... at once")] = 1,
    seconds: Annotated[str, typer.Option(help="of tuning for each case; 0: as it is known")] = "60",
    layout: Annotated[str, typer.Option(help="of ours, as in NHWC,NCHW; the best is taken")] = "",
    against: Annotated[str, typer.Option(help="peers to compare with")] = ",".join(PEERS),
    db: Annotated[str, typer.Option(help="database file or URL of what was tuned")] = "",
    json: Annotated[Path | None, typer.Option(help="rows go here; those there are done")] = None,
    chart: Annotated[Path | None, typer.Option(help="a bar chart of all rows")] = None,
    page: Annotated[Path | None, typer.Option(help="a page of all rows, in Markdown")] = None,
) -> None:
    """Beside other libraries, in one run, as ratios: tilesmith bench suite --seconds 60.

    Ctrl-C while a case is tuned ends its tuning; otherwise it ends the bench, which goes on from
    its database and JSON file.
    """
    wanted = [w for w in layout.split(",") if w]
    if what == "suite":
        if shape:
            raise ArgumentError(f"the suite has shapes of its own; got {' '.join(map(str, shape))}")
        cases = cases_of(ops, batch, shapes, wanted)
    else:
        cases = [case_of(what, shape or [], batch, wanted)]
    counts = _numbers("--threads", threads) if threads else sorted({1, cpu().num_cores})
    peers, absent = installed_peers([name for name in against.split(",") if name])
    for text in absent:
        print(f"absent: {text}", file=sys.stderr)
    _require_place(page, json)
    rows = _run(cases, counts, peers, seconds_of(seconds), db, json)
    rows = ordered(rows)
    print(table(rows))
    _draw_and_write(rows, json, chart, page)
    if any(r.error for r in rows):
        raise typer.Exit(1)


def _require_place(page: Path | None, json: Path | None) -> None:
    if page is not None and json is None:
        raise ArgumentError("--page is written from the rows of --json FILE; name that file too")


def _run(
    cases: Sequence[Case], counts: Sequence[int], peers: Sequence[str], seconds: float,
    db: str, json: Path | None,
) -> list[Row]:  # fmt: skip
    """The rows of all cases, those of earlier runs included; each is saved as it comes."""
    rows = read_rows(json) if json is not None else []
    database = open_database(db or ":memory:")
    try:
        for count in counts:
            target = cpu(count)
            machine = machine_of(target)
            todo = [c for c in cases if not is_done(rows, c.name(count), machine)]
            if not todo:
                continue
            with Contestants(peers, count) as contestants:
                for case in todo:
                    row = compare(case, contestants, target, database, seconds)
                    rows = with_row(rows, row)
                    if json is not None:
                        write_rows(json, rows)
                    print(_line(row), file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; what is done is kept", file=sys.stderr)
    finally:
        database.close()
    return rows


def _line(row: Row) -> str:
    if row.error is not None:
        return f"{row.name}: {row.error}"
    text = f"{row.name}: {row.value:.1f} us"
    if row.ratio is not None:
        text += f", {row.ratio:.2f} ± {row.spread:.2f} of {row.peer} ({row.peer_value:.1f} us)"
    return f"{text}; tuned {row.tuning_seconds:.0f} s, {row.trials} trials"


def _draw_and_write(
    rows: Sequence[Row], json: Path | None, chart: Path | None, page: Path | None
) -> None:
    if page is not None and chart is None:
        chart = page.with_suffix(".png")
    drawn = chart is not None and _draw(chart, rows)
    if page is not None and json is not None:
        page.write_text(page_text(rows, json, page, chart if drawn else None))


def _draw(chart: Path, rows: Sequence[Row]) -> bool:
    try:
        # Imported late: it is an optional install, and takes a second.
        from tilesmith.report.chart import draw
    except ImportError as e:
        print(f"absent: a chart ({e}); pip install 'tilesmith[report]'", file=sys.stderr)
        return False
    draw(chart, rows)
    return True
