"""`tilesmith show`: models, sketches of an operator, and the content of a database."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tilesmith.cli.arguments import machine
from tilesmith.cli.operator_arguments import (
    ConstantWeightsOption,
    CoresOption,
    Dtype,
    DtypeOption,
    LayoutOption,
    OperatorArgument,
    ShapeArgument,
    function_of,
)
from tilesmith.cli.operator_help import explain
from tilesmith.cli.operator_table import OPERATORS
from tilesmith.cli.show_graph import graph
from tilesmith.cli.show_portfolio import portfolio
from tilesmith.cli.show_records import records, runs, source, trace
from tilesmith.cli.show_tasks import tasks
from tilesmith.space.ansor import ansor_rules
from tilesmith.space.sets import default_rules
from tilesmith.space.show import show_sketches
from tilesmith.space.spaces import SketchSpace
from tilesmith.task.task import Task

show = typer.Typer(
    help="Print models, sketches, tasks, records, portfolios, runs, schedules or code.",
    epilog="\b\nExamples:\n"
    "  tilesmith show sketches conv2d 56 64 64 3 1 1\n"
    "  tilesmith show graph model.onnx --dim batch=1 --html model.html\n"
    "  tilesmith show tasks --db tune.db\n"
    "  tilesmith show records matmul --db tune.db\n"
    "  tilesmith show source matmul --db tune.db --assembly",
    rich_markup_mode=None,
)


class Rules(StrEnum):
    ansor = "ansor"
    default = "default"


@show.command(
    epilog="\b\nExample:\n  tilesmith show sketches matmul 512 512 512 --rules ansor\n\n"
    + explain(dict.fromkeys(OPERATORS, ""))
)
def sketches(
    op: OperatorArgument,
    shape: ShapeArgument = None,
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="the machine to derive them for: cpu is this one, cuda and opencl are its GPUs; "
            "others are known by name, such as neoverse-n1 or nvidia-h100",
        ),
    ] = "cpu",
    cores: CoresOption = 0,
    layout: LayoutOption = None,
    dtype: DtypeOption = Dtype.float32,
    constant_weights: ConstantWeightsOption = False,
    rules: Annotated[
        Rules,
        typer.Option(
            help="the rules that derive them: Ansor's, or the default ones, which derive more"
        ),
    ] = Rules.default,
) -> None:
    """Print the sketches of an operator.

    A sketch is a loop program whose structure is fixed and whose numbers, such as tile sizes, are
    left to the search.
    """
    func = function_of(op, shape or [], layout, constant_weights, dtype)
    func.require_closed("show sketches")
    host = machine(target, cores)
    task = Task(func, host)
    rule_set = (ansor_rules if rules is Rules.ansor else default_rules)(host)
    derivation = SketchSpace(rule_set).derive(task)
    print(show_sketches(task, derivation.traces, derivation.warning))


for command in (graph, tasks, records, portfolio, runs, trace, source):
    show.command()(command)
