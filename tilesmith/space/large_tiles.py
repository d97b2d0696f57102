"""Minimal filtering with large tiles, along one window after the other. Each transform is written
out for all products (or results) of a group, so that an element is loaded once. A transform along
the first window makes just the rows that the one along the second needs next, in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.errors import ScheduleError
from tilesmith.ir.lookup import find_block, find_loop
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.kinds import Unroll, Vectorize
from tilesmith.schedule.location import ComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.winograd import Window, Winograd
from tilesmith.space import analysis
from tilesmith.space.state import State


def with_large_tiles(state: State, windows: Sequence[Window], results: int) -> State:
    """The current block by F(`results`, ...) along one window or two. Raises a ScheduleError if the
    rows behind a window are shorter than a vector.
    """
    b = state.block
    names = [b.name, f"{b.name}.products"][: len(windows)]
    for name, w in zip(names, windows, strict=True):
        state = state.then(Winograd(name, (w.tap,), results))
    at = [i.name for i in b.spatial].index(windows[0].place)
    return _behind(_before(state, names, windows), names, at, results)


def _before(state: State, names: Sequence[str], windows: Sequence[Window]) -> State:
    """Schedules the input transforms."""
    first, *others = windows
    rows = f"{names[0]}.tiles"
    for name, w in zip(names[1:], others, strict=True):
        block = f"{name}.tiles"
        each, earlier, *axes = _loops(state, block)
        around = f"{block}.ax{first.image_dim + 1}"  # behind the numbers of the earlier products
        cut = axes.index(f"{block}.{w.place}") + 1
        inside = axes.index(around) + 1
        outer = [*axes[:inside], earlier, *axes[inside:cut]]
        state = _written_out(state, outer, each, axes[cut:])
        state = state.then(ComputeAt(rows, around))
    each, *axes = _loops(state, rows)
    cut = axes.index(f"{rows}.{first.place}") + 1
    return _written_out(state, axes[:cut], each, axes[cut:])


def _behind(state: State, names: Sequence[str], at: int, results: int) -> State:
    """Schedules the output transforms. What an element-wise consumer does is done in the last one;
    its iterator number `at` is the place along the first window.
    """
    last = names[0]
    after = analysis.fusible_consumer(state.func, analysis.block(state.func, last))
    if after is not None and not state.levels_of(after.name):
        state, last = state.then(Inline(last)), after.name
    loops = _loops(state, last)
    split = Split(loops[at], (None, results))
    state = _written_out(
        state.then(split), [*loops[:at], split.parts[0]], split.parts[1], loops[at + 1 :]
    )
    for name in names[1:]:
        state = state.then(ComputeAt(name, split.parts[0]))
        earlier, *axes, place, row = _loops(state, name)
        inner = Split(place, (None, results))
        outer = [*axes, earlier, inner.parts[0]]
        state = _written_out(state.then(inner), outer, inner.parts[1], [row])
    return state


def _loops(state: State, block: str) -> list[str]:
    path, b = find_block(state.func, block)
    return [f.name for f in path if f.owner == b.name]


def _written_out(state: State, outer: Sequence[str], each: str, row: Sequence[str]) -> State:
    """Unrolls the loop `each` around one vector of the last loop of the row."""
    lanes = state.task.target.lanes(32)
    last = find_loop(state.func, row[-1])[1] if row else None
    if last is None or analysis.length(last) < lanes:
        raise ScheduleError(f"the rows behind {each} do not fill a vector")
    split = Split(last.name, (None, lanes))
    order = Reorder((*outer, *row[:-1], split.parts[0], each, split.parts[1]))
    return state.then(split, order, Unroll(each), Vectorize(split.parts[1]))
