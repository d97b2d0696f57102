"""Schedules of a Function with open sizes, from one of the same Function with numbers. Steps name
loops and blocks, so they apply as they are, except for splits of a loop over an open size: their
outermost part is as large as needed then, and the others stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import as_int, product
from tilesmith.ir.function import Function, find_block, find_loop
from tilesmith.ir.nodes import walk
from tilesmith.schedule.iterators import SplitIterator
from tilesmith.schedule.kinds import AutoUnroll, Bind
from tilesmith.schedule.layout import Pad
from tilesmith.schedule.loops import Split
from tilesmith.schedule.sample import Require, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.schedule.trace import Trace
from tilesmith.schedule.unfold import MergeTiles, Unfold
from tilesmith.schedule.unit import Tensorize

_PARTS_OF_ROWS = 4  # groups, tiles of a group, tiles of a warp group, warp groups
_MOST_COPIES = 128  # of a block that has open loops around it


def open_trace(trace: Trace, func: Function) -> Trace:
    """The trace for a Function with open sizes. Raises a ScheduleError where a step needs numbers:
    then another schedule has to be taken.
    """
    steps: list[Step] = []
    if any(isinstance(s, Unfold) for s in trace.steps):
        trace = in_single_tiles(trace)
    given = trace.resolved
    for step in given:
        if isinstance(step, SampleTile | Require):  # decided: the splits that follow say it all
            continue
        if isinstance(step, Pad):
            step = _open_pad(step, func, given)
        if isinstance(step, Unfold | MergeTiles):
            step = replace(step, several=_tiles_at_once(given))
        if isinstance(step, Split) and find_loop(func, step.loop)[1].extent.const is None:
            step = _open_split(step, func, given)
        if isinstance(step, AutoUnroll) and any(isinstance(s, Bind) for s in given):
            step = _open_unroll(step, func)
        func = step.apply(func)
        steps.append(step)
    return Trace(tuple(steps))


def open_schedule(trace: Trace, func: Function) -> Function:
    """A Function with a schedule that was made for it, or for certain sizes of it where it has open
    ones. Raises a ScheduleError if a step needs numbers.
    """
    if not func.sizes:
        return trace.apply(func)
    scheduled = open_trace(trace, func).apply(func)
    for b in scheduled.inputs:
        if not b.is_as_given and any(e.const is None for e in b.given_shape):
            raise ScheduleError(f"{b.name} of {func.name!r} has open sizes and another layout")
    return scheduled


def in_single_tiles(trace: Trace) -> Trace:
    """The same tiles of several warps, but not in groups of which the last one may be a part: code
    generation leaves out tiles behind the end (codegen/c/tensor_plan.py), and a score does not.
    """

    def single(s: Step) -> Step:
        is_tiled = isinstance(s, Split) and s.exact and len(s.factors) == _PARTS_OF_ROWS
        if not is_tiled or not isinstance(s, Split) or not s.loop.endswith("_outer"):
            return s
        return replace(s, factors=(None, 1, *s.factors[2:]), exact=False)

    if not any(isinstance(s, Tensorize) for s in trace.steps):
        return trace
    return Trace(tuple(map(single, trace.resolved)))


def _open_pad(step: Pad, func: Function, steps: Iterable[Step]) -> Pad:
    """Open axes padded to whole tiles, of as many instructions as later steps say, and no more."""
    name, multiples = f"{step.block}.pad", dict(step.multiples)
    for i in find_block(func, step.block)[1].iters:
        if i.extent.const is None:
            parts = [s.factor for s in steps if isinstance(s, SplitIterator)
                     and (s.block, s.iterator) == (name, i.name)]  # fmt: skip
            loops = f"{name}.{i.name}", f"{name}.{i.name}_outer"
            for s in steps:
                if isinstance(s, Split) and s.loop in loops:
                    parts += (f for f in s.factors[1:] if isinstance(f, int))
            multiples[i.name] = prod(parts)
    return replace(step, multiples=tuple((n, m) for n, m in multiples.items() if m > 1))


def _tiles_at_once(steps: Iterable[Step]) -> int:
    """The tiles of an image that a block computes."""
    splits = (s for s in steps if isinstance(s, Split) and len(s.factors) == _PARTS_OF_ROWS)
    rows = next((s for s in splits if ".rows" in s.loop and s.loop.endswith("_outer")), None)
    return 1 if rows is None else prod(f for f in rows.factors[1:] if isinstance(f, int))


def _open_unroll(step: AutoUnroll, func: Function) -> AutoUnroll:
    """On GPUs, each copy may test where an open axis ends, which takes a compiler long."""
    loops = (f for path, b in walk(func.body) if b.name == step.block for f in path)
    if isinstance(step.depth, str) or all(f.extent.const is not None for f in loops):
        return step
    return replace(step, depth=min(step.depth, _MOST_COPIES))


def _open_split(step: Split, func: Function, steps: Iterable[Step]) -> Split:
    inner = step.factors[1:]
    if None in inner:
        raise ScheduleError(
            f"split of loop {step.loop} by {list(step.factors)}: of a loop over an open size, the "
            "outermost part is as large as needed"
        )
    loop, tile = find_loop(func, step.loop)[1], product(as_int(f) for f in inner if f is not None)
    units = {s.loop.rpartition(".")[0] for s in steps if isinstance(s, Tensorize)}
    if loop.owner in units and loop.extent // tile * tile != loop.extent:
        raise ScheduleError(
            f"split of loop {step.loop} by {list(step.factors)}: a matrix instruction takes whole "
            f"tiles, and {loop.extent} iterations may end within one"
        )
    return replace(step, factors=(None, *inner), exact=False)
