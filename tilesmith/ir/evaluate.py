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

from tilesmith.base.dtype import INT64, DType
from tilesmith.base.errors import ArgumentError
from tilesmith.expr import semantics
from tilesmith.expr.combiner import Combiner, join_args
from tilesmith.expr.dynamic import Dynamic, below
from tilesmith.expr.ints import FloorDiv, Int, Maximum
from tilesmith.expr.nodes import Arg, Binary, Cast, Const, Expr, IntValue, Load, Select, Unary
from tilesmith.expr.walk import postorder, preorder
from tilesmith.ir.function import Function
from tilesmith.ir.interpreter import outside
from tilesmith.ir.nodes import Block, walk
from tilesmith.ir.pack import as_given, in_basis

Array = np.ndarray[Any, Any]
# Elements of one temporary array. Larger iteration spaces are processed in chunks of the first
# axis.
_CHUNK_ELEMENTS = 1 << 23
_COPIED_ELEMENTS = 1 << 24


def evaluate(func: Function, *arrays: Any) -> Any:
    """What a Function computes, by NumPy: the output array, or a tuple of them when there are
    several. It is the reference that kernels are checked against, and ignores the schedule.

    Example:

        want = ts.evaluate(func, a, b)
        np.testing.assert_allclose(ts.build(func)(a, b), want, rtol=1e-4)
    """
    if len(arrays) != len(func.inputs):
        raise ArgumentError(
            f"{func.name} takes {len(func.inputs)} inputs "
            f"({', '.join(b.name for b in func.inputs)}), got {len(arrays)}"
        )
    memory: dict[str, Array] = {}
    for b, x in zip(func.inputs, arrays, strict=True):
        a = np.asarray(x)
        if a.shape != (shape := _shape(b.given_shape)):
            raise ArgumentError(
                f"{b.name} has shape {list(a.shape)}, {func.name} wants {list(shape)}"
            )
        memory[b.name] = in_basis(b, a.astype(b.dtype.numpy, copy=False))
    for b in (*func.outputs, *func.buffers):
        memory[b.name] = np.zeros(_shape(b.shape), b.dtype.numpy)
    with np.errstate(all="ignore"):
        for _, block in walk(func.body):
            _block(block, memory)
    outs = tuple(as_given(b, memory[b.name]) for b in func.outputs)
    return outs if len(outs) > 1 else outs[0]


def _shape(extents: Sequence[Int]) -> tuple[int, ...]:
    numbers = [e.const for e in extents]
    if None in numbers:
        raise ArgumentError(f"the size {list(extents)} is open; put in numbers with instantiate()")
    return tuple(n for n in numbers if n is not None)


