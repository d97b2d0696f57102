"""Arguments of the commands about models: parses sizes of open dimensions and input arrays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.base.suggest import did_you_mean
from tilesmith.cli.arguments import count
from tilesmith.cli.open_sizes import open_dimension_of
from tilesmith.expr.sizes import OpenSize
from tilesmith.frontends.open import load_onnx
from tilesmith.graph.model import Model
from tilesmith.graph.program import OpenGraph, Signature
from tilesmith.report.model_inputs import random_inputs, signatures_of

Array = np.ndarray[Any, Any]


class Precision(StrEnum):
    float32 = "float32"
    tf32 = "tf32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int8 = "int8"
    auto = "auto"


PrecisionOption = Annotated[
    Precision,
    typer.Option(
        help="the type in which products are computed; auto: for each layer the fastest one, as "
        "far as --accuracy allows. int8 and auto need --calibration"
    ),
]
CalibrationOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE.npz",
        help="typical inputs by name, as numpy.savez writes them, one file for each call; or a "
        "folder of such files",
    ),
]
AccuracyOption = Annotated[
    float | None,
    typer.Option(
        metavar="ERROR",
        help="the largest difference from float32 over the largest value: of the outputs with "
        "--precision int8 or auto, of each layer otherwise",
    ),
]
ProcessorOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="the processor it will run on: cpu is this machine's; others are known by name, "
        "such as neoverse-n1",
    ),
]
MostCoresOption = Annotated[
    int,
    typer.Option(
        metavar="N", parser=count, help="the most cores that it will use; 0: all of the target"
    ),
]
DimOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        "--dims",
        metavar="NAME=N",
        help="the size of an open dimension of a model, as batch=1; once for each",
    ),
]
SizesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--sizes",
        metavar="NAME:LOW..HIGH",
        help="leave an open dimension of the model open, for all lengths in a range, as "
        "seq:1..512, or seq:1..512@16,128x4 with the lengths that matter most and their weights; "
        "once for each",
    ),
]


class Arithmetic(TypedDict):
    """What --precision, --accuracy and --calibration say, as arguments of compile_model."""

    precision: str
    accuracy: float | None
    calibration: list[dict[str, Array]]


def arithmetic(
    precision: Precision, accuracy: float | None, calibration: Sequence[str] | None
) -> Arithmetic:
    return Arithmetic(
        precision=precision.value,
        accuracy=accuracy,
        calibration=[_arrays(path) for word in calibration or () for path in _files(word)],
    )


def _files(word: str) -> list[Path]:
    path = Path(word)
    if not path.exists():
        raise ArgumentError(f"--calibration {word}: there is no such file or folder")
    if not path.is_dir():
        return [path]
    if found := sorted(path.glob("*.npz")):
        return found
    raise ArgumentError(f"--calibration {word}: the folder has no files of numpy.savez (*.npz)")


def _arrays(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as found:
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise ValueError("it has one array, without the name of an input")
            return dict(found)
    except (OSError, ValueError, EOFError, TypeError, AttributeError) as e:
        raise ArgumentError(
            f"--calibration {path}: write the inputs with numpy.savez(file, NAME=array): {e}"
        ) from None


def is_model(what: str) -> bool:
    return what.lower().endswith(".onnx")


def is_saved(what: str) -> bool:
    """Whether it is the name of a model that was compiled and saved."""
    return what.lower().endswith(".tsm")


def require_model(what: str) -> None:
    if not is_model(what):
        raise ArgumentError(f"{what!r} is not the name of an ONNX file; it ends in .onnx")


def loaded(path: str, dim: Sequence[str] | None) -> tuple[OpenGraph, dict[str, int]]:
    """The model, and the sizes that --dim gave to its open dimensions."""
    if not Path(path).is_file():
        raise ArgumentError(f"there is no file {path}")
    dims = sizes_of_dims(dim or ())
    return load_onnx(path, dims=dims), dims


def sizes_of_dims(words: Sequence[str]) -> dict[str, int]:
    dims = {}
    for word in words:
        name, _, size = word.rpartition("=")
        if not name or not re.fullmatch("[0-9]{1,9}", size):
            raise ArgumentError(f"--dim {word!r}: write NAME=N, such as batch=1")
        if int(size) == 0:
            raise ArgumentError(f"--dim {word!r}: a size is at least 1, such as {name}=1")
        dims[name] = int(size)
    return dims


def open_sizes(
    words: Sequence[str] | None, model: OpenGraph, dims: Mapping[str, int]
) -> dict[str, OpenSize] | None:
    """The sizes of --sizes by the names of dimensions, None if none is given. Each dimension that
    the model leaves open must have one.
    """
    if not words:
        return None
    found: dict[str, OpenSize] = {}
    names = list(open_dimensions(model))
    for word in words:
        name, size = open_dimension_of(word, f"--sizes {word!r}")
        if name in dims:
            raise ArgumentError(f"--sizes {word!r}: --dim gives {name!r} the size {dims[name]}")
        if name not in names:
            has = f"its open dimensions are {', '.join(names)}" if names else "none is open"
            raise ArgumentError(
                f"--sizes {word!r}: {model.name} has no open dimension {name!r}"
                f"{did_you_mean(name, names)}; {has}"
            )
        if name in found:
            raise ArgumentError(f"--sizes gives {name!r} twice")
        found[name] = size
    if missing := [n for n in names if n not in found]:
        raise ArgumentError(
            f"{model.name} leaves {missing[0]!r} open, too; give its range, as "
            f"--sizes {missing[0]}:1..512, or its size, as --dim {missing[0]}=1"
        )
    return found


def open_dimensions(model: OpenGraph) -> Iterable[str]:
    """The names of a model's open dimensions."""
    return dict.fromkeys(
        d for s in signatures_of(model) for d in s.dims or () if isinstance(d, str)
    )


