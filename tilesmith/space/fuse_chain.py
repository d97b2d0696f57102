"""The rule for CPUs that computes a chain of reductions (chains.py) tile of rows by tile of rows:
what lies between them stays in the cache.
"""

from __future__ import annotations

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.ir.function import find_block
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.location import ComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleTile
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.chain_tiles import (
    ChainTiles,
    Copy,
    in_registers,
    is_view,
    others_placed,
    packed,
)
from tilesmith.space.chains import (
    Chain,
    beside_rows,
    chain_of,
    is_product,
    nbytes_between,
    row_nbytes,
)
from tilesmith.space.derive import Derived, State


@dataclass(frozen=True)
class FuseChain(ChainTiles):
    """Computes a chain tile of rows by tile of rows. Each product has a register tile with the same
    number of rows. Operands without rows, such as keys and values, are copied for each batch, into
    the order in which they are read; where they are contiguous anyway, that is a choice.
    """

    def __call__(self, state: State) -> Derived | None:
        func, last = state.func, state.block
        if not analysis.is_output(func, last) or state.levels_of(last.name):
            return None
        if any(f.owner != last.name or f.kind != "serial" for f in find_block(func, last.name)[0]):
            return None
        chain = chain_of(func, last)
        if chain is None or not self._pays(state, chain):
            return None
        state = _inlined(state, chain)
        chain = chain_of(state.func, analysis.block(state.func, last.name))
        if chain is None:
            return None
        derived = []
        for turned in (False, True) if is_product(chain.last) else (False,):
            for pack in (True, False):
                try:
                    derived.append(self._fused(state, chain, pack, turned))
                except ScheduleError:
                    continue
        # Where the other operands stay in the cache, nothing is gained by whole intermediates.
        final = beside_rows(state.func, chain) <= state.task.target.l2_nbytes // 2
        unique = tuple(dict.fromkeys(derived))
        return Derived(unique, final) if unique else None

    def _pays(self, state: State, chain: Chain) -> bool:
        """Whether tiles of rows fit the cache. Products one right behind the other are as fast one
        by one, unless their results do not stay in the cache, and their operands do.
        """
        func, cache = state.func, state.task.target.l2_nbytes
        if self.rows * row_nbytes(func, chain) > cache:
            return False
        between = (b for b in (*chain.blocks, chain.last) if b.combiner is not None)
        if not all(map(is_product, between)):
            return True
        return beside_rows(func, chain) <= cache // 2 and nbytes_between(func, chain) > cache

    def _fused(self, state: State, chain: Chain, pack: bool, turned: bool) -> State:
        last = chain.last
        tiled = [b for b in (*chain.products, last) if is_product(b)]
        copies: list[Copy] = []
        for b in tiled:
            state, own = self.copied(state, chain, b, pack)
            copies += own
        row = SampleTile(f"{last.name}.{chain.rows[last.name]}", 3, "any", self.rows)
        rows = Split(row.loop, row.columns, exact=row.exact)
        outer = [f"{last.name}.{a}" for a in chain.outer[last.name]]
        ones = [f"{last.name}.{i.name}" for i in last.spatial if i.extent.const == 1]
        outside = [*ones, *outer, rows.parts[0]]
        inside = [f"{last.name}.{i.name}" for i in last.iters]
        inside = [x for x in inside if x not in (*outside, row.loop)]
        loops = [*outside, *rows.parts[1:], *inside]
        state = state.then(row, rows, Reorder(tuple(loops)))
        # Blocks are placed before columns and sums are split: those are needed as a whole.
        state = self._placed(state, chain, rows.parts[0], rows.parts[2])
        state = self.located(state, [c.block for c in copies if c.is_made], outer)
        others = {last.name, *(c.block for c in copies), *(b.name for b in chain.blocks)}
        state = others_placed(state, chain, others, outer, rows.parts[0])
        if is_product(last):
            state = self._tiled(state, chain, outside, rows.parts[1:], turned)
        for b in chain.products:
            state = self.tiled_inside(state, chain, b, row.columns[1:])
        for c in copies:
            state = packed(state, c, f"#{c.reader}.{c.axis}.1")
        return state.then(done=others)

    def _tiled(
        self, state: State, chain: Chain, outside: list[str], rows: tuple[str, ...], turned: bool
    ) -> State:
        """The last product, whose rows are split already."""
        b = chain.last
        axis = self.axis(state, chain, b)
        sample, columns = self.vector(b, axis)
        sums = [*self.sums(b)]
        taken = {axis, *chain.shared(b)}
        others = [f"{b.name}.{i.name}" for i in b.spatial if i.name not in taken]
        middle = [columns.parts[0], rows[0]]
        levels = [
            outside,
            [*others, *(middle[::-1] if turned else middle)],
            [s.parts[0] for _, s in sums],
            [s.parts[1] for _, s in sums],
            [rows[1], columns.parts[1]],
        ]
        steps: list[Step] = [sample, columns, *(x for pair in sums for x in pair)]
        steps.append(Reorder(tuple(x for level in levels[1:] for x in level)))
        return in_registers(state.then(*steps), b.name, levels)

    def _placed(self, state: State, chain: Chain, tile: str, row: str) -> State:
        """All blocks in the loop over tiles of rows; reductions of a row, and what they read
        besides a product, in the loop over rows of the element-wise block behind them.
        """
        within: str | None = None if is_product(chain.last) else row
        for b in reversed(chain.blocks):
            ends_product = any(is_product(p) for p in analysis.producers(state.func, b))
            at = tile
            inner = None if is_product(b) or ends_product else within
            placed = None if inner is None else state.attempt(ComputeAt(b.name, inner))
            if placed is not None:  # else a product reads it, too
                state = placed
                continue
            state = state.then(ComputeAt(b.name, at))
            if is_product(b):
                within = None
            elif b.combiner is None and not ends_product:
                within = f"{b.name}.{chain.rows[b.name]}"
        return state


def _inlined(state: State, chain: Chain) -> State:
    """Views of operands are index expressions. Of several element-wise blocks behind each other,
    the last one remains.
    """
    links = {b.name for b in chain.blocks}
    for b in (*chain.products, chain.last):
        for p in analysis.producers(state.func, b):
            if p.name not in links and is_view(p):
                state = state.attempt(Inline(p.name)) or state
    for b in chain.blocks:
        if is_view(b):
            state = state.attempt(Inline(b.name)) or state
            continue
        after = analysis.consumers(state.func, b)
        if b.combiner is not None or [c.combiner for c in after] != [None]:
            continue
        if after[0].name in links and analysis.elementwise_match(state.func, b, after[0]):
            state = state.attempt(Inline(b.name)) or state
    return state
