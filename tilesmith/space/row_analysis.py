"""Analyses of reductions along rows or columns: which are bound by memory, which of their axes are
contiguous and aligned, and how a block that follows numbers their results.
"""

from __future__ import annotations

from tilesmith.expr.intervals import linear, row_major
from tilesmith.expr.ints import Int, of
from tilesmith.expr.nodes import Binary, Expr, Load, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, Iter
from tilesmith.space import analysis

_LONG_PIECE = 256  # elements of a row that is cut, from which on it is no window


def is_row_reduction(func: Function, b: Block, least: int) -> bool:
    """Whether the block reduces long contiguous rows whose elements are not reused. Others may be,
    such as a bias that is added to every row.
    """
    if not is_memory_bound(func, b):
        return False
    if analysis.points(b)[1] < least and all(i.extent.const is not None for i in b.reducing):
        return False
    reducing = {i.name for i in b.reducing}
    last = _last_indices(func, b)
    return bool(last) and all(p.names & reducing for p in last)


def is_memory_bound(func: Function, b: Block) -> bool:
    """Whether the block is a reduction of elements that are not reused, but for those that each row
    or column shares.
    """
    if b.combiner is None or not b.init or b.intrinsic is not None or b.scatters:
        return False
    if analysis.window_axes(b) and not b.name.endswith(".rf") and not _has_groups(b):
        return False
    return not analysis.has_data_reuse(func, b) or (_has_rows(b) and not _is_product(b))


def _has_groups(b: Block) -> bool:
    """Whether it reduces groups that lie apart along one axis, and the whole of others."""
    spatial = {i.name for i in b.spatial}
    indices = [p for x in b.loads for p in x.index]
    moved = {n for p in indices if p.names & spatial for n in p.names}
    whole = [i for i in b.reducing if i.extent.const != 1 and i.name not in moved]
    moving = [i for i in b.reducing if i.extent.const != 1 and i.name in moved]
    if analysis.has_windows_apart(b) and _is_long_row(b):
        return True
    return not moving or (bool(whole) and analysis.has_windows_apart(b))


def _is_long_row(b: Block) -> bool:
    """Whether it reduces pieces of one row that are many times as long as a window."""
    return len(b.reducing) == 1 and analysis.length(b.reducing[0]) >= _LONG_PIECE


def contiguous_axes(func: Function, b: Block) -> set[str]:
    """The iterators along which the operands of a reduction are contiguous; "" stands for an index
    that is no iterator.
    """
    return {p.name or "" for p in _last_indices(func, b)}


def weighted_axes(func: Function, b: Block) -> set[str]:
    """The same of a matrix whose rows are summed with weights: one operand has an element for each
    iteration, and others do not move along its columns. Empty for other blocks.
    """
    if b.combiner is None or not b.init or b.intrinsic is not None or b.scatters:
        return set()
    axes = {i.name for i in b.iters if i.extent.const != 1}
    moved = [(x, {n for p in x.index for n in p.names}) for x in b.loads]
    large = [x for x, names in moved if axes <= names]
    if not axes or len(large) != 1 or (analysis.window_axes(b) and not b.name.endswith(".rf")):
        return set()
    pairs = zip(large[0].index, func.all_buffers[large[0].buffer].shape, strict=True)
    column = [p for p, n in pairs if n.const != 1][-1].name or ""
    shared = all(column not in names for x, names in moved if x is not large[0])
    return {column} if shared else set()


def reduced_nbytes(func: Function, b: Block) -> int:
    """The bytes of an element of what is reduced, at most."""
    reducing = {i.name for i in b.reducing}
    loads = (x for x in b.loads if any(reducing & p.names for p in x.index))
    return max((func.all_buffers[x.buffer].dtype.nbytes for x in loads), default=4)


def _last_indices(func: Function, b: Block) -> list[Int]:
    """Of each operand that is reduced, the index of the last dimension with several elements."""
    reducing = {i.name for i in b.reducing}
    last = []
    for x in b.loads:
        if any(reducing & p.names for p in x.index):
            pairs = zip(x.index, func.all_buffers[x.buffer].shape, strict=True)
            long = [p for p, n in pairs if n.const != 1]
            last.append(long[-1] if long else x.index[-1])
    return last


def _has_rows(b: Block) -> bool:
    """Whether an operand has an element for each iteration."""
    axes = {i.name for i in b.iters if i.extent.const != 1}
    return any(axes <= {n for p in x.index for n in p.names} for x in b.loads)


def _is_product(b: Block) -> bool:
    """Whether it sums products of different operands."""
    reducing = {i.name for i in b.reducing}

    def moved(e: Expr) -> set[str]:
        loads = (x for x in preorder(e, children) if isinstance(x, Load))
        return {x.buffer for x in loads if any(p.names & reducing for p in x.index)}

    every = (e for w in b.writes for e in preorder(w.value, children))
    pairs = [(moved(e.a), moved(e.b)) for e in every if isinstance(e, Binary) and e.op == "mul"]
    return any(left and right and left != right for left, right in pairs)


def long_extents(b: Block) -> list[Int]:
    """The extents of its axes, without those of one element."""
    return [i.extent for i in b.spatial if i.extent.const != 1]


def leading_axes(p: Block, c: Block) -> int | None:
    """How many leading iterators of a consumer number the results of a producer, whatever it reads
    at dimensions of one element; None if others do.
    """
    most = 0
    for w in p.writes:
        long = [k for k, q in enumerate(w.index) for i in p.spatial
                if i.name == q.name and i.extent.const != 1]  # fmt: skip
        for x in c.loads:
            if x.buffer != w.buffer:
                continue
            at, own = 0, list(c.spatial)
            for k in long:
                while at < len(own) and own[at].extent.const == 1:
                    at += 1
                if at == len(own) or x.index[k].name != own[at].name:
                    return None
                (i,) = (i for i in p.spatial if i.name == w.index[k].name)
                if i.extent != own[at].extent:
                    return None
                at += 1
            if len(long) != len(long_extents(p)):
                return None
            most = max(most, at)
    return most


def is_one_row(func: Function, b: Block, iters: tuple[Iter, ...]) -> bool:
    """Whether what the block reads along these iterators, or writes, lies in one piece."""
    iters = tuple(i for i in iters if i.extent.const != 1)
    names = {i.name for i in iters}
    every = [(x.buffer, x.index) for x in b.loads] if b.reducing else []
    every += [(w.buffer, w.index) for w in b.writes] if not b.reducing else []
    for buffer, index in every:
        if not any(p.names & names for p in index):
            continue
        memory = func.all_buffers[buffer]
        address = linear(index, row_major(memory.shape))
        step = of(1)
        for i in reversed(iters):
            if address.coefficient(i.name) != step or memory.layout is not None:
                return False
            step = step * i.extent
    return True


def has_aligned_rows(func: Function, b: Block, width: int) -> bool:
    """Whether the rows that a reduction reads begin and end at multiples of so many elements."""
    reducing = {i.name for i in b.reducing}
    for x in b.loads:
        if any(reducing & p.names for p in x.index):
            address = linear(x.index, row_major(func.all_buffers[x.buffer].shape))
            begins = (c for m, c in address.terms.items() if not reducing & Int({m: c}).names)
            if any(c % width for c in begins):
                return False
    # The end of the last row cuts no vector.
    ends = (p.terms.get((), 0) + 1 for p in b.domain if b.reducing[-1].name in p.names)
    return all(n % width == 0 for n in ends)
