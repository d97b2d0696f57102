"""Multi-level tiling by a structure such as SSRSRS: each letter is a level of spatial (S) or
reducing (R) loops, outermost first. A loop is split into as many parts as there are levels of its
kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import Int
from tilesmith.ir.nodes import Block
from tilesmith.schedule.kinds import Annotate, Unroll, Vectorize
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.domain_tables import tile_table
from tilesmith.space.state import State


@dataclass(frozen=True)
class Tiling:
    """How a block with data reuse is tiled.

    `policy` and `max_innermost` bound the factors (see SampleTile). `unroll_reduce` bounds the
    innermost part of a reducing loop if the structure has three levels of them, or two just around
    the innermost tile.
    """

    structure: str = "SSRSRS"
    policy: str = "divisors"
    max_innermost: int = 64
    unroll_reduce: int = 8
    lanes: int = 1
    registers: bool = False  # the innermost tile is unrolled, so that it stays in registers
    whole: int = 0  # batch axes of at most this extent are not tiled
    ones: bool = False  # nor are axes of extent 1
    groups: bool = False  # nor are those that number the groups of a dimension of the result

    def __post_init__(self) -> None:
        if not self.structure or set(self.structure) - {"S", "R"}:
            raise ValueError(
                f"a tile structure is made of S and R, such as SSRSRS, not {self.structure!r}"
            )

    @property
    def num_spatial(self) -> int:
        return self.structure.count("S")

    @property
    def num_reduce(self) -> int:
        return self.structure.count("R")

    @property
    def unrolls_sums(self) -> bool:
        return self.num_reduce >= 3 or self.structure.endswith("RRS")

    def innermost(self, b: Block, vector_axis: str | None = None) -> dict[str, str]:
        """The sizes of the innermost tile by tiled spatial axis."""
        whole = self._whole(b, vector_axis)
        last = self.num_spatial - 1
        return {i.name: f"#{b.name}.{i.name}.{last}" for i in b.spatial if i.name not in whole}

    def _whole(self, b: Block, vector_axis: str | None) -> frozenset[str]:
        """Axes that are not tiled: their loops are in the outermost level."""
        short = {i.name for i in b.spatial if 0 < analysis.length(i) <= self.whole}
        short &= analysis.batch_axes(b)
        if self.ones:
            short |= {i.name for i in b.spatial if i.extent.const == 1}
        if self.groups:  # tiles of several groups would have holes
            parted = [p for w in b.writes for p in w.index if len(p.names) > 1]
            short |= {i.name for i in b.spatial for p in parted
                      if i.name in p.names and p.coefficient(i.name).const != 1}  # fmt: skip
        return frozenset(short - {vector_axis})

    def apply(
        self, state: State, vector_axis: str | None = None, turned: bool = False,
        block: str | None = None, unit: tuple[str, ...] = (),
        parts_of: tuple[str, tuple[int, ...]] | None = None, team: bool = False,
    ) -> State:  # fmt: skip
        """Tiles a block, the current one unless it is named. `unit` are iterators that stay whole
        and innermost, in that order: a hardware instruction carries them out, so nothing is
        vectorised. `vector_axis` is innermost in every level. With `turned` it is
        outermost in all but the last two spatial levels (which decide what stays in the caches),
        but still inside of axes that index all operands, such as a batch. `parts_of` is a reducing
        axis, and numbers of parts into which it is cut ahead of its tiles; the loop over the parts
        stands outside of the reducing levels, and has the note `cluster`. With `team`, the tiles of
        its first level are cut instead, and threads compute the parts together.
        """
        b = state.block if block is None else analysis.block(state.func, block)
        whole = self._whole(b, vector_axis)
        spatial = [i.name for i in b.spatial if i.name not in unit]
        spatial = outward = [
            *(a for a in spatial if a in whole),
            *(a for a in spatial if a not in whole),
        ]
        if vector_axis is not None:
            others = [a for a in spatial if a != vector_axis]
            spatial = outward = [*others, vector_axis]
            if turned:
                batch = [a for a in others if a in analysis.shared_axes(b)]
                outward = [*batch, vector_axis, *(a for a in others if a not in batch)]
        # guards of the block stay outside of the register tile
        asked = {n for p in b.domain if not _always(p, b) for n in p.names}
        steps: list[Step] = []
        parts: dict[str, Sequence[str]] = {}
        cut: str | None = None
        for i in (i for i in b.iters if i.name not in unit):
            count = self.num_spatial if i.kind == "S" else self.num_reduce
            if count == 0:
                continue
            loop = f"{b.name}.{i.name}"
            if i.name in whole:
                parts[i.name] = (loop,)
                continue
            vector = i.name == vector_axis and not unit
            most = self.max_innermost
            if i.kind == "R" and self.unrolls_sums:
                most = self.unroll_reduce
            if i.name in asked and not vector:
                most = 1
            policy = "vector" if vector and self.policy == "any" else self.policy
            listed: tuple[tuple[int, ...], ...] = ()
            if i.kind == "R" and i.name in asked and i.extent.const:
                # A guard inside of the sums that registers hold would force these to memory.
                listed = ((i.extent.const, *(1,) * (count - 1)),)
            if parts_of is not None and i.name == parts_of[0] and i.extent.const:
                listed = _in_parts(i.extent.const, parts_of[1], count, most)
                if team:  # the first level, then the parts
                    listed = tuple((k0, n, *row) for n, k0, *row in listed)
                sample = SampleTile(loop, count + 1, candidates=listed)
                split = Split(loop, sample.columns, exact=True)
                steps += [sample, split]
                (cut, *parts[i.name]) = split.parts
                if team:
                    first, cut, *others = split.parts
                    parts[i.name] = [first, *others]
                continue
            sample = SampleTile(
                loop, count, policy, most, self.lanes if vector else 1, candidates=listed
            )
            split = Split(loop, sample.columns, exact=sample.exact)
            steps += [sample, split]
            parts[i.name] = split.parts
        levels: list[list[str]] = []
        s = r = 0
        for letter in self.structure:
            if letter == "S":
                axes = outward if s < self.num_spatial - 2 else spatial
                levels.append([parts[a][s] for a in axes if s < len(parts[a])])
                s += 1
            else:
                levels.append([parts[i.name][r] for i in b.reducing if i.name not in unit])
                r += 1
        order = [loop for level in levels for loop in level]
        order += [f"{b.name}.{n}" for n in unit]
        if cut is not None:
            level = next(k for k, c in enumerate(self.structure) if c == "R") + team
            order.insert(sum(map(len, levels[:level])), cut)
        if len(order) > 1:
            steps.append(Reorder(tuple(order)))
        if self.registers and levels and levels[-1]:
            lanes = levels[-1][-1:] if not unit else []
            steps += [Vectorize(loop) for loop in lanes]
            steps += [Unroll(loop) for loop in levels[-1] if loop not in lanes]
            if self.unrolls_sums:
                last = max(k for k, c in enumerate(self.structure) if c == "R")
                steps += [Unroll(loop) for loop in levels[last]]
        if cut is not None:
            note = ("reduce_across", "threadIdx.x") if team else ("cluster", 1)
            steps.append(Annotate(cut, *note))
        return state.then(*steps, done=[b.name]).with_tile(b.name, levels)


def _in_parts(
    extent: int, numbers: tuple[int, ...], count: int, most: int
) -> tuple[tuple[int, ...], ...]:
    """The ways to tile each of so many parts."""
    return tuple(
        (n, *map(int, row))
        for n in numbers
        if extent % n == 0
        for row in tile_table(extent // n, count, "divisors", most, 1)
    )


def _always(p: Int, b: Block) -> bool:
    """Whether the ranges of iterators, where these are numbers, make a condition `p >= 0` hold."""
    try:
        low, _ = bounds(p, {i.name: i.extent for i in b.iters})
    except Unknown:
        return False
    return low.const is not None and low.const >= 0
