"""Our own model among the engines."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tilesmith.base.dataclass import dataclass
from tilesmith.base.target import Target, cpu
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.model import Model
from tilesmith.records.open import open_database
from tilesmith.schedule.trace import Parts, named_parts
from tilesmith.task.task import Budget
from tilesmith.tune.compile_model import compile_model, extract_tasks
from tilesmith.tune.tune import tune
from tilesmith_contest.engine import ModelFile
from tilesmith_contest.peer import Contestant
from tilesmith_contest.problems import Array

# Facts about our model beside the seconds of its start.
KERNEL_SECONDS = "kernel_seconds"  # sum of its kernels, each timed in its place
WHOLE_OVER_KERNELS = "whole_over_kernels"  # median of runs, each over the sum of its kernels after
ARENA_BYTES = "arena_bytes"
_PROFILES = 7


@dataclass(frozen=True)
class TilesmithEngine:
    """`database` is where the kernels' records are; empty for drafts. `cache` is the folder of
    built kernels. `parts` are the user's own, as MODULE:OBJECT.
    """

    database: str = ""
    cache: str = "default"
    parts: str = ""

    def prepare(self, model: ModelFile, threads: int) -> Contestant:
        compiled = self._compiled(model, threads)
        feeds = dict(model.inputs)

        def answer() -> dict[str, Array]:
            return compiled(feeds)

        def facts() -> dict[str, float]:
            arena = sum(e.plan.arena.nbytes for e in compiled.executors)
            return {ARENA_BYTES: arena, **_kernel_facts(compiled, feeds)}

        answer()
        return Contestant("tilesmith", answer, answer, facts=facts)

    def _compiled(self, model: ModelFile, threads: int) -> Model:
        graph = load_onnx(model.path, dims=model.dims)
        parts = named_parts(self.parts) if self.parts else None
        made = partial(
            compile_model, graph, cpu(threads), cache=self.cache, progress=False,
            precision=model.precision,
        )  # fmt: skip
        if not self.database:
            return made(parts=parts)
        with open_database(self.database, parts) as records:
            return made(database=records)


def _kernel_facts(model: Model, feeds: Mapping[str, Array]) -> dict[str, float]:
    """Whole runs and sums of kernels in turns, so that both meet the same state of the machine."""
    kernels, ratios = [], []
    for _ in range(_PROFILES):
        start = time.perf_counter()
        model(feeds)
        whole = time.perf_counter() - start
        kernels.append(model.profile(feeds, runs=1).seconds)
        ratios.append(whole / kernels[-1] if kernels[-1] else 0.0)
    if not min(kernels):
        return {}  # a model of several stages, whose kernels are not timed
    return {
        KERNEL_SECONDS: statistics.median(kernels),
        WHOLE_OVER_KERNELS: statistics.median(ratios),
    }


def tune_tasks(
    path: Path, dims: Mapping[str, int], target: Target, seconds: float, database: str,
    parts: Parts | None = None,
) -> None:  # fmt: skip
    """Tunes each task of a model for so many seconds; the records go into the database."""
    graph = load_onnx(path, dims=dims)
    with open_database(database, parts) as records:
        for task, _ in extract_tasks(graph, target):
            tune(task.func, target, budget=Budget(seconds=seconds), database=records, quiet=True)
