"""Rules that roll reductions of rows into the loop of a product behind them (schedule/roll.py), as
the softmax of attention: scores, what is made of them and sums stay in registers, and nothing of
the size of the scores is ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.base.target import Target
from tilesmith.expr.ints import ZERO
from tilesmith.ir.function import Function, find_block
from tilesmith.ir.intrinsics import (
    DEPTH,
    EIGHT,
    HALVES,
    PAIR,
    QUAD,
    ROWS,
    RUN,
    WARP,
    group_intrinsics,
    of_halves,
)
from tilesmith.ir.nodes import Block, Intrinsic
from tilesmith.ir.notes import Count, PipelineStages, ResidentBlocks, TakeTurns
from tilesmith.schedule.cache import SetScope
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.kinds import Annotate, Bind, Vectorize
from tilesmith.schedule.layout import Pad, TransformLayout
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.roll import Roll
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.schedule.unit import Tensorize
from tilesmith.space import analysis
from tilesmith.space.chains import Chain
from tilesmith.space.derive import Derived, State
from tilesmith.space.instruction_match import Match, matches
from tilesmith.space.rolled_chains import is_masked, scores_and_values, weights_of
from tilesmith.space.tensor_tiles import odd_operands, only_moved, read_shared
from tilesmith.task.task import Task

_GROUPS = (2, 1, 3)  # of threads in a block, each with 64 rows
# Of a thread, for fragments, by groups in a block: without a mask and with one. With more, NVRTC
# spills, and matrix instructions wait for one another.
_REGISTERS = {1: (128, 122), 2: (192, 186), 3: (128, 94)}
_MOST_KEYS = 176  # of a tile: more leave no registers
_SLACKS = (5.5, 0.0)  # growth of the largest score of a row, up to which nothing is repaired
_FEW_ROWS = 16  # of a product that fills a tile of 64 badly


@dataclass(frozen=True)
class _Products:
    """The two products of a chain, and where matrix instructions fit."""

    scores: Match
    values: Match

    @property
    def columns(self) -> int:
        """Keys of a tile."""
        return self.scores.axes[1][1]

    def registers(self) -> int:
        """Of a thread: scores, factors made of them, results."""
        return self.columns // 2 + self.columns // 4 + self.values.axes[1][1] // 2


@dataclass(frozen=True)
class RollByTensorCores:
    """Sketches in which matrix instructions of groups of threads compute both products of a chain
    with reductions of rows between them: one for each number of groups and size of tiles.
    """

    intrinsics: tuple[Intrinsic, ...]
    stages: tuple[int, ...] = (2, 3, 4)

    def __call__(self, state: State) -> Derived | None:
        derived = tuple(self.sketches(state))
        return Derived(derived, final=True) if derived else None

    def sketches(self, state: State) -> Iterator[State]:
        """One after the other; whoever wants to know whether there is one takes the first."""
        if not self.intrinsics or not analysis.is_output(state.func, state.block):
            return
        found = scores_and_values(state, lambda _: True, lambda _: False)
        if found is None or odd_operands(state):
            return
        state, chain = found
        masked = is_masked(state.func, chain)
        rows = {i.name: i.extent.number for i in chain.last.iters}[chain.rows[chain.last.name]]
        if rows < _FEW_ROWS:
            return
        for products in self._products(state.func, chain):
            for groups in _GROUPS:
                if products.registers() > _REGISTERS[groups][masked]:
                    continue
                if rows <= ROWS * (groups - 1):
                    continue  # a group without a row
                for slack in _SLACKS:
                    try:
                        yield self._rolled(state, chain, products, groups, slack)
                    except ScheduleError:
                        continue

    def _products(self, func: Function, chain: Chain) -> Iterator[_Products]:
        (scores,) = chain.products
        last = chain.last
        values = self._smallest(func, last, last.reducing[0].name, chain.rows[last.name])
        if values is None:
            return
        for unit in self.intrinsics:
            for m in matches(func, scores, unit):
                if m.axes[0][0] == chain.rows[scores.name] and RUN <= m.axes[1][1] <= _MOST_KEYS:
                    yield _Products(m, values)
                    break

    def _smallest(self, func: Function, b: Block, depth: str, rows: str) -> Match | None:
        """The instruction for a product whose columns it covers at once."""
        found = [
            m
            for unit in self.intrinsics
            for m in matches(func, b, unit)
            if m.axes[0][0] == rows and m.axes[2][0] == depth
        ]
        extents = {i.name: i.extent.number for i in b.iters}
        wide = [
            m for m in found if m.axes[1][1] >= extents[m.axes[1][0]] and m.axes[1][1] % RUN == 0
        ]
        return min(wide, key=lambda m: m.axes[1][1], default=None)

    def _rolled(
        self, state: State, chain: Chain, products: _Products, groups: int, slack: float
    ) -> State:
        (scores,), last, result = chain.products, chain.last, state.block
        (row, _), (key, keys), (depth, _) = products.scores.axes
        rows = ROWS * groups
        state, product = _padded(state, scores.name, {row: rows, key: keys, depth: RUN})
        weights = weights_of(state.func, chain)
        row, (column, columns) = chain.rows[last.name], products.values.axes[1]
        summed = last.reducing[0].name
        state, total = _padded(state, last.name, {row: rows, column: columns, summed: keys})
        if total != last.name and f"{weights}.pad" in state.func.all_buffers:
            state = state.then(Inline(weights))
            weights = f"{weights}.pad"
        ones = [
            i.name for i in last.spatial if i.name not in (*chain.outer[last.name], row, column)
        ]
        outer = [f"{total}.{a}" for a in (*ones, *chain.outer[last.name])]
        by_row = Split(f"{total}.{row}", (None, groups, ROWS), exact=True)
        by_key = Split(f"{total}.{summed}", (None, keys), exact=True)
        block, group, inner = by_row.parts
        tile, within = by_key.parts
        blocks: tuple[str, ...] = (block,)
        if outer:  # rows of several heads run side by side, as far as their keys fit the cache
            sample = SampleTile(outer[-1], 2)
            heads = Split(outer[-1], sample.columns, exact=True)
            state = state.then(sample, heads)
            blocks = (*outer[:-1], heads.parts[0], block, heads.parts[1])
        order = (*blocks, group, tile, inner, f"{total}.{column}", within)
        state = state.then(by_row, by_key, Reorder(order))
        state = state.then(*(Bind(x, "blockIdx.x") for x in blocks))
        state = state.then(Bind(group, "threadIdx.x"), ReverseComputeAt(result.name, group))
        before = {b.name for b in state.func.buffers}
        state = state.then(Roll(total, tile, slack), ComputeAt(product, tile))
        links = {b.name for b in chain.blocks} - {scores.name}
        held = {b.name for b in state.func.buffers} - before
        held |= before & {*links, product, total, weights}
        state = state.then(*(SetScope(x, "fragment") for x in sorted(held)))
        state = _operands(state, product, chain.rows[scores.name], group, tile)
        state = _operands(state, total, row, group, tile)
        state = _instruction(state, product, products.scores)
        loops = (inner, f"{total}.{column}", within)
        state = _instruction(state, total, products.values, loops)
        state = _own_elements(state, total, result.name, row, column)
        parts = (f"{x}{part}" for x in held for part in ("", ".init", ".repair"))
        decisions = self._decisions(state, total, tile, groups)
        return state.then(*decisions, done=(result.name, *parts))

    def _decisions(self, state: State, name: str, loop: str, groups: int) -> list[Step]:
        choices: dict[type[Count], tuple[int, ...]] = {PipelineStages: self.stages}
        if groups > 1:  # one block takes a multiprocessor, and its groups share it
            most = max(1, state.task.target.num_multiprocessors)
            choices |= {ResidentBlocks: (most, ResidentBlocks.many), TakeTurns: (0, 1)}
        out: list[Step] = []
        for kind, values in choices.items():
            column = f"#{name}.{kind.key}"
            out += [SampleChoice(column, values), Annotate(loop, kind(column))]
        return out


def is_rolled(func: Function, target: Target) -> bool:
    """Whether the target computes the function by such a sketch."""
    state = State(Task(func, target), func)
    rule = RollByTensorCores(of_halves(group_intrinsics(target, between=True)))
    return next(rule.sketches(state), None) is not None


def _padded(state: State, name: str, sizes: dict[str, int]) -> tuple[State, str]:
    """The state with iterators that the sizes divide, and the name of the block."""
    b = find_block(state.func, name)[1]
    extents = {i.name: i.extent.number for i in b.iters}
    padding = tuple((n, size) for n, size in sizes.items() if extents[n] % size)
    if not padding:
        return state, name
    return state.then(Pad(name, padding), Inline(name)), f"{name}.pad"


def _operands(state: State, name: str, row: str, group: str, tile: str) -> State:
    """Copies of operands in shared memory: with rows for each block, others for each tile."""
    for load in find_block(state.func, name)[1].loads:
        if state.func.all_buffers[load.buffer].scope == "fragment":
            continue
        with_rows = any(row in p.names for p in load.index)
        state, copy = read_shared(state, name, load.buffer, group if with_rows else tile)
        state = only_moved(state, copy)
        last = len(load.index) - 1
        layout = (f"d{last} // {RUN}", *(f"d{d}" for d in range(last)), f"d{last} % {RUN}")
        state = state.then(TransformLayout(copy, layout), done=[copy])
    return state


def _instruction(
    state: State, name: str, match: Match, loops: tuple[str, ...] | None = None
) -> State:
    """The state in which the instruction computes a block, one step of its sum after the other."""
    if loops is None:  # the block's own
        path, b = find_block(state.func, name)
        own = [f.name for f in path if f.owner == name]
        loops = tuple(next(x for x in own if x in b.binding[a].names) for a, _ in match.axes)
    m, n, k = loops
    steps = Split(k, (None, DEPTH), exact=True)
    return state.then(
        steps, Reorder((steps.parts[0], m, n, steps.parts[1])), Tensorize(m, match.intrinsic)
    )


def _own_elements(state: State, total: str, result: str, row: str, column: str) -> State:
    """Each thread stores the elements that it holds."""
    write = find_block(state.func, total)[1].writes[0]
    path, b = find_block(state.func, result)
    load = next(x for x in b.loads if x.buffer == write.buffer)
    own = [f.name for f in path if f.owner == result]

    def loop(axis: str) -> str:
        d = [p.name for p in write.index].index(axis)
        bind = b.binding.get(load.index[d].name or "", ZERO)
        found = [x for x in own if x in bind.names]
        if len(found) != 1:
            raise ScheduleError(f"{result} has no loop of its own along {axis}")
        return found[0]

    rows, columns = loop(row), loop(column)
    others = tuple(x for x in own if x not in (rows, columns))
    by_row = Split(rows, (ROWS // (HALVES * EIGHT), HALVES, EIGHT), exact=True)
    by_column = Split(columns, (None, QUAD, PAIR), exact=True)
    warp, half, line = by_row.parts
    chunk, quad, pair = by_column.parts
    lanes = (warp, line, quad)
    assert WARP == EIGHT * QUAD
    return state.then(
        by_row,
        by_column,
        Reorder((*others, *lanes, half, chunk, pair)),
        *(Bind(x, "threadIdx.x") for x in lanes),
        Vectorize(pair),
    )
