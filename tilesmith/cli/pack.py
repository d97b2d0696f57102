"""`tilesmith pack`: writes the best schedules of a database to a file that can be given away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilesmith.cli.arguments import positive_count, require_file
from tilesmith.cli.databases import existing
from tilesmith.records.pack import Pack

PACK_HELP = (
    "\b\nExamples:\n"
    "  tilesmith pack tune.db -o n1.pack\n"
    "\b\nThen, on a machine of this kind:\n"
    "  tilesmith run model.onnx --random --pack n1.pack\n"
    '  ts.open_database("tune.db", packs=["n1.pack"]) in Python'
)


def pack(
    place: Annotated[
        str, typer.Argument(metavar="DB", help="the database: a SQLite file or a postgresql:// URL")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="the file to write")
    ],
    keep: Annotated[
        int,
        typer.Option(metavar="N", parser=positive_count, help="how many schedules of each task"),
    ] = 3,
) -> None:
    """Write the best schedules of a database to a file for other machines of the kind.

    Each schedule is applied once more before it is written. Its times are not believed elsewhere.
    """
    require_file("--output", output)
    with existing(place) as database:
        written = database.pack(output, keep)
    print(f"{output}  {written.nbytes} bytes, {written.records} schedules of {written.tasks} tasks")
    for machine in dict.fromkeys(t.label for t in Pack(output).targets):
        print(f"  of {machine}")
    for why, count in written.left_out.items():
        print(f"  {count} tasks left out: {why}")
    print(f"  sha256 {written.sha256}")
