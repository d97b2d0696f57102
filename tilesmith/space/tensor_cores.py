"""The rule that tiles a block around a matrix instruction of several warps (wgmma).

A group of threads computes one or more tiles of the instruction's size, which it holds in
registers. The groups of a block share its operands in shared memory, which the copy engine (TMA)
fills several steps ahead. How many groups and tiles, how many steps ahead, the order of blocks and
whether a block computes several tiles are decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import ONE
from tilesmith.ir.function import find_block
from tilesmith.ir.intrinsics import factor_of, run_of
from tilesmith.ir.nodes import Block, Intrinsic
from tilesmith.ir.notes import Count, PipelineStages, ResidentBlocks, StagesInFlight
from tilesmith.schedule.kinds import Annotate, Bind
from tilesmith.schedule.layout import TransformLayout
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.schedule.unit import Tensorize
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.instruction_match import Match, matches
from tilesmith.space.tensor_tiles import (
    has_odd_rows,
    is_own_constant,
    odd_operands,
    only_moved,
    own_elements,
    padded_ahead,
    read_shared,
    share_of_work,
    split_axes,
    stored,
    turned_ahead,
    usable_units,
    with_room,
    with_wanted_operands,
)

# Products, from which on a launch that pads an operand hardly counts: the copy engine can
# do nothing else.
_AHEAD = 1 << 24
# Of what is computed, padding counted: at least, and compared to another instruction.
_LEAST_WORK, _LEAST_OF_BEST = 0.4, 0.8
_NARROW = 32  # columns: instructions with fewer are for products that have no more
_FEW_ROWS = 32  # a padded row of so many is little
# Sums up to which storing the result takes most of the time, so that it may go through shared
# memory: threads then store 16 bytes instead of pairs.
_SHORT_SUM = 512
_MOST_RANK = 5  # dimensions of a tensor that the copy engine knows


@dataclass(frozen=True)
class TileByTensorCores:
    """Sketches in which one of the `intrinsics` computes a block: one for each that fits."""

    intrinsics: tuple[Intrinsic, ...]
    stages: tuple[int, ...] = (3, 4, 5, 6, 8)
    ahead: int = _AHEAD

    def __call__(self, state: State) -> Derived | None:
        plain = with_wanted_operands(state) if len(state.block.reducing) == 1 else None
        if plain is None:
            return None
        state, b = plain, plain.block
        derived: list[State] = []
        found = [
            [m for m in matches(state.func, b, unit) if _fits(state, m)]
            for unit in usable_units(state, self.intrinsics)
        ]
        small = prod(analysis.points(b)) < self.ahead
        if odd_operands(state) and small:
            return None
        shares = [share_of_work(state, _sizes(m)) for every in found for m in every]
        for every in found:
            for match in every:
                if small and any(
                    not is_own_constant(state.func, x) for x in _to_turn(state, match)
                ):
                    continue
                if share_of_work(state, _sizes(match)) < _LEAST_OF_BEST * max(shares):
                    continue
                try:
                    derived += self._derive(state, match)
                except ScheduleError:
                    continue
                break
        return Derived(tuple(derived)) if derived else None

    def _derive(self, state: State, match: Match) -> Iterator[State]:
        (m, _), (n, columns), (k, depth) = match.axes
        run = _run(match)
        unaligned, turned = odd_operands(state), _to_turn(state, match)
        short = next(i.extent.number for i in state.block.reducing) <= _SHORT_SUM
        state, name, last = with_room(state, _room(state.block, match))
        state, outer, inner = split_axes(state, name, match.axes)
        others = [i.bind.name or "" for i in find_block(state.func, name)[1].spatial]
        others = [x for x in others if x not in (*outer, *inner)]
        sample = SampleTile(outer[0], 4)
        tile = Split(outer[0], sample.columns, exact=True)
        steps = Split(outer[2], (None, run // depth), exact=True)
        order = (
            *others, tile.parts[0], outer[1], tile.parts[1], tile.parts[2], tile.parts[3],
            *steps.parts, *inner,
        )  # fmt: skip
        state = state.then(sample, tile, steps, Reorder(order), done=[name, last])
        # All but the loops over registers and groups of threads count blocks. Neighbouring blocks
        # share operands in L2: they run along both axes, by the second part of the rows.
        tiled = state
        for narrow in (8, 16) if short and _has_pairs(state, last) else (8,):
            state, held = stored(tiled, last, tile.parts[1], tile.parts[3], narrow)
            state = state.then(*(Bind(x, "blockIdx.x") for x in order[: len(others) + 3]))
            state = state.then(Bind(tile.parts[2], "vthread"), Bind(tile.parts[3], "threadIdx.x"))
            state = state.then(*own_elements(state.func, name, held, (m, n), (4,), columns // 8))
            state = _with_operands(state, name, steps.parts[0], k, run, unaligned, turned)
            yield state.then(
                *self._decisions(name, steps.parts[0], state.task.target.num_multiprocessors),
                Tensorize(inner[0], match.intrinsic),
            )

    def _decisions(self, name: str, loop: str, multiprocessors: int) -> list[Step]:
        choices: dict[type[Count], tuple[int, ...]] = {
            PipelineStages: self.stages,
            StagesInFlight: (1, 2),
            ResidentBlocks: (max(1, multiprocessors), ResidentBlocks.many),
        }
        out: list[Step] = []
        for kind, values in choices.items():
            column = f"#{name}.{kind.key}"
            out += [SampleChoice(column, values), Annotate(loop, kind(column))]
        return out


def _has_pairs(state: State, last: str) -> bool:
    """Whether threads may store pairs of 16 bits."""
    result = state.func.all_buffers[find_block(state.func, last)[1].writes[0].buffer]
    return result.dtype.bits == 16 and not has_odd_rows(state.func, result.name)


def _with_operands(
    state: State, name: str, at: str, k: str, run: int, unaligned: set[str], turned: set[str]
) -> State:
    """Copies operands to shared memory in each step `at`."""
    for load in find_block(state.func, name)[1].loads:
        buffer, rank = load.buffer, len(load.index)
        d = next(d for d, p in enumerate(load.index) if f"{k}_outer" in p.names)
        order = tuple(f"d{e}" for e in (*(e for e in range(rank) if e != d), d))
        source = buffer.removesuffix(".pad")
        if turn := source in turned or buffer in turned:
            state, buffer = turned_ahead(state, name, buffer, order)
        elif source in unaligned or buffer in unaligned:
            state = padded_ahead(state, buffer)
        state, copy = read_shared(state, name, buffer, at)
        state = only_moved(state, copy)
        if turn:
            state = state.then(TransformLayout(copy, order))
        elif d < rank - 1:
            state = state.then(_in_runs(copy, rank, run))
    return state


def _run(match: Match) -> int:
    """Elements of a row of a tile."""
    return run_of(factor_of(match.intrinsic))


def _sizes(match: Match) -> dict[str, int]:
    """The iterators' extents are padded to multiples of these."""
    return {**match.sizes, match.axes[2][0]: _run(match)}


