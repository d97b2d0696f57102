"""`tilesmith show`: what there is, as text."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tilesmith.base.target import Target, cpu
from tilesmith.cli.known import records, source, tasks, trace
from tilesmith.cli.operators import OPERATORS, operator, usage
from tilesmith.space.sets import ansor_rules, default_rules
from tilesmith.space.show import show_sketches
from tilesmith.space.spaces import SketchSpace
from tilesmith.task.task import Task

show = typer.Typer(
    help="What there is, as text: sketches of an operator; tasks and records of a database, and "
    "the schedule and the code behind a record.",
    rich_markup_mode=None,
)


class Rules(StrEnum):
    ansor = "ansor"
    default = "default"


@show.command(help=f"Sketches of an operator: {'; '.join(map(usage, OPERATORS))}.")
def sketches(
    op: Annotated[str, typer.Argument(help="the operator's name")],
    shape: Annotated[list[int], typer.Argument(help="its numbers")],
    target: Annotated[str, typer.Option(help="cpu: this machine's; else a machine's name")] = "cpu",
    cores: Annotated[int, typer.Option(help="how many cores; 0: all that the target has")] = 0,
    rules: Annotated[Rules, typer.Option(help="which rules derive them")] = Rules.default,
) -> None:
    machine = target_named(target)
    machine = machine.with_cores(cores) if cores else machine
    task = Task(operator(op, shape), machine)
    rule_set = (ansor_rules if rules is Rules.ansor else default_rules)(machine)
    found = SketchSpace(rule_set).derive(task)
    print(show_sketches(task, found.traces, found.warning))


for command in (tasks, records, trace, source):
    show.command()(command)


def target_named(name: str) -> Target:
    """`cpu`, or one of the machines that Target.named knows."""
    return cpu() if name == "cpu" else Target.named(name)
