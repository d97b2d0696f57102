"""Rules that tile a block around a matrix instruction of a GPU.

wgmma: a group of threads computes one or more tiles of the instruction's size, which it holds in
registers. The groups of a block share its operands in shared memory, which the copy engine (TMA)
fills several steps ahead. How many groups and tiles, how many steps ahead, the order of blocks and
whether a block computes several tiles are decisions.

mma.sync: warps of a block compute tiles side by side, each of several instructions, from operands
in shared memory that all threads copy. Iterators that the instruction does not divide are padded
with zeros on the way to shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilesmith.base.errors import ScheduleError
from tilesmith.expr.ints import ONE, Int
from tilesmith.expr.nodes import Const, Load, Select
from tilesmith.ir.function import Function, find_block, writers
from tilesmith.ir.intrinsics import DEPTH, RUN
from tilesmith.ir.nodes import Block, Intrinsic, Path
from tilesmith.ir.notes import Count, FetchWidth, PipelineStages, ResidentBlocks, StagesInFlight
from tilesmith.schedule.cache import CacheRead, CacheWrite, SetScope, StorageAlign
from tilesmith.schedule.groups import Ungroup
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.iterators import SplitIterator, open_domain, part_names
from tilesmith.schedule.kinds import Annotate, Bind, Unroll, Vectorize
from tilesmith.schedule.layout import Pad, TransformLayout
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.sample import SampleChoice, SampleTile
from tilesmith.schedule.step import Step
from tilesmith.schedule.unit import Tensorize
from tilesmith.space import analysis
from tilesmith.space.derive import Derived, State
from tilesmith.space.instruction_match import Match, matches
from tilesmith.space.rules_gpu import over_threads, with_plain_operands


def share_of_work(state: State, sizes: dict[str, int]) -> float:
    """What is left of the block's work if its iterators are padded to multiples of `sizes`."""
    share = 1.0
    for i in state.block.iters:
        n, size = max(1, i.extent.number), sizes.get(i.name, 1)
        share *= n / (-(-n // size) * size)
    return share


def with_room(
    state: State, sizes: dict[str, int], any_order: bool = False
) -> tuple[State, str, str]:
    """The state with iterators that `sizes` divide and results in fragments; the names of the block
    and of the one that stores its results: with `any_order`, also where neighbours come apart.
    """
    func, b = state.func, state.block
    consumer = _consumer(func, b)
    if any_order and consumer is None:
        consumer = analysis.fusible_consumer(func, b, permuted=True)
    extents = {i.name: i.extent.number for i in b.iters}
    padding = tuple((n, size) for n, size in sizes.items() if extents[n] % size)
    name = b.name
    if padding:
        state = state.then(Pad(name, padding))
        if consumer is not None:  # what reads the result crops it
            state = state.then(Inline(name))
        last, name = (name if consumer is None else consumer.name), f"{name}.pad"
    elif consumer is None:
        return state.then(CacheWrite(name, "fragment")), f"{name}.fragment", name
    else:
        last = consumer.name
    made = find_block(state.func, name)[1].writes[0].buffer
    return state.then(SetScope(made, "fragment")), name, last


def _consumer(func: Function, b: Block) -> Block | None:
    """The element-wise block that stores the result: also in another order of rows, as long as the
    elements of a row stay neighbours.
    """
    c = analysis.fusible_consumer(func, b, permuted=True)
    if c is None or analysis.fusible_consumer(func, b) is not None:
        return c
    load = next(x for x in c.loads if x.buffer == b.writes[0].buffer)
    index = c.writes[0].index if len(c.writes) == 1 else ()
    return c if index and index[-1] == load.index[-1] else None


def _wanted(state: State) -> State | None:
    """The state with plain operands; None if no matrix instruction can compute the block."""
    b = state.block
    if open_domain(b) or b.tile or state.levels_of(b.name) or not b.writes[0].index:
        return None
    if state.func.all_buffers[b.writes[0].buffer].scope != "global":
        return None
    try:
        return with_plain_operands(state)
    except ScheduleError:
        return None


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


def _split(
    state: State, name: str, sizes: Sequence[tuple[str, int]]
) -> tuple[State, list[str], list[str]]:
    """The state with iterators split by the instruction's sizes; their outer and inner loops."""
    state = state.then(*(SplitIterator(name, n, size) for n, size in sizes))
    outer, inner = ([f"{name}.{n}_{part}" for n, _ in sizes] for part in ("outer", "inner"))
    return state, outer, inner


def _own_elements(
    func: Function, name: str, block: str, axes: tuple[str, str], warps: tuple[int, ...],
    chunks: int,
) -> list[Step]:  # fmt: skip
    """Gives each thread the elements that it holds, as the instruction's fragment says: the rows of
    a tile are those of `warps`, twice eight each; of `chunks` of columns, each thread has a pair.
    """
    others, rows, columns = result_loops(func, name, block, axes)
    by_row = Split(rows, (*warps, 2, 8), exact=True)
    by_column = Split(columns, (chunks, 4, 2), exact=True)
    *warp, half, row = by_row.parts
    chunk, quad, pair = by_column.parts
    lanes = (*warp, row, quad)
    b = find_block(func, block)[1]
    last = b.binding.get(b.writes[0].index[-1].name or "")
    contiguous = last is None or columns in last.names
    return [
        by_row,
        by_column,
        Reorder((*others, *lanes, half, chunk, pair)),
        *(Bind(x, "threadIdx.x") for x in lanes),
        Vectorize(pair) if contiguous else Unroll(pair),
    ]


def read_shared(state: State, name: str, buffer: str, at: str) -> tuple[State, str]:
    """The state in which the block reads a buffer from a copy in shared memory, made in each
    iteration of the loop `at`; and the copy.
    """
    read = CacheRead(name, buffer, "shared")
    state = state.then(read, ComputeAt(read.copy, at), done=[read.copy])
    given = state.task.func.all_buffers
    # What a step made, such as a padded operand: the copy puts zeros where nothing is. But what has
    # loops that are bound is a launch of its own.
    while buffer not in given and not any(f.kind != "serial" for f in _loops(state, buffer)):
        state = state.then(Inline(buffer))
        (load,) = find_block(state.func, read.copy)[1].loads
        buffer = load.buffer
    return state, read.copy


def only_moved(state: State, copy: str) -> State:
    """The state in which a copy only moves elements, or zeros where there are none, as the copy
    engine does: padding happens on the way, and what computes stays a launch of its own.
    """
    while (load := _copied(find_block(state.func, copy)[1])) is not None:
        made = writers(state.func, load.buffer)
        if (
            len(made) != 1
            or made[0].combiner is not None
            or analysis.is_output(state.func, made[0])
        ):
            return state
        name = made[0].name
        if any(f.kind != "serial" for f in _loops(state, name)):
            return state
        if _copied(made[0]) is None:
            return state.then(done=[name])
        state = state.then(Inline(name))
    return state


def _copied(b: Block) -> Load | None:
    """What the block copies; None if it computes something."""
    if len(b.writes) != 1:
        return None
    e = b.writes[0].value
    while isinstance(e, Select) and isinstance(e.b, Const) and e.b.value == 0:
        e = e.a
    return e if isinstance(e, Load) else None


def _loops(state: State, buffer: str) -> Path:
    """Around the block that fills a buffer of the same name."""
    return find_block(state.func, buffer)[0]


def result_loops(
    func: Function, name: str, block: str, axes: tuple[str, str]
) -> tuple[tuple[str, ...], str, str]:
    """The loops of the block that stores what `name` computes: those over the two axes, after
    all others.
    """
    write = find_block(func, name)[1].writes[0]
    path, b = find_block(func, block)
    load = next(x for x in b.loads if x.buffer == write.buffer)
    own = [f.name for f in path if f.owner == block]
    found = []
    for axis in axes:
        parts = set(part_names(axis))
        d = next(d for d, p in enumerate(write.index) if p.names & parts)
        bind = b.binding[load.index[d].name or ""]
        found.append(next(x for x in own if x in bind.names))
    return tuple(x for x in own if x not in found), found[0], found[1]


# Products, from which on a launch that pads an operand hardly counts: for the copy engine, which
# can do nothing else, and for threads, which can copy single elements.
_AHEAD, _AHEAD_OF_WARPS = 1 << 24, 1 << 27
# Of a launch that pads an operand: neighbouring elements of a thread, threads of a block.
_WIDTHS_AHEAD, _THREADS_AHEAD = (8, 4, 2, 1), (128, 256, 512)
_MANY = 1 << 20  # blocks: no bound
# Of what is computed, padding counted: at least, and compared to another instruction.
_LEAST_WORK, _LEAST_OF_BEST = 0.4, 0.8
_NARROW = 32  # columns: instructions with fewer are for products that have no more
_FEW_ROWS = 32  # a padded row of so many is little
_MOST_RANK = 5  # dimensions of a tensor that the copy engine knows


@dataclass(frozen=True)
class TileByTensorCores:
    """Sketches in which one of the `intrinsics` computes a block: one for each that fits."""

    intrinsics: tuple[Intrinsic, ...]
    stages: tuple[int, ...] = (3, 4, 5, 6, 8)
    ahead: int = _AHEAD

    def __call__(self, state: State) -> Derived | None:
        plain = _wanted(state) if len(state.block.reducing) == 1 else None
        if plain is None:
            return None
        state, b = plain, plain.block
        derived: list[State] = []
        found = [
            [m for m in matches(state.func, b, unit) if _fits(state, m)] for unit in self.intrinsics
        ]
        if odd_operands(state) and prod(analysis.points(b)) < self.ahead:
            return None
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
        (m, _), (n, columns), (k, _) = match.axes
        unaligned = odd_operands(state)
        state, name, last = with_room(state, _room(state.block, match))
        state, outer, inner = _split(state, name, (*match.axes[:2], (k, DEPTH)))
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
        state = state.then(*_own_elements(state.func, name, last, (m, n), (4,), columns // 8))
        for load in find_block(state.func, name)[1].loads:
            if load.buffer.removesuffix(".pad") in unaligned or load.buffer in unaligned:
                state = padded_ahead(state, load.buffer)
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
        choices: dict[type[Count], tuple[int, ...]] = {
            PipelineStages: self.stages,
            StagesInFlight: (1, 2),
            ResidentBlocks: (max(1, multiprocessors), _MANY),
        }
        out: list[Step] = []
        for kind, values in choices.items():
            column = f"#{name}.{kind.key}"
            out += [SampleChoice(column, values), Annotate(loop, kind(column))]
        return out


def _sizes(match: Match) -> dict[str, int]:
    """The iterators' extents are padded to multiples of these."""
    return {**match.sizes, match.axes[2][0]: RUN}


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
    sizes = _sizes(match)
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
        if sizes[last[0]] % RUN:
            return False
        if [x.buffer for x in b.loads].count(load.buffer) > 1:
            return False
    return True


def odd_operands(state: State) -> set[str]:
    """Operands whose rows do not begin at multiples of 16 bytes, which the copy engine and vectors
    address: also those that a step has padded, but a copy reads where they lie.
    """
    return {x.buffer for x in state.block.loads if _has_odd_rows(state.func, x.buffer)}


def source_of(func: Function, buffer: str) -> tuple[Block, Load] | None:
    """The block that copies elements to a buffer, and its load, unless that is a launch: without
    loops that are bound, it will be inlined, and the elements are read where they come from.
    """
    made = writers(func, buffer)
    load = _copied(made[0]) if len(made) == 1 else None
    if load is None or any(f.kind != "serial" for f in find_block(func, made[0].name)[0]):
        return None
    return made[0], load


def _has_odd_rows(func: Function, name: str) -> bool:
    buffer = func.all_buffers[name]
    if (made := source_of(func, name)) is not None:
        return _has_odd_rows(func, made[1].buffer)
    if buffer.layout is not None or not buffer.shape:  # a step has chosen the order
        return False
    return buffer.shape[-1].number * buffer.dtype.nbytes % 16 != 0


def padded_ahead(state: State, name: str) -> State:
    """The state in which a launch of its own makes a padded operand. Each thread writes a few
    neighbouring elements of it. A constant is padded by the caller.
    """
    if not writers(state.func, name):
        return state
    *outer, last = (f.name for f in _loops(state, name))
    column = f"#{name}.width"
    wide = Split(last, (None, column), exact=True)
    state = state.then(SampleChoice(column, _WIDTHS_AHEAD), wide)
    return over_threads(state, name, (*outer, wide.parts[0]), wide.parts[1:], _THREADS_AHEAD)


def _tiled(by_depth: bool, rank: int, copy: str) -> list[Step]:
    """The layout of a copy: runs of 64 elements of the fastest dimension."""
    if by_depth:
        return []
    last = f"d{rank - 1}"
    rest = (f"d{d}" for d in range(rank - 1))
    return [TransformLayout(copy, (f"{last} // {RUN}", *rest, f"{last} % {RUN}"))]


# Rows of shared memory are padded to 16 bytes more than a multiple of 32: eight of them then lie in
# different banks.
_MULTIPLE, _OFFSET = 16, 8
_WIDTH = 8  # elements of 16 bits that a thread copies at once, where they are contiguous
# Of what is computed, padding counted. Small groups are worth it even so: without these
# instructions, elements of 16 bits are converted one by one.
_LEAST_WORK_OF_WARPS, _LEAST_WORK_OF_GROUPS = 0.3, 0.12
# Uses of an element up to which a tile or two have all of them: it is read about once, and a launch
# that pads it first would take longer.
_ONCE_READ = 256
_ROWS, _LITTLE = (4, 2, 1), 8  # multiples; one of so many more is little


@dataclass(frozen=True)
class TileByWarps:
    """Sketches in which one of the `intrinsics` computes a block: one for each that fits."""

    intrinsics: tuple[Intrinsic, ...]
    stages: tuple[int, ...] = (1, 2)
    most_depth: int = 4  # instructions of one step of the sum
    # The same, where few rows or columns leave each block little else to have in flight.
    most_depth_of_thin: int = 8
    ahead: int = _AHEAD_OF_WARPS

    def __call__(self, state: State) -> Derived | None:
        plain = _wanted(state) if state.block.reducing and self.intrinsics else None
        if plain is None:
            return None
        try:
            state = with_groups(plain)
        except ScheduleError:
            return None
        b = state.block
        derived: list[State] = []
        for unit in self.intrinsics:
            for match in _contiguous_first(state, matches(state.func, b, unit)):
                if not _fits_warps(state, match):
                    continue
                try:
                    derived += self._derive(state, match)
                except ScheduleError:
                    continue
                break
        return Derived(tuple(derived)) if derived else None

    def _derive(self, state: State, match: Match) -> Iterator[State]:
        b = state.block
        grouped = b.name.endswith(".groups")
        often = {x.buffer for x in b.loads if analysis.uses(b, x) > _ONCE_READ}
        odd = set() if grouped else odd_operands(state) & often
        ahead = odd if prod(analysis.points(b)) >= self.ahead else set()
        sizes = {**match.sizes, **(_even_rows(b, match) if grouped else {})}
        state, name, last = with_room(state, sizes, any_order=grouped)
        (m, _), (n, _), _ = match.axes
        state, outer, inner = _split(state, name, match.axes)
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
            after = after.then(ReverseComputeAt(last, warps[-1]), done=[name, last])
            for axis, loops in (
                ("blockIdx.x", blocks), ("vthread", virtual), ("threadIdx.x", warps)
            ):  # fmt: skip
                after = after.then(*(Bind(x, axis) for x in loops))
            own = _own_elements(after.func, name, last, (m, n), (), 2)
            after = after.then(*own, Unroll(by_depth.parts[1]))
            for load in find_block(after.func, name)[1].loads:
                if load.buffer.removesuffix(".pad") in ahead or load.buffer in ahead:
                    after = padded_ahead(after, load.buffer)
            moved = match.axes[2][0] if windows else ""
            after = _with_operands(after, name, steps[-1], as_read=grouped, moved=moved)
            column = f"#{name}.pipeline"
            yield after.then(
                SampleChoice(column, self.stages),
                Annotate(steps[-1], PipelineStages(column)),
                Tensorize(inner[0], match.intrinsic),
            )


def _even_rows(b: Block, match: Match) -> dict[str, int]:
    """Multiples of the other axes that windows move along, so that tiles may have several rows,
    where that adds little.
    """
    extents = {i.name: max(1, i.extent.number) for i in b.spatial}
    axes = sorted(analysis.window_axes(b) - match.sizes.keys())
    sizes = {n: next(m for m in _ROWS if (-extents[n] % m) * _LITTLE <= extents[n]) for n in axes}
    return {n: m for n, m in sizes.items() if m > 1}


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
    state: State, name: str, at: str, as_read: bool = False, moved: str = ""
) -> State:
    """Copies operands to shared memory in each step; those that are padded there. With `as_read`,
    threads run along what is contiguous in global memory. Of an operand with windows, `moved` is
    the iterator along which a copy is contiguous: rows begin anywhere.
    """
    b = find_block(state.func, name)[1]
    taps = {i.name for i in b.reducing if not i.name.startswith(f"{moved}_")}
    for load in b.loads:
        state, copy = read_shared(state, name, load.buffer, at)
        if as_read:
            state = _with_moves_inlined(state, copy)
            state = state.then(*_in_order_of_source(state.func, copy))
        outer = next(f for f in find_block(state.func, copy)[0] if f.owner == copy)
        state = state.then(Annotate(outer.name, FetchWidth(_WIDTH)))
        rank = len(load.index)
        d = next((d for d, p in enumerate(load.index) if f"{moved}_outer" in p.names), rank - 1)
        if d < rank - 1 and any(p.names & taps for p in load.index[d + 1 :]):
            order = (*(e for e in range(rank) if e != d), d)
            state = state.then(TransformLayout(copy, tuple(f"d{e}" for e in order)))
        if rank > 1:
            state = state.then(StorageAlign(copy, rank - 2, _MULTIPLE, _OFFSET))
    return state


def _with_moves_inlined(state: State, copy: str) -> State:
    """The state in which a copy reads elements where they lie, and not through transposes and
    padding.
    """
    while (load := _copied(find_block(state.func, copy)[1])) is not None:
        made = writers(state.func, load.buffer)
        if len(made) != 1 or _copied(made[0]) is None or analysis.is_output(state.func, made[0]):
            return state
        if any(f.kind != "serial" for f in _loops(state, made[0].name)):
            return state
        state = state.then(Inline(made[0].name))
    return state


def _in_order_of_source(func: Function, copy: str) -> list[Step]:
    """Reorders the loops of a copy by the dimensions of what it reads, if another one is last."""
    path, b = find_block(func, copy)
    loops = [f.name for f in path if f.owner == copy]
    load = _copied(b)
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
