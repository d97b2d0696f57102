"""What rules for matrix instructions of GPUs share: room for whole tiles, operands in shared memory
and where they come from, and the elements of a result that each thread holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.dtype import DType
from tilesmith.base.errors import ScheduleError
from tilesmith.expr.nodes import Const, Load, Select
from tilesmith.ir.function import Function, find_block, readers, writers
from tilesmith.ir.nodes import Block, Intrinsic, Path
from tilesmith.schedule.cache import CacheRead, CacheWrite, SetScope, StorageAlign
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.iterators import SplitIterator, open_domain, part_names
from tilesmith.schedule.kinds import Bind, Unroll, Vectorize
from tilesmith.schedule.layout import Pad, TransformLayout
from tilesmith.schedule.location import ComputeAt, ReverseComputeAt
from tilesmith.schedule.loops import Reorder, Split
from tilesmith.schedule.rounding import is_filtered
from tilesmith.schedule.sample import SampleChoice
from tilesmith.schedule.step import Step
from tilesmith.space import analysis
from tilesmith.space.derive import State
from tilesmith.space.elements_gpu import TileElementsForGpu
from tilesmith.space.rules_gpu import over_threads, with_plain_operands

# Rows of shared memory are padded to 16 bytes more than a multiple of 32, here in elements of 16
# bits: eight of them then lie in different banks.
ALIGNED = 16, 8
# Words of four rows, eight of each, then do too.
_WORDS_ALIGNED = 32, 8
# Of a launch that pads an operand: neighbouring elements of a thread, threads of a block.
_WIDTHS_AHEAD, _THREADS_AHEAD = (8, 4, 2, 1), (128, 256, 512)


def aligned_rows(d: DType, by_depth: bool) -> tuple[int, int]:
    """How rows of an operand in shared memory are padded; `by_depth` if sums run along them."""
    if d.bits == 32 and not by_depth:
        return _WORDS_ALIGNED
    return _aligned(d)


def _aligned(d: DType) -> tuple[int, int]:
    return 2 * ALIGNED[0] // d.nbytes, 2 * ALIGNED[1] // d.nbytes


def usable_units(state: State, units: Sequence[Intrinsic]) -> tuple[Intrinsic, ...]:
    """Those that may compute a block of the state. Minimal filtering cancels digits that factors
    must have.
    """
    return tuple(u for u in units if not (u.roundoff and is_filtered(state.steps)))


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


def with_wanted_operands(state: State) -> State | None:
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


def split_axes(
    state: State, name: str, sizes: Sequence[tuple[str, int]]
) -> tuple[State, list[str], list[str]]:
    """The state with iterators split by the instruction's sizes; their outer and inner loops."""
    state = state.then(*(SplitIterator(name, n, size) for n, size in sizes))
    outer, inner = ([f"{name}.{n}_{part}" for n, _ in sizes] for part in ("outer", "inner"))
    return state, outer, inner


