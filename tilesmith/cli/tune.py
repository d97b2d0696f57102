"""`tilesmith tune`: finds the fastest kernel of an operator, or the fastest kernels of a model,
within a budget. Every measurement is stored in the database.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.base.target import Target
from tilesmith.cli.arguments import (
    count,
    machine,
    positive_seconds,
    require_folder,
    require_memory,
)
from tilesmith.cli.databases import PackOption, PartsOption, RecordOptions, parts_named
from tilesmith.cli.model_arguments import (
    AccuracyOption,
    CalibrationOption,
    DimOption,
    Precision,
    PrecisionOption,
    SizesOption,
    arithmetic,
    is_model,
)
from tilesmith.cli.operator_arguments import (
    ConstantWeightsOption,
    Dtype,
    DtypeOption,
    LayoutOption,
    ShapeArgument,
)
from tilesmith.cli.operator_help import explain
from tilesmith.cli.operator_list import functions_of
from tilesmith.cli.operator_table import OPERATORS
from tilesmith.cli.tune_folder import write_folder
from tilesmith.cli.tune_model import tune_model_file
from tilesmith.cli.tune_tasks import tune_operators
from tilesmith.ir.function import Function
from tilesmith.measure.fleet.measurer import FleetMeasurer
from tilesmith.measure.local import LocalMeasurer
from tilesmith.measure.protocol import Measurer
from tilesmith.search.classic.annealing import Annealing
from tilesmith.search.classic.baselines import Grid, Random
from tilesmith.search.classic.genetic import Genetic
from tilesmith.search.evolution import Evolution
from tilesmith.search.learned.model import load_cost_model
from tilesmith.search.protocol import Strategy
from tilesmith.task.task import Budget, Task
from tilesmith.tune.open_build import samples_of, task_at
from tilesmith.tune.precision import of_operator
from tilesmith.tune.result import Result
from tilesmith.tune.scheduler import Scheduler, gradient, round_robin
from tilesmith.tune.tune import TuneOptions
from tilesmith.tune.tune import tune as tune_function

if TYPE_CHECKING:
    from tilesmith.records.sql import SqlDatabase


class StrategyName(StrEnum):
    evolution = "evolution"
    annealing = "annealing"
    genetic = "genetic"
    random = "random"
    grid = "grid"


STRATEGIES: dict[StrategyName, Callable[[], Strategy]] = {
    StrategyName.evolution: Evolution,
    StrategyName.annealing: Annealing,
    StrategyName.genetic: Genetic,
    StrategyName.random: Random,
    StrategyName.grid: Grid,
}


def _strategy(name: StrategyName, cost_model: Path | None) -> Strategy:
    if cost_model is None:
        return STRATEGIES[name]()
    if name is not StrategyName.evolution:
        raise ArgumentError("--cost-model is for --strategy evolution")
    return Evolution(cost_model=load_cost_model(cost_model))


class SchedulerName(StrEnum):
    gradient = "gradient"
    round_robin = "round-robin"


SCHEDULERS: dict[SchedulerName, Callable[[], Scheduler]] = {
    SchedulerName.gradient: gradient,
    SchedulerName.round_robin: round_robin,
}


_SECONDS, _MANY_SECONDS = 60.0, 600.0

TUNE_HELP = (
    "\b\nExamples:\n"
    "  tilesmith tune matmul 512 512 512 --time 30s --db tune.db\n"
    "  tilesmith tune conv2d 56 64 64 3 1 1 --layout NHWC --constant-weights\n"
    "  tilesmith tune matmul 512 512 512 --dtype float16\n"
    "  tilesmith tune matmul tokens:1..512 768 768 --db tune.db\n"
    "  tilesmith tune mine.py:func --trials 200 --out tuned/\n"
    "  tilesmith tune matmul 512 512 512 x3 softmax 512 512 --time 2m --db tune.db\n"
    "  tilesmith tune operators.txt --time 10m --db tune.db\n"
    "  tilesmith tune model.onnx --dim batch=1 --time 10m --db tune.db\n"
    "  tilesmith tune net.onnx --sizes seq:1..512@16,128x4 --time 10m --db tune.db\n\n"
    + explain(dict.fromkeys(OPERATORS, ""))
)


def tune(
    what: Annotated[
        str,
        typer.Argument(
            metavar="OP|MODEL.onnx",
            help="an operator's name, FILE.py[:NAME] for a ts.function of your own or a list of "
            "them, FILE.txt with an operator a line, or an ONNX file, all of whose tasks share the "
            "time",
        ),
    ],
    shape: ShapeArgument = None,
    time: Annotated[
        float | None,
        typer.Option(
            "--time", "--seconds", metavar="TIME", parser=positive_seconds, show_default=False,
            help="stop after this wall-clock time: 90, 90s, 10m or 1h; if not given, 60s, and 10m "
            "for several operators or a model",
        ),
    ] = None,
    trials: Annotated[
        int,
        typer.Option(
            metavar="N", parser=count,
            help="stop after N measured candidates, those already in --db included; 0: no limit",
        ),
    ] = 0,
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="what to tune for: cpu, or a GPU of this machine as cuda or opencl (cuda:1 is "
            "the second one); candidates are measured here, or on --fleet",
        ),
    ] = "cpu",
    cores: Annotated[
        int,
        typer.Option(
            "--cores", "--threads", metavar="N", parser=count,
            help="cores that the kernel may use; 0: all of the target's",
        ),
    ] = 0,
    dim: DimOption = None,
    sizes: SizesOption = None,
    precision: PrecisionOption = Precision.float32,
    accuracy: AccuracyOption = None,
    calibration: CalibrationOption = None,
    layout: LayoutOption = None,
    dtype: DtypeOption = Dtype.float32,
    constant_weights: ConstantWeightsOption = False,
    strategy: Annotated[
        StrategyName, typer.Option(help="how the next candidates to measure are chosen")
    ] = StrategyName.evolution,
    cost_model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="a cost model that `tilesmith learn` wrote, which knows more than the analytic "
            "score before anything is measured",
        ),
    ] = None,
    scheduler: Annotated[
        SchedulerName,
        typer.Option(help="which of several operators, or of a model's tasks, is tuned next"),
    ] = SchedulerName.gradient,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="TIME", parser=positive_seconds, show_default=False,
            help="give up on a candidate that takes longer than this to build, or to run once; "
            "10s if not given",
        ),
    ] = 10.0,
    db: Annotated[
        str,
        typer.Option(
            metavar="FILE|URL",
            help="keep every measurement in this SQLite file (made if missing) or postgresql:// "
            "database, and continue from what it holds",
        ),
    ] = "",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="refuse to start unless --db already holds measurements of this task",
        ),
    ] = False,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N", parser=count,
            help="seed of the random choices: with equal timings, the same candidates are tried",
        ),
    ] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="write the kernel to this folder: LLVM IR, assembly, schedule, measurements, and "
            "a Python file that builds it again",
        ),
    ] = None,
    fleet: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="measure on the workers of the Ray cluster at this address (see tilesmith worker) "
            "instead of here; auto: the cluster that this machine belongs to",
        ),
    ] = "",
    pack: PackOption = None,
    parts: PartsOption = "",
    quiet: Annotated[
        bool, typer.Option("--quiet", help="show no progress, only the result")
    ] = False,
) -> None:  # fmt: skip
    """Search for the fastest kernel of an operator, of several, or of every part of a model.

    Candidates are built, run on this machine and compared with NumPy's answer. Ctrl-C ends the
    search early and keeps what was found. Of a model, the part that promises most is tuned next.
    """
    model = is_model(what)
    if model and dtype != Dtype.float32:
        raise ArgumentError("--dtype is for operators; for a model there is --precision float16")
    if model and (shape or layout is not None or constant_weights or out is not None):
        raise ArgumentError(
            "SHAPE, --layout, --constant-weights and --out are for operators, not for a model"
        )
    if dim and not model:
        raise ArgumentError("--dim gives sizes to a model's open dimensions; name MODEL.onnx")
    if sizes and not model:
        raise ArgumentError(
            "--sizes is for a model; an operator's open size stands among its sizes, as n:1..512"
        )
    if precision not in (Precision.float32, Precision.tf32) and not model:
        raise ArgumentError("--precision is for a model; for an operator there is --dtype float16")
    if calibration and not model:
        raise ArgumentError("--calibration is for a model: typical inputs for --precision int8")
    funcs = [] if model else functions_of([what, *(shape or [])], layout, constant_weights, dtype)
    host = machine(target, cores)
    if sizes and host.kind != "cpu":
        raise ArgumentError(
            f"--sizes is for CPUs, and --target is {target}; give the sizes to tune for, as "
            "--dim batch=1"
        )
    limit = (_SECONDS if len(funcs) == 1 else _MANY_SECONDS) if time is None else time
    if not model:
        accuracy = of_operator(precision.value, host, accuracy, "tune")
    options = TuneOptions(
        budget=Budget(trials=trials or None, seconds=limit),
        strategy=_strategy(strategy, cost_model),
        measurer=_measurer(fleet, timeout), seed=seed, quiet=quiet, accuracy=accuracy,
    )  # fmt: skip
    chosen, given = SCHEDULERS[scheduler](), RecordOptions(db, pack, resume, parts)
    for func, _ in funcs:
        require_memory(func)
    if out is not None:
        if any(func.sizes for func, _ in funcs):
            raise ArgumentError(
                "--out is for fixed sizes; of open ones, --db keeps the kernels for ts.build"
            )
        require_folder("--out", out)
    if model:
        how = arithmetic(precision, accuracy, calibration)
        tune_model_file(what, dim, sizes, host, given, how, chosen, options)
        return
    if len(funcs) > 1:
        tune_operators(funcs, host, given, out, chosen, options)
        return
    func = funcs[0][0]
    options["parts"] = parts_named(parts)
    with given.opened(host) as database:
        if resume and database is not None:
            _require_records(database, func, host)
        options["database"] = database
        result = tune_function(func, host, **options)
    _print_result(result)
    if out is not None:
        write_folder(out, result, parts)
        print(f"  the kernel is in {out}: python {out / 'kernel.py'} builds and times it")


def _measurer(fleet: str, timeout: float) -> Measurer:
    if fleet:
        return FleetMeasurer(address=fleet, timeout=timeout)
    return LocalMeasurer(timeout=timeout)


def _require_records(database: SqlDatabase, func: Function, host: Target) -> None:
    at = [task_at(func, s, host, None) for s in samples_of(func)] if func.sizes else []
    if not any(map(database.of, at or [Task(func, host)])):
        cores = f"{host.num_cores} core{'s' * (host.num_cores > 1)}"
        raise ArgumentError(
            f"--resume: {database.place} holds no measurement of {func.name} for this machine "
            f"with {cores}; leave --resume out to start"
        )


def _print_result(result: Result) -> None:
    if result.portfolio is not None:
        print(result.portfolio)
        _print_run(result)
        return
    low, high = result.best.confidence
    rate = f", {result.gflops:.1f} GFLOP/s" if result.task.func.flops else ""
    print(f"{result.task.func.name}: {result.best.cost * 1e6:.1f} us{rate}")
    print(f"  95 % interval of the median: {low * 1e6:.1f} to {high * 1e6:.1f} us")
    _print_run(result)


def _print_run(result: Result) -> None:
    print(f"  {result.trials} trial{'s' * (result.trials != 1)} in {result.seconds:.1f} s")
    for kind, (number, text) in result.failures.items():
        print(f"  {number} candidates failed ({kind}); the first: {text}")
    if result.interrupted:
        print("  interrupted; this is the best one until then")
    if result.error is not None:
        print(f"  ended early: {result.error}")