def how_sizes_are_compiled(
    sizes: Mapping[str, OpenSize] | None, lock: Path | None
) -> Mapping[str, Any] | Literal["each"] | None:
    """For compile_model. A lock file knows for which sizes it is."""
    if sizes is None:
        return None if lock is not None else "each"
    return {n: (*s.limits, dict(s.samples)) if s.samples else s.limits for n, s in sizes.items()}


def require_open(model: Model, sizes: Mapping[str, OpenSize] | None) -> None:
    """Raises where a model could not be compiled once for the sizes that were asked for."""
    if sizes and not model.is_open:
        raise ArgumentError(
            f"{model.name} cannot be compiled once for all sizes: {model.why_not_open}; give "
            f"certain ones, as --dim {next(iter(sizes))}=1"
        )


def with_dims(signatures: Sequence[Signature], dims: Mapping[str, int]) -> list[Signature]:
    """The inputs of a model with open sizes at certain ones."""
    names = dict.fromkeys(d for s in signatures for d in s.dims or () if isinstance(d, str))
    for name in dims:
        if name not in names:
            has = f"its open dimensions are {', '.join(names)}" if names else "none is open"
            raise ArgumentError(
                f"--dim {name}={dims[name]}: the model has no open dimension {name!r}"
                f"{did_you_mean(name, [*names])}; {has}"
            )
    return [
        Signature(s.name, s.dtype, s.dims and tuple(dims.get(str(d), d) for d in s.dims))
        for s in signatures
    ]


def arrays_of(
    words: Sequence[str], signatures: Sequence[Signature], model: str, random: bool
) -> dict[str, Array]:
    """One array for each input: from the files of --input NAME=FILE.npy, the others random."""
    given: dict[str, Array] = {}
    names = [s.name for s in signatures]
    for word in words:
        name, path = _named_file(word, names)
        if name not in names:
            raise ArgumentError(
                f"--input {word!r}: {model} has no input {name!r}{did_you_mean(name, names)}; "
                f"its inputs are {_listed(signatures)}"
            )
        given[name] = _array(word, path)
    missing = [s for s in signatures if s.name not in given]
    if missing and not random:
        raise ArgumentError(
            f"{model} also needs {_listed(missing)}; give --input NAME=FILE.npy for each, or "
            "--random to run it with random numbers"
        )
    filled = {**random_inputs(missing), **given}
    return {name: filled[name] for name in names}


def _named_file(word: str, names: Sequence[str]) -> tuple[str, str]:
    """NAME=FILE; or FILE alone, where a model has one input. Names may contain a `=`."""
    for name in names:
        if word.startswith(f"{name}="):
            return name, word.removeprefix(f"{name}=")
    name, equals, path = word.partition("=")
    if equals:
        return name, path
    if len(names) != 1:
        raise ArgumentError(f"--input {word!r}: write NAME=FILE.npy; the names are {names}")
    return names[0], word


def _array(word: str, path: str) -> Array:
    try:
        found = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise ArgumentError(f"--input {word!r}: there is no file {path}") from None
    except (OSError, ValueError, EOFError) as e:
        raise ArgumentError(f"--input {word!r}: {path} is no array of numpy.save: {e}") from None
    if not isinstance(found, np.ndarray):
        raise ArgumentError(f"--input {word!r}: {path} has several arrays; write one with np.save")
    return found


def _listed(signatures: Sequence[Signature]) -> str:
    return ", ".join(map(str, signatures)) or "none"
