"""Kernels of Functions with open sizes: schedules of the same Function with numbers, applied to the
open one. What needs numbers on an open axis, such as a padded layout, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import log2, prod

import numpy as np

from tilesmith.base.errors import BuildError, TilesmithError
from tilesmith.base.target import Target
from tilesmith.expr.sizes import OpenSize
from tilesmith.ir.evaluate import evaluate
from tilesmith.ir.function import Function, determine_extents, find_block, instantiate
from tilesmith.ir.nodes import walk
from tilesmith.records.database import Database
from tilesmith.runtime.build import backend_of, build
from tilesmith.runtime.device_kernel import (
    AnyOpenKernel,
    AnyPortfolio,
    OpenDeviceKernel,
    portfolio_kernel,
)
from tilesmith.runtime.dispatch import Region, choice_of, pieces
from tilesmith.runtime.kernel import Origin
from tilesmith.runtime.open_kernel import OpenKernel, layouts_of
from tilesmith.schedule.open_trace import in_single_tiles, open_schedule
from tilesmith.schedule.schedule import Schedule
from tilesmith.schedule.trace import Parts, Trace
from tilesmith.schedule.unit import Tensorize
from tilesmith.search.score_by_target import ScoreByTarget
from tilesmith.space.spaces import default_space
from tilesmith.space.variant import Variant
from tilesmith.task.inputs import example_inputs
from tilesmith.task.task import Task
from tilesmith.tune.build_request import drafts_of, sketches_for_open_sizes

Sizes = tuple[tuple[str, int], ...]
_MOST_SAMPLES = 16
_DRAFTS = 3  # tried before the plain loop nest
_POINTS = 4  # of a range, that drafts are made for on GPUs
_ROWS = 16  # as many as any tile of registers has


def samples_of(func: Function) -> dict[Sizes, float]:
    """The sizes to tune for, with their weights. Of several open sizes all combinations, if they
    are few; else each size by itself, with typical values of the others.
    """
    sizes = func.declared
    every = list(product(*(s.weights.items() for s in sizes)))
    if len(every) > _MOST_SAMPLES:
        typical = [(s.typical, s.weights[s.typical]) for s in sizes]
        every = []
        for k, s in enumerate(sizes):
            for pair in s.weights.items():
                point = (*typical[:k], pair, *typical[k + 1 :])
                if point not in every:
                    every.append(point)
    names = [s.name for s in sizes]
    return {
        tuple(zip(names, (v for v, _ in point), strict=True)): prod(w for _, w in point)
        for point in every
    }


def typical_sizes(func: Function) -> Sizes:
    return tuple((s.name, s.typical) for s in func.declared)


def drafted_sizes(func: Function) -> dict[str, int]:
    """The sizes that a model's kernels are drafted for without a record."""
    sizes = {s.name: _drafted_at(s) for s in func.declared}
    for s in func.declared:
        least = min(s.weights)
        if least < _ROWS:
            few = _rows(func, s.name, sizes | {s.name: least})
            if few >= _ROWS or 0 < few <= _rows(func, s.name, sizes) < _ROWS:
                sizes[s.name] = least
    return sizes


