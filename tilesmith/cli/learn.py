"""`tilesmith learn`: trains a cost model on the measurements of a database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilesmith.cli.arguments import require_file
from tilesmith.cli.databases import existing
from tilesmith.search.learned.model import learn as train

LEARN_HELP = (
    "\b\nExamples:\n"
    "  tilesmith learn tune.db -o mine.model\n"
    "  tilesmith tune matmul 512 512 512 --cost-model mine.model\n"
    '  ts.Evolution(cost_model=ts.load_cost_model("mine.model")) in Python'
)


def learn(
    place: Annotated[
        str, typer.Argument(metavar="DB", help="the database: a SQLite file or a postgresql:// URL")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="the file to write")
    ],
) -> None:
    """Train a cost model on the measurements of a database, for `tilesmith tune --cost-model`.

    It learns from the measurements of CPU tasks, failures included. With it, a search knows more
    than the analytic score before anything is measured.
    """
    require_file("--output", output)
    with existing(place) as database:
        records = [m for known in database.tasks() for m in database.of(known.task)]
    model = train(records)
    model.save(output)
    print(f"{output}  {output.stat().st_size} bytes, {model!r}")
