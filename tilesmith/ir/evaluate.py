"""The NumPy oracle: evaluates each block over its whole iteration domain at once, whatever loops
are around it.

It works before and after scheduling, because a block keeps its domain and producers come first. It
cannot detect a wrong schedule; the interpreter does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import INT64
from tilesmith.base.errors import ArgumentError
from tilesmith.base.given import checks_given
from tilesmith.expr import semantics
from tilesmith.expr.dynamic import below, is_loaded
from tilesmith.expr.ints import Int
from tilesmith.expr.nodes import (
    Arg,
    Binary,
    Cast,
    Combiner,
    Const,
    Expr,
    IntValue,
    Load,
    Select,
    Unary,
    join_args,
)
from tilesmith.expr.walk import postorder, preorder
from tilesmith.ir.contract import contract
from tilesmith.ir.evaluators import (
    axes_over,
    input_arrays,
    integer,
    needed,
    operation,
    outside,
    result_of,
)
from tilesmith.ir.function import Function, numbers
from tilesmith.ir.nodes import Block, Write, walk
from tilesmith.ir.open_shapes import with_shapes_of
from tilesmith.ir.pack import prepared
from tilesmith.ir.pieces import Box, boxes, each

Array = np.ndarray[Any, Any]
# Elements of one temporary array. Larger iteration spaces are processed in chunks, whose arrays
# stay in the caches, and in memory that is used again.
_CHUNK_ELEMENTS = 1 << 19


# Elements of an array at all points of a grid, as a view, where each index depends on one axis of
# the grid at most. Gathering them by arrays of indices would take many times as long.
@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a grid: its number, and the values of its iterator."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The positions start, start + step, ... in a dimension of an array, one for each value of an
    iterator; a single position if `axis` is None.
    """

    axis: int | None
    start: int
    step: int
    count: int

    @property
    def last(self) -> int:
        return self.start + self.step * (self.count - 1)

    def is_within(self, extent: int) -> bool:
        return min(self.start, self.last) >= 0 and max(self.start, self.last) < extent

    @property
    def slice(self) -> slice:
        end = self.last + (1 if self.step > 0 else -1)
        return slice(self.start, end if end >= 0 else None, self.step)

    def positions(self, extent: int) -> Array:
        """Clipped to the dimension."""
        return np.clip(self.start + self.step * np.arange(self.count), 0, max(extent - 1, 0))


def cuts_of(index: Sequence[Int], axes: Mapping[str, Axis]) -> list[Cut] | None:
    """One for each dimension. None if an index is not affine in one iterator, or if two dimensions
    depend on the same one.
    """
    out: list[Cut] = []
    for p in index:
        offset, found = 0, None
        for m, c in p.terms.items():
            if not m:
                offset = c
            elif len(m) == 1 and isinstance(m[0], str) and m[0] in axes and found is None:
                found = axes[m[0]], c
            else:
                return None
        if found is None:
            out.append(Cut(None, offset, 1, 1))
            continue
        axis, c = found
        if any(cut.axis == axis.number for cut in out):
            return None
        out.append(Cut(axis.number, offset + c * axis.start, c, axis.stop - axis.start))
    return out


def view(a: Array, cuts: Sequence[Cut], rank: int) -> Array:
    """The elements on a grid of this rank; axes that nothing depends on have length 1. What lies
    outside of the array is clipped to it, which makes a copy.
    """
    inside = [cut.is_within(n) for cut, n in zip(cuts, a.shape, strict=True)]
    cut = [c.slice if ok else slice(None) for c, ok in zip(cuts, inside, strict=True)]
    a = a[tuple(cut)] if cut else a
    for d, (c, ok) in enumerate(zip(cuts, inside, strict=True)):
        if not ok:
            a = a.take(c.positions(a.shape[d]), axis=d)
    dims = {c.axis: d for d, c in enumerate(cuts) if c.axis is not None}
    single = [d for d, c in enumerate(cuts) if c.axis is None]
    a = a.transpose(*(dims[k] for k in sorted(dims)), *single)
    at = tuple(slice(None) if k in dims else None for k in range(rank))
    return a[(*at, ..., *(0 for _ in single))]


