"""Our own model among the engines."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilesmith.base.target import Target, cpu
from tilesmith.records.open import open_database
from tilesmith.report.engine import ModelFile
from tilesmith.report.peer import Contestant
from tilesmith.report.problems import Array
from tilesmith.task.task import Budget
from tilesmith.tune.tune import tune

# Facts about our model beside the seconds of its start.
KERNEL_SECONDS = "kernel_seconds"  # sum of its kernels, each timed in its place
ARENA_BYTES = "arena_bytes"


@dataclass(frozen=True)
class TilesmithEngine:
    """`database` is where the kernels' records are; empty for drafts."""

    database: str = ""

    def prepare(self, model: ModelFile, threads: int) -> Contestant:
        ts: Any = importlib.import_module("tilesmith")
        graph = ts.load_onnx(model.path, dims=dict(model.dims))
        if self.database:
            with open_database(self.database) as records:
                compiled = ts.compile_model(graph, cpu(threads), database=records)
        else:
            compiled = ts.compile_model(graph, cpu(threads))
        feeds = dict(model.inputs)

        def run() -> Any:
            return compiled(feeds)

        def answer() -> dict[str, Array]:
            arrays: dict[str, Array] = run()
            return arrays

        run()
        return Contestant("tilesmith", run, answer)


def tune_tasks(
    path: Path, dims: Mapping[str, int], target: Target, seconds: float, database: str
) -> None:
    """Tunes each task of a model for so many seconds; the records go into the database."""
    ts: Any = importlib.import_module("tilesmith")
    graph = ts.load_onnx(path, dims=dict(dims))
    with open_database(database) as records:
        for task, _ in ts.extract_tasks(graph, target):
            tune(task.func, target, budget=Budget(seconds=seconds), database=records, quiet=True)
