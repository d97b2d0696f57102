"""Models with open sizes, compiled once for all of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from tilesmith.base.errors import ExpressionError, GraphError
from tilesmith.base.identity import digest
from tilesmith.base.suggest import did_you_mean
from tilesmith.base.target import Target
from tilesmith.expr.ints import Int
from tilesmith.expr.sizes import DEFAULT_RANGE, OpenInt, OpenSize, open_size
from tilesmith.graph.graph import Graph
from tilesmith.graph.open_executor import OpenExecutor
from tilesmith.graph.open_plan import OpenPlan, OpenStep
from tilesmith.graph.open_run import OpenRun
from tilesmith.graph.opening import Opening, verified_at
from tilesmith.graph.partition import Partition
from tilesmith.graph.pipeline import Pass
from tilesmith.graph.plan import Step
from tilesmith.graph.program import Program
from tilesmith.graph.smallest_sizes import smallest_trusted
from tilesmith.graph.stages import Compile
from tilesmith.ir.function import Function, instantiate
from tilesmith.runtime.kernel import Kernel
from tilesmith.schedule.trace import Parts
from tilesmith.task.task import Task
from tilesmith.tune.build_request import BuildRequest
from tilesmith.tune.cache import Cache
from tilesmith.tune.open_build import drafted_sizes, open_kernel, records_at_samples
from tilesmith.tune.pinned import LockedKernels
from tilesmith.tune.stored_portfolio import stored_kernel

_EXAMPLE = 'as in sizes={"sequence": (1, 512)}'


class Builder(Protocol):
    """What builds the kernels of steps without open sizes; see compile_model.py."""

    target: Target
    cache: Cache | None
    database: Any
    parts: Parts | None
    accuracy: float | None
    kernels: dict[str, Kernel]
    locked: LockedKernels | None

    def task(self, func: Function) -> Task: ...

    def key(self, step: Step) -> str: ...

    def starting_early(self, graph: Graph) -> AbstractContextManager[None]: ...

    def request(self, func: Function, stored: Function) -> BuildRequest: ...

    def take_or_build(self, wanted: Mapping[str, BuildRequest]) -> None: ...


class Choice(Protocol):
    """The groups of `base`, and which of those that were joined are rather their parts."""

    @property
    def base(self) -> Partition: ...

    def divides(self, whole: Function, parts: Sequence[Function]) -> bool: ...


def require_open_sizes(
    target: Target, precision: str, calibration: Sequence[Any], who: str
) -> None:
    """Raises where sizes= is given with something that it does not go with."""
    if target.kind != "cpu":
        raise GraphError(
            f"{who}(sizes=...) is for CPUs, and the target is {target.name}: give the model its "
            'sizes, as ts.load_onnx(path, dims={"batch": 1}), or inputs= of them to ts.tune_model'
        )
    if precision == "int8" or calibration:
        raise GraphError(
            f"{who}(sizes=..., precision={precision!r}): what typical inputs decide is decided at "
            'their sizes; with sizes= there are "float16" and "bfloat16" without calibration=, or '
            'give the model its sizes, as ts.load_onnx(path, dims={"batch": 1})'
        )


def sizes_for(
    model: Graph | Program, sizes: Mapping[str, Any] | None, who: str
) -> dict[str, OpenSize]:
    """The size of each open dimension of a model, by the name of the dimension."""
    inputs = model.inputs if isinstance(model, Program) else ()
    dims = list(dict.fromkeys(d for s in inputs for d in s.dims or () if isinstance(d, str)))
    given = {} if sizes is None else sizes
    if not isinstance(given, Mapping) or not all(isinstance(n, str) for n in given):
        raise GraphError(f"{who}: sizes is {sizes!r}; it must give ranges by name, {_EXAMPLE}")
    if unknown := [n for n in given if n not in dims]:
        has = f"its open dimensions are {', '.join(dims)}" if dims else "none is open"
        raise GraphError(
            f"{who}: sizes names {unknown[0]!r}, which is no open dimension of {model.name}"
            f"{did_you_mean(unknown[0], dims)}; {has}"
        )
    return {d: _size(d, given.get(d), who) for d in dims}


def _size(dim: str, given: Any, who: str) -> OpenSize:
    limits, samples = given, None
    if isinstance(given, OpenInt) and len(given.declared) == 1 and given.name is not None:
        (declared,) = given.declared
        return OpenSize(dim, declared.range, declared.samples)
    if isinstance(given, Int):
        raise GraphError(
            f"{who}: sizes gives {dim!r} the expression {given}; it takes a ts.size or a range"
        )
    if isinstance(given, Sequence) and len(given) == 3 and isinstance(given[2], Mapping):
        limits, samples = given[:2], given[2]
    try:
        made = open_size("n", None if limits is None else tuple(limits), samples)
    except (ExpressionError, TypeError) as error:
        raise GraphError(
            f"{who}: sizes gives {dim!r} {given!r}; it takes (lowest, highest), or (lowest, "
            f"highest, {{sample: weight}}), or a ts.size: {error}"
        ) from None
    (declared,) = made.declared
    return OpenSize(dim, declared.range, declared.samples)


def warn_of_defaults(model: Program, sizes: Mapping[str, OpenSize], stacklevel: int = 4) -> None:
    """Says which sizes have a range that nobody gave."""
    names = [n for n, s in sizes.items() if s.range is None]
    if names:
        low, high = DEFAULT_RANGE
        warnings.warn(
            f"{model.name} is compiled for {', '.join(names)} from {low} to {high}; give the range "
            f"that you need, as in sizes={{{names[0]!r}: ({low}, {high})}}",
            stacklevel=stacklevel,
        )


def open_run(
    program: Program, sizes: Mapping[str, OpenSize], builder: Builder, passes: Sequence[Pass],
    groups: Choice, staged: Compile, affinity: frozenset[int] | None,
) -> OpenRun:  # fmt: skip
    """Raises CannotOpen where the model has no form that holds for all sizes."""
    opening = Opening(program, sizes, passes, groups.base)
    small = opening.small()
    with nullcontext() if small is None else builder.starting_early(small):
        plan = opening.plan(groups.divides)
        return run_of(program, opening, plan, builder, staged, affinity)


def run_of(
    program: Program, opening: Opening, plan: OpenPlan, builder: Builder, staged: Compile,
    affinity: frozenset[int] | None,
) -> OpenRun:  # fmt: skip
    made = open_kernels(plan.steps, builder)
    executor = OpenExecutor(plan, made, builder.cache, affinity)
    verify = partial(verified_at, opening, plan)
    smallest = smallest_trusted(opening, executor)
    return OpenRun(program, executor, verify, staged, smallest, opening.holds_at_the_ends(plan))


def open_kernels(steps: Sequence[OpenStep], builder: Builder) -> list[Kernel]:
    """The kernels of steps: of equal ones the same. Those without a record are built like those of
    other models, by the draft for typical sizes.
    """
    several = {id(s.func): s for s in steps}  # a network repeats its functions
    as_steps = {k: typical_step(s) for k, s in several.items()}
    known = {k: _key(s, builder) for k, s in as_steps.items()}
    keys = [known[id(s.func)] for s in steps]
    wanted = {known[k]: s for k, s in as_steps.items() if known[k] not in builder.kernels}
    if builder.locked is not None:
        _build_locked({k: s for k, s in wanted.items() if s.stored.sizes}, builder.locked, builder)
        wanted = {k: s for k, s in wanted.items() if k not in builder.kernels}
    for key, step in [*wanted.items()]:
        kernel = _recorded(step.stored, builder)
        if kernel is not None:
            builder.kernels[key] = kernel
            del wanted[key]
    builder.take_or_build({k: _request(s, builder) for k, s in wanted.items()})
    return [builder.kernels[k] for k in keys]


def _build_locked(wanted: Mapping[str, Step], locked: LockedKernels, builder: Builder) -> None:
    """Functions with open sizes, by the schedules of a lock file."""
    requests = {
        key: locked.open_requests(builder.task(s.func), s.stored) for key, s in wanted.items()
    }
    builder.take_or_build(
        {f"{key} {n}": r for key, own in requests.items() for n, r in enumerate(own)}
    )
    for key, own in requests.items():
        members = [builder.kernels[f"{key} {n}"] for n in range(len(own))]
        builder.kernels[key] = locked.joined(wanted[key].stored, members)


def _request(step: Step, builder: Builder) -> BuildRequest:
    request = builder.request(step.func, step.stored)
    return replace(request, known=(), plain_points=0) if step.stored.sizes else request


def typical_step(step: OpenStep) -> Step:
    """The step at the sizes that schedules are made for without a record, stored with open ones."""
    if not step.func.sizes:
        return Step(step.group, step.func, step.func, ())
    return Step(step.group, instantiate(step.func, drafted_sizes(step.func)), step.func, ())


def _key(step: Step, builder: Builder) -> str:
    """Equal for functions that are the same and tuned for the same sizes."""
    if not step.stored.sizes:
        return builder.key(step)
    return digest(builder.key(step), step.func.digest, repr(step.stored.declared))


def key_of(step: OpenStep, builder: Builder) -> str:
    """Of its kernel."""
    return _key(typical_step(step), builder)


def _recorded(func: Function, builder: Builder) -> Kernel | None:
    """Those of a stored portfolio, or by records at samples of the sizes."""
    if builder.database is None or not func.sizes:
        return None
    stored = stored_kernel(builder.database, func, builder.target, builder.parts)
    if stored is not None:
        return stored
    records = records_at_samples(func, builder.target, builder.parts, builder.database)
    if not records:
        return None
    return open_kernel(func, builder.target, records, builder.parts, builder.accuracy)