@checks_given
def evaluate(func: Function, *arrays: Any, num_threads: int = 1) -> Any:
    """What a Function computes, by NumPy: the output array, or a tuple of them when there are
    several. It is the reference that kernels are checked against, and ignores the schedule. Open
    sizes are those of the arrays.

    `num_threads` share the work; BLAS may use threads of its own besides.

    Example:

        want = ts.evaluate(func, a, b)
        np.testing.assert_allclose(ts.build(func)(a, b), want, rtol=1e-4)
    """
    func = with_shapes_of(func, arrays)
    memory = memory_of(func, arrays)
    with np.errstate(all="ignore"):
        for _, block in walk(func.body):
            evaluate_block(block, memory, num_threads)
    return result_of(func, [memory[b.name] for b in func.outputs])


def memory_of(func: Function, arrays: Sequence[Any]) -> dict[str, Array]:
    """The arrays of a call and zeros for all that is computed, by the names of the buffers."""
    memory = {
        b.name: prepared(b, a.astype(b.dtype.numpy, copy=False))
        for b, a in zip(func.inputs, input_arrays(func, arrays), strict=True)
    }
    for b in (*func.outputs, *func.buffers):
        memory[b.name] = np.zeros(numbers(b.shape), b.dtype.numpy)
    return memory


def evaluate_block(b: Block, memory: dict[str, Array], num_threads: int) -> bool:
    """Computes what a block writes. Returns whether it was a sum of products of plain reads."""
    spatial = numbers([i.extent for i in b.spatial])
    reduce = numbers([i.extent for i in b.reducing])
    if b.init and b.combiner:
        for w, c, kept in zip(b.writes, b.combiner.identity, b.keeps_partial, strict=True):
            if not kept:
                memory[w.buffer][...] = c.value
    if 0 in spatial or 0 in reduce:
        return False
    if b.combiner and not b.domain and not b.scatters and contract(b, memory, num_threads):
        return True
    # The arrays of conditions live as long as a value is computed, and there may be many of them.
    choices = sum(isinstance(x, Select) for w in b.writes for x in preorder(w.value, below))
    most = _CHUNK_ELEMENTS // (prod(reduce) * (1 + choices // 64))
    chunks = [*boxes(spatial, max(1, most))]
    each(
        lambda spans: evaluate_chunk(b, memory, spans),
        chunks,
        num_threads if is_independent(b) or b.is_running else 1,  # rows keep their own results
    )
    return False


def is_independent(b: Block) -> bool:
    """Whether the points of the result may be computed in any order: each is written once, and none
    is read.
    """
    iters = {i.name for i in b.spatial}
    if b.scatters or b.is_running:
        return False
    return all(iters <= {p.name for p in w.index} for w in b.writes) and not (
        {w.buffer for w in b.writes} & {load.buffer for load in b.loads}
    )


def axes_of(b: Block, spans: Box) -> dict[str, Axis]:
    """The axes of a grid over a box of the spatial iterators, and all of the others."""
    reduce = (slice(0, n) for n in numbers([i.extent for i in b.reducing]))
    pairs = zip((*b.spatial, *b.reducing), (*spans, *reduce), strict=True)
    return {i.name: Axis(k, s.start, s.stop) for k, (i, s) in enumerate(pairs)}


def evaluate_chunk(b: Block, memory: dict[str, Array], spans: Box) -> None:
    """Computes what a block writes at a box of its spatial iterators."""
    rank = len(spans)
    axes = axes_of(b, spans)
    full = tuple(a.stop - a.start for a in axes.values())
    at = At(axes, memory)
    mask = at.mask(b)
    values = []
    for k, w in enumerate(b.writes):
        v = np.broadcast_to(np.asarray(at.expr(w.value, mask)), full)
        if mask is not None and b.combiner:
            v = np.where(mask, v, np.asarray(b.combiner.identity[k].value, w.value.dtype.numpy))
        values.append(v)
    if b.scatters:
        _scatter(b, at, values[0], mask)
        return
    if b.is_running:
        _run_on(b, at, values, mask)
        return
    where = At({i.name: axes[i.name] for i in b.spatial}, memory)
    cells = [cells_of(where, w, full[:rank]) for w in b.writes]
    if b.combiner:
        values = _reduce(b.combiner, values, rank)
        old = [a[c] for a, c in cells]
        values = _join(b.combiner, old, values)
    keep = None if mask is None or b.combiner else np.broadcast_to(mask, full)
    for (a, c), v in zip(cells, values, strict=True):
        put(a, c, v, keep)


