"""The backend "tilesmith" of torch.compile. PyTorch finds it by its entry point, so that no import
is needed:

    compiled = torch.compile(module, backend="tilesmith", options={"budget_seconds": 60})
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError, GraphError
from tilesmith.base.target import Target, cpu
from tilesmith.expr.sizes import DEFAULT_RANGE
from tilesmith.frontends.torch.compiled import Building
from tilesmith.frontends.torch.dynamo import Compiled, compiled
from tilesmith.graph.graph import Graph
from tilesmith.graph.model import Model
from tilesmith.graph.program import Feeds, OpenGraph, Program
from tilesmith.records.database import Database
from tilesmith.records.open import open_database
from tilesmith.schedule.trace import Parts
from tilesmith.task.task import Budget
from tilesmith.tune.cache import Cache
from tilesmith.tune.compile_model import compile_model
from tilesmith.tune.specialise import known_graphs
from tilesmith.tune.tune_model import tune_model


@dataclass(frozen=True, slots=True)
class Options:
    """What torch.compile(..., options={...}) takes.

    `budget_seconds` or `trials` tune the first shapes of each graph, at its first call; other
    shapes take what is known by then. `database` is where records come from and go to: a file, a
    URL or a ts.Database. `max_shapes` bounds for how many shapes a graph is compiled. `parts` are
    your own, as a ts.Parts. `precision` and `accuracy` are those of ts.compile_model; for "int8"
    and "auto", the inputs of the first call are the typical ones.
    """

    budget_seconds: float | None = None
    trials: int | None = None
    database: Database | str | Path | None = None
    target: Target | str | None = None
    cache: Cache | str | Path | None = "default"
    max_shapes: int = 16
    quiet: bool = False
    parts: Parts | None = None
    precision: str = "float32"
    accuracy: float | None = None

    @property
    def budget(self) -> Budget | None:
        if self.budget_seconds is None and self.trials is None:
            return None
        return Budget(seconds=self.budget_seconds, trials=self.trials)

    def building(self) -> Building:
        records = self.database
        if isinstance(records, str | Path):
            records = open_database(str(records), self.parts)
        target = Target.named(self.target) if isinstance(self.target, str) else self.target
        if self.max_shapes < 1:
            raise ArgumentError(f"option max_shapes is {self.max_shapes}; it must be at least 1")
        budget = self.budget  # a wrong one is told here
        if budget is not None and records is None:
            records = open_database(":memory:")

        def build(source: OpenGraph, first: bool, feeds: Feeds) -> Model:
            typical = [feeds] if self.precision in ("int8", "auto") else []
            settings: dict[str, Any] = {
                "database": records, "cache": self.cache, "parts": self.parts,
                "precision": self.precision, "accuracy": self.accuracy,
            }  # fmt: skip
            graphs = known_graphs(source)
            if budget is not None and first and graphs:
                tuned = tune_model(
                    graphs, target, budget=budget, quiet=self.quiet,
                    calibration=[typical] * len(graphs) if typical else [], **settings,
                )  # fmt: skip
                if isinstance(source, Graph):
                    return tuned[0]
            return compile_model(
                source, target, progress=False if self.quiet else None, calibration=typical,
                sizes="each", **settings,
            )  # fmt: skip

        def build_open(program: Program, sizes: Mapping[str, int]) -> Model | None:
            machine = cpu() if target is None else target
            if machine.kind != "cpu" or self.precision != "float32":
                return None
            ranges = {n: (1, max(DEFAULT_RANGE[1], 2 * v)) for n, v in sizes.items()}
            settings: dict[str, Any] = {
                "database": records, "cache": self.cache, "parts": self.parts,
                "accuracy": self.accuracy,
            }  # fmt: skip
            if budget is not None:
                with suppress(GraphError):
                    return tune_model(
                        program, machine, sizes=ranges, budget=budget, quiet=self.quiet, **settings
                    )
                return None
            first = {n: (*r, {sizes[n]: 1.0}) for n, r in ranges.items()}
            model = compile_model(
                program, machine, sizes=first, progress=False if self.quiet else None, **settings
            )
            return model if model.is_open else None

        return Building(build, self.max_shapes, build_open)


def options_of(given: Mapping[str, Any] | None) -> Options:
    known = [f.name for f in fields(Options)]
    for name in given or {}:
        if name not in known:
            raise ArgumentError(
                f'option {name!r} of torch.compile(backend="tilesmith") is unknown; there are '
                f"{', '.join(known)}"
            )
    return Options(**(given or {}))


def tilesmith(
    module: Any,
    example_inputs: Any,
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Compiled:
    """The entry point: a graph of TorchDynamo and its inputs in, a callable out."""

    def settled() -> Building:
        if mode not in (None, "default"):
            raise ArgumentError(
                f'mode={mode!r} is one of Inductor\'s; with backend="tilesmith" give options, as '
                '{"budget_seconds": 60}'
            )
        return options_of(options).building()

    return compiled(module, example_inputs, settled)
