"""`tilesmith compile`: writes a compiled model to a file that loads at once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.cli.arguments import machine, require_file
from tilesmith.cli.databases import (
    LockOption,
    PackOption,
    PartsOption,
    TunedOption,
    optional_database,
    parts_named,
)
from tilesmith.cli.model_arguments import (
    AccuracyOption,
    CalibrationOption,
    DimOption,
    MostCoresOption,
    Precision,
    PrecisionOption,
    ProcessorOption,
    SizesOption,
    arithmetic,
    how_sizes_are_compiled,
    is_saved,
    loaded,
    open_sizes,
    require_model,
    require_open,
)
from tilesmith.tune.compile_model import compile_model

COMPILE_HELP = (
    "\b\nExamples:\n"
    "  tilesmith compile model.onnx -o model.tsm --db tune.db\n"
    "  tilesmith compile model.onnx -o m.tsm --weights m.weights --dim batch=1\n"
    "  tilesmith compile model.onnx -o m.tsm --sizes seq:1..512 --dim batch=1\n"
    "  tilesmith compile model.onnx -o m.tsm --db tune.db --save-lock m.lock\n"
    "  tilesmith compile model.onnx -o m.tsm --precision int8 --calibration images/\n"
    "\b\nThen:\n"
    "  tilesmith run model.tsm --random\n"
    '  ts.load_model("model.tsm") in Python'
)


def compile(
    model: Annotated[str, typer.Argument(metavar="MODEL.onnx", help="the ONNX file to compile")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="MODEL.tsm", help="the file to write")
    ],
    weights: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write the weights there, and refer to them"),
    ] = None,
    target: ProcessorOption = "cpu",
    cores: MostCoresOption = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="fail where the database has no record of a task")
    ] = False,
    db: TunedOption = "",
    pack: PackOption = None,
    parts: PartsOption = "",
    lock: LockOption = None,
    save_lock: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="write the schedule of every kernel there, for --lock elsewhere"
        ),
    ] = None,
    dim: DimOption = None,
    sizes: SizesOption = None,
    precision: PrecisionOption = Precision.float32,
    accuracy: AccuracyOption = None,
    calibration: CalibrationOption = None,
) -> None:
    """Compile a model to one file, which ts.load_model and `tilesmith run` load at once."""
    require_model(model)
    if not is_saved(str(output)):
        raise ArgumentError(f"--output {output}: a saved model is a file that ends in .tsm")
    processor = machine(target, cores)
    for option, path in (("--output", output), ("--weights", weights), ("--save-lock", save_lock)):
        if path is not None:
            require_file(option, path)
    graph, dims = loaded(model, dim)
    opened = open_sizes(sizes, graph, dims)
    own = parts_named(parts)
    with optional_database(db, parts, pack, processor) as records:
        compiled = compile_model(
            graph, processor, database=records, strict=strict, parts=own,
            lock=lock, sizes=how_sizes_are_compiled(opened, lock),
            **arithmetic(precision, accuracy, calibration),
        )  # fmt: skip
        require_open(compiled, opened)
    digest = compiled.save(output, weights=weights)
    if save_lock is not None:
        compiled.save_lock(save_lock)
    for path in (p for p in (output, weights, save_lock) if p is not None):
        print(f"{path}  {path.stat().st_size} bytes")
    print(f"digest {digest}")
    kinds = Counter(k.origin.kind for k in compiled.kernels)
    print(", ".join(f"{n} kernels by {kind}" for kind, n in kinds.items()))
    for line in compiled.precision.table({}):
        print(line)
