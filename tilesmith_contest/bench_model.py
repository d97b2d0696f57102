"""`tilesmith bench MODEL.onnx`: our compiled model beside inference engines, from one run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tilesmith.base.errors import ArgumentError
from tilesmith.base.target import cpu
from tilesmith.cli.databases import parts_named
from tilesmith.cli.model_arguments import arrays_of, loaded
from tilesmith.report.model_inputs import outputs_of, signatures_of
from tilesmith_contest.engine import ModelFile
from tilesmith_contest.engine_tilesmith import tune_tasks
from tilesmith_contest.engines import ENGINES, usable_engines
from tilesmith_contest.model_rows import ModelRow, write_model_rows
from tilesmith_contest.model_table import line_of, text_of
from tilesmith_contest.models import compare_ours

SLOW_ENGINES = ("torch-compile",)  # starts take minutes, so it is compared with where asked for
DEFAULT_ENGINES = tuple(name for name in ENGINES if name not in SLOW_ENGINES)


def bench_model(
    path: str, counts: Sequence[int], against: str | None, dim: Sequence[str] | None,
    seconds: float, db: str, json: Path | None, width: int | None, parts: str = "",
) -> bool:  # fmt: skip
    """Prints the comparison; whether our model ran and was right for all numbers of threads."""
    if seconds and not db:
        raise ArgumentError("--seconds tunes a model's tasks and keeps them in --db FILE; name one")
    graph, dims = loaded(path, dim)
    inputs = arrays_of((), signatures_of(graph), path, random=True)
    names = DEFAULT_ENGINES if against is None else [a for a in against.split(",") if a]
    engines, absent = usable_engines(names, Path(path))
    for engine, why in absent.items():
        print(f"absent: {engine}: {why}", file=sys.stderr)
    model = ModelFile(Path(path).absolute(), inputs, outputs_of(graph), dims)
    rows: list[ModelRow] = []
    for count in counts:
        if seconds:
            tune_tasks(Path(path), dims, cpu(count), seconds, db, parts_named(parts))
        rows.append(compare_ours(model, engines, cpu(count), db, parts=parts))
        if json is not None:
            write_model_rows(json, rows)
        print(line_of(rows[-1]), file=sys.stderr)
    print(text_of(rows, width))
    return all(row.failed is None for row in rows)
