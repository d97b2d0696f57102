"""The rule for GPUs that rolls reductions of rows into the loop of the product behind them
(schedule/roll.py) without matrix instructions: attention in one launch, exact in float32, on any
GPU.

    for rows:                              # blocks
      for group of rows:                   # threadIdx.y: the same in all products
        queries of the block in shared memory
        for tile of keys:
          scores                           # threadIdx.x: keys; register tiles
          maxima, weights, sums            # of a row by shuffles; weights go to shared memory
          repair; weights times values     # threadIdx.x: columns; register tiles
        results

Scores and results stay in registers (codegen/passes/own_registers.py), weights and tiles of
queries, keys and values lie in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.ir.function import Function, find_block
from tilesmith.ir.nodes import Block, For, Intrinsic, Path, walk
from tilesmith.ir.notes import FetchWidth, PipelineStages, ReduceAcross, VectorTerms
from tilesmith.schedule.cache import CacheWrite, SetScope, StorageAlign
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.kinds import Annotate, Bind, Unroll
from tilesmith.schedule.layout import Pad, TransformLayout
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.roll import Roll
from tilesmith.schedule.sample import SampleChoice
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.chain_tiles import is_view
from tilesmith.space.chains import Chain, is_product
from tilesmith.space.derive import Derived, State
from tilesmith.space.instruction_match import matches
from tilesmith.space.rolled_chains import scores_and_values, weights_of
from tilesmith.space.tensor_tiles import read_shared

_X, _Y = "threadIdx.x", "threadIdx.y"
_FEW_ROWS = 16  # fewer leave most of a tile empty
_STEP = 4  # terms of a sum that are written out: a vector of each operand
_VECTOR, _BANKS = 16, 128  # bytes that a thread moves at once; of all banks
_ROOM = 0.97  # of shared memory
_SIZES = (32, 128)  # of a tile, the least and the most: rows, and keys
# Of a thread, for scores, results and the operands of a step; and with the next tile: more spill.
_MOST_REGISTERS, _MOST_FETCHED = 160, 176


@dataclass(frozen=True)
class _Tile:
    """`x` threads share a row; each of `y` groups has `rows` rows. A thread has `keys` scores of
    each row, and `columns` results in vectors of `width`.
    """

    x: int
    y: int
    rows: int
    keys: int
    columns: int
    width: int
    stages: tuple[int, ...]  # tiles of keys and values that there may be at once

    @property
    def registers(self) -> int:
        return self.rows * (self.keys + self.columns) + _STEP * (self.rows + self.keys)

    def shared_nbytes(self, depth: int, nbytes: int, stages: int = 1) -> int:
        """Of tiles of queries, keys and values, and of weights."""
        queries, keys = self.y * self.rows, self.x * self.keys
        depth += _VECTOR // nbytes + -depth % _STEP
        tiles = queries * depth + stages * keys * (depth + self.x * self.columns)
        return tiles * nbytes + queries * (keys + _VECTOR // 4) * 4

    def fetched(self, depth: int, nbytes: int) -> int:
        """Registers for keys and values of the next tile."""
        values = self.x * self.keys * (depth + self.x * self.columns)
        return values * nbytes // (4 * self.x * self.y)


@dataclass(frozen=True)
class RollByThreads:
    """Sketches for each number of threads along and across rows, and each size of their tiles.
    Where a target has matrix instructions for these products, several launches with them are in the
    space as well.
    """

    units: tuple[Intrinsic, ...] = ()  # the target's matrix instructions
    across: tuple[int, ...] = (8, 16, 32)  # threads of a row
    threads: tuple[int, ...] = (128, 256, 64)
    rows: tuple[int, ...] = (8, 4)  # of a thread
    keys: tuple[int, ...] = (8, 4, 2)  # of a thread
    stages: tuple[int, ...] = (1, 2)

    def __call__(self, state: State) -> Derived | None:
        if not analysis.is_output(state.func, state.block) or state.levels_of(state.block.name):
            return None
        derived = tuple(self.sketches(state))
        return Derived(derived, final=not self._has_units(state)) if derived else None

    def is_best(self, state: State) -> bool:
        """Whether it has a sketch, and no other rule is asked."""
        return not self._has_units(state) and next(self.sketches(state), None) is not None

    def _has_units(self, state: State) -> bool:
        products = [b for _, b in walk(state.func.body) if is_product(b)]
        return any(m for b in products for u in self.units for m in matches(state.func, b, u))

    def sketches(self, state: State) -> Iterator[State]:
        if is_product(state.block):
            state = state.then(CacheWrite(state.block.name))
        found = scores_and_values(state, lambda _: True, lambda _: False)
        if found is None:
            return
        state, chain = found
        (scores,), last = chain.products, chain.last
        read = {state.func.all_buffers[x.buffer].dtype for b in (scores, last) for x in b.loads}
        if len(scores.reducing) != 1 or any(not t.is_float or t.bits > 32 for t in read):
            return
        rows = _extents(last)[chain.rows[last.name]]
        if rows < _FEW_ROWS:
            return
        for tile in self._tiles(state, chain, rows):
            try:
                yield self._rolled(state, chain, tile)
            except ScheduleError:
                continue

    def _tiles(self, state: State, chain: Chain, rows: int) -> Iterator[_Tile]:
        (scores,), last = chain.products, chain.last
        column = _column(chain, last)
        wide, keys = _extents(last)[column], _extents(last)[last.reducing[0].name]
        depth = _extents(scores)[scores.reducing[0].name]
        nbytes = max(state.func.all_buffers[x.buffer].dtype.nbytes for x in scores.loads)
        target = state.task.target
        for x, threads in product(self.across, self.threads):
            width = next(w for w in (4, 2, 1) if w == 1 or (-wide % (x * w)) * 8 <= wide)
            columns = -(-wide // (x * width)) * width
            for own_rows, own_keys in product(self.rows, self.keys):
                tile = _Tile(x, threads // x, own_rows, own_keys, columns, width, self.stages)
                sizes = ((tile.y * own_rows, rows), (x * own_keys, keys))
                if threads > target.max_threads or not all(_is_good(*s) for s in sizes):
                    continue
                if tile.registers > _MOST_REGISTERS:
                    continue
                fetched = tile.registers + tile.fetched(depth, nbytes)
                stages = tuple(
                    n
                    for n in self.stages
                    if tile.shared_nbytes(depth, nbytes, n) <= _ROOM * target.shared_nbytes
                    and (n == 1 or fetched <= _MOST_FETCHED)
                )
                if stages:
                    yield replace(tile, stages=stages)

    def _rolled(self, state: State, chain: Chain, tile: _Tile) -> State:
        (scores,), last, result = chain.products, chain.last, state.block.name
        row, column, summed = chain.rows[last.name], _column(chain, last), last.reducing[0].name
        own_row, own_key = chain.rows[scores.name], _column(chain, scores)
        depth = scores.reducing[0].name
        rows, keys = tile.y * tile.rows, tile.x * tile.keys
        sizes = {own_row: rows, own_key: keys, depth: _STEP}
        state, made = _padded(state, scores.name, sizes)
        weights = weights_of(state.func, chain)
        sizes = {row: rows, column: tile.x * tile.width, summed: keys}
        state, total = _padded(state, last.name, sizes)
        if total != last.name and f"{weights}.pad" in state.func.all_buffers:
            state = state.then(Inline(weights))
            weights = f"{weights}.pad"
        ones = [
            i.name for i in last.spatial if i.name not in (*chain.outer[last.name], row, column)
        ]
        outer = [f"{total}.{a}" for a in (*ones, *chain.outer[last.name])]
        by_row = Split(f"{total}.{row}", (None, tile.y, tile.rows), exact=True)
        by_key = Split(f"{total}.{summed}", (None, keys // _STEP, _STEP), exact=True)
        by_column = Split(f"{total}.{column}", (None, tile.x, tile.width), exact=True)
        block, group, inner = by_row.parts
        at, step, term = by_key.parts
        chunk, across, vector = by_column.parts
        blocks = (*outer, block)
        order = (*blocks, group, at, across, step, term, inner, chunk, vector)
        state = state.then(by_row, by_key, by_column, Reorder(order))
        (write,) = find_block(state.func, total)[1].writes
        state = state.then(ReverseComputeAt(result, group), SetScope(write.buffer, "fragment"))
        state = state.then(*(Bind(x, "blockIdx.x") for x in blocks), Bind(group, _Y))
        state = state.then(Roll(total, at))
        if is_view(find_block(state.func, weights)[1]):
            state = state.then(Inline(weights))
        state = state.then(ComputeAt(made, at))
        threads = _Threads(tile, total, made, at, group)
        state = threads.spread(threads.operands(state))
        state = state.then(Bind(across, _X), *map(Unroll, (term, chunk, vector)))
        state = state.then(Annotate(term, VectorTerms()))
        choice = f"#{total}.{PipelineStages.key}"
        state = state.then(SampleChoice(choice, tile.stages), Annotate(at, PipelineStages(choice)))
        return state.then(done={b.name for _, b in threads.blocks(state.func)})


@dataclass(frozen=True)
class _Threads:
    """How the elements of the blocks in a tile are spread over threads: each has the same ones of
    every block, those of a row neighbours in turn.
    """

    tile: _Tile
    total: str
    product: str
    at: str  # the loop over tiles of keys
    group: str  # the loop over groups of rows

    def blocks(self, func: Function) -> list[tuple[Path, Block]]:
        """What a group of rows computes."""
        return [(p, b) for p, b in walk(func.body) if self.group in {f.name for f in p}]

    def operands(self, state: State) -> State:
        """Copies in shared memory: of queries for a block, of keys and values for a tile."""
        made = {w.buffer for _, b in self.blocks(state.func) for w in b.writes}
        for name in (self.product, self.total):
            b = find_block(state.func, name)[1]
            for x in {x.buffer: x for x in b.loads if x.buffer not in made}.values():
                rows = any(self.group in p.substitute(b.binding).names for p in x.index)
                state, copy = read_shared(state, name, x.buffer, self.group if rows else self.at)
                state = state.then(done=[copy])
                loops = [f.name for f in find_block(state.func, copy)[0] if f.owner == copy]
                nbytes = state.func.all_buffers[copy].dtype.nbytes
                state = state.then(Annotate(loops[0], FetchWidth(_VECTOR // nbytes)))
                if name == self.product:
                    each = self.tile.rows if rows else 1
                    state = self._apart(state, copy, each)
                    if rows:
                        state = state.then(Split(loops[-2], (None, each), exact=True))
        return state

    def _apart(self, state: State, buffer: str, each: int) -> State:
        """The state in which rows of a buffer in shared memory begin at different banks, and those
        that threads with `each` neighbouring rows read at once follow one another.
        """
        rank = len(state.func.all_buffers[buffer].shape)
        dims, d = [f"d{k}" for k in range(rank)], rank - 2
        nbytes = state.func.all_buffers[buffer].dtype.nbytes
        rows = (_BANKS // nbytes, _VECTOR // nbytes)
        if each == 1:
            return state.then(StorageAlign(buffer, d, *rows))
        order = (*dims[:d], f"d{d} % {each}", f"d{d} // {each}", dims[-1])
        return state.then(TransformLayout(buffer, order), StorageAlign(buffer, rank - 1, *rows))

    def spread(self, state: State) -> State:
        """Binds the loops of all blocks but the last product, whose factor goes through shared
        memory. All else that has rows stays in registers.
        """
        for _, b in self.blocks(state.func):
            if b.name != self.total and not self._is_copy(state, b):
                state = self._bound(state, b.name)
        read = {x.buffer for x in find_block(state.func, self.total)[1].loads}
        given = {x.name for x in state.func.params}
        for _, b in self.blocks(state.func):
            (made,) = {w.buffer for w in b.writes}
            if made in given or self._is_copy(state, b) or b.name == self.total:
                continue
            if made in read:
                state = self._apart(state.then(SetScope(made, "shared")), made, self.tile.rows)
            else:
                state = state.then(SetScope(made, "fragment"))
        return state

    def _is_copy(self, state: State, b: Block) -> bool:
        return b.name in state.done

    def _bound(self, state: State, name: str) -> State:
        """The loops over keys and columns of a block across threads."""
        path, b = find_block(state.func, name)
        own = [f for f in path if f.owner == name and f.trips > 1]
        summed = [f for f in own if f.name in b.reducing_loops]
        rows = [f for f in own if self._is_row(b, f)]
        steps: list[Step] = []
        inner: list[str] = []
        if name == self.product:
            (depth,) = summed
            cut = Split(depth.name, (None, _STEP), exact=True)
            inner, summed = [*cut.parts], []
            steps = [cut, Unroll(inner[1]), Annotate(inner[1], VectorTerms())]
        wide = summed or [f for f in own if f not in rows and f.name not in b.reducing_loops]
        if not wide:
            return state.then(*steps)
        (along,) = wide
        ones = [f.name for f in path if f.owner == name and f.trips == 1]
        width = 1 if self._is_key(b, along) else self.tile.width
        whole = along.trips % (self.tile.x * width) == 0  # results are not padded
        by_lane = Split(along.name, (None, self.tile.x, width), exact=whole)
        chunk, lane, vector = by_lane.parts
        bind = Annotate(lane, ReduceAcross(_X)) if summed else Bind(lane, _X)
        order = (*ones, lane, *inner, *(f.name for f in rows), chunk, vector)
        return state.then(*steps, by_lane, Reorder(order), bind)

    def _is_row(self, b: Block, f: For) -> bool:
        return any(f.name in i.bind.names and self.group in i.bind.names for i in b.iters)

    def _is_key(self, b: Block, f: For) -> bool:
        return f.name in b.reducing_loops or any(
            f.name in i.bind.names and self.at in i.bind.names for i in b.iters
        )


def _is_good(tile: int, extent: int) -> bool:
    """Whether a tile has rows or keys enough, and not many behind the end of the axis."""
    low, high = _SIZES
    return low <= tile <= high and (tile < 2 * extent or tile == low)


def _extents(b: Block) -> dict[str, int]:
    return {i.name: i.extent.number for i in b.iters}


def _column(chain: Chain, b: Block) -> str:
    """The iterator of a product that is neither over rows nor over what rows belong to."""
    names = [i.name for i in b.spatial if i.name not in chain.shared(b)]
    if len(names) != 1:
        raise ScheduleError(f"{b.name} has no single axis of columns")
    return names[0]


def _padded(state: State, name: str, sizes: dict[str, int]) -> tuple[State, str]:
    """The state with iterators that the sizes divide, and the name of the block."""
    extents = _extents(find_block(state.func, name)[1])
    padding = tuple((n, size) for n, size in sizes.items() if extents[n] % size)
    if not padding:
        return state, name
    return state.then(Pad(name, padding), Inline(name)), f"{name}.pad"
