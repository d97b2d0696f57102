"""`tilesmith tune MODEL.onnx`: tunes all tasks of a model and compares it with the untuned one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tilesmith.base.errors import ArgumentError
from tilesmith.base.target import Target
from tilesmith.cli.databases import RecordOptions, parts_named
from tilesmith.cli.model_arguments import Arithmetic, arrays_of, loaded
from tilesmith.graph.graph import Graph
from tilesmith.graph.model import Model
from tilesmith.report.model_inputs import signatures_of
from tilesmith.task.network import ModelTuning
from tilesmith.tune.compile_model import compile_model, extract_tasks, in_precision
from tilesmith.tune.scheduler import Scheduler
from tilesmith.tune.specialise import graphs_for
from tilesmith.tune.tune import TuneOptions
from tilesmith.tune.tune_model import tune_model

_SECONDS = 2.0  # of the comparison
_MIN_RUNS, _MAX_RUNS = 5, 200


def tune_model_file(
    path: str, dim: Sequence[str] | None, host: Target, given: RecordOptions, how: Arithmetic,
    scheduler: Scheduler, options: TuneOptions,
) -> None:  # fmt: skip
    """Prints the result."""
    graph, _ = loaded(path, dim)
    feeds = arrays_of((), signatures_of(graph), path, random=True)
    options["parts"] = own = parts_named(given.parts)
    with given.opened(host) as records:
        done = in_precision(
            graph, host, how["precision"], None, how["accuracy"], how["calibration"],
            "tilesmith tune", database=records, parts=own,
        )  # fmt: skip
        graph, passes = done.graph, done.passes
        options["accuracy"] = done.accuracy
        graphs = graphs_for(graph, feeds)
        found = (extract_tasks(one, host, passes=passes) for one in graphs)
        tasks = [task for one in found for task, _ in one]
        if given.resume and records is not None and not any(records.count(t) for t in tasks):
            raise ArgumentError(
                f"--resume: {records.place} holds no measurement of a task of {path} for this "
                "machine with these cores; leave --resume out to start"
            )
        options["database"] = records
        inputs = None if isinstance(graph, Graph) else feeds
        tuned = tune_model(
            graph, host, inputs=inputs, passes=passes, scheduler=scheduler, **options
        )
        quiet = options.get("quiet", False)
        untuned = compile_model(
            graph, host, progress=False if quiet else None, passes=passes, parts=own,
            accuracy=done.accuracy,
        )  # fmt: skip
    before, after = compared(untuned, tuned, feeds)
    print(
        f"{path}: {1e3 * before:.2f} ms untuned, {1e3 * after:.2f} ms tuned: "
        f"{before / after:.2f} times as fast"
    )
    if tuned.tuning is not None:
        for line in _described(tuned.tuning):
            print(f"  {line}")
    for line in tuned.precision.table({}):
        print(f"  {line}")


def compared(one: Model, other: Model, feeds: Mapping[str, Any]) -> tuple[float, float]:
    """Median seconds of both, which run in turns, so that both meet the same state of the
    machine.
    """
    models = one, other
    times: tuple[list[float], list[float]] = [], []
    for m in models:
        m(feeds)
    end = time.perf_counter() + _SECONDS
    while len(times[0]) < _MIN_RUNS or (
        time.perf_counter() < end and len(times[0]) < _MAX_RUNS
    ):  # fmt: skip
        for m, own in zip(models, times, strict=True):
            start = time.perf_counter()
            m(feeds)
            own.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def _described(tuning: ModelTuning) -> list[str]:
    count = f"{len(tuning.tasks)} task{'s' * (len(tuning.tasks) != 1)}"
    lines = [f"{count}, {tuning.trials} trials in {tuning.seconds:.1f} s"]
    if tuning.sizes:
        lines.append(f"tuned for {tuning.sizes}; other sizes run by drafts")
    if tuning.latency:
        lines[0] += f"; sum of the kernels' times: {1e3 * tuning.estimate:.2f} ms"
    if tuning.unmeasured:
        lines.append(
            f"{tuning.unmeasured} of them were not measured and use drafts: give more time"
        )
    if tuning.interrupted:
        lines.append("interrupted; this is the best one until then")
    if tuning.error is not None:
        lines.append(f"ended early: {tuning.error}")
    return lines
