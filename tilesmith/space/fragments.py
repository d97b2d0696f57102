"""Steps that the rules of matrix instructions share: results in fragments, operands in shared
memory, padding of both.
"""

from __future__ import annotations

from tilesmith.expr.nodes import Const, Load, Select
from tilesmith.ir.function import Function
from tilesmith.ir.lookup import find_block, writers
from tilesmith.ir.nodes import Block, Path, walk
from tilesmith.schedule.cache import CacheRead, CacheWrite, SetScope
from tilesmith.schedule.inline import Inline
from tilesmith.schedule.layout import Pad
from tilesmith.schedule.location import ComputeAt
from tilesmith.space import analysis
from tilesmith.space.state import State


def share_of_work(state: State, sizes: dict[str, int]) -> float:
    """What is left of the block's work if its iterators are padded to multiples of `sizes`."""
    share = 1.0
    for i in state.block.iters:
        n, size = max(1, i.extent.number), sizes.get(i.name, 1)
        share *= n / (-(-n // size) * size)
    return share


def with_room(state: State, sizes: dict[str, int]) -> tuple[State, str, str]:
    """The state with iterators that `sizes` divide and results in fragments; the names of the block
    and of the one that stores its results.
    """
    func, b = state.func, state.block
    consumer = _consumer(func, b)
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


def with_plain_operands(state: State) -> State:
    """The state in which the block reads its operands where they lie, and not through views that
    the function states, such as transposes: tiles are chosen by the order of memory.
    """
    stated = {b.name for _, b in walk(state.task.func.body)}
    while True:
        read = {x.buffer for x in state.block.loads}
        views = [
            b.name
            for _, b in walk(state.func.body)
            if b.name in stated
            and b.combiner is None
            and len(b.writes) == 1
            and b.writes[0].buffer in read
            and isinstance(b.writes[0].value, Load)
        ]
        if not views:
            return state
        state = state.then(*(Inline(name) for name in views))


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
        parts = (f"{axis}_outer", f"{axis}_inner")
        d = next(d for d, p in enumerate(write.index) if p.names & set(parts))
        bind = b.binding[load.index[d].name or ""]
        found.append(next(x for x in own if x in bind.names))
    return tuple(x for x in own if x not in found), found[0], found[1]
