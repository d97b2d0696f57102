"""Analyses of blocks for the rules: reads, writes, reuse and contiguity in the Function after the
steps so far.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from tilesmith.base.dtype import FLOAT16
from tilesmith.base.target import Target
from tilesmith.expr.intervals import Unknown, bounds
from tilesmith.expr.ints import FloorDiv, Int, of, opaque_atoms, var
from tilesmith.expr.nodes import Expr, Load, Select, Unary, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.contract import sums_halves
from tilesmith.ir.function import Function, find_block, readers, writers, written
from tilesmith.ir.nodes import Block, For, Iter, Path, walk


def is_output(func: Function, b: Block) -> bool:
    return any(p.name in written(b) for p in func.outputs)


def consumers(func: Function, b: Block) -> list[Block]:
    """The blocks that read what `b` writes."""
    out: dict[str, Block] = {}
    for name in written(b):
        for r in readers(func, name):
            if r.name != b.name:
                out[r.name] = r
    return list(out.values())


def producers(func: Function, b: Block) -> list[Block]:
    """The blocks that write what `b` reads."""
    out: dict[str, Block] = {}
    for name in dict.fromkeys(load.buffer for load in b.loads):
        for w in writers(func, name):
            if w.name != b.name:
                out[w.name] = w
    return list(out.values())


def cache_stages(func: Function, b: Block) -> list[str]:
    """The blocks whose local result `b` only copies out: those that cache_write added for it."""
    if len(b.writes) != 1 or not isinstance(load := b.writes[0].value, Load):
        return []
    if func.all_buffers[load.buffer].scope != "local":
        return []
    return [p.name for p in producers(func, b)]


def simple_axes(load: Load, b: Block) -> tuple[str | None, ...] | None:
    """The iterator of each dimension (None for a constant), if every index is an iterator plus or
    minus a constant, or a constant; else None.
    """
    its = {i.name for i in b.iters}
    out: list[str | None] = []
    for p in load.index:
        names = p.names & its
        if not names and p.const is not None:
            out.append(None)
            continue
        if len(names) != 1:
            return None
        (it,) = names
        if p.coefficient(it).const != 1 or (p - Int({(it,): 1})).const is None:
            return None
        out.append(it)
    return tuple(out)


def _in_order(axes: tuple[str | None, ...], b: Block, *, missing: bool) -> bool:
    """Whether the axes are in the block's order, none twice; with `missing`, some may be absent."""
    own = [i.name for i in b.iters]
    used = [a for a in axes if a is not None]
    if used != sorted(set(used), key=own.index):
        return False
    return missing or used == [i.name for i in b.spatial]


def _has(e: Expr, kinds: type | tuple[type, ...], op: str | None = None) -> bool:
    return any(
        isinstance(x, kinds) and (op is None or getattr(x, "op", None) == op)
        for x in preorder(e, children)
    )


def strictly_inlinable(func: Function, b: Block) -> bool:
    """Whether the block is cheap enough to recompute at every use: it reads nothing, or its reads
    are simple and in order and it has no branch, no exponential, and no logarithm that several
    elements share.
    """
    if b.combiner is not None or b.domain:
        return False
    loads = list(b.loads)
    if not loads:
        return True
    for load in loads:
        axes = simple_axes(load, b)
        if axes is None or not _in_order(axes, b, missing=True):
            return False
    if any(_has(w.value, Unary, "log") for w in b.writes):
        shared = any(points(c)[0] > points(b)[0] for c in consumers(func, b))
        return not shared
    return not any(_has(w.value, Select) or _has(w.value, Unary, "exp") for w in b.writes)


def has_data_reuse(func: Function, b: Block) -> bool:
    """Whether tiling pays: some operands lack a spatial axis, so that their elements are reused. An
    empty iteration space has no reuse.
    """
    if any(i.extent.const == 0 for i in b.iters):
        return False
    reads: dict[str, set[str]] = {}
    for load in b.loads:
        names = reads.setdefault(load.buffer, set())
        for p in load.index:
            names |= p.names
    axes = [i.name for i in b.spatial if i.extent.const != 1]
    missing = sum(1 for names in reads.values() if any(a not in names for a in axes))
    return missing >= 2 or (missing >= 1 and bool(b.reducing))


def uses(b: Block, load: Load) -> int:
    """How often an element of an operand is used."""
    names = {n for p in load.index for n in p.names}
    return prod(max(1, length(i)) for i in b.spatial if i.name not in names)


def is_epilogue(func: Function, b: Block) -> bool:
    """Whether it is element-wise in the result of a reduction, such as a sum that is scaled."""
    if b.combiner is not None:
        return False
    return any(p.combiner is not None and elementwise_match(func, p, b) for _, p in walk(func.body))


