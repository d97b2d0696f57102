"""`tilesmith bench`: compares our kernels with other libraries on the operator suite or on one
operator, or a compiled model with inference engines, as ratios from one run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.base.target import cpu
from tilesmith.base.whole_file import write_whole
from tilesmith.cli.arguments import (
    positive_count,
    require_cores,
    require_file,
    require_memory,
    seconds,
    whole_numbers,
)
from tilesmith.cli.databases import PartsOption, parts_named, require_database
from tilesmith.cli.model_arguments import DimOption, is_model
from tilesmith.cli.operator_arguments import ShapeArgument
from tilesmith.cli.operator_help import explain
from tilesmith.cli.table import output_width
from tilesmith.cli.table import table as fitted
from tilesmith.records.open import open_database
from tilesmith_contest.bench_cases import cases_of, named_case
from tilesmith_contest.bench_model import bench_model
from tilesmith_contest.compare import Case, Contestants, compare, machine_of
from tilesmith_contest.engines import ENGINES
from tilesmith_contest.page import page as page_text
from tilesmith_contest.peers import PEERS, installed_peers
from tilesmith_contest.rows import (
    HEADER,
    Row,
    cells,
    is_done,
    ordered,
    read_rows,
    table,
    with_row,
    write_rows,
)
from tilesmith_contest.suite import SUITE

_SECONDS = 60.0  # of tuning an operator

BENCH_HELP = (
    "\b\nExamples:\n"
    "  tilesmith bench conv2d 56 64 64 3 1 1 --seconds 30\n"
    "  tilesmith bench suite --ops GMM,C2D --db suite.db --json rows.json\n"
    "  tilesmith bench model.onnx --threads 1 --against onnxruntime,openvino\n\n"
    + explain({e.operator: op for op, e in SUITE.items()})
)


def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="OP",
            help="an operator, as conv2d or its short name C2D; suite, for all; or MODEL.onnx",
        ),
    ],
    shape: ShapeArgument = None,
    ops: Annotated[
        str,
        typer.Option(metavar="LIST", help="operators of the suite to run, such as C2D,GMM"),
    ] = "",
    shapes: Annotated[
        str,
        typer.Option(metavar="LIST", help="which of each operator's four shapes, such as 1,3"),
    ] = "",
    threads: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="numbers of threads to run with, such as 1,2; if not given, 1 and all cores",
        ),
    ] = "",
    batch: Annotated[
        int,
        typer.Option(
            metavar="N", parser=positive_count, help="batch size: images or products at once"
        ),
    ] = 1,
    time: Annotated[
        float | None,
        typer.Option(
            "--seconds", "--time", metavar="TIME", parser=seconds, show_default=False,
            help="tuning time per case or per task of a model; 60s for operators and 0 for models "
            "if not given; 0 uses the best kernels in --db without tuning",
        ),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="layouts that our kernel may use: NHWC, NCHW or both; the faster one counts",
        ),
    ] = "",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help=f"what to compare with, separated by commas: {', '.join(PEERS)} for operators, "
            f"{', '.join(ENGINES)} for models; all but torch-compile if not given",
        ),
    ] = None,
    dim: DimOption = None,
    db: Annotated[
        str,
        typer.Option(
            metavar="FILE|URL",
            help="keep the measurements of tuning in this database, and continue from them",
        ),
    ] = "",
    json: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="write one JSON row per case; cases already in PATH are skipped",
        ),
    ] = None,
    chart: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="draw the ratios of all rows as a bar chart (PNG)"),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="write a Markdown page with all rows of --json; the chart goes beside it",
        ),
    ] = None,
    parts: PartsOption = "",
    wide: Annotated[
        bool,
        typer.Option(
            "--wide", help="show all columns of the table, even if wider than 80 characters"
        ),
    ] = False,
) -> None:  # fmt: skip
    """Compare tuned kernels, or a model, with other libraries.

    Each case is tuned for --seconds, then timed in turns with the libraries. A ratio above 1 means
    that Tilesmith is faster. Ctrl-C ends the tuning of a case; pressed at another time, it ends
    the bench, which the same command with --db and --json continues.
    """
    counts = whole_numbers("--threads", threads) if threads else sorted({1, cpu().num_cores})
    require_cores("--threads", max(counts))
    if is_model(what):
        _require_no_operator(shape, ops, shapes, layout, batch, chart, page)
        _require_places(json, None, None, db)
        width = None if wide else output_width()
        if not bench_model(what, counts, against, dim, time or 0.0, db, json, width, parts):
            raise typer.Exit(1)
        return
    if dim:
        raise ArgumentError("--dim gives sizes to a model's open dimensions: bench MODEL.onnx ...")
    wanted = _layouts(layout)
    if what == "suite":
        if shape:
            raise ArgumentError(f"the suite has shapes of its own; got {' '.join(shape)}")
        cases = cases_of(ops, batch, shapes, wanted)
    else:
        if ops or shapes:
            raise ArgumentError("--ops and --shapes pick cases of the suite: bench suite --ops ...")
        cases = [named_case(what, shape or [], batch, wanted)]
    for case in cases:
        require_memory(case.plain)
    named = list(PEERS) if against is None else [name for name in against.split(",") if name]
    peers, absent = installed_peers(named)
    for text in absent:
        print(f"absent: {text}", file=sys.stderr)
    _require_place(page, json)
    _require_places(json, page, chart, db)
    if not peers and named:
        print(
            "no library to compare with is installed, so there will be no ratios: "
            "pip install 'tilesmith[peers]'",
            file=sys.stderr,
        )
    rows = _run(cases, counts, peers, _SECONDS if time is None else time, db, json, parts)
    rows = ordered(rows)
    print(_fitted(rows, None if wide else output_width()))
    _draw_and_write(rows, json, chart, page)
    if any(r.error for r in rows):
        raise typer.Exit(1)


def _require_no_operator(
    shape: Sequence[str] | None, ops: str, shapes: str, layout: str, batch: int,
    chart: Path | None, page: Path | None,
) -> None:  # fmt: skip
    given = {
        "SHAPE": shape, "--ops": ops, "--shapes": shapes, "--layout": layout,
        "--batch": batch != 1, "--chart": chart, "--page": page,
    }  # fmt: skip
    for option, value in given.items():
        if value:
            why = "; an open dimension takes --dim batch=N" if option == "--batch" else ""
            raise ArgumentError(f"{option} is for operators, not for a model{why}")


def _require_places(json: Path | None, page: Path | None, chart: Path | None, db: str) -> None:
    """That all files can be written: better now than after an hour of tuning."""
    for option, path in (("--json", json), ("--page", page), ("--chart", chart)):
        if path is not None:
            require_file(option, path)
    if db:
        require_database(db)


def _layouts(text: str) -> list[str]:
    words = [w.strip() for w in text.split(",") if w.strip()]
    for w in words:
        if w not in ("NCHW", "NHWC"):
            raise ArgumentError(f"--layout {w!r} is unknown; it is NHWC, NCHW or NHWC,NCHW")
    return words


# Columns that are left out, in this order, if lines would be too long.
_DROP = ("trials", "near s", "tuning s", "budget s", "GFLOP/s", "cores used", "±")


def _fitted(rows: Sequence[Row], width: int | None) -> str:
    """Like `report.rows.table`, but with lines that fit."""
    if not rows:
        return table(rows)
    shown = [r for r in rows if r.error is None]
    columns = fitted(
        HEADER, list(map(cells, shown)), left=("op", "shape", "best peer"), shorten="best peer",
        drop=_DROP, width=width,
    )  # fmt: skip
    below = table(rows).splitlines()[len(rows) + 1 :]
    failed = [f"{r.name}: {r.error}" for r in rows if r.error is not None]
    return "\n".join([*(columns if shown else ()), *failed, *below])


def _require_place(page: Path | None, json: Path | None) -> None:
    if page is not None and json is None:
        raise ArgumentError("--page shows the rows of --json FILE; name that file too")


def _run(
    cases: Sequence[Case], counts: Sequence[int], peers: Sequence[str], seconds: float,
    db: str, json: Path | None, parts: str,
) -> list[Row]:  # fmt: skip
    """The rows of all cases, including earlier ones; each is saved when it is done."""
    rows = read_rows(json) if json is not None else []
    database = open_database(db or ":memory:", parts_named(parts))
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
        write_whole(page, page_text(rows, json, page, chart if drawn else None))


def _draw(chart: Path, rows: Sequence[Row]) -> bool:
    try:
        # Imported late: matplotlib is an optional install, and takes a second.
        from tilesmith_contest.chart import draw
    except ImportError as e:
        print(f"no chart: {e}; pip install 'tilesmith[report]'", file=sys.stderr)
        return False
    draw(chart, rows)
    return True