def _run_on(b: Block, at: At, values: list[Array], mask: Array | None) -> None:
    """Keeps every partial result of a reduction over the last axis of the grid."""
    assert b.combiner is not None
    joined, added = values
    first, d = b.combiner.values[0], b.combiner.values[0].dtype
    assert isinstance(first, Binary)
    wide = joined.astype(np.float64) if d.is_float else joined
    kind = {} if d.is_float else {"dtype": d.numpy}
    total = _UFUNC[first.op].accumulate(wide, axis=-1, **kind)
    start = np.full((*total.shape[:-1], 1), b.combiner.identity[0].value, total.dtype)
    before = np.concatenate([start, total[..., :-1]], axis=-1)
    _, kept = _join(b.combiner, [before, before], [wide, added])
    a, cells = cells_of(at, b.writes[1], kept.shape)
    put(a, cells, kept, None if mask is None else np.broadcast_to(mask, kept.shape))


def _scatter(b: Block, at: At, values: Array, mask: Array | None) -> None:
    """Updates elements in the order of the reducing axes, which are the last of the grid."""
    a = at.memory[b.writes[0].buffer]
    cells = scattered_cells(b, at, mask)
    kept = values.ravel() if mask is None else values[np.broadcast_to(mask, values.shape)]
    flat = a.reshape(-1)
    assert b.combiner is not None
    op = b.combiner.op
    if op is None:
        flat[cells] = kept
    elif op == "add" and a.dtype.kind == "f":  # in double, as all sums of the oracle
        places, number = np.unique(cells, return_inverse=True)
        total = np.bincount(number, kept.astype(np.float64), len(places))
        flat[places] = (flat[places] + total).astype(a.dtype)
    else:
        _UFUNC[op].at(flat, cells, kept)


def scattered_cells(b: Block, at: At, mask: Array | None) -> Array:
    """The elements, by their number in memory, that a block updates at the points of a grid."""
    (w,) = b.writes
    full = tuple(x.stop - x.start for x in at.axes.values())
    shape = at.memory[w.buffer].shape
    keep = np.ones(full, bool) if mask is None else np.broadcast_to(mask, full)
    where = [np.broadcast_to(np.asarray(at.index(p)), full)[keep] for p in w.index]
    for d, (i, p) in enumerate(zip(where, w.index, strict=True)):
        bad = (i < 0) | (i >= shape[d])
        if bad.any():
            raise ArgumentError(outside(w.buffer, p, d, int(i[bad][0]), shape[d], "written"))
    return np.ravel_multi_index(where, shape) if shape else np.zeros(len(where), np.intp)


def put(a: Array, cells: Any, values: Array, keep: Array | None) -> None:
    """Writes values to cells, as `cells_of` gives them; only where `keep` holds."""
    if keep is None:
        a[cells] = values
    elif cells is ...:
        a[keep] = values[keep]
    else:
        a[tuple(x[keep] for x in cells)] = values[keep]


def cells_of(at: At, w: Write, shape: tuple[int, ...]) -> tuple[Array, Any]:
    """An array, and which of its elements a chunk writes: all of a view, where there is one."""
    a = at.memory[w.buffer]
    cuts = cuts_of(w.index, at.axes)
    if (
        cuts is not None
        and all(cut.is_within(n) for cut, n in zip(cuts, a.shape, strict=True))
        and (part := view(a, cuts, len(shape))).shape == shape
    ):
        return part, ...
    return a, tuple(np.broadcast_to(np.asarray(at.int(p)), shape) for p in w.index)


_UFUNC: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _reduce(combiner: Combiner, values: list[Array], rank: int) -> list[Array]:
    op = combiner.op
    if op is not None:
        v = values[0]
        axes = tuple(range(rank, v.ndim))
        d = combiner.values[0].dtype
        # sums in double, so that the oracle is more accurate than any kernel
        if op in ("add", "mul") and d.is_float:
            return [_UFUNC[op].reduce(v, axis=axes, dtype=np.float64).astype(d.numpy)]
        return [
            _UFUNC[op].reduce(v, axis=axes, **({} if op in ("max", "min") else {"dtype": d.numpy}))
        ]
    flat = [v.reshape(*v.shape[:rank], -1) for v in values]
    while (n := flat[0].shape[-1]) > 1:  # pairwise: one half is joined with the other
        half = n // 2
        joined = _join(
            combiner, [v[..., :half] for v in flat], [v[..., half : 2 * half] for v in flat]
        )
        flat = [
            np.concatenate([j, v[..., 2 * half :]], axis=-1)
            for j, v in zip(joined, flat, strict=True)
        ]
    return [v[..., 0] for v in flat]