def shared_axes(b: Block) -> frozenset[str]:
    """Spatial iterators that index every operand, such as a batch."""
    axes = frozenset(i.name for i in b.spatial)
    for load in b.loads:
        axes &= frozenset(n for p in load.index for n in p.names)
    return axes


def batch_axes(b: Block) -> frozenset[str]:
    """Those of them that occur alone in some dimension (or the outer part of one) of every operand.
    No element is reused between different values of such an axis.
    """
    same = set.intersection(*({*load.index} for load in b.loads)) if b.loads else set()
    return frozenset(n for n in shared_axes(b) if any(_parts_by(p, n, b) for p in same))


def _parts_by(p: Int, axis: str, b: Block) -> bool:
    """Whether different values of the axis address disjoint elements."""
    rest = p - var(axis) * p.coefficient(axis)
    if axis in rest.names:
        return False
    try:
        low, high = bounds(rest, {i.name: i.extent for i in b.iters})
    except Unknown:
        return False
    step, width = p.coefficient(axis).const, (high - low).const
    return step is not None and width is not None and width < step


def window_axes(b: Block) -> set[str]:
    """Spatial axes that share a dimension of an operand with a reduced axis: windows move there."""
    spatial, taps = {i.name for i in b.spatial}, {i.name for i in b.reducing}
    return {n for load in b.loads for p in load.index if p.names & taps for n in p.names & spatial}


def has_windows_apart(b: Block) -> bool:
    """Whether windows that move have no element in common, as groups of channels."""
    moved = window_axes(b)
    return all(
        _parts_by(p, n, b)
        for load in b.loads for p in load.index for n in p.names & moved
        if p.names & {i.name for i in b.reducing}
    )  # fmt: skip


def division(b: Block) -> tuple[str, int] | None:
    """An iterator that an operand's index divides, and the divisor, if it divides the extent."""
    extents = {i.name: i.extent.const for i in b.iters}
    for load in b.loads:
        for p in load.index:
            for a in opaque_atoms(p):
                if isinstance(a, FloorDiv) and (it := a.a.name) in extents:
                    n, c = extents[it], a.b.const
                    if n and c and n % c == 0:
                        return it, c
    return None


def elementwise_match(func: Function, b: Block, target: Block) -> bool:
    """Along the chain from b to target each block has one consumer, the same shape, and reads
    element for element.
    """
    cur = b
    while cur.name != target.name:
        after = consumers(func, cur)
        if len(after) != 1:
            return False
        nxt = after[0]
        shapes = [[i.extent for i in x.spatial] for x in (cur, nxt)]
        if shapes[0] != shapes[1]:
            return False
        for load in nxt.loads:
            if load.buffer in written(cur):
                index = _single(func, load, nxt)
                axes = simple_axes(replace(load, index=index), nxt)
                if axes is None or None in axes or not _in_order(axes, nxt, missing=False):
                    return False
                if any(p.name is None for p in index):
                    return False
        cur = nxt
    return True


def _single(func: Function, load: Load, b: Block) -> tuple[Int, ...]:
    """The index, in which 0 in a dimension of one element is the iterator of the same position, if
    that has one value only. Broadcasting writes 0 there.
    """
    shape, own = func.all_buffers[load.buffer].shape, b.spatial
    if len(own) != len(shape):
        return load.index
    return tuple(
        var(i.name) if p.const == 0 and n.const == 1 and i.extent.const == 1 else p
        for p, n, i in zip(load.index, shape, own, strict=True)
    )


def fusible_consumer(func: Function, b: Block, permuted: bool = False) -> Block | None:
    """The only consumer, if it is element-wise; with `permuted`, also in another order of axes."""
    after = consumers(func, b)
    if len(after) != 1 or is_output(func, b):
        return None
    c = after[0]
    if c.reducing and b.reducing:
        return None
    if any(w.endswith(".shared") for w in written(c)):
        return None
    if elementwise_match(func, b, c) or (permuted and (_permutes(b, c) or _takes_all(func, b, c))):
        return c
    return None


def _takes_all(func: Function, b: Block, c: Block) -> bool:
    """Whether the consumer reads each element once, at its own iterators, while the block writes
    them at others, such as a channel as a group and a channel within the group.
    """
    if len(b.writes) != 1:
        return False
    own = [i.name for i in c.spatial]
    shape = func.all_buffers[b.writes[0].buffer].shape
    loads = [x for x in c.loads if x.buffer == b.writes[0].buffer]
    whole = list(shape) == [i.extent for i in c.spatial]
    return whole and all([p.name for p in x.index] == own for x in loads)


