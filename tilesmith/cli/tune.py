"""`tilesmith tune`: a computation and a budget in, the fastest kernel found out, with every
measurement in the database.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from tilesmith.base.errors import ArgumentError
from tilesmith.cli.operators import OPERATORS, operator, usage
from tilesmith.cli.show import target_named
from tilesmith.ir.function import Function
from tilesmith.records.open import open_database
from tilesmith.task.task import Budget
from tilesmith.tune.tune import tune as tune_function


def seconds_of(text: str) -> float:
    """60, 60s, 10m or 1h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not found:
        raise ArgumentError(f"--time {text!r}: write 60s, 10m or 1h")
    return float(found.group(1)) * {"": 1, "s": 1, "m": 60, "h": 3600}[found.group(2)]


def function_of(what: str, shape: list[int]) -> Function:
    """An operator's name with its numbers, or FILE.py:NAME of a Function in a Python file."""
    if ".py" not in what:
        return operator(what, shape)
    path, _, name = what.partition(":")
    if not Path(path).is_file():
        raise ArgumentError(f"there is no file {path}")
    scope: dict[str, object] = {"__name__": "tilesmith_input", "__file__": path}
    exec(compile(Path(path).read_text(), path, "exec"), scope)
    found = {k: v for k, v in scope.items() if isinstance(v, Function)}
    if name in found:
        return found[name]
    if name or len(found) != 1:
        raise ArgumentError(
            f"{path} has the Functions {', '.join(found) or 'none'}; name one as {path}:NAME"
        )
    return next(iter(found.values()))


def tune(
    what: Annotated[
        str, typer.Argument(help=f"an operator ({', '.join(OPERATORS)}) or FILE.py[:NAME]")
    ],
    shape: Annotated[list[int] | None, typer.Argument(help="the operator's numbers")] = None,
    time: Annotated[str, typer.Option(help="wall-clock budget: 60s, 10m, 1h")] = "60s",
    trials: Annotated[int, typer.Option(help="measured candidates at most; 0: no bound")] = 0,
    target: Annotated[str, typer.Option(help="cpu: this machine's")] = "cpu",
    cores: Annotated[int, typer.Option(help="threads to use; 0: all cores")] = 0,
    db: Annotated[str, typer.Option(help="database file or URL; runs go on from it")] = "",
    seed: Annotated[int, typer.Option(help="the same seed proposes the same candidates")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="folder for the trace, source and assembly")
    ] = None,
    quiet: Annotated[bool, typer.Option(help="say only the result")] = False,
) -> None:
    """Search for the fastest kernel, for example: tilesmith tune matmul 512 512 512 --time 60s."""
    func = function_of(what, shape or [])
    machine = target_named(target)
    machine = machine.with_cores(cores) if cores else machine
    budget = Budget(trials=trials or None, seconds=seconds_of(time))
    database = open_database(db) if db else None
    try:
        result = tune_function(
            func, machine, budget=budget, database=database, seed=seed, quiet=quiet
        )
    finally:
        if database is not None:
            database.close()
    low, high = result.best.confidence
    print(
        f"{func.name}: {result.best.cost * 1e6:.1f} us ({low * 1e6:.1f} to {high * 1e6:.1f}), "
        f"{result.gflops:.1f} GFLOP/s, after {result.trials} trials in {result.seconds:.1f} s"
    )
    for kind, (count, text) in result.failures.items():
        print(f"  {count} candidates failed by {kind}: {text}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        kernel = result.kernel
        (out / "trace.json").write_text(result.best.candidate.trace.to_json())
        (out / "kernel.ll").write_text(kernel.source)
        (out / "kernel.s").write_text(kernel.assembly)
        print(f"  trace, source and assembly are in {out}")


USAGE = "; ".join(map(usage, OPERATORS))
