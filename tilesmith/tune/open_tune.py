"""Tunes a Function with open sizes: searches at each sample of the sizes, times the kernels that
result, built with open sizes, at all samples, and keeps as few as cover them well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilesmith.base.errors import TilesmithError
from tilesmith.base.target import Target
from tilesmith.ir.function import Function, instantiate
from tilesmith.records.database import Database
from tilesmith.runtime.device_kernel import AnyOpenKernel
from tilesmith.runtime.kernel import Origin
from tilesmith.runtime.open_kernel import layouts_of
from tilesmith.schedule.trace import Parts
from tilesmith.task.inputs import example_inputs
from tilesmith.task.task import Budget
from tilesmith.tune.open_build import (
    Sizes,
    draft_kernels,
    is_right,
    kernel_of_trace,
    portfolio_of,
    samples_of,
    sizes_text,
    task_at,
    typical_sizes,
)
from tilesmith.tune.portfolio import Portfolio, covering
from tilesmith.tune.result import OpenResult, Result
from tilesmith.tune.stored_portfolio import store_portfolio

Array = np.ndarray[Any, Any]
Searching = Callable[[Function, Budget], Result]

SEARCH_SHARE = 0.75  # of the seconds; the rest is for timing all kernels at all samples
_FIRST_SAMPLES = 4  # of each kernel; those that are best nowhere are not timed at the others
_BEHIND = 1.25  # a kernel that is so much slower at all of the first samples is dropped
_ROUNDS = 3


def tune_open(
    func: Function, target: Target, parts: Parts | None, budget: Budget, search: Searching,
    accuracy: float | None, database: Database | None,
) -> OpenResult:  # fmt: skip
    """The portfolio of a Function, which is stored: `search` tunes it at certain sizes."""
    started, samples = time.monotonic(), samples_of(func)
    typical = typical_sizes(func)
    each = _share(budget, len(samples))
    results: dict[Sizes, Result] = {}
    kernels, left_out = [next(draft_kernels(func, typical, target, parts, accuracy))], []
    traces = set()
    for sizes in sorted(samples, key=lambda s: (s != typical, -samples[s])):
        task = task_at(func, sizes, target, parts, accuracy)
        result = results[sizes] = search(task.func, each)
        trace = result.best.candidate.trace.resolved
        if trace in traces:
            continue
        traces.add(trace)
        origin = Origin("record", result.best.cost, sizes_text(sizes), result.best.candidate.key)
        try:
            kernel = kernel_of_trace(trace, func, target, parts, origin)
            wrong = [s for s in _checked_sizes(samples) if not is_right(kernel, func, s)]
        except TilesmithError as error:
            left_out.append(f"{sizes_text(sizes)}: {error}")
            continue
        if wrong:
            left_out.append(f"{sizes_text(sizes)}: it is wrong at {sizes_text(wrong[0])}")
        else:
            kernels.append(kernel)
        if results and result.interrupted:
            break
    kernels = _of_one_layout(kernels, func, typical)
    seconds = timed(kernels, func, list(samples))
    weights = tuple(samples.values())
    members = covering(seconds, weights)
    portfolio = Portfolio(
        func, tuple(samples), weights, tuple(str(k.origin) for k in kernels), seconds, members,
        tuple(left_out), tuple(k.origin for k in kernels),
    )  # fmt: skip
    if database is not None:
        store_portfolio(database, target, parts, portfolio)
    main = results.get(typical) or next(iter(results.values()))
    return OpenResult(
        task=main.task,
        best=main.best,
        trials=sum(r.trials for r in results.values()),
        failures=_joined(r.failures for r in results.values()),
        curve=main.curve,
        seconds=time.monotonic() - started,
        run=main.run,
        interrupted=any(r.interrupted for r in results.values()),
        portfolio=portfolio,
        open_kernel=portfolio_of(
            func,
            portfolio.samples,
            portfolio.chosen,
            members,
            dict(enumerate(kernels)),
            portfolio.times,
        ),
    )


def _share(budget: Budget, count: int) -> Budget:
    """The budget of each of several searches."""
    return replace(
        budget,
        trials=None if budget.trials is None else max(1, budget.trials // count),
        seconds=None if budget.seconds is None else SEARCH_SHARE * budget.seconds / count,
    )


def _checked_sizes(samples: Iterable[Sizes]) -> list[Sizes]:
    """Where a kernel is compared with the oracle: at sizes that no tile divides."""
    first = min(samples, key=lambda s: sum(v for _, v in s))
    return [tuple((n, v) for n, _ in first) for v in (1, 7, 37)]


def _of_one_layout(
    kernels: list[AnyOpenKernel], func: Function, typical: Sizes
) -> list[AnyOpenKernel]:  # fmt: skip
    """The kernels that take weights in the same layout as the fastest one: an array that is packed
    once is for all of them. The first of these is the fallback.
    """
    groups: dict[object, list[AnyOpenKernel]] = {}
    for k in kernels:
        groups.setdefault(layouts_of(k), []).append(k)
    if len(groups) == 1:
        return kernels
    firsts = list(groups.values())
    best = [min(row[0] for row in timed(group, func, [typical])) for group in firsts]
    return firsts[best.index(min(best))]


def timed(
    kernels: Sequence[AnyOpenKernel], func: Function, samples: Sequence[Sizes]
) -> tuple[tuple[float, ...], ...]:
    """The seconds of each kernel at each sample, in turns, so that a busy machine slows all of
    them. Kernels that are far behind at all of the first samples are not timed at the others.
    """
    step = max(1, len(samples) // _FIRST_SAMPLES)
    first = list(range(0, len(samples), step))
    seconds = np.full((len(kernels), len(samples)), np.nan)
    alive = list(range(len(kernels)))
    for s in (*first, *(s for s in range(len(samples)) if s not in first)):
        if s not in first and len(alive) == len(kernels) > 2:
            ratios = seconds[:, first] / np.nanmin(seconds[:, first], axis=0)
            alive = [k for k in alive if k == 0 or ratios[k].min() < _BEHIND]
        arrays = example_inputs(instantiate(func, dict(samples[s])))
        packed = [kernels[0].pack(b.name, a) for b, a in zip(func.inputs, arrays, strict=True)]
        for _ in range(_ROUNDS):
            for k in alive:
                took = kernels[k].time(*packed, repeats=2, min_seconds=0.002).best
                seconds[k, s] = np.fmin(seconds[k, s], took)
    return tuple(tuple(map(float, row)) for row in seconds)


def _joined(
    failures: Iterable[Mapping[str, tuple[int, str]]],
) -> dict[str, tuple[int, str]]:
    out: dict[str, tuple[int, str]] = {}
    for some in failures:
        for kind, (count, text) in some.items():
            before = out.get(kind, (0, text))
            out[kind] = before[0] + count, before[1]
    return out