def _drafted_at(size: OpenSize) -> int:
    """The typical value; of samples with equal weights one of the larger ones, where a kernel that
    is good elsewhere loses most.
    """
    weights = size.weights
    if len(set(weights.values())) > 1:
        return size.typical
    return sorted(weights)[3 * len(weights) // 4]


def _rows(func: Function, size: str, sizes: Mapping[str, int]) -> int:
    """The least number of rows that a reduction has at these sizes. Where other dimensions than
    the one of `size` fill the tiles of registers, as the pixels of images do, a draft should not
    have tiles of the batch, most of which would be empty in small ones.

    The rows are the results that use an element of an operand which does not depend on the size, as
    weights do not depend on the batch. Without such an operand they are the results that are not
    beside each other along the longest of the other dimensions, which has the vectors. What is
    summed over the size has no rows: a sum of one summand needs no tiles. Where not even the
    typical size fills tiles, as in decoding, there should be none.
    """
    found = []
    for (_, b), (_, at) in zip(walk(func.body), walk(instantiate(func, dict(sizes)).body),
                               strict=True):  # fmt: skip
        if b.combiner is None:
            continue
        own = {i.name for i in b.iters if f"#{size}" in i.extent.names}
        if own & {i.name for i in b.reducing}:
            return 0
        extents = {i.name: i.extent.number for i in at.spatial}
        used = ({n for e in x.index for n in e.names} for x in b.loads)
        shared = [u for u in used if not u & own]
        found += [prod(n for i, n in extents.items() if i not in u) for u in shared]
        if not shared:
            beside = max((n for i, n in extents.items() if i not in own), default=1)
            found.append(prod(extents.values()) // max(1, beside))
    return min(found, default=0)


def limits_of(func: Function) -> dict[str, tuple[int, int]]:
    """The ranges of the open sizes."""
    return {s.name: s.limits for s in func.declared}


def task_at(
    func: Function, sizes: Sizes, target: Target, parts: Parts | None, accuracy: float | None = None
) -> Task:
    """What is searched for the sizes: the Function with them as numbers. Matrix instructions take
    whole tiles. A schedule for rows that fill none suits all numbers of rows, so it is searched at
    odd ones, where such instructions are possible.
    """
    task = Task(instantiate(func, dict(sizes)), target, parts)
    if target.kind == "cpu":
        return task
    odd = Task(instantiate(func, {n: v - (v % 2 == 0) for n, v in sizes}), target, parts)
    try:
        sketches = default_space(target, accuracy, parts).sketches(odd)
    except TilesmithError:
        return task
    return odd if any(isinstance(s, Tensorize) for t in sketches for s in t.steps) else task


def kernel_of_trace(
    trace: Trace, func: Function, target: Target, parts: Parts | None, origin: Origin
) -> AnyOpenKernel:
    """The kernel of a schedule that was made for other sizes. Raises a TilesmithError if some step
    of it needs numbers.
    """
    scheduled = open_schedule(trace, func)
    origin = replace(origin, schedule=trace.to_json())
    return plain_kernel(scheduled, target, parts, origin)


def plain_kernel(
    func: Function, target: Target, parts: Parts | None, origin: Origin
) -> AnyOpenKernel:
    """The kernel of a Function as it is scheduled."""
    kernel = build(func, target, origin, backend=backend_of(target, parts))
    if not isinstance(kernel, OpenKernel | OpenDeviceKernel):
        raise BuildError(f"the back end for {target.kind} makes no kernels with open sizes")
    return kernel


def draft_kernels(
    func: Function, sizes: Sizes, target: Target, parts: Parts | None, accuracy: float | None
) -> Iterator[AnyOpenKernel]:
    """Kernels by the analytic score for these sizes, best first; the plain loop nest last."""
    why = "no record"
    tried: list[Trace] = []
    for n in (1, _DRAFTS):  # the first one builds in nearly all cases
        try:
            task = task_at(func, sizes, target, parts, accuracy)
            among = sketches_for_open_sizes(task, accuracy)
            traces: Iterable[Trace] = drafts_of(task, n, accuracy=accuracy, among=among)
        except TilesmithError as error:
            traces, why = (), f"drafting failed: {error}"
        for trace in (t for t in traces if t not in tried):
            tried.append(trace)
            origin = Origin("draft", why=f"for {sizes_text(sizes)}; {why}")
            try:
                yield kernel_of_trace(trace, func, target, parts, origin)
            except TilesmithError as error:
                why = str(error)
    if target.kind != "cpu":
        with suppress(TilesmithError):
            origin = Origin("draft", why=f"a launch for each stage; {why}")
            yield kernel_of_trace(stage_launches(func), func, target, parts, origin)
    yield plain_kernel(func, target, parts, Origin("naive", why=why))


_THREADS = 64  # of a block


def stage_launches(func: Function) -> Trace:
    """A schedule for GPUs that any Function has: each stage is a launch whose threads compute an
    element each.
    """
    sch = Schedule(func)
    for block in sch.blocks:
        _, b = find_block(sch.func, block)
        spatial = [n for n in sch.loops(block) if n not in b.reducing_loops]
        if not spatial:
            continue
        *rows, last = spatial
        for row in rows:  # they count blocks together
            sch.bind(row, "blockIdx.y")
        outer, inner = sch.split(last, [None, _THREADS])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.x")
    return sch.trace


def open_kernel(
    func: Function,
    target: Target,
    records: Mapping[Sizes, Iterable[tuple[Trace, Origin]]],
    parts: Parts | None = None,
    accuracy: float | None = None,
) -> AnyOpenKernel:
    """The best known kernel for all sizes, at once: of recorded schedules for samples of the sizes,
    each for the sizes near its own; a draft elsewhere. The one for typical sizes runs outside of
    the range, too; on a GPU, the one for most.
    """
    typical = typical_sizes(func)
    if target.kind != "cpu":
        records = records or _drafts(func, target, parts, accuracy)
        typical = max(records)
    members: list[AnyOpenKernel] = []
    regions: list[Region] = []
    known: dict[Trace, int] = {}
    for sizes in sorted(records, key=lambda s: s != typical):
        for trace, origin in records[sizes]:
            if trace not in known:
                try:
                    kernel = kernel_of_trace(trace, func, target, parts, origin)
                except TilesmithError:
                    continue
                if members and layouts_of(kernel) != layouts_of(members[0]):
                    continue
                known[trace] = len(members)
                members.append(kernel)
            regions.append(Region(sizes, known[trace]))
            break
    if members:
        return portfolio_kernel(members, regions, limits_of(func))
    return next(draft_kernels(func, typical, target, parts, accuracy))


def _drafts(
    func: Function, target: Target, parts: Parts | None, accuracy: float | None
) -> dict[Sizes, list[tuple[Trace, Origin]]]:
    """Schedules for few and for many: at each sample, the best by their analytic scores first."""
    drafts = [
        draft
        for sizes in few_and_many(func)
        if (draft := _first_draft(func, sizes, target, parts, accuracy)) is not None
    ]

    def ranked(sizes: Sizes) -> list[tuple[Trace, Origin]]:
        return sorted(drafts, key=lambda d: -_score(d[0], func, sizes, target, parts))

    return {sizes: ranked(sizes) for sizes in samples_of(func)}


def _first_draft(
    func: Function, sizes: Sizes, target: Target, parts: Parts | None, accuracy: float | None
) -> tuple[Trace, Origin] | None:
    """The schedule with the best analytic score at the sizes that the open Function can have."""
    for n in (1, _DRAFTS):  # the first one applies in nearly all cases
        try:
            for trace in drafts_of(task_at(func, sizes, target, parts, accuracy), n,
                                   accuracy=accuracy):  # fmt: skip
                with suppress(TilesmithError):
                    open_schedule(trace, func)
                    return trace, Origin("draft", why=f"for {sizes_text(sizes)}; no record")
        except TilesmithError:
            return None
    return None


def _score(
    trace: Trace, func: Function, sizes: Sizes, target: Target, parts: Parts | None
) -> float:
    """The analytic score of an open schedule at certain sizes."""
    scheduled = open_schedule(in_single_tiles(trace), func)
    at = instantiate(determine_extents(scheduled), dict(sizes))
    task = Task(instantiate(func, dict(sizes)), target, parts)
    variant = Variant(task, trace, at, (), ())
    return float(ScoreByTarget().predict(variant, np.empty((1, 0), np.int32))[0])


def few_and_many(func: Function) -> list[Sizes]:
    """Points of the range of all open sizes to draft for: the most, powers of two between, and the
    least.
    """

    def between(low: int, high: int, k: int) -> int:
        if k in (0, _POINTS - 1):
            return low if k else high
        power = 1 << round(log2(high) - k * log2(high / low) / (_POINTS - 1))
        return min(max(power, low), high)

    ends = {s.name: (min(s.weights), max(s.weights)) for s in func.declared}
    points = (tuple((n, between(*e, k)) for n, e in ends.items()) for k in range(_POINTS))
    return list(dict.fromkeys(points))


def portfolio_of(
    func: Function, samples: Sequence[Sizes], chosen: Sequence[int], members: Sequence[int],
    kernels: Mapping[int, AnyOpenKernel], times: Sequence[tuple[float, float]],
) -> AnyPortfolio:  # fmt: skip
    """The kernel that dispatches to the members: `chosen` has the one of each sample, by the
    number under which it is among the kernels, and `times` its seconds and its regret.
    """
    place = {k: i for i, k in enumerate(members)}
    regions = [
        Region(sizes, place[k], *took)
        for sizes, k, took in zip(samples, chosen, times, strict=True)
    ]
    return portfolio_kernel([kernels[k] for k in members], regions, limits_of(func))


def dispatch_of(
    func: Function, samples: Sequence[Sizes], members: Sequence[int]
) -> list[tuple[tuple[str, ...], int]]:
    """Where each member runs, in words: the comparisons that lead to it, and its number."""
    regions = [Region(sizes, k) for sizes, k in zip(samples, members, strict=True)]
    return list(pieces(choice_of(regions, limits_of(func))))


def records_at_samples(
    func: Function,
    target: Target,
    parts: Parts | None,
    database: Database,
    accuracy: float | None = None,
) -> dict[Sizes, list[tuple[Trace, Origin]]]:
    """The best recorded schedule at each sample that has one."""
    out: dict[Sizes, list[tuple[Trace, Origin]]] = {}
    for sizes in samples_of(func):
        best = database.best(task_at(func, sizes, target, parts, accuracy))
        if best is not None:
            origin = Origin("record", best.cost, sizes_text(sizes), best.candidate.key)
            out[sizes] = [(best.candidate.trace, origin)]
    return out


def sizes_text(sizes: Sizes) -> str:
    return ", ".join(f"{n} = {v}" for n, v in sizes)


_TOLERANCES = {2: 3e-2, 4: 1e-3, 8: 1e-9}  # relative to the largest element, by bytes


def is_right(kernel: AnyOpenKernel, func: Function, sizes: Sizes) -> bool:
    """Whether a kernel computes at these sizes what the oracle does."""
    fixed = instantiate(func, dict(sizes))
    arrays = example_inputs(fixed)
    given = [kernel.pack(b.name, a) for b, a in zip(func.inputs, arrays, strict=True)]
    got, want = kernel(*given), evaluate(fixed, *arrays)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    return all(is_close(np.asarray(x), np.asarray(y)) for x, y in pairs)


def is_close(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether two ways to compute the same gave the same, but for rounding."""
    if want.dtype.kind in "iub":
        return bool(np.array_equal(got, want))
    x, y = got.astype(np.float64), want.astype(np.float64)
    finite = y[np.isfinite(y)]
    near = _TOLERANCES[want.dtype.itemsize] * max(float(np.abs(finite).max(initial=0.0)), 1e-30)
    return bool(np.allclose(x, y, rtol=0, atol=near, equal_nan=True))
