"""The rule for CPUs that rolls reductions of rows into the loop of the product behind them
(schedule/roll.py): attention by tiles of queries and tiles of keys, which stay in the cache.
Nothing of the size of the scores is ever stored, and tiles that a mask empties are skipped.

    for i.0:                          # tiles of queries
      for k.0:                        # tiles of keys
        scores of the tile, in register tiles
        maxima, weights and sums of its rows; repair of what was summed before
        weights times values, in register tiles
"""

from __future__ import annotations

from collections.abc import Collection

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.ir.function import find_block, find_loop
from tilesmith.ir.nodes import walk
from tilesmith.schedule.cache import CacheWrite
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.roll import TILE, Roll
from tilesmith.schedule.sample import Require, SampleTile
from tilesmith.space import analysis
from tilesmith.space.chain_tiles import ChainTiles, in_registers, is_view, others_placed, packed
from tilesmith.space.chains import Chain, is_product
from tilesmith.space.derive import Derived, State
from tilesmith.space.rolled_chains import is_long, scores_and_values, weights_of

_KEYS = 4  # vectors of a register tile of scores, at most


@dataclass(frozen=True)
class RollRows(ChainTiles):
    """Sketches that roll a chain of two products over tiles of the second one's sum. Values are
    read where they lie, or packed.
    """

    def __call__(self, state: State) -> Derived | None:
        func, last = state.func, state.block
        if not analysis.is_output(func, last) or state.levels_of(last.name):
            return None
        if any(f.owner != last.name or f.kind != "serial" for f in find_block(func, last.name)[0]):
            return None
        derived = []
        for pack in (False, True):
            try:
                derived.append(self._rolled(state, pack))
            except ScheduleError:
                continue
        unique = tuple(dict.fromkeys(derived))
        return Derived(unique) if unique else None

    def _rolled(self, state: State, pack: bool) -> State:
        if is_product(state.block):
            state = state.then(CacheWrite(state.block.name))
        found = scores_and_values(state, is_view, is_long)
        if found is None:
            raise ScheduleError("there is no chain of two products")
        (state, chain), result = found, state.block.name
        (scores,), last = chain.products, chain.last
        total, weights = last.name, weights_of(state.func, chain)
        row, (summed,) = chain.rows[total], last.reducing
        column, key = (self.axis(state, chain, b) for b in (last, scores))
        for b, axis in ((last, column), (scores, key)):
            if {i.name for i in b.spatial} != {axis, *chain.shared(b)}:
                raise ScheduleError(f"{b.name} has columns along several axes")
        state, first = self.copied(state, chain, scores, pack=False)
        state, second = self.copied(state, chain, last, pack)

        rows = SampleTile(f"{total}.{row}", 3, "any", self.rows)
        width = _KEYS * self.lanes
        if summed.extent.number <= width:
            raise ScheduleError(f"{summed.extent} keys are one tile")
        keys = SampleTile(f"{total}.{summed.name}", 4, "steps", width, self.lanes)
        by_row, by_key = (Split(x.loop, x.columns, exact=x.exact) for x in (rows, keys))
        sample, columns = self.vector(last, column)
        outer = [f"{total}.{a}" for a in chain.outer[total]]
        outside = [f"{total}.{i.name}" for i in last.spatial if i.extent.const == 1] + outer
        tile, key_tile = by_row.parts[0], by_key.parts[0]
        levels = [
            [*outside, tile, key_tile],
            [columns.parts[0], by_row.parts[1]],
            [*by_key.parts[1:3]],
            [by_key.parts[3]],
            [by_row.parts[2], columns.parts[1]],
        ]
        taken = (rows, by_row, keys, Require(keys.columns[0], least=2), by_key, sample, columns)
        state = state.then(*taken, Reorder(tuple(x for level in levels for x in level)))
        links = {b.name for b in chain.blocks}
        state = state.then(ReverseComputeAt(result, tile), Roll(total, key_tile))
        if is_view(find_block(state.func, weights)[1]):
            state = state.then(Inline(weights))
        state = in_registers(state, total, levels)
        _, group, *pair = keys.columns
        vector = "*".join(pair)
        stored = _outside(state, links - {scores.name}, key_tile)
        state = self._scores(state, chain, stored, key_tile, rows.columns[1:], (group, vector))
        copies = [*first, *second]
        made = [c.block for c in copies if c.is_made]
        state = self.located(state, made, outer)
        done = {result, *links, *made, total}
        state = others_placed(state, chain, done, outer, tile)
        for c in copies:
            size = f"({vector})" if c.reader == scores.name else sample.columns[1]
            state = packed(state, c, size)
        state = _by_rows(state, key_tile)
        rolled = {b.name for path, b in walk(state.func.body) if tile in {f.name for f in path}}
        return state.then(done=done | rolled)

    def _scores(
        self, state: State, chain: Chain, stored: list[str], tile: str,
        rows: tuple[str, ...], keys: tuple[str, ...],
    ) -> State:  # fmt: skip
        """The register tiles of the scores of a tile, each with what is stored of it instead."""
        (b,) = chain.products
        row, key = chain.rows[b.name], self.axis(state, chain, b)
        if len(stored) > 1:
            raise ScheduleError(f"{b.name} is stored more than once")
        first = stored[0] if stored else b.name
        state = state.then(ComputeAt(first, tile))
        around = find_block(state.func, first)[1]
        own_row, own_key = chain.rows[first], self.axis(state, chain, around)
        by_row, by_key = Split(f"{first}.{own_row}", rows), Split(f"{first}.{own_key}", keys)
        outside = [f"{first}.{i.name}" for i in around.spatial if i.name not in (own_row, own_key)]
        outside += [by_key.parts[0], by_row.parts[0]]
        inside = [by_row.parts[1], by_key.parts[1]]
        state = state.then(by_row, by_key)
        if stored:
            state = state.then(Reorder((*outside, *inside)), ComputeAt(b.name, outside[-1]))
            outside = [f"{b.name}.{i.name}" for i in b.spatial if i.name not in (row, key)]
            inside = [f"{b.name}.{row}", f"{b.name}.{key}"]
        sums = [*self.sums(b)]
        levels = [outside, [s.parts[0] for _, s in sums], [s.parts[1] for _, s in sums], inside]
        order = Reorder(tuple(x for level in levels for x in level))
        return in_registers(state.then(*(x for pair in sums for x in pair), order), b.name, levels)


def _outside(state: State, names: Collection[str], loop: str) -> list[str]:
    """The blocks with these names that are not in the loop, in order."""
    found = ((b.name, {f.name for f in path}) for path, b in walk(state.func.body))
    return [name for name, loops in found if name in names and loop not in loops]


def _by_rows(state: State, loop: str) -> State:
    """What is computed once for each row of a tile has vectors of rows: the loop over the one tile
    comes first.
    """
    for path, b in walk(find_loop(state.func, loop)[1].body):
        own = [f.name for f in path if f.owner == b.name]
        ones = [x for x in own if x == f"{b.name}.{TILE}"]
        if ones and len(b.reducing) <= 1 and own[-1:] == ones:
            state = state.then(Reorder((*ones, *own[:-1])))
    return state