def _permutes(b: Block, c: Block) -> bool:
    """Whether the consumer reads each element once, at its own iterators in some order."""
    if len(b.writes) != 1 or [p.name for p in b.writes[0].index] != [i.name for i in b.spatial]:
        return False
    indices = {load.index for load in c.loads if load.buffer == b.writes[0].buffer}
    if len(indices) != 1:
        return False
    extents = {i.name: i.extent for i in c.spatial}
    (names,) = ([p.name for p in index] for index in indices)
    return set(names) == set(extents) and [extents[n or ""] for n in names] == [
        i.extent for i in b.spatial
    ]


def common_outer_axes(func: Function, b: Block, c: Block) -> int:
    """How many leading dimensions of b are read by c at its own leading iterators."""
    best: int | None = None
    for load in c.loads:
        if load.buffer not in written(b):
            continue
        count = 0
        for p, own, i in zip(load.index, b.spatial, c.iters, strict=False):
            plain = p.coefficient(i.name).const == 1 and (p - Int({(i.name,): 1})).const is not None
            if i.kind != "S" or not plain or own.extent != i.extent:
                break
            count += 1
        best = count if best is None else min(best, count)
    return best or 0


def moved_by(consumer: Block, b: Block) -> frozenset[str]:
    """The loops around a consumer that the addresses of its reads from a block depend on."""
    names: set[str] = set()
    for load in consumer.loads:
        if load.buffer in written(b):
            names |= {n for p in load.index for n in p.substitute(consumer.binding).names}
    return frozenset(names)


def points(b: Block) -> tuple[int, int]:
    """The numbers of spatial and of reducing points. Open sizes count as 1, and empty ones too."""
    spatial = prod(max(1, length(i)) for i in b.spatial)
    return spatial, prod(max(1, length(i)) for i in b.reducing)


def length(i: Iter | For) -> int:
    """The extent of an iterator or loop, 0 where a sketch leaves it open, as the parts of a
    reduction that rfactor made: no rule takes such a one for long.
    """
    n = i.extent.const
    return 0 if n is None else n


def written_out(path: Path, b: Block) -> dict[str, Int]:
    """Iterators whose loop is unrolled, each bound to 1: the constant that code will have there."""
    loops = {f.name for f in path if f.kind == "unroll"}
    return {i.name: of(1) for i in b.iters if i.bind.name in loops}


def more_parallel_in_reduction(func: Function, b: Block, num_cores: int) -> bool:
    """Whether the reduction must be factored to keep all cores busy."""
    space, reduce = points(b)
    if has_data_reuse(func, b):
        return not (space > reduce or space > num_cores * 16)
    return reduce > 1 and reduce > num_cores


def block(func: Function, name: str) -> Block:
    return find_block(func, name)[1]


def contiguous_axes(func: Function, b: Block, lanes: int = 1) -> list[str]:
    """Spatial iterators to vectorise along, the best first: those along which the output is
    contiguous. If all of them are shorter than a vector of `lanes`, those along which operands are
    contiguous follow. They come last because a vector across rows of the output is stored element
    by element, and cannot be kept in a register as an accumulator.
    """
    extents = {i.name: i.extent.const for i in b.spatial if i.extent.const != 1}
    axes = _moved_by_one(extents, (w.index for w in b.writes))
    if any((n := extents[it]) is None or n >= lanes for it in axes):
        return axes
    others = _moved_by_one(extents, (load.index for load in b.loads))
    return list(dict.fromkeys((*axes, *others)))


def is_contiguous(b: Block, axis: str) -> bool:
    """Whether every operand indexed by the axis (at least one) is contiguous along it."""
    moved = [load.index for load in b.loads if any(axis in p.names for p in load.index)]
    return bool(moved) and all(
        index[-1].coefficient(axis).const == 1
        and axis not in (index[-1] - var(axis)).names
        and not any(axis in p.names for p in index[:-1])
        for index in moved
    )


def _moved_by_one(among: Iterable[str], indices: Iterable[tuple[Int, ...]]) -> list[str]:
    """Iterators along which the last dimension of an index moves by one element, in order."""
    last = [index[-1] for index in indices if index]
    axes = [it for p in last for it in among if p.coefficient(it).const == 1]
    return list(dict.fromkeys(axes))


def computed_bits(target: Target, b: Block) -> int:
    """Bits of a block's elements in registers: narrow ones are widened, but for sums of float16
    where the processor has arithmetic for it.
    """
    d = b.writes[0].value.dtype
    if d is not FLOAT16 or "fp16" not in target.features:
        return max(32, d.bits)
    summed = b.combiner is not None or any(sums_halves(w.value) for w in b.writes)
    return d.bits if summed else 32


def adds_chunks(b: Block) -> bool:
    """Whether the block adds up chunks of a sum (schedule/chunks.py). It passes over its results
    once per chunk, and registers hold nothing in between.
    """
    return b.combiner is not None and all(x.buffer == f"{b.name}.chunk" for x in b.loads)
