"""`tilesmith export`: writes a C library that runs a model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from tilesmith.cli.arguments import machine, require_folder
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
    loaded,
    open_sizes,
    require_model,
    require_open,
)
from tilesmith.tune.compile_model import compile_model

EXPORT_HELP = (
    "\b\nExamples:\n"
    "  tilesmith export model.onnx -o out --db tune.db\n"
    "  tilesmith export model.onnx -o out --target neoverse-n1 --cores 4\n"
    "  tilesmith export model.onnx -o out --target nvidia-h200\n"
    "\b\nThen, in the folder out:\n"
    "  cc example.c -I. -L. -lmodel -Wl,-rpath,. -o example"
)


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL.onnx", help="the ONNX file to export")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="the folder for the files")
    ],
    name: Annotated[
        str, typer.Option(help="part of the names of files and of C functions")
    ] = "model",
    target: ProcessorOption = "cpu",
    cores: MostCoresOption = 0,
    db: TunedOption = "",
    pack: PackOption = None,
    parts: PartsOption = "",
    lock: LockOption = None,
    dim: DimOption = None,
    sizes: SizesOption = None,
    precision: PrecisionOption = Precision.float32,
    accuracy: AccuracyOption = None,
    calibration: CalibrationOption = None,
    static: Annotated[
        bool,
        typer.Option("--static", help="only the static library, which needs no C compiler here"),
    ] = False,
    compiler: Annotated[
        str,
        typer.Option(
            "--cc", metavar="COMMAND", help="the C compiler that links the shared library"
        ),
    ] = "",
) -> None:
    """Write a C library that runs a model without Python."""
    require_model(model)
    processor = machine(target, cores)
    require_folder("--output", output)
    graph, dims = loaded(model, dim)
    opened = open_sizes(sizes, graph, dims)
    own = parts_named(parts)
    with optional_database(db, parts, pack, processor) as records:
        compiled = compile_model(
            graph, processor, database=records, parts=own,
            lock=lock, sizes=how_sizes_are_compiled(opened, lock),
            **arithmetic(precision, accuracy, calibration),
        )  # fmt: skip
        require_open(compiled, opened)
        files = compiled.export(output, name, shared=not static, compiler=compiler)
    print(files)
    kinds = Counter(k.origin.kind for k in compiled.kernels)
    print(", ".join(f"{n} kernels by {kind}" for kind, n in kinds.items()))
