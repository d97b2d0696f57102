"""`tilesmith tune MODEL.onnx`: tunes all tasks of a model and compares it with the untuned one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilesmith.base.errors import ArgumentError
from tilesmith.base.target import Target
from tilesmith.cli.databases import RecordOptions, parts_named
from tilesmith.cli.model_arguments import (
    Arithmetic,
    arrays_of,
    how_sizes_are_compiled,
    loaded,
    open_sizes,
    with_dims,
)
from tilesmith.expr.sizes import OpenSize
from tilesmith.graph.graph import Graph
from tilesmith.graph.model import Model
from tilesmith.graph.program import OpenGraph, Program
from tilesmith.report.model_inputs import signatures_of
from tilesmith.task.network import ModelTuning
from tilesmith.task.task import Task
from tilesmith.tune.compile_model import compile_model, extract_tasks, in_precision
from tilesmith.tune.open_model import require_open_sizes
from tilesmith.tune.open_model_tune import tasks_at_samples
from tilesmith.tune.scheduler import Scheduler
from tilesmith.tune.specialise import graphs_for
from tilesmith.tune.tune import TuneOptions
from tilesmith.tune.tune_model import tune_model

if TYPE_CHECKING:
    from tilesmith.records.sql import SqlDatabase

_SECONDS = 2.0  # of the comparison
_MIN_RUNS, _MAX_RUNS = 5, 200


def tune_model_file(
    path: str, dim: Sequence[str] | None, sizes: Sequence[str] | None, host: Target,
    given: RecordOptions, how: Arithmetic, scheduler: Scheduler, options: TuneOptions,
) -> None:  # fmt: skip
    """Prints the result."""
    graph, dims = loaded(path, dim)
    options["parts"] = own = parts_named(given.parts)
    if opened := open_sizes(sizes, graph, dims):
        _tune_open(path, graph, opened, host, given, how, scheduler, options)
        return
    feeds = arrays_of((), signatures_of(graph), path, random=True)
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
        _require_records(given, records, tasks, path)
        options["database"] = records
        inputs = None if isinstance(graph, Graph) else feeds
        tuned = tune_model(
            graph, host, inputs=inputs, passes=passes, scheduler=scheduler, **options
        )
        quiet = options.get("quiet", False)
        untuned = compile_model(
            graph, host, progress=False if quiet else None, passes=passes, parts=own,
            accuracy=done.accuracy, sizes="each",
        )  # fmt: skip
    _print_compared(path, untuned, tuned, feeds)
    if tuned.tuning is not None:
        for line in _described(tuned.tuning):
            print(f"  {line}")
    for line in tuned.precision.table({}):
        print(f"  {line}")


def _tune_open(
    path: str, graph: OpenGraph, sizes: Mapping[str, OpenSize], host: Target, given: RecordOptions,
    how: Arithmetic, scheduler: Scheduler, options: TuneOptions,
) -> None:  # fmt: skip
    """For all sizes at once. The result is compared at the most important ones."""
    typical = {n: s.typical for n, s in sizes.items()}
    feeds = arrays_of((), with_dims(signatures_of(graph), typical), path, random=True)
    ranges = how_sizes_are_compiled(sizes, None)
    assert isinstance(ranges, Mapping)
    assert isinstance(graph, Program)
    precision, calibration = how["precision"], how["calibration"]
    require_open_sizes(host, precision, calibration, "tilesmith tune")
    with given.opened(host) as records:
        if given.resume:
            own = options["parts"]
            done = in_precision(graph, host, precision, None, how["accuracy"], (), "tilesmith tune")
            tasks = tasks_at_samples(graph, sizes, host, done.passes, own)
            _require_records(given, records, tasks, path)
        options["database"] = records
        tuned = tune_model(
            graph, host, sizes=ranges, scheduler=scheduler, precision=precision, **options
        )
        untuned = compile_model(
            graph, host, sizes=ranges, parts=options["parts"], accuracy=options["accuracy"],
            progress=False if options.get("quiet", False) else None, precision=precision,
        )  # fmt: skip
    at = ", ".join(f"{n} = {v}" for n, v in typical.items())
    _print_compared(f"{path} at {at}", untuned, tuned, feeds)
    if tuned.tuning is not None:
        for line in _described(replace(tuned.tuning, sizes="")):
            print(f"  {line}")
        print(f"  tuned for {tuned.tuning.sizes}")


def _require_records(
    given: RecordOptions, records: SqlDatabase | None, tasks: Sequence[Task], path: str
) -> None:
    """Raises if a run is to be resumed that never began."""
    if given.resume and records is not None and not any(map(records.count, tasks)):
        raise ArgumentError(
            f"--resume: {records.place} holds no measurement of a task of {path} for this "
            "machine with these cores; leave --resume out to start"
        )


def _print_compared(what: str, untuned: Model, tuned: Model, feeds: Mapping[str, Any]) -> None:
    before, after = compared(untuned, tuned, feeds)
    print(
        f"{what}: {1e3 * before:.2f} ms untuned, {1e3 * after:.2f} ms tuned: "
        f"{before / after:.2f} times as fast"
    )


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
