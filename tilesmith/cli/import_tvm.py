"""`tilesmith import-tvm`: what TVM's tuners found becomes a place to begin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilesmith.cli.arguments import count, machine, positive_count, positive_seconds, require_file
from tilesmith.cli.databases import optional_database
from tilesmith.cli.table import microseconds, table
from tilesmith.frontends.tvm.import_log import import_log
from tilesmith.ir.function import Function
from tilesmith.task.describe import shapes_text
from tilesmith.task.task import Budget
from tilesmith.tune.tune_tasks import tune_tasks

IMPORT_TVM_HELP = (
    "\b\nExamples:\n"
    "  tilesmith import-tvm autotvm.log -o tvm.pack\n"
    "  tilesmith import-tvm ansor.json -o tvm.pack --time 10m --db tune.db\n"
    "  tilesmith import-tvm meta_schedule_work_dir -o tvm.pack\n"
    "\b\nThen:\n"
    "  tilesmith tune conv2d 56 64 64 3 1 1 --pack tvm.pack --db tune.db"
)


def import_tvm(
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG",
            help="JSON lines of AutoTVM, records of Ansor, or a folder with a database of "
            "MetaSchedule",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="the pack to write")
    ],
    keep: Annotated[
        int,
        typer.Option(metavar="N", parser=positive_count, help="records of each workload to follow"),
    ] = 3,
    target: Annotated[
        str, typer.Option(metavar="NAME", help="the machine that the seeds are for")
    ] = "cpu",
    cores: Annotated[
        int, typer.Option(metavar="N", parser=count, help="its cores; 0: all of them")
    ] = 0,
    time: Annotated[
        float | None,
        typer.Option(
            metavar="TIME", parser=positive_seconds, show_default=False,
            help="tune all of the workloads now, beginning with the seeds, for this time in all",
        ),
    ] = None,
    db: Annotated[
        str,
        typer.Option(metavar="FILE|URL", help="keep the measurements of --time in this database"),
    ] = "",
) -> None:  # fmt: skip
    """Read a log of TVM: its workloads become seeds, which are measured again here.

    Products and convolutions of known shapes become operators of ours, and the tiles of their
    fastest records candidates. Nothing of TVM's times is believed. What has no place here is
    counted by reason.
    """
    require_file("--output", output)
    host = machine(target, cores)
    done = import_log(log, host, output, keep)
    print(f"{log}: {done.lines} records, {len(done.functions)} workloads")
    print(f"{output}  {done.pack.nbytes} bytes, {done.pack.records} seeds")
    for why, number in sorted(done.left_out.items(), key=lambda pair: -pair[1]):
        print(f"  {number} left out: {why}")
    if time is None:
        for func in done.functions:
            print(f"  {_operator(func)} {shapes_text(func)}")
        return
    with optional_database(db, "", [str(output)], host) as records:
        results = tune_tasks(done.functions, host, budget=Budget(seconds=time), database=records)
    rows = [
        (
            f.name.partition("_")[0],
            shapes_text(f),
            "none" if r is None else microseconds(r.best.cost),
        )
        for f, r in zip(done.functions, results.results, strict=True)
    ]
    for line in table(("operator", "shapes", "best"), rows, left=["operator", "shapes"]):
        print(line)


def _operator(func: Function) -> str:
    """The name without the sizes."""
    return "_".join(w for w in func.name.split("_") if not w.isdigit())
