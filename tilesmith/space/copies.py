"""Rules for element-wise blocks on CPUs, which read and write each element once: copies, additions,
transposes.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.base.dataclass import dataclass
from tilesmith.expr.nodes import Load
from tilesmith.ir.nodes import Block, walk
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.iterators import MergeIterators
from tilesmith.schedule.kinds import AutoUnroll, Vectorize
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleChoice, SampleTile
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

    Where all lies along it, several vectors are unrolled: those of one row, and, where rows are
    short or share an operand, those of several rows. Rows that fill no vector have vectors across.

        for i, j                 ->    for i.0, j.0, i.1 (unroll_depth), j.1 (vectorized)
          Y[i, j] = X[i, j] + B[j]
    """

    lanes: int
    registers: int = 8  # that a vector takes at most
    rows: int = 64  # of a tile at most
    unrolled_rows: int = 8
    long: int = 64  # vectors; rows of more are tiled alone
    depths: tuple[int, ...] = (0, 8, 32)  # of unrolling

    def __call__(self, state: State) -> Derived | None:
        func, b = state.func, state.block
        lengths = {i.name: analysis.length(i) for i in b.spatial}
        stored = [a for a in analysis.contiguous_axes(func, b) if lengths[a] >= self.lanes]
        if not stored:
            return self._across(state, lengths)
        axis = stored[0]
        across = [a for a in _read_along(b, axis) if lengths.get(a, 1) > 1]
        pairs: list[tuple[str, str | None]] = [(axis, a) for a in across]
        pairs += [(a, axis) for a in across if lengths[a] >= self.lanes]
        derived = [self._tiled(state, vector, rows) for vector, rows in pairs]
        if not pairs:
            derived = [_streamed(self._tiled(state, axis, None), b)]
            derived += [self._unrolled(state, axis, rows) for rows in self._grouped(b, axis)]
        found = tuple(s for s in derived if s is not None)
        return Derived(found) if found else None

    def _across(self, state: State, lengths: dict[str, int]) -> Derived | None:
        """Vectors along the longest axis, with the short one in which results lie around them."""
        vector = max(lengths, key=lambda a: lengths[a], default=None)
        if vector is None or lengths[vector] < self.lanes:
            return None
        others = [a for a in lengths if a != vector and lengths[a] > 1]
        derived = (self._unrolled(state, vector, rows) for rows in [None, *others[-1:]])
        found = tuple(s for s in derived if s is not None)
        return Derived(found) if found else None

    def _grouped(self, b: Block, axis: str) -> list[str | None]:
        """The axes whose iterations are unrolled around vectors along `axis`; None is that axis."""
        length = next(analysis.length(i) for i in b.spatial if i.name == axis)
        others = [i.name for i in b.spatial if i.name != axis and analysis.length(i) > 1]
        near = others[-1:] if length < self.long * self.lanes else []
        shared = [n for n in others if any(_is_fixed(x, n) for x in b.loads)]
        return [None, *dict.fromkeys((*near, *shared[-1:]))]

    def _tiled(self, state: State, vector: str, rows: str | None) -> State | None:
        tile = self._vectors(state, vector, 2 if rows is None else 3)
        return self._ordered(state, tile, rows, self.rows)

    def _unrolled(self, state: State, vector: str, rows: str | None) -> State | None:
        b = state.block
        column = f"#{b.name}.unroll"
        tile = self._vectors(state, vector, 3 if rows is None else 2)
        done = _streamed(self._ordered(state, tile, rows, self.unrolled_rows), b)
        if done is None:
            return None
        return done.attempt(SampleChoice(column, self.depths), AutoUnroll(b.name, column))

    def _vectors(self, state: State, vector: str, parts: int) -> SampleTile:
        loop = f"{state.block.name}.{vector}"
        return SampleTile(loop, parts, "vector", self.registers * self.lanes, self.lanes)

    def _ordered(self, state: State, wide: SampleTile, rows: str | None, most: int) -> State | None:
        """The tile of vectors innermost, within a tile of at most so many rows."""
        b = state.block
        loops = {i.name: f"{b.name}.{i.name}" for i in b.spatial}
        split = Split(wide.loop, wide.columns, exact=wide.exact)
        outer, *inner = split.parts
        steps: list[Step] = [wide, split]
        order = [x for name, x in loops.items() if x != wide.loop and name != rows]
        if rows is not None:
            high = SampleTile(loops[rows], 2, "any", most)
            cut = Split(high.loop, high.columns, exact=high.exact)
            steps += [high, cut]
            order.append(cut.parts[0])
            inner.insert(0, cut.parts[1])
        order += [outer, *inner]
        if len(order) > 1:
            steps.append(Reorder(tuple(order)))
        return state.attempt(*steps, Vectorize(order[-1]), done=[b.name])


def _streamed(state: State | None, b: Block) -> State | None:
    """The state without prefetches of its own: along rows, those of the hardware suffice, and
    others cost a third of a copy's time.
    """
    return None if state is None else state.with_tile(b.name, ())


def _is_fixed(load: Load, axis: str) -> bool:
    """Whether the axis does not move a load."""
    return not any(axis in p.names for p in load.index)


def _read_along(b: Block, axis: str) -> Iterator[str]:
    """Other axes along which operands lie that the axis moves in strides."""
    for load in b.loads:
        if not load.index or not any(axis in p.names for p in load.index[:-1]):
            continue
        last = load.index[-1]
        if axis in last.names:  # its rows are chosen for each element, but it lies along the axis
            continue
        yield from (i.name for i in b.spatial if last.coefficient(i.name).const == 1)
