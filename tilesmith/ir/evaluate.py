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

from tilesmith.base.dtype import INT64
from tilesmith.base.errors import ArgumentError
from tilesmith.expr import semantics
from tilesmith.expr.combiner import Combiner, join_args
from tilesmith.expr.dynamic import Dynamic, below
from tilesmith.expr.ints import FloorDiv, Int, Maximum
from tilesmith.expr.nodes import Arg, Binary, Cast, Const, Expr, IntValue, Load, Select, Unary
from tilesmith.expr.walk import postorder, preorder
from tilesmith.ir.contract import contract
from tilesmith.ir.evaluators import input_arrays, needed, numbers, operation, outside
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, walk
from tilesmith.ir.pack import as_given, in_basis

Array = np.ndarray[Any, Any]
# Elements of one temporary array. Larger iteration spaces are processed in chunks of the first
# axis.
_CHUNK_ELEMENTS = 1 << 23


def evaluate(func: Function, *arrays: Any) -> Any:
    """What a Function computes, by NumPy: the output array, or a tuple of them when there are
    several. It is the reference that kernels are checked against, and ignores the schedule.

    Example:

        want = ts.evaluate(func, a, b)
        np.testing.assert_allclose(ts.build(func)(a, b), want, rtol=1e-4)
    """
    memory = {
        b.name: in_basis(b, a.astype(b.dtype.numpy, copy=False))
        for b, a in zip(func.inputs, input_arrays(func, arrays), strict=True)
    }
    for b in (*func.outputs, *func.buffers):
        memory[b.name] = np.zeros(numbers(b.shape), b.dtype.numpy)
    with np.errstate(all="ignore"):
        for _, block in walk(func.body):
            _block(block, memory)
    outs = tuple(as_given(b, memory[b.name]) for b in func.outputs)
    return outs if len(outs) > 1 else outs[0]


def _block(b: Block, memory: dict[str, Array]) -> None:
    spatial = numbers([i.extent for i in b.spatial])
    reduce = numbers([i.extent for i in b.reducing])
    if b.init and b.combiner:
        for w, c in zip(b.writes, b.combiner.identity, strict=True):
            memory[w.buffer][...] = c.value
    if 0 in spatial or 0 in reduce:
        return
    if b.combiner and not b.domain and contract(b, memory):
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
            case IntValue(value=p):
                return semantics.cast(self.int(p), e.dtype)
            case Arg(name=n):
                return self.args[n]
            case Load():
                return self.load(e)
            case Select(cond=c, a=a, b=b):
                return np.where(v[id(c)], v[id(a)], v[id(b)]).astype(e.dtype.numpy)
            case Const() | Unary() | Binary() | Cast():
                return operation(e, v)

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
        wanted = needed(order, self.values, mask)
        for load, d, i, bad in self.outside:
            where = wanted[id(load)]
            wrong = bad if where is None else bad & where
            if np.any(wrong):
                value = int(np.broadcast_to(i, wrong.shape)[wrong].flat[0])
                shape = self.memory[load.buffer].shape
                raise ArgumentError(outside(load.buffer, load.index[d], d, value, shape[d]))
