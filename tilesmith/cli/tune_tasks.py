"""`tilesmith tune` with several operators: they share one budget."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilesmith.base.errors import ArgumentError
from tilesmith.base.target import Target
from tilesmith.cli.databases import RecordOptions, parts_named
from tilesmith.cli.operator_list import Weighted
from tilesmith.cli.table import microseconds, table
from tilesmith.cli.tune_folder import write_folder
from tilesmith.task.task import Task
from tilesmith.tune.scheduler import Scheduler
from tilesmith.tune.tune import TuneOptions
from tilesmith.tune.tune_tasks import TasksResult, tune_tasks


def tune_operators(
    funcs: Sequence[Weighted], host: Target, given: RecordOptions, out: Path | None,
    scheduler: Scheduler, options: TuneOptions,
) -> None:  # fmt: skip
    """Prints the result."""
    options["parts"] = parts_named(given.parts)
    with given.opened(host) as records:
        if given.resume and records is not None:
            tasks = [Task(func, host) for func, _ in funcs if not func.sizes]
            if not any(records.count(t) for t in tasks):
                raise ArgumentError(
                    f"--resume: {records.place} holds no measurement of these operators for this "
                    "machine with these cores; leave --resume out to start"
                )
        options["database"] = records
        results = tune_tasks(funcs, host, scheduler=scheduler, **options)
    for line in _described(funcs, results):
        print(line)
    if out is not None:
        for result in results.results:
            if result is not None and result.portfolio is None:
                folder = out / result.task.func.name
                folder.mkdir(exist_ok=True)
                write_folder(folder, result, given.parts)
        print(f"the kernels are in {out}, each in a folder of its own")


def _described(funcs: Sequence[Weighted], results: TasksResult) -> list[str]:
    tuning = results.tuning
    rows = []
    for (func, weight), result in zip(funcs, results.results, strict=True):
        if result is None:
            rows.append((func.name, f"{weight:g}", "none", "", ""))
            continue
        rate = f"{result.gflops:.1f}" if result.task.func.flops else ""
        best = microseconds(result.best.cost)
        rows.append((func.name, f"{weight:g}", best, rate, str(result.trials)))
    lines = [f"{len(funcs)} operators, {tuning.trials} trials in {tuning.seconds:.1f} s"]
    lines += table(("operator", "weight", "best", "GFLOP/s", "trials"), rows, left=["operator"])
    for k, failures in enumerate(results.failures):
        for kind, (number, text) in failures.items():
            name = funcs[k][0].name
            lines.append(f"{name}: {number} candidates failed ({kind}); the first: {text}")
    lines += [f"{funcs[k][0].name} has no kernel: {error}" for k, error in results.errors.items()]
    if tuning.interrupted:
        lines.append("interrupted; these are the best ones until then")
    if tuning.error is not None:
        lines.append(f"ended early: {tuning.error}")
    return lines
