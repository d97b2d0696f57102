"""The arguments that name a computation, once for all commands: the operator or the user's file,
its sizes, and the options that change the Function. `function_of` turns them into that Function.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.cli.arguments import count
from tilesmith.cli.operators import open_sizes_of, operator, require_operator
from tilesmith.cli.user_file import function_in, is_file_name
from tilesmith.ir.function import Function


class Dtype(StrEnum):
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    float64 = "float64"
    int8 = "int8"
    uint8 = "uint8"
    int32 = "int32"


class Layout(StrEnum):
    NCHW = "NCHW"
    NHWC = "NHWC"


OperatorArgument = Annotated[
    str,
    typer.Argument(
        metavar="OP", help="an operator's name, or FILE.py[:NAME] for a ts.function of your own"
    ),
]
ShapeArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="SHAPE", help="the operator's sizes, in the order explained below"),
]
LayoutOption = Annotated[
    Layout | None,
    typer.Option(help="order of an image's dimensions, for operators on images; NCHW if not given"),
]
ConstantWeightsOption = Annotated[
    bool,
    typer.Option(
        "--constant-weights",
        help="weights never change, so the kernel may want them packed ahead (kernel.pack)",
    ),
]
CoresOption = Annotated[
    int,
    typer.Option(
        metavar="N", parser=count, help="cores that the kernel may use; 0: all of the target's"
    ),
]


DtypeOption = Annotated[
    Dtype,
    typer.Option("--dtype", help="element type of the operator's inputs"),
]


def function_of(
    what: str, shape: list[str], layout: str | None = None, constant_weights: bool = False,
    dtype: str = "float32",
) -> Function:  # fmt: skip
    """An operator with its sizes, of which some may be open; or FILE.py:NAME of a Function in a
    Python file.
    """
    if is_file_name(what):
        require_file_alone(what, shape, layout, constant_weights, dtype)
        return function_in(what)
    require_operator(what)
    return operator(what, open_sizes_of(what, shape), layout, constant_weights, str(dtype))


def require_file_alone(
    what: str, shape: list[str], layout: str | None, constant_weights: bool, dtype: str
) -> None:
    """Raises if a Python file is given sizes or options that are for named operators."""
    if shape:
        raise ArgumentError(f"{what} takes no sizes, but got {' '.join(shape)}; its file has them")
    if layout is not None or constant_weights or dtype != "float32":
        option = "--layout" if layout is not None else "--constant-weights"
        if dtype != "float32":
            option = "--dtype"
        raise ArgumentError(
            f"{option} is for named operators; for {what}, set it in the file: "
            "ts.function(..., constants=[...]) takes the tensors that are constant"
        )
