"""Rules for element-wise blocks on CPUs, which read and write each element once: copies, additions,
transposes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilesmith.ir.nodes import Block, walk
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.iterators import MergeIterators
from tilesmith.schedule.kinds import Vectorize
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State


def inline_elements(state: State) -> Derived | None:
    """Inlines what an element-wise result is computed of, where nothing is reduced: the result is
    then computed of inputs alone, and tiled as such.
    """
    func, b = state.func, state.block
    if b.reducing or not analysis.is_output(func, b) or state.levels_of(b.name):
        return None
    if any(x.combiner is not None for _, x in walk(func.body)):
        return None
    after = state
    for p in analysis.producers(func, b):
        if analysis.strictly_inlinable(func, p) and not analysis.is_output(func, p):
            after = after.attempt(Inline(p.name)) or after
    return None if after is state else Derived((after,), final=True)


@dataclass(frozen=True)
class MergeRows:
    """Merges the last two axes of an element-wise block, if rows are too short to fill vectors, and
    lie one after the other in all operands.
    """

    lanes: int

    def __call__(self, state: State) -> Derived | None:
        b = state.block
        if len(b.spatial) < 2:
            return None
        *_, first, second = b.spatial
        short = analysis.length(second)
        if short >= 8 * self.lanes or short % self.lanes == 0 or analysis.length(first) < 2:
            return None
        merged = state.attempt(MergeIterators(b.name, (first.name, second.name)))
        return None if merged is None else Derived((merged,), final=True)


@dataclass(frozen=True)
class TileElements:
    """Vectors of several registers along the axis in which results lie. Where an operand lies along
    another axis, both are tiled, so that the cache lines of a tile are used whole; vectors are
    stored at once and gathered, or loaded at once and scattered.

        for i, j                 ->    for j.0, i.0, j.1, i.1, i.2 (vectorized)
          Y[j, i] = X[i, j]
    """

    lanes: int
    registers: int = 8  # that a vector takes at most
    rows: int = 64  # of a tile at most

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        lengths = {i.name: analysis.length(i) for i in b.spatial}
        stored = [a for a in analysis.contiguous_axes(func, b) if lengths[a] >= self.lanes]
        if not stored:
            return None
        axis = stored[0]
        across = [a for a in _read_along(b, axis) if lengths.get(a, 1) > 1]
        pairs: list[tuple[str, str | None]] = [(axis, a) for a in across]
        pairs += [(a, axis) for a in across if lengths[a] >= self.lanes]
        pairs = pairs or [(axis, None)]
        derived = [self._tiled(state, vector, rows) for vector, rows in pairs]
        found = tuple(s for s in derived if s is not None)
        return Derived(found) if found else None

    def _tiled(self, state: State, vector: str, rows: str | None) -> State | None:
        b = state.block
        loops = {i.name: f"{b.name}.{i.name}" for i in b.spatial}
        most = self.registers * self.lanes
        wide = SampleTile(loops[vector], 2 if rows is None else 3, "vector", most, self.lanes)
        split = Split(wide.loop, wide.columns, exact=wide.exact)
        outer, *inner = split.parts
        steps: list[Step] = [wide, split]
        order = [loop for name, loop in loops.items() if name not in (vector, rows)]
        if rows is not None:
            high = SampleTile(loops[rows], 2, "any", self.rows)
            cut = Split(high.loop, high.columns, exact=high.exact)
            steps += [high, cut]
            order.append(cut.parts[0])
            inner.insert(0, cut.parts[1])
        order += [outer, *inner]
        if len(order) > 1:
            steps.append(Reorder(tuple(order)))
        return state.attempt(*steps, Vectorize(order[-1]), done=[b.name])


def _read_along(b: Block, axis: str) -> Iterator[str]:
    """Other axes along which operands lie that the axis moves in strides."""
    for load in b.loads:
        if not load.index or not any(axis in p.names for p in load.index[:-1]):
            continue
        last = load.index[-1]
        yield from (i.name for i in b.spatial if last.coefficient(i.name).const == 1)