def _join(combiner: Combiner, x: Sequence[Array], y: Sequence[Array]) -> list[Array]:
    at = At({}, {}, join_args(x, y))
    return [np.asarray(at.expr(v, None)).astype(v.dtype.numpy, copy=False) for v in combiner.values]


class At:
    """Evaluates expressions over whole grids of points.

    Every node is computed once, at all points. Loads are clipped into their buffer, and an integer
    divided by zero gives 0. If a load was clipped, `_require` checks that no point at which it lies
    outside is needed.
    """

    def __init__(
        self,
        axes: Mapping[str, Axis],
        memory: Mapping[str, Array],
        args: Mapping[str, Array] | None = None,
    ) -> None:
        self.axes, self.memory, self.args = axes, memory, args or {}
        self.env = axes_over({n: range(a.start, a.stop) for n, a in axes.items()})
        self.values: dict[int, Any] = {}
        self.outside: list[tuple[Load, int, Array, Array]] = []

    def mask(self, b: Block) -> Array | None:
        """The points of a block's domain; None if it is the whole grid."""
        out: Array | None = None
        for p in b.domain:
            ok = np.greater_equal(self.index(p), 0)
            out = ok if out is None else out & ok
        return out

    def int(self, p: Int) -> Any:
        """The value of p; the elements that p reads have been computed."""
        return integer(p, self.env, self.values)

    def index(self, p: Int) -> Any:
        """The value of p, which is not a part of an expression: what it reads is computed."""
        return self.expr(IntValue(p, INT64), None) if is_loaded(p) else self.int(p)

    def expr(self, e: Expr, mask: Array | None) -> Any:
        """`mask` is where the value is needed; elsewhere it may be anything."""
        self.values, self.outside = {}, []
        order = postorder(e, below)
        uses: dict[int, int] = {}
        for x in order:
            for y in below(x):
                uses[id(y)] = uses.get(id(y), 0) + (2 if isinstance(x, Select) else 1)
        for x in order:
            self.values[id(x)] = self.node(x)
            for y in below(x):  # conditions are kept: they tell which points are needed
                uses[id(y)] -= 1 if not isinstance(x, Select) else 1 if y is x.cond else 2
                if uses[id(y)] == 0:
                    del self.values[id(y)]
        if self.outside:
            self._require(order, mask)
        return self.values[id(e)]

    def node(self, e: Expr) -> Any:
        v = self.values
        match e:
            case IntValue(value=p):
                return semantics.cast(self.int(p), e.dtype)
            case Arg(name=n):
                return self.args[n]
            case Load():
                return self.load(e, self.memory)
            case Select(cond=c, a=a, b=b):
                return np.where(v[id(c)], v[id(a)], v[id(b)]).astype(e.dtype.numpy, copy=False)
            case Const() | Unary() | Binary() | Cast():
                return operation(e, v)

    def load(self, e: Load, memory: Mapping[str, Array]) -> Any:
        a = memory[e.buffer]
        cuts = cuts_of(e.index, self.axes)
        at = []
        for d, (p, n) in enumerate(zip(e.index, a.shape, strict=True)):
            if cuts is not None and cuts[d].is_within(n):
                continue
            i = np.asarray(self.int(p))
            bad = (i < 0) | (i >= n)
            if np.any(bad):
                self.outside.append((e, d, i, bad))
            at.append(np.clip(i, 0, max(n - 1, 0)))
        if a.size == 0:
            return np.zeros((), a.dtype)
        return a[tuple(at)] if cuts is None else view(a, cuts, len(self.axes))

    def _require(self, order: list[Expr], mask: Array | None) -> None:
        """Raises if a load lies outside of its buffer at a point that needs it; names the index."""
        wanted = needed(order, self.values, mask)
        for load, d, i, bad in self.outside:
            where = wanted[id(load)]
            wrong = bad if where is None else bad & where
            if np.any(wrong):
                value = int(np.broadcast_to(i, wrong.shape)[wrong].flat[0])
                shape = self.memory[load.buffer].shape
                raise ArgumentError(outside(load.buffer, load.index[d], d, value, shape[d]))