def _to_turn(state: State, match: Match) -> set[str]:
    """The operands whose sums do not run along what is contiguous: of elements that do not have 16
    bits, the instruction reads no others.
    """
    if factor_of(match.intrinsic).bits == 16:
        return set()
    k = match.axes[2][0]
    return {x.buffer for x in state.block.loads if k not in x.index[-1].names}


def _room(b: Block, match: Match) -> dict[str, int]:
    """The same, with rows for the tiles of several groups of threads where that adds little. Tiles
    of an image (space/unfolding.py) are whole already, and there are none behind the last.
    """
    sizes, (rows, size) = _sizes(match), match.axes[0]
    if b.name.removesuffix(".rf").endswith(".rows"):
        return sizes
    extent = next(i.extent.number for i in b.iters if i.name == rows)
    several = (n * size for n in (4, 2) if (-extent % (n * size)) * _FEW_ROWS <= extent)
    return {**sizes, rows: next(several, size)}


def _fits(state: State, match: Match) -> bool:
    """Whether the copy engine can read the operands, which are matrices in any order of dimensions;
    and padding leaves enough work. Those whose rows it cannot address are padded ahead.
    """
    b = state.block
    sizes, turned = _sizes(match), _to_turn(state, match)
    column, columns = match.axes[1]
    extent = next(i.extent.number for i in b.iters if i.name == column)
    if share_of_work(state, sizes) < _LEAST_WORK or (columns < _NARROW and extent > columns):
        return False
    if b.writes[0].index[-1].name != match.axes[1][0]:  # a quad of threads stores 16 bytes
        return False
    for operand, load in match.operands:
        buffer = state.func.all_buffers[load.buffer]
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
        if sizes[last[0]] % _run(match) and load.buffer not in turned:
            return False
        if [x.buffer for x in b.loads].count(load.buffer) > 1:
            return False
    return True


def _in_runs(copy: str, rank: int, run: int) -> TransformLayout:
    """The layout of a copy: runs of 128 bytes of the fastest dimension."""
    last = f"d{rank - 1}"
    rest = (f"d{d}" for d in range(rank - 1))
    return TransformLayout(copy, (f"{last} // {run}", *rest, f"{last} % {run}"))
