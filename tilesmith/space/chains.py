"""Chains of reductions over the same rows: products whose rows go through further reductions, such
as scores of attention through a softmax into a product with values, or a product into a norm. The
rule for CPUs takes a tile of rows through all of them before the next one begins, so that what lies
between them stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.nodes import Load
from tilesmith.ir.function import Function, find_block, readers, written
from tilesmith.ir.nodes import Block, walk
from tilesmith.schedule.cache import CacheRead
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.kinds import Unroll, Vectorize
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleLocation, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.tiling import is_across, packing


@dataclass(frozen=True)
class Chain:
    """`blocks` are computed for some rows at a time, in order; `last` reads the last of them.
    `rows` is the iterator of each block over the rows, `outer` are those over what the rows belong
    to, such as a batch: for each block in the order of `last`'s.
    """

    last: Block
    blocks: tuple[Block, ...]
    rows: dict[str, str]
    outer: dict[str, tuple[str, ...]]

    @property
    def products(self) -> tuple[Block, ...]:
        """Of `blocks`."""
        return tuple(b for b in self.blocks if is_product(b))

    def shared(self, b: Block) -> frozenset[str]:
        """The iterators of a block that all have in common, or that have one value only."""
        ones = (i.name for i in b.spatial if i.extent.const == 1)
        return frozenset({self.rows[b.name], *self.outer[b.name], *ones})


def is_product(b: Block) -> bool:
    """Whether it sums terms of operands that are reused along different axes."""
    if b.combiner is None or not b.init or b.domain or len(b.writes) != 1:
        return False
    axes = {i.name for i in b.spatial if i.extent.const != 1}
    missing = [axes - {n for p in load.index for n in p.names} for load in b.loads]
    return len([m for m in missing if m]) >= 2


def chain_of(func: Function, last: Block) -> Chain | None:
    """The chain that ends in a block; None if there is none."""
    blocks = _links(func, last)
    products = [b for b in blocks if is_product(b)]
    if not products or not all(_is_private(func, b, (*blocks, last)) for b in blocks):
        return None
    every = (last, *reversed(blocks))
    found = {
        i.name: at
        for i in last.spatial
        if i.extent.const != 1 and (at := _followed(func, i.name, every)) is not None
    }
    # What indexes all operands of the products are batches; rows are what is left.
    rows = [a for a, at in found.items() if all(_is_row(b, at[b.name]) for b in products)]
    if not rows:
        return None
    row = rows[-1]
    if is_product(last) and not _is_row(last, row):
        return None
    outer = [a for a in found if a != row]
    chain = Chain(
        last, blocks, found[row], {b.name: tuple(found[a][b.name] for a in outer) for b in every}
    )
    if not all(len(chain.shared(b)) < len(b.spatial) for b in products):
        return None  # element for element: an epilogue, not a chain
    return chain


def _links(func: Function, last: Block) -> tuple[Block, ...]:
    """The products that a block depends on, and all that lies between them and it, in order."""
    depends: dict[str, bool] = {}
    for _, b in walk(func.body):
        before = analysis.producers(func, b)
        depends[b.name] = is_product(b) or any(depends.get(p.name, False) for p in before)
    needed, stack = set[str](), [last]
    while stack:
        for p in analysis.producers(func, stack.pop()):
            if depends[p.name] and p.name not in needed:
                needed.add(p.name)
                stack.append(p)
    return tuple(b for _, b in walk(func.body) if b.name in needed)


def _is_private(func: Function, b: Block, chain: Sequence[Block]) -> bool:
    """Whether only the chain reads it, and it is written at its own iterators."""
    own = {c.name for c in chain}
    if analysis.is_output(func, b) or not {c.name for c in analysis.consumers(func, b)} <= own:
        return False
    places = [i.name for i in b.spatial]
    return all([p.name for p in w.index] == places for w in b.writes)


def _followed(func: Function, axis: str, every: Sequence[Block]) -> dict[str, str] | None:
    """The iterator of each block that is an axis of the first one, consumers before producers.
    None if some block reads other elements along it than its own.
    """
    at = {every[0].name: axis}
    extents = {i.name: i.extent for i in every[0].iters}
    for b in every[1:]:
        found: set[str | None] = set()
        for buffer in written(b):
            for c in readers(func, buffer):
                for load in (x for x in c.loads if x.buffer == buffer):
                    here = [k for k, p in enumerate(load.index) if at[c.name] in p.names]
                    plain = len(here) == 1 and load.index[here[0]].name is not None
                    found.add(b.spatial[here[0]].name if plain else None)
        if len(found) != 1 or None in found:
            return None
        (name,) = found
        assert name is not None
        if next(i.extent for i in b.spatial if i.name == name) != extents[axis]:
            return None
        at[b.name] = name
    return at


def _is_row(b: Block, axis: str) -> bool:
    return axis not in analysis.shared_axes(b)


def beside_rows(func: Function, chain: Chain) -> int:
    """Bytes that every row of a batch needs besides itself: operands of products that have no rows,
    such as the keys and the values of a head.
    """
    total = 0
    for b in (*chain.products, chain.last):
        extents = {i.name: i.extent.number for i in b.iters}
        for load in b.loads:
            names = {n for p in load.index for n in p.names}
            if chain.rows[b.name] not in names:
                inner = names - {*chain.outer[b.name]}
                nbytes = func.all_buffers[load.buffer].dtype.nbytes
                total += nbytes * prod(extents.get(n, 1) for n in inner)
    return total


def row_nbytes(func: Function, chain: Chain) -> int:
    """Bytes of the longest row between two blocks."""
    sizes = []
    for b in chain.blocks:
        own = (i.extent.number for i in b.spatial if i.name not in chain.shared(b))
        sizes.append(prod(own) * func.all_buffers[b.writes[0].buffer].dtype.nbytes)
    return max(sizes)


def nbytes_between(func: Function, chain: Chain) -> int:
    """Bytes of all results of products that are read within the chain."""
    made = (func.all_buffers[b.writes[0].buffer] for b in chain.products)
    return sum(x.size.number * x.dtype.nbytes for x in made)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A buffer that is laid out as a product reads it, and the block that makes it, if any."""

    block: str
    buffer: str
    reader: str
    axis: str

    @property
    def is_made(self) -> bool:
        return bool(self.block)


