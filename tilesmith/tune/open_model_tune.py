"""Tunes a model with open sizes: its functions at the samples of their sizes, within one budget,
and compiles it with a portfolio of kernels for each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilesmith.base.errors import GraphError
from tilesmith.base.target import Target
from tilesmith.expr.sizes import OpenSize
from tilesmith.graph.model import CompileGraph, Model
from tilesmith.graph.open_plan import OpenPlan, OpenStep
from tilesmith.graph.opening import Opening
from tilesmith.graph.partition import partition
from tilesmith.graph.pipeline import Pass
from tilesmith.graph.program import Program
from tilesmith.graph.size_fit import CannotOpen
from tilesmith.ir.function import Function
from tilesmith.schedule.trace import Parts
from tilesmith.task.network import ModelTuning
from tilesmith.task.task import Budget, Task
from tilesmith.tune.open_build import samples_of, task_at
from tilesmith.tune.open_model import Builder, Choice, key_of, run_of
from tilesmith.tune.partition_choice import offered
from tilesmith.tune.tune_tasks import tune_tasks

_BUILD_SHARE = 0.05  # of the seconds: for drafts of what could not be measured, and packed weights


def tuned_open_model(
    program: Program, sizes: Mapping[str, OpenSize], builder: Builder, passes: Sequence[Pass],
    groups: Choice, staged: CompileGraph, codegen: str, budget: Budget, started: float,
    options: Mapping[str, Any],
) -> Model:  # fmt: skip
    """`options` are those of tune_tasks. Both ways to compute a group that was joined are tuned,
    and `groups` chooses by what is then in the database.
    """
    opening = Opening(program, sizes, passes, groups.base)
    parts: dict[int, Sequence[Function]] = {}  # by the identity of the whole's Function

    def neither(whole: Function, own: Sequence[Function]) -> bool:
        parts[id(whole)] = own
        return False

    try:
        plan = opening.plan(neither)
    except CannotOpen as error:
        raise GraphError(
            f"{program.name} cannot be tuned for all sizes at once: {error}; give inputs= of the "
            "sizes that you need"
        ) from error
    counts: dict[str, tuple[Function, float]] = {}
    for s in _ways(plan, parts):
        key = key_of(s, builder)
        counts[key] = s.func, counts.get(key, (s.func, 0.0))[1] + 1
    tuning: ModelTuning | None = None
    if counts:
        results = tune_tasks(
            [(func, weight) for func, weight in counts.values()], builder.target,
            budget=_left(budget, started), **options,
        )  # fmt: skip
        for k, key in enumerate(counts):
            if k not in results.errors:
                builder.kernels[key] = results[k].kernel
        ranges = ", ".join(f"{n} {s.limits[0]} to {s.limits[1]}" for n, s in sizes.items())
        tuning = replace(results.tuning, sizes=ranges)
    if parts:
        plan = opening.plan(groups.divides)
    model = Model(program, staged, codegen, run_of(program, opening, plan, builder, staged, None))
    model.tuning = tuning
    return model


def tasks_at_samples(
    program: Program, sizes: Mapping[str, OpenSize], target: Target, passes: Sequence[Pass],
    parts: Parts | None = None,
) -> list[Task]:  # fmt: skip
    """What `ts.tune_model(program, sizes=...)` measures, apart from other ways to join groups."""
    opening = Opening(program, sizes, passes, offered(partition, target))
    plan = opening.plan(lambda _whole, _parts: False)
    funcs = {s.func.digest: s.func for s in plan.steps}
    return [task_at(f, at, target, parts) for f in funcs.values() for at in samples_of(f)]


def _ways(plan: OpenPlan, parts: Mapping[int, Sequence[Function]]) -> Iterator[OpenStep]:
    """The steps, and those that might stand for some."""
    for s in plan.steps:
        for func in (s.func, *parts.get(id(s.func), ())):
            yield replace(s, func=func)


def _left(budget: Budget, started: float) -> Budget:
    """What is left of a budget after the model was opened."""
    if budget.seconds is None:
        return budget
    spent = time.monotonic() - started
    return replace(budget, seconds=max(1.0, (1 - _BUILD_SHARE) * budget.seconds - spent))
