"""The rule that tiles a block around a matrix instruction of a GPU.

A group of threads computes one or more tiles of the instruction's size, which it holds in
registers. The groups of a block share its operands in shared memory, which the copy engine fills
several steps ahead. How many groups and tiles, how many steps ahead, the order of blocks and
whether a block computes several tiles are decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import ONE
from tilesmith.ir.function import Function
from tilesmith.ir.lookup import find_block
from tilesmith.ir.nodes import Intrinsic
from tilesmith.ir.tensor_cores import DEPTH, RUN
from tilesmith.schedule.iterators import SplitIterator, open_domain
from tilesmith.schedule.kinds import Annotate, Bind, Vectorize
from tilesmith.schedule.layout import TransformLayout
from tilesmith.schedule.location import ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.schedule.unit import Tensorize
from tilesmith.space.fragments import (
    only_moved,
    read_shared,
    result_loops,
    share_of_work,
    with_plain_operands,
    with_room,
)
from tilesmith.space.instruction_match import Match, matches
from tilesmith.space.state import Derived, State

_MANY = 1 << 20  # blocks: no bound
# Of what is computed, padding counted: at least, and compared to another instruction.
_LEAST_WORK, _LEAST_OF_BEST = 0.4, 0.8
_MOST_RANK = 5  # dimensions of a tensor that the copy engine knows


@dataclass(frozen=True)
class TileByTensorCores:
    """Sketches in which one of the `intrinsics` computes a block: one for each that fits."""

    intrinsics: tuple[Intrinsic, ...]
    stages: tuple[int, ...] = (3, 4, 5, 6, 8)

    def __call__(self, state: State) -> Derived | None:
        b = state.block
        if open_domain(b) or b.tile or len(b.reducing) != 1 or state.levels_of(b.name):
            return None
        if state.func.all_buffers[b.writes[0].buffer].scope != "global":
            return None
        try:
            state = with_plain_operands(state)
        except ScheduleError:
            return None
        b = state.block
        derived: list[State] = []
        found = [
            [m for m in matches(state.func, b, unit) if _fits(state.func, state, m)]
            for unit in self.intrinsics
        ]
        shares = [share_of_work(state, _sizes(m)) for every in found for m in every]
        for every in found:
            for match in every:
                if share_of_work(state, _sizes(match)) < _LEAST_OF_BEST * max(shares):
                    continue
                try:
                    derived += self._derive(state, match)
                except ScheduleError:
                    continue
                break
        return Derived(tuple(derived)) if derived else None

    def _derive(self, state: State, match: Match) -> Iterator[State]:
        (m, rows), (n, columns), (k, _) = match.axes
        state, name, last = with_room(state, _sizes(match))
        state = state.then(
            SplitIterator(name, m, rows), SplitIterator(name, n, columns),
            SplitIterator(name, k, DEPTH),
        )  # fmt: skip
        outer, inner = ([f"{name}.{x}_{part}" for x in (m, n, k)] for part in ("outer", "inner"))
        others = [i.bind.name or "" for i in find_block(state.func, name)[1].spatial]
        others = [x for x in others if x not in (*outer, *inner)]
        sample = SampleTile(outer[0], 4)
        tile = Split(outer[0], sample.columns, exact=True)
        steps = Split(outer[2], (None, RUN // DEPTH), exact=True)
        order = (
            *others, tile.parts[0], outer[1], tile.parts[1], tile.parts[2], tile.parts[3],
            *steps.parts, *inner,
        )  # fmt: skip
        state = state.then(sample, tile, steps, Reorder(order), done=[name, last])
        # All but the loops over registers and groups of threads count blocks. Neighbouring blocks
        # share operands in L2: they run along both axes, by the second part of the rows.
        state = state.then(ReverseComputeAt(last, tile.parts[3]))
        state = state.then(*(Bind(x, "blockIdx.x") for x in order[: len(others) + 3]))
        state = state.then(Bind(tile.parts[2], "vthread"), Bind(tile.parts[3], "threadIdx.x"))
        state = state.then(*_own_elements(state.func, name, last, match))
        for load in find_block(state.func, name)[1].loads:
            state, copy = read_shared(state, name, load.buffer, steps.parts[0])
            state = only_moved(state, copy)
            by_depth = f"{k}_outer" in load.index[-1].names
            state = state.then(*_tiled(by_depth, len(load.index), copy))
        state = state.then(
            *self._decisions(name, steps.parts[0], state.task.target.num_multiprocessors),
            Tensorize(inner[0], match.intrinsic),
        )
        yield state

    def _decisions(self, name: str, loop: str, multiprocessors: int) -> list[Step]:
        choices = {
            "pipeline": self.stages,
            "in_flight": (1, 2),
            "resident": (max(1, multiprocessors), _MANY),
        }
        out: list[Step] = []
        for key, values in choices.items():
            column = f"#{name}.{key}"
            out += [SampleChoice(column, values), Annotate(loop, key, column)]
        return out


def _sizes(match: Match) -> dict[str, int]:
    """The iterators' extents are padded to multiples of these."""
    return {**match.sizes, match.axes[2][0]: RUN}


def _fits(func: Function, state: State, match: Match) -> bool:
    """Whether the copy engine can read the operands, which are matrices whose rows are multiples of
    16 bytes, in any order of dimensions; and padding leaves enough work.
    """
    b = state.block
    sizes = _sizes(match)
    if share_of_work(state, sizes) < _LEAST_WORK:
        return False
    if b.writes[0].index[-1].name != match.axes[1][0]:  # a quad of threads stores 16 bytes
        return False
    for operand, load in match.operands:
        buffer = func.all_buffers[load.buffer]
        if operand == match.output:
            continue
        if buffer.layout is not None or len(load.index) > _MOST_RANK or load.buffer == b.name:
            return False
        axes = match.order_of(operand)
        places = [[d for d, p in enumerate(load.index) if n in p.names] for n in axes]
        last = [n for n in axes if n in load.index[-1].names]
        if len({d for at in places for d in at}) < len(axes) or len(last) != 1:
            return False
        if any(load.index[d].coefficient(n) != ONE for n, at in zip(axes, places, strict=True)
               for d in at):  # fmt: skip
            return False
        if buffer.shape[-1].number * buffer.dtype.nbytes % 16:
            return False
        if sizes[last[0]] % RUN:
            return False
        if [x.buffer for x in b.loads].count(load.buffer) > 1:
            return False
    return True


def _own_elements(func: Function, name: str, block: str, match: Match) -> list[Step]:
    """Gives each thread the elements that it holds, as the instruction's fragment says."""
    (m, _), (n, columns), _ = match.axes
    outside, rows, cols = result_loops(func, name, block, (m, n))
    by_row = Split(rows, (4, 2, 8), exact=True)
    by_column = Split(cols, (columns // 8, 4, 2), exact=True)
    warp, half, row = by_row.parts
    chunk, quad, pair = by_column.parts
    lanes = (warp, row, quad)
    return [
        by_row,
        by_column,
        Reorder((*outside, *lanes, half, chunk, pair)),
        *(Bind(x, "threadIdx.x") for x in lanes),
        Vectorize(pair),
    ]


def _tiled(by_depth: bool, rank: int, copy: str) -> list[Step]:
    """The layout of a copy: runs of 64 elements of the fastest dimension."""
    if by_depth:
        return []
    last = f"d{rank - 1}"
    rest = (f"d{d}" for d in range(rank - 1))
    return [TransformLayout(copy, (f"{last} // {RUN}", *rest, f"{last} % {RUN}"))]