@dataclass(frozen=True)
class FuseChain:
    """Computes a chain tile of rows by tile of rows. Each product has a register tile with the same
    number of rows. Operands without rows, such as keys and values, are copied for each batch, into
    the order in which they are read; where they are contiguous anyway, that is a choice.
    """

    lanes: int
    max_innermost: int
    rows: int = 16  # the most in a register tile
    unroll_reduce: int = 8

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
        copies: list[_Copy] = []
        for b in tiled:
            state, own = self._copied(state, chain, b, pack)
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
        state = self._located(state, [c.block for c in copies if c.is_made], outer)
        others = {last.name, *(c.block for c in copies), *(b.name for b in chain.blocks)}
        state = _others_placed(state, chain, others, outer, rows.parts[0])
        if is_product(last):
            state = self._tiled(state, chain, outside, rows.parts[1:], turned)
        for b in chain.products:
            state = self._tiled_inside(state, chain, b, row.columns[1:])
        for c in copies:
            b = find_block(state.func, c.reader)[1]
            state = state.then(*packing(b, c.buffer, c.axis, {c.axis: f"#{b.name}.{c.axis}.1"}))
        return state.then(done=others)

    def _located(self, state: State, copies: list[str], outer: list[str]) -> State:
        """Copies for each batch; or for all of them first, so that more cores than there are
        batches can share the rows.
        """
        for copy in copies if outer else ():
            if state.task.target.num_cores > 1:
                state = state.then(SampleLocation(copy, ("root", outer[-1])))
            else:
                state = state.then(ComputeAt(copy, outer[-1]))
        return state

    def _axis(self, state: State, chain: Chain, b: Block) -> str:
        """The one along which a product is vectorised."""
        shared = chain.shared(b)
        own = [a for a in analysis.contiguous_axes(state.func, b) if a not in shared]
        if not own:
            raise ScheduleError(f"{b.name} has no contiguous axis besides its rows")
        return own[0]

    def _copied(
        self, state: State, chain: Chain, b: Block, pack: bool
    ) -> tuple[State, list[_Copy]]:
        """Copies of the operands that are indexed by the vectorised axis; with `pack`, also of
        those that are contiguous along it. Constant ones are packed ahead.
        """
        axis, copies = self._axis(state, chain, b), list[_Copy]()
        inputs = {p.name: p for p in state.func.inputs}
        for name in dict.fromkeys(load.buffer for load in b.loads):
            indices = [load.index for load in b.loads if load.buffer == name]
            used = {n for index in indices for p in index for n in p.names}
            if name not in inputs or axis not in used or chain.rows[b.name] in used:
                continue
            if inputs[name].scope == "constant":
                only = [r.name for r in readers(state.func, name)] == [b.name]
                if only and inputs[name].layout is None:
                    copies.append(_Copy("", name, b.name, axis))
            elif pack or is_across(b, name, axis):
                read = CacheRead(b.name, name)
                state = state.then(read)
                copies.append(_Copy(read.copy, read.copy, b.name, axis))
        return state, copies

    def _sums(self, b: Block) -> Iterator[tuple[SampleTile, Split]]:
        for i in b.reducing:
            sample = SampleTile(f"{b.name}.{i.name}", 2, "any", self.unroll_reduce)
            yield sample, Split(sample.loop, sample.columns, exact=sample.exact)

    def _vector(self, b: Block, axis: str) -> tuple[SampleTile, Split]:
        sample = SampleTile(f"{b.name}.{axis}", 2, "vector", self.max_innermost, self.lanes)
        return sample, Split(sample.loop, sample.columns, exact=sample.exact)

    def _tiled(
        self, state: State, chain: Chain, outside: list[str], rows: tuple[str, ...], turned: bool
    ) -> State:
        """The last product, whose rows are split already."""
        b = chain.last
        axis = self._axis(state, chain, b)
        sample, columns = self._vector(b, axis)
        sums = [*self._sums(b)]
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
        return _in_registers(state.then(*steps), b.name, levels)

    def _tiled_inside(self, state: State, chain: Chain, b: Block, rows: tuple[str, ...]) -> State:
        """A product that is computed for a tile of rows, `rows` are the numbers of
        register tiles and of their rows. What follows element for element is done with each.
        """
        consumer = analysis.fusible_consumer(state.func, b)
        axis = self._axis(state, chain, b)
        sample, columns = self._vector(b, axis)
        loop = f"{b.name}.{chain.rows[b.name]}"
        split = Split(loop, rows)
        sums = [*self._sums(b)]
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
        state = _in_registers(state.then(*steps), b.name, levels)
        if consumer is None or consumer.name not in {c.name for c in chain.blocks}:
            return state
        return state.then(ReverseComputeAt(consumer.name, split.parts[0]))

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


def _in_registers(state: State, block: str, levels: list[list[str]]) -> State:
    *_, sums, (rows, vector) = levels
    steps = [Vectorize(vector), Unroll(rows), *map(Unroll, sums)]
    return state.then(*steps).with_tile(block, levels)


def _is_view(b: Block) -> bool:
    return b.combiner is None and len(b.writes) == 1 and isinstance(b.writes[0].value, Load)


def _inlined(state: State, chain: Chain) -> State:
    """Views of operands are index expressions. Of several element-wise blocks behind each other,
    the last one remains.
    """
    links = {b.name for b in chain.blocks}
    for b in (*chain.products, chain.last):
        for p in analysis.producers(state.func, b):
            if p.name not in links and _is_view(p):
                state = state.attempt(Inline(p.name)) or state
    for b in chain.blocks:
        if _is_view(b):
            state = state.attempt(Inline(b.name)) or state
            continue
        after = analysis.consumers(state.func, b)
        if b.combiner is not None or [c.combiner for c in after] != [None]:
            continue
        if after[0].name in links and analysis.elementwise_match(state.func, b, after[0]):
            state = state.attempt(Inline(b.name)) or state
    return state


def _others_placed(
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
