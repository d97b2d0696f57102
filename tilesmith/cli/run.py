"""`tilesmith run`: runs a model on given or random arrays, and prints or stores the results."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.base.whole_file import named_errors, whole_file
from tilesmith.cli.arguments import count, machine, require_folder
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
    Precision,
    PrecisionOption,
    arithmetic,
    arrays_of,
    how_sizes_are_compiled,
    is_saved,
    loaded,
    require_model,
    sizes_of_dims,
    with_dims,
)
from tilesmith.graph.load_model import load_model
from tilesmith.graph.model import Model
from tilesmith.report.model_inputs import signatures_of
from tilesmith.tune.compile_model import compile_model

Array = np.ndarray[Any, Any]
RUN_HELP = (
    "\b\nExamples:\n"
    "  tilesmith run model.onnx --input image=x.npy --output out\n"
    "  tilesmith run model.onnx --random --dim batch=4\n"
    "  tilesmith run model.tsm --random --dim seq=128"
)


def run(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="the ONNX file to run, or a .tsm of `compile`")
    ],
    input: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="an input, as written by numpy.save; once for each, and without NAME= if the "
            "model has one input",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="write each output there, as NAME.npy"),
    ] = None,
    random: Annotated[
        bool,
        typer.Option("--random", help="fill inputs that are not given with random numbers"),
    ] = False,
    dim: DimOption = None,
    precision: PrecisionOption = Precision.float32,
    accuracy: AccuracyOption = None,
    calibration: CalibrationOption = None,
    cores: Annotated[
        int, typer.Option(metavar="N", parser=count, help="cores to run on; 0: all of them")
    ] = 0,
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="what to run on: cpu, or a GPU of this machine as cuda or opencl"
        ),
    ] = "cpu",
    db: TunedOption = "",
    pack: PackOption = None,
    parts: PartsOption = "",
    lock: LockOption = None,
) -> None:
    """Run a model once and print what it computes."""
    if output is not None:
        require_folder("--output", output)
    if is_saved(model):
        given = {
            "--db": db, "--pack": pack, "--parts": parts, "--lock": lock,
            "--target": target != "cpu", "--precision": precision is not Precision.float32,
            "--accuracy": accuracy is not None, "--calibration": calibration,
        }  # fmt: skip
        if settled := [option for option, value in given.items() if value]:
            raise ArgumentError(
                f"{settled[0]}: {model} is compiled already; give it to tilesmith compile"
            )
        compiled = load_model(model, threads=cores or None)
        inputs = with_dims(compiled.inputs, sizes_of_dims(dim or ()))
        results, seconds = _timed(compiled, arrays_of(input or (), inputs, model, random))
    else:
        require_model(model)
        host = machine(target, cores)
        graph, _ = loaded(model, dim)
        feeds = arrays_of(input or (), signatures_of(graph), model, random)
        own = parts_named(parts)
        with optional_database(db, parts, pack, host) as records:
            compiled = compile_model(
                graph, host, database=records, parts=own,
                lock=lock, sizes=how_sizes_are_compiled(None, lock),
                **arithmetic(precision, accuracy, calibration),
            )  # fmt: skip
            results, seconds = _timed(compiled, feeds)
    for line in described(results):
        print(line)
    print(f"{1e3 * seconds:.2f} ms for a second run")
    if output is not None:
        for name, path in file_names(results).items():
            with named_errors(output / path), whole_file(output / path) as file:
                np.save(file, results[name])


def _timed(model: Model, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], float]:
    """The outputs and the seconds of a second call."""
    model(feeds)
    start = time.perf_counter()
    results = model(feeds)
    return results, time.perf_counter() - start


def described(results: Mapping[str, Array]) -> Iterable[str]:
    """Each output with its type, shape and range."""
    for name, a in results.items():
        shape = ", ".join(map(str, a.shape))
        text = f"{name}: {a.dtype}[{shape}]"
        if a.size and a.dtype.kind in "fiu":
            exact = a.astype(np.float64)
            text += f", from {exact.min():.6g} to {exact.max():.6g}, mean {exact.mean():.6g}"
        yield text


def file_names(names: Iterable[str]) -> dict[str, str]:
    """A plain, different file name for each output; names of a model may be anything."""
    files: dict[str, str] = {}
    for name in names:
        stem = re.sub(r"[^\w.-]", "_", name).lstrip(".")[:100] or "output"
        k = 1
        while f"{stem}.npy" in files.values():
            k += 1
            stem = f"{stem.removesuffix(f'_{k - 1}')}_{k}"
        files[name] = f"{stem}.npy"
    return files