def own_elements(
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
    made = func.all_buffers[b.writes[0].buffer]
    # A pair of which only one element exists would be chosen at run time, out of memory.
    whole = made.scope != "shared" or made.shape[-1].number % 2 == 0
    contiguous = whole and (last is None or columns in last.names)
    return [
        by_row,
        by_column,
        Reorder((*others, *lanes, half, chunk, pair)),
        *(Bind(x, "threadIdx.x") for x in lanes),
        Vectorize(pair) if contiguous else Unroll(pair),
    ]


def stored(state: State, last: str, block: str, warp: str, narrow: int = 8) -> tuple[State, str]:
    """The state in which each warp stores its results by the block `last`; and the block in which
    threads have the elements that they hold. Where rows begin anywhere, or threads store pairs of
    `narrow` bits or fewer, that one fills shared memory, from which all threads store whole rows: a
    few bytes of many rows take three to ten times as long.
    """
    staged, held = None, f"{last}.shared"
    made = state.func.all_buffers[find_block(state.func, last)[1].writes[0].buffer]
    if has_odd_rows(state.func, made.name) or made.dtype.bits <= narrow:
        staged = state.attempt(
            CacheWrite(last, "shared"), ReverseComputeAt(held, warp), ReverseComputeAt(last, block)
        )
    if staged is None:
        return state.then(ReverseComputeAt(last, warp), done=[last]), last
    rank = len(find_block(staged.func, held)[1].writes[0].index)
    rows = ALIGNED if made.dtype.bits > 8 else _aligned(made.dtype)
    aligned = [StorageAlign(held, rank - 2, *rows)] if rank > 1 else []
    return staged.then(*aligned, done=[last, held]), held


def read_shared(state: State, name: str, buffer: str, at: str) -> tuple[State, str]:
    """The state in which the block reads a buffer from a copy in shared memory, made in each
    iteration of the loop `at`; and the copy.
    """
    read = CacheRead(name, buffer, "shared")
    state = state.then(read, ComputeAt(read.copy, at), done=[read.copy])
    given = state.task.func.all_buffers
    # What a step made, such as a padded operand: the copy puts zeros where nothing is. But what has
    # loops that are bound is a launch of its own.
    while buffer not in given and not any(f.kind != "serial" for f in loops_of(state, buffer)):
        state = state.then(Inline(buffer))
        (load,) = find_block(state.func, read.copy)[1].loads
        buffer = load.buffer
    return state, read.copy


def only_moved(state: State, copy: str) -> State:
    """The state in which a copy only moves elements, or zeros where there are none, as the copy
    engine does: padding happens on the way, and what computes stays a launch of its own.
    """
    while (load := copied_load(find_block(state.func, copy)[1])) is not None:
        made = writers(state.func, load.buffer)
        if (
            len(made) != 1
            or made[0].combiner is not None
            or analysis.is_output(state.func, made[0])
        ):
            return state
        name = made[0].name
        if any(f.kind != "serial" for f in loops_of(state, name)):
            return state
        if copied_load(made[0]) is None:
            return state.then(done=[name])
        state = state.then(Inline(name))
    return state


def copied_load(b: Block) -> Load | None:
    """What the block copies; None if it computes something."""
    if len(b.writes) != 1:
        return None
    e = b.writes[0].value
    while isinstance(e, Select) and isinstance(e.b, Const) and e.b.value == 0:
        e = e.a
    return e if isinstance(e, Load) else None


def loops_of(state: State, buffer: str) -> Path:
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


def odd_operands(state: State) -> set[str]:
    """Operands whose rows do not begin at multiples of 16 bytes, which the copy engine and vectors
    address: also those that a step has padded, but a copy reads where they lie.
    """
    return {x.buffer for x in state.block.loads if has_odd_rows(state.func, x.buffer)}


def source_of(func: Function, buffer: str) -> tuple[Block, Load] | None:
    """The block that copies elements to a buffer, and its load, unless that is a launch: without
    loops that are bound, it will be inlined, and the elements are read where they come from.
    """
    made = writers(func, buffer)
    load = copied_load(made[0]) if len(made) == 1 else None
    if load is None or any(f.kind != "serial" for f in find_block(func, made[0].name)[0]):
        return None
    return made[0], load


def has_odd_rows(func: Function, name: str) -> bool:
    """Whether rows of a buffer do not begin at multiples of 16 bytes."""
    buffer = func.all_buffers[name]
    if (made := source_of(func, name)) is not None:
        return has_odd_rows(func, made[1].buffer)
    if buffer.layout is not None or not buffer.shape:  # a step has chosen the order
        return False
    return buffer.shape[-1].number * buffer.dtype.nbytes % 16 != 0


def is_own_constant(func: Function, name: str) -> bool:
    """Whether only one block reads a constant, which the caller can therefore move for it."""
    return func.all_buffers[name].scope == "constant" and len(readers(func, name)) == 1


def turned_ahead(
    state: State, block: str, name: str, order: tuple[str, ...]
) -> tuple[State, str]:  # fmt: skip
    """The state in which an operand of a block lies in another order of dimensions, and what it is
    called there. A launch of its own moves it; a constant is moved by the caller.
    """
    if is_own_constant(state.func, name):
        return state.then(TransformLayout(name, order)), name
    if not name.endswith(".pad"):
        read = CacheRead(block, name, "global")
        state, name = state.then(read), read.copy
    state = only_moved(state.then(TransformLayout(name, order)), name)
    turned = TileElementsForGpu().turned(state, name)
    if turned is None:
        raise ScheduleError(f"{name} lies as it should")
    return turned, name


def padded_ahead(state: State, name: str) -> State:
    """The state in which a launch of its own makes a padded operand. Each thread writes a few
    neighbouring elements of it. A constant is padded by the caller.
    """
    if not writers(state.func, name):
        return state
    *outer, last = (f.name for f in loops_of(state, name))
    column = f"#{name}.width"
    wide = Split(last, (None, column), exact=True)
    state = state.then(SampleChoice(column, _WIDTHS_AHEAD), wide)
    return over_threads(state, name, (*outer, wide.parts[0]), wide.parts[1:], _THREADS_AHEAD)