def _block(b: Block, memory: dict[str, Array]) -> None:
    spatial = _shape([i.extent for i in b.spatial])
    reduce = _shape([i.extent for i in b.reducing])
    if b.init and b.combiner:
        for w, c in zip(b.writes, b.combiner.identity, strict=True):
            memory[w.buffer][...] = c.value
    if 0 in spatial or 0 in reduce:
        return
    if b.combiner and not b.domain and _contract(b, memory):
        return
    per_row = max(1, prod(spatial[1:]) * prod(reduce))
    # The arrays of conditions live as long as a value is computed, and there may be many of them.
    choices = sum(isinstance(x, Select) for w in b.writes for x in preorder(w.value, below))
    step = max(1, _CHUNK_ELEMENTS // (per_row * (1 + choices // 64)))
    rows = spatial[0] if spatial else 1
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        _chunk(
            b, memory, ((start, stop), *((0, n) for n in spatial[1:])) if spatial else (), reduce
        )


def _chunk(
    b: Block, memory: dict[str, Array], spans: tuple[tuple[int, int], ...], reduce: tuple[int, ...]
) -> None:
    names = [i.name for i in (*b.spatial, *b.reducing)]
    ranges = [*spans, *((0, n) for n in reduce)]
    rank = len(names)
    env: dict[str, Array] = {}
    for d, (n, (lo, hi)) in enumerate(zip(names, ranges, strict=True)):
        env[n] = np.arange(lo, hi).reshape([-1 if k == d else 1 for k in range(rank)])
    at = _At(env, memory)
    full = tuple(hi - lo for lo, hi in ranges)
    mask: Array | None = None
    for p in b.domain:
        ok = np.greater_equal(at.int(p), 0)
        mask = ok if mask is None else mask & ok
    values = []
    for k, w in enumerate(b.writes):
        v = np.broadcast_to(np.asarray(at.expr(w.value, mask)), full)
        if mask is not None and b.combiner:
            v = np.where(mask, v, np.asarray(b.combiner.identity[k].value, w.value.dtype.numpy))
        values.append(v)
    cells = []
    for w in b.writes:
        flat = {
            n: a.reshape(a.shape[: len(spans)]) for n, a in env.items() if n in names[: len(spans)]
        }
        where = _At(flat, memory)
        shape = full[: len(spans)]
        cells.append(tuple(np.broadcast_to(np.asarray(where.int(p)), shape) for p in w.index))
    if b.combiner:
        values = _reduce(b.combiner, values, len(spans))
        old = [memory[w.buffer][c] for w, c in zip(b.writes, cells, strict=True)]
        values = _join(b.combiner, old, values)
    for w, c, v in zip(b.writes, cells, values, strict=True):
        if mask is not None and not b.combiner:
            keep = np.broadcast_to(mask, full)
            memory[w.buffer][tuple(x[keep] for x in c)] = v[keep]
        else:
            memory[w.buffer][c] = v


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
    at = _At({}, {}, join_args(x, y))
    return [np.asarray(at.expr(v, None)).astype(v.dtype.numpy, copy=False) for v in combiner.values]


def _contract(b: Block, memory: dict[str, Array]) -> bool:
    """Computes a sum of products of plain reads by einsum on strided views, which uses BLAS where
    possible. False if the block is anything else.
    """
    assert b.combiner is not None
    if b.combiner.op != "add" or len(b.writes) != 1:
        return False
    whole = b.writes[0].value.dtype.is_int
    factors: list[tuple[Load, DType]] = []  # each with the dtype it is cast to

    def split(e: Expr) -> bool:
        if isinstance(e, Binary) and e.op == "mul":
            return split(e.a) and split(e.b)
        load = e.x if isinstance(e, Cast) and (e.dtype.is_float or whole) else e
        if isinstance(load, Load):
            factors.append((load, e.dtype))
            return True
        return False

    w = b.writes[0]
    if not split(w.value) or len(factors) > 3 or len(b.iters) > 26:
        return False
    if tuple(p.name for p in w.index) != tuple(i.name for i in b.spatial):
        return False
    letter = {i.name: chr(ord("a") + k) for k, i in enumerate(b.iters)}
    extent = {i.name: i.extent.const or 0 for i in b.iters}
    views, terms = [], []
    # In double where that matters (a long sum) or is cheap (a small problem).
    row = prod(extent[i.name] for i in b.reducing)
    points = row * prod(extent[i.name] for i in b.spatial)
    double = whole or w.value.dtype.bits == 64 or row > 1 << 14 or points < 1 << 26
    if whole:
        # Small integers are exact in double, and wrapping once at the end is equivalent.
        if not all(load.dtype.is_int for load, _ in factors):
            return False
        if row << sum(load.dtype.bits for load, _ in factors) >= 1 << 52:
            return False
    wide = np.float64 if double else np.float32
    for load, dtype in factors:
        # Row-major copies: the strides below assume it, whatever the caller's array is.
        a = memory[load.buffer]
        a = (a if whole else a.astype(dtype.numpy, copy=False)).astype(wide, order="C")
        used: dict[str, int] = {}
        offset = 0
        for p, stride, n in zip(load.index, a.strides, a.shape, strict=True):
            low = high = 0
            for m, c in p.terms.items():
                if len(m) > 1 or (m and not isinstance(m[0], str)):
                    return False
                if not m:
                    low, high = low + c, high + c
                    offset += c * stride
                    continue
                name = m[0]
                assert isinstance(name, str)
                used[name] = used.get(name, 0) + c * stride
                low, high = (
                    low + min(0, c * (extent[name] - 1)),
                    high + max(0, c * (extent[name] - 1)),
                )
            if low < 0 or high >= n:
                return False
        base = a.reshape(-1)[offset // a.itemsize :]
        views.append(
            np.lib.stride_tricks.as_strided(
                base, [extent[n] for n in used], list(used.values()), writeable=False
            )
        )
        terms.append("".join(letter[n] for n in used))
    for i in b.reducing:  # an axis that no factor reads multiplies the sum by its extent
        if not any(letter[i.name] in t for t in terms):
            return False
    out = "".join(letter[i.name] for i in b.spatial)
    if any(not any(c in t for t in terms) for c in out):
        return False
    target = memory[w.buffer]
    total = target + _einsum(terms, out, views)
    target[...] = (total.astype(np.int64) if whole else total).astype(target.dtype)
    return True


def _einsum(terms: list[str], out: str, views: list[Array]) -> Array:
    """einsum in pieces along an axis of the result. To call BLAS, einsum copies its operands, and a
    copied view of overlapping windows can be hundreds of times as large as its array.
    """
    expression = f"{','.join(terms)}->{out}"
    size = max(v.size for v in views)
    extent = {
        c: n for t, v in zip(terms, views, strict=True) for c, n in zip(t, v.shape, strict=True)
    }
    (largest,) = [t for t, v in zip(terms, views, strict=True) if v.size == size][:1]
    axis = max((c for c in out if c in largest), key=extent.__getitem__, default=None)
    if size <= _COPIED_ELEMENTS or axis is None:
        return np.asarray(np.einsum(expression, *views, optimize=True))
    step = max(1, extent[axis] * _COPIED_ELEMENTS // size)
    parts = []
    for start in range(0, extent[axis], step):
        piece = slice(start, start + step)
        cut = [
            v[tuple(piece if c == axis else slice(None) for c in t)]
            for t, v in zip(terms, views, strict=True)
        ]
        parts.append(np.einsum(expression, *cut, optimize=True))
    return np.concatenate(parts, axis=out.index(axis))


class _At:
    """Evaluates expressions over whole grids of points.

    Every node is computed once, at all points. Loads are clipped into their buffer, and an integer
    divided by zero gives 0. If a load was clipped, `_require` checks that no point at which it lies
    outside is needed.
    """

    def __init__(
        self,
        env: Mapping[str, Array],
        memory: Mapping[str, Array],
        args: Mapping[str, Array] | None = None,
    ) -> None:
        self.env, self.memory, self.args = env, memory, args or {}
        self.values: dict[int, Any] = {}
        self.outside: list[tuple[Load, int, Array, Array]] = []

    def int(self, p: Int) -> Any:
        """The value of p; the elements that p reads have been computed."""
        total: Any = 0
        for m, c in p.terms.items():
            v: Any = c
            for a in m:
                if isinstance(a, str):
                    v = v * self.env[a]
                elif isinstance(a, FloorDiv):
                    v = v * semantics.binary("floordiv", self.int(a.a), self.int(a.b), INT64)
                elif isinstance(a, Maximum):
                    v = v * np.maximum(self.int(a.a), self.int(a.b))
                else:
                    assert isinstance(a, Dynamic)
                    v = v * np.asarray(self.values[id(a.expr)]).astype(np.int64)
            total = total + v
        return total

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
            case Const(value=value):
                return semantics.constant(value, e.dtype)
            case IntValue(value=p):
                return semantics.cast(self.int(p), e.dtype)
            case Arg(name=n):
                return self.args[n]
            case Load():
                return self.load(e)
            case Unary(op=op, x=x):
                return semantics.unary(op, v[id(x)], e.dtype)
            case Binary(op=op, a=a, b=b):
                return semantics.binary(op, v[id(a)], v[id(b)], a.dtype)
            case Select(cond=c, a=a, b=b):
                return np.where(v[id(c)], v[id(a)], v[id(b)]).astype(e.dtype.numpy)
            case Cast(x=x):
                return semantics.cast(v[id(x)], e.dtype)

    def load(self, e: Load) -> Any:
        a = self.memory[e.buffer]
        at = []
        for d, (p, n) in enumerate(zip(e.index, a.shape, strict=True)):
            i = np.asarray(self.int(p))
            bad = (i < 0) | (i >= n)
            if np.any(bad):
                self.outside.append((e, d, i, bad))
            at.append(np.clip(i, 0, max(n - 1, 0)))
        if a.size == 0:
            return np.zeros((), a.dtype)
        return a[tuple(at)]

    def _require(self, order: list[Expr], mask: Array | None) -> None:
        """Raises if a load lies outside of its buffer at a point that needs it; names the index."""
        everywhere: Any = True if mask is None else mask
        wanted: dict[int, Any] = {id(order[-1]): everywhere}

        def want(e: Expr, where: Any) -> None:
            old = wanted.get(id(e))
            if old is None:
                wanted[id(e)] = where
            elif old is not everywhere:
                wanted[id(e)] = everywhere if where is everywhere else old | where

        for x in reversed(order):
            here = wanted[id(x)]
            if isinstance(x, Select):
                cond = self.values[id(x.cond)]
                want(x.cond, here)
                want(x.a, here & cond)
                want(x.b, here & np.logical_not(cond))
            else:
                for y in below(x):
                    want(y, here)
        for load, d, i, bad in self.outside:
            wrong = bad & wanted[id(load)]
            if np.any(wrong):
                value = int(np.broadcast_to(i, wrong.shape)[wrong].flat[0])
                shape = self.memory[load.buffer].shape
                raise ArgumentError(outside(load.buffer, load.index[d], d, value, shape[d]))
