"""The rule that tiles a block around a matrix instruction of one warp (mma.sync).

Warps of a block compute tiles side by side, each of several instructions, from operands in shared
memory that all threads copy. Iterators that the instruction does not divide are padded with zeros
on the way to shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import Int
from tilesmith.ir.function import Function, find_block, writers
from tilesmith.ir.nodes import Block, Intrinsic
from tilesmith.ir.notes import FetchWidth, PipelineStages
from tilesmith.schedule.cache import StorageAlign
from tilesmith.schedule.groups import Ungroup
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.iterators import SplitIterator
from tilesmith.schedule.kinds import Annotate, Bind, Unroll
from tilesmith.schedule.layout import TransformLayout
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.schedule.unit import Tensorize
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.elements_gpu import TileElementsForGpu
from tilesmith.space.instruction_match import Match, matches
from tilesmith.space.tensor_tiles import (
    aligned_rows,
    copied_load,
    is_own_constant,
    loops_of,
    odd_operands,
    only_moved,
    own_elements,
    padded_ahead,
    read_shared,
    share_of_work,
    split_axes,
    stored,
    usable_units,
    with_room,
    with_wanted_operands,
)

# Products, from which on a launch that pads an operand hardly counts: threads can copy single
# elements.
_AHEAD = 1 << 27
_WIDTH_NBYTES = 16  # that a thread copies at once, where they are contiguous
# Of what is computed, padding counted. Small groups are worth it even so: without these
# instructions, elements of 16 bits are converted one by one.
_LEAST_WORK_OF_WARPS, _LEAST_WORK_OF_GROUPS = 0.3, 0.12
# Uses of an element up to which a tile or two have all of them: it is read about once, and a launch
# that pads it first would take longer.
_ONCE_READ = 256
_ROWS, _LITTLE = (4, 2, 1), 8  # multiples; one of so many more is little
_TILE = range(4, 17)  # instructions of a block along rows or columns
_LITTLE_OF_TILES = 16  # one of so many more is little
_ELEMENTS = TileElementsForGpu()


def with_groups(state: State) -> State:
    """The state in which the groups of a sum, such as those of a grouped convolution, are an axis
    of its operands and its result, like a batch; as it is if there are none.
    """
    b = state.block
    divided = analysis.division(b) if b.reducing else None
    if divided is None:
        return state
    consumer = analysis.fusible_consumer(state.func, b, permuted=True)
    if consumer is None:
        return state.then(Ungroup(b.name, *divided), done=[b.name])
    load = next(x for x in consumer.loads if x.buffer == b.writes[0].buffer)
    d = next(d for d, p in enumerate(b.writes[0].index) if p.name == divided[0])
    axis = load.index[d].name
    if axis is None:
        raise ScheduleError(f"{consumer.name} reads {b.name} at {load.index[d]}")
    return state.then(
        Ungroup(b.name, *divided),
        Inline(b.name),
        SplitIterator(consumer.name, axis, divided[1]),
    )


@dataclass(frozen=True)
class TileByWarps:
    """Sketches in which one of the `intrinsics` computes a block: one for each that fits."""

    intrinsics: tuple[Intrinsic, ...]
    stages: tuple[int, ...] = (1, 2)
    most_depth: int = 4  # instructions of one step of the sum
    # The same, where few rows or columns leave each block little else to have in flight.
    most_depth_of_thin: int = 8
    ahead: int = _AHEAD

    def __call__(self, state: State) -> Derived | None:
        plain = with_wanted_operands(state) if state.block.reducing and self.intrinsics else None
        if plain is None:
            return None
        derived: list[State] = []
        for start in (plain, _with_turned_image(plain)):
            if start is None:
                continue
            try:
                derived += self._of(with_groups(start))
            except ScheduleError:
                continue
        return Derived(tuple(derived)) if derived else None

    def _of(self, state: State) -> list[State]:
        b = state.block
        derived: list[State] = []
        for unit in usable_units(state, self.intrinsics):
            for match in _contiguous_first(state, matches(state.func, b, unit)):
                if not _fits_warps(state, match):
                    continue
                try:
                    derived += self._derive(state, match)
                except ScheduleError:
                    continue
                break
        return derived

    def _derive(self, state: State, match: Match) -> Iterator[State]:
        b = state.block
        grouped = b.name.endswith(".groups")
        often = {x.buffer for x in b.loads if analysis.uses(b, x) > _ONCE_READ}
        odd = set() if grouped else odd_operands(state) & often
        ahead = odd if prod(analysis.points(b)) >= self.ahead else set()
        sizes = {**match.sizes, **(_even_rows(b, match) if grouped else _even_tiles(b, match))}
        state, name, last = with_room(state, sizes, any_order=grouped)
        (m, _), (n, _), _ = match.axes
        state, outer, inner = split_axes(state, name, match.axes)
        b = find_block(state.func, name)[1]
        split = {*outer, *inner}
        rest = [i for i in b.iters if (i.bind.name or "") not in split]
        # What both operands move along, as a batch, leaves nothing to share.
        batch = analysis.shared_axes(b)
        tiled = [i.bind.name or "" for i in rest if i.kind == "S" and i.name not in batch]
        single = [i.bind.name or "" for i in rest if i.kind == "S" and i.name in batch]
        taps = [i.bind.name or "" for i in rest if i.kind == "R"]
        samples = [SampleTile(x, 3) for x in (outer[0], *tiled, outer[1])]
        short = min(i.extent.number for i in b.iters if i.bind.name in outer[:2])
        most = self.most_depth_of_thin if short == 1 and not grouped else self.most_depth
        depths = SampleTile(outer[2], 2, max_innermost=most)
        parts = [Split(s.loop, s.columns, exact=True) for s in samples]
        by_depth = Split(outer[2], depths.columns, exact=True)
        blocks = (*single, *(x.parts[0] for x in parts))
        virtual, warps = (tuple(x.parts[d] for x in parts) for d in (1, 2))
        state = state.then(*samples, depths, *parts, by_depth)
        windows = grouped and any(i.kind == "R" and i.extent.const != 1 for i in rest)
        for whole in (True, False) if windows else (False,):
            # Operands are copied for all places of a window at once, or for one after the other.
            steps = (by_depth.parts[0],) if whole else (*taps, by_depth.parts[0])
            inside = (*taps, by_depth.parts[1]) if whole else (by_depth.parts[1],)
            order = (*blocks, *virtual, *warps, *steps, *inside, *inner)
            after = state.then(Reorder(order))
            after, held = stored(after, last, blocks[-1], warps[-1], narrow=16)
            after = after.then(done=[name])
            for axis, loops in (
                ("blockIdx.x", blocks), ("vthread", virtual), ("threadIdx.x", warps)
            ):  # fmt: skip
                after = after.then(*(Bind(x, axis) for x in loops))
            own = own_elements(after.func, name, held, (m, n), (), 2)
            after = after.then(*own, Unroll(by_depth.parts[1]))
            for load in find_block(after.func, name)[1].loads:
                if load.buffer.removesuffix(".pad") in ahead or load.buffer in ahead:
                    after = padded_ahead(after, load.buffer)
            moved = match.axes[2][0] if windows else ""
            depth = match.axes[2][0]
            after = _with_operands(after, name, steps[-1], depth, as_read=grouped, moved=moved)
            column = f"#{name}.pipeline"
            yield after.then(
                SampleChoice(column, self.stages),
                Annotate(steps[-1], PipelineStages(column)),
                Tensorize(inner[0], match.intrinsic),
            )


def _with_turned_image(state: State) -> State | None:
    """The state in which a launch moves the channels of an image last, if the sum of a group reads
    windows of one where they are not: each place of a window would gather them again.
    """
    b = state.block
    if analysis.division(b) is None or not analysis.window_axes(b):
        return None
    for load in b.loads:
        made = writers(state.func, load.buffer)
        if len(made) == 1 and copied_load(made[0]) is not None:
            return _ELEMENTS.turned(only_moved(state, load.buffer), load.buffer)
    return None


def _even_rows(b: Block, match: Match) -> dict[str, int]:
    """Multiples of the other axes that windows move along, so that tiles may have several rows,
    where that adds little.
    """
    extents = {i.name: max(1, i.extent.number) for i in b.spatial}
    axes = sorted(analysis.window_axes(b) - match.sizes.keys())
    sizes = {n: next(m for m in _ROWS if (-extents[n] % m) * _LITTLE <= extents[n]) for n in axes}
    return {n: m for n, m in sizes.items() if m > 1}


def _even_tiles(b: Block, match: Match) -> dict[str, int]:
    """Multiples of rows and columns that tiles of several instructions divide, where the numbers
    of instructions do not: of 181, a block could have only one, or all.
    """
    extents = {i.name: max(1, i.extent.number) for i in b.spatial}
    out: dict[str, int] = {}
    for n, size in match.axes[:2]:
        count = -(-extents[n] // size)
        if count > _TILE[-1] and not any(count % d == 0 for d in _TILE):
            several = (m * size for m in (8, 4) if -count % m * _LITTLE_OF_TILES <= count)
            out[n] = next(several, size)
    return out


def _contiguous_first(state: State, found: list[Match]) -> list[Match]:
    """Of ways that cost the same, first those whose rows are contiguous where results are stored:
    channels are often elsewhere.
    """
    func, b = state.func, state.block
    consumer = analysis.fusible_consumer(func, b, permuted=True)
    if consumer is None:
        return found
    load = next(x for x in consumer.loads if x.buffer == b.writes[0].buffer)
    last = consumer.writes[0].index[-1].name
    by_name = {p.name: q.name for p, q in zip(b.writes[0].index, load.index, strict=True)}
    return sorted(found, key=lambda m: (m.cost(b), by_name.get(m.axes[0][0]) != last))


def _fits_warps(state: State, match: Match) -> bool:
    b = state.block
    if b.writes[0].index[-1].name != match.axes[1][0]:
        return False
    buffers = [x.buffer for x in b.loads]
    work = share_of_work(state, match.sizes)
    least = _LEAST_WORK_OF_GROUPS if b.name.endswith(".groups") else _LEAST_WORK_OF_WARPS
    return work >= least and len(set(buffers)) == len(buffers)


def _with_operands(
    state: State, name: str, at: str, depth: str, as_read: bool = False, moved: str = ""
) -> State:
    """Copies operands to shared memory in each step; those that are padded there. With `as_read`,
    threads run along what is contiguous in global memory. Of an operand with windows, `moved` is
    the iterator along which a copy is contiguous: rows begin anywhere. Bytes are contiguous along
    the sum, as registers hold them; constants already where they come from.
    """
    b = find_block(state.func, name)[1]
    taps = {i.name for i in b.reducing if not i.name.startswith(f"{moved}_")}
    for load in b.loads:
        source = state.func.all_buffers[load.buffer]
        factor, rank = source.dtype, len(load.index)
        last = depth if factor.bits == 8 else moved
        d = next((d for d, p in enumerate(load.index) if f"{last}_outer" in p.names), rank - 1)
        order = tuple(f"d{e}" for e in (*(e for e in range(rank) if e != d), d))
        behind = load.index[d + 1 :]
        moves = bool(behind) and (factor.bits == 8 or any(p.names & taps for p in behind))
        if moves and factor.bits == 8 and is_own_constant(state.func, load.buffer):
            state = state.then(TransformLayout(load.buffer, order))
        state, copy = read_shared(state, name, load.buffer, at)
        if as_read:
            state = _with_moves_inlined(state, copy)
            state = state.then(*_in_order_of_source(state.func, copy))
        outer = next(f for f in find_block(state.func, copy)[0] if f.owner == copy)
        state = state.then(Annotate(outer.name, FetchWidth(_WIDTH_NBYTES // factor.nbytes)))
        if moves:
            state = state.then(TransformLayout(copy, order))
        if rank > 1:
            by_depth = moves or f"{depth}_outer" in load.index[-1].names
            rows = aligned_rows(factor, by_depth)
            state = state.then(StorageAlign(copy, rank - 2, *rows))
    return state


def _with_moves_inlined(state: State, copy: str) -> State:
    """The state in which a copy reads elements where they lie, and not through transposes and
    padding.
    """
    while (load := copied_load(find_block(state.func, copy)[1])) is not None:
        made = writers(state.func, load.buffer)
        if (
            len(made) != 1
            or copied_load(made[0]) is None
            or analysis.is_output(state.func, made[0])
        ):
            return state
        if any(f.kind != "serial" for f in loops_of(state, made[0].name)):
            return state
        state = state.then(Inline(made[0].name))
    return state


def _in_order_of_source(func: Function, copy: str) -> list[Step]:
    """Reorders the loops of a copy by the dimensions of what it reads, if another one is last."""
    path, b = find_block(func, copy)
    loops = [f.name for f in path if f.owner == copy]
    load = copied_load(b)
    if load is None:
        return []
    dims: list[str] = []
    for p in load.index:
        dims += [x for x in loops if x not in dims and x in _bound(b, p)]
    if len(dims) != len(loops) or loops[-1] in _bound(b, load.index[-1]):
        return []
    return [Reorder(tuple(dims))]


def _bound(b: Block, p: Int) -> frozenset[str]:
    return frozenset(x for n in p.names if n in b.binding for x in b.binding[n].names)
