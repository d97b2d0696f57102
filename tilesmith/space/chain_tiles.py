"""Tiles of the products of a chain (chains.py) on CPUs: rows, columns and sums in registers, copies
of operands in the order in which they are read, and where what surrounds the products is computed.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.nodes import Load
from tilesmith.ir.function import find_block, readers
from tilesmith.ir.nodes import Block
from tilesmith.schedule.cache import CacheRead
from tilesmith.schedule.kinds import Unroll, Vectorize
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleLocation, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.chains import Chain
from tilesmith.space.derive import State
from tilesmith.space.tiling import is_across, packing


@dataclass(frozen=True, slots=True)
class Copy:
    """A buffer that is laid out as a product reads it, and the block that makes it, if any."""

    block: str
    buffer: str
    reader: str
    axis: str

    @property
    def is_made(self) -> bool:
        return bool(self.block)


@dataclass(frozen=True)
class ChainTiles:
    """How products of chains are tiled: what the rules for CPUs share."""

    lanes: int
    max_innermost: int
    rows: int = 16  # the most in a register tile
    unroll_reduce: int = 8

    def located(self, state: State, copies: list[str], outer: list[str]) -> State:
        """Copies for each batch; or for all of them first, so that more cores than there are
        batches can share the rows.
        """
        for copy in copies if outer else ():
            if state.task.target.num_cores > 1:
                state = state.then(SampleLocation(copy, ("root", outer[-1])))
            else:
                state = state.then(ComputeAt(copy, outer[-1]))
        return state

    def axis(self, state: State, chain: Chain, b: Block) -> str:
        """The one along which a product is vectorised."""
        shared = chain.shared(b)
        own = [a for a in analysis.contiguous_axes(state.func, b) if a not in shared]
        if not own:
            raise ScheduleError(f"{b.name} has no contiguous axis besides its rows")
        return own[0]

    def copied(self, state: State, chain: Chain, b: Block, pack: bool) -> tuple[State, list[Copy]]:
        """Copies of the operands that are indexed by the vectorised axis; with `pack`, also of
        those that are contiguous along it. Constant ones are packed ahead.
        """
        axis, copies = self.axis(state, chain, b), list[Copy]()
        inputs = {p.name: p for p in state.func.inputs}
        for name in dict.fromkeys(load.buffer for load in b.loads):
            indices = [load.index for load in b.loads if load.buffer == name]
            used = {n for index in indices for p in index for n in p.names}
            if name not in inputs or axis not in used or chain.rows[b.name] in used:
                continue
            if inputs[name].scope == "constant":
                only = [r.name for r in readers(state.func, name)] == [b.name]
                if only and inputs[name].layout is None:
                    copies.append(Copy("", name, b.name, axis))
            elif pack or is_across(b, name, axis):
                read = CacheRead(b.name, name)
                state = state.then(read)
                copies.append(Copy(read.copy, read.copy, b.name, axis))
        return state, copies

    def sums(self, b: Block) -> Iterator[tuple[SampleTile, Split]]:
        for i in b.reducing:
            sample = SampleTile(f"{b.name}.{i.name}", 2, "any", self.unroll_reduce)
            yield sample, Split(sample.loop, sample.columns, exact=sample.exact)

    def vector(self, b: Block, axis: str) -> tuple[SampleTile, Split]:
        sample = SampleTile(f"{b.name}.{axis}", 2, "vector", self.max_innermost, self.lanes)
        return sample, Split(sample.loop, sample.columns, exact=sample.exact)

    def tiled_inside(self, state: State, chain: Chain, b: Block, rows: tuple[str, ...]) -> State:
        """A product that is computed for a tile of rows, `rows` are the numbers of
        register tiles and of their rows. What follows element for element is done with each.
        """
        consumer = analysis.fusible_consumer(state.func, b)
        axis = self.axis(state, chain, b)
        sample, columns = self.vector(b, axis)
        loop = f"{b.name}.{chain.rows[b.name]}"
        split = Split(loop, rows)
        sums = [*self.sums(b)]
        taken = {axis, chain.rows[b.name]}
        others = [f"{b.name}.{i.name}" for i in b.spatial if i.name not in taken]
        levels = [
            others,
            [columns.parts[0], split.parts[0]],
            [s.parts[0] for _, s in sums],
            [s.parts[1] for _, s in sums],
            [split.parts[1], columns.parts[1]],
        ]
        steps: list[Step] = [sample, columns, split, *(x for pair in sums for x in pair)]
        steps.append(Reorder(tuple(x for level in levels for x in level)))
        state = in_registers(state.then(*steps), b.name, levels)
        if consumer is None or consumer.name not in {c.name for c in chain.blocks}:
            return state
        return state.then(ReverseComputeAt(consumer.name, split.parts[0]))


def in_registers(state: State, block: str, levels: list[list[str]]) -> State:
    *_, sums, (rows, vector) = levels
    steps = [Vectorize(vector), Unroll(rows), *map(Unroll, sums)]
    return state.then(*steps).with_tile(block, levels)


def packed(state: State, copy: Copy, size: str) -> State:
    """The state in which the copy lies in tiles of `size` along its axis."""
    b = find_block(state.func, copy.reader)[1]
    return state.then(*packing(b, copy.buffer, copy.axis, {copy.axis: size}))


def is_view(b: Block) -> bool:
    return b.combiner is None and len(b.writes) == 1 and isinstance(b.writes[0].value, Load)


def others_placed(
    state: State, chain: Chain, placed: set[str], outer: list[str], tile: str
) -> State:
    """Blocks that are not of the chain, such as a conversion of an operand: where they have rows,
    in the loop over tiles; else for each batch.
    """
    known = set(placed)
    stack = [chain.last, *chain.blocks]
    while stack:
        for p in analysis.producers(state.func, stack.pop()):
            if p.name in known or p.combiner is not None:
                continue
            known.add(p.name)
            stack.append(p)
            rows = {chain.rows[b.name] for b in (chain.last, *chain.blocks)}
            moved = {
                n for c in analysis.consumers(state.func, p) for n in _axes_of(c, p) if n in rows
            }
            place = tile if moved else (outer[-1] if outer else None)
            if place is not None:
                state = state.attempt(ComputeAt(p.name, place)) or state
    return state


def _axes_of(consumer: Block, b: Block) -> frozenset[str]:
    made = {w.buffer for w in b.writes}
    loads = (x for x in consumer.loads if x.buffer in made)
    return frozenset(n for x in loads for p in x.index for n in p.names)
