"""By how much the results of two right programs for one Function may differ: the oracle's values,
each with a bound on the rounding error (running error analysis).

A program may fuse a product with a sum, compute 16-bit floats in float32, and sum in any order. So
two of them round at different places, and each rounding of a result r to a type with roundoff u
contributes 2 u |r|. The error of an operand passes through an operation as the values at its ends
do: f(x - e) and f(x + e). What rounds nothing (moving, comparing, choosing, integers) adds nothing:
there, results must be equal. A comparison, or an integer made from a float, may only go the other
way where the error of its operands reaches the point at which it changes.

The error of a sum of K terms t is a random walk of roundings, relative to what the terms add up to:

    8 u (8 + sqrt(K)) (|sum| + sqrt(sum of t**2))        2 u (8 + sqrt(K)) (...) for 16-bit sums

with the root mean square of all sums in place of the last root where the terms are not at hand. It
leaves room for minimal filtering (schedule/rounding.py) and for tensor cores, which truncate. Where
sums are so long or their type so narrow that a missing term would drown in that, sums of whole
numbers that the type holds are exact in every order, and are taken as that.

A bound of NaN means that anything is right: say, a float16 product that overflows, and would not
have in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod, sqrt
from typing import Any

import numpy as np

from tilesmith.base.dtype import BFLOAT16, FLOAT32, FLOAT64, DType
from tilesmith.expr import semantics
from tilesmith.expr.combiner import Combiner, join_args, plain_combiner
from tilesmith.expr.dynamic import Dynamic, below
from tilesmith.expr.ints import opaque_atoms
from tilesmith.expr.nodes import Binary, Cast, Expr, Load, Select, Unary
from tilesmith.expr.walk import postorder
from tilesmith.ir.contract import contract, factors_of
from tilesmith.ir.evaluate import (
    At,
    axes_of,
    cells_of,
    evaluate_block,
    is_independent,
    memory_of,
)
from tilesmith.ir.evaluators import numbers
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, walk
from tilesmith.ir.pack import as_given
from tilesmith.ir.pieces import Box, boxes, each

Array = np.ndarray[Any, Any]
Error = Any  # an array or a number; None is 0 everywhere

_CHUNK_ELEMENTS = 1 << 17  # of one temporary array
_BLUNT = 1 / 256  # sums whose error may be such a share of a term are taken as exact if they are
# Roundings of an operation, in units of 2 u: what OpenCL allows, which is more than CUDA and our
# own functions need (codegen/llvm/vecmath.py).
_ROUNDINGS = {"div": 4.0, "sqrt": 4.0, "rsqrt": 4.0, "pow": 32.0}
_FUNCTION_ROUNDINGS = 16.0
# The largest slope of functions that are bounded: as good as their values at two more points.
_SLOPES = {"erf": 1.13, "tanh": 1.0, "sigmoid": 0.25, "sin": 1.0, "cos": 1.0, "atan": 1.0}
_EXACT_UNARY = frozenset(("neg", "abs", "not"))
_STEPS = frozenset(("floor", "ceil", "round", "trunc"))
_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))


@dataclass(frozen=True, slots=True)
class Bounded:
    """A result of the oracle; `error` has its shape, or is None if it is exact."""

    value: Array
    error: Array | None


def roundoff(d: DType) -> float:
    """Half the distance from 1 to the next number; 0 for integers."""
    if not d.is_float:
        return 0.0
    bits = 8 if d is BFLOAT16 else {16: 11, 32: 24, 64: 53}[d.bits]
    return float(2.0**-bits)


def num_terms(b: Block) -> int:
    """The number of values a block reduces to one; 1 if it does not reduce."""
    return max(1, prod(numbers([i.extent for i in b.reducing])))


def is_blunt(b: Block) -> bool:
    """Whether the error of a block's sums may hide a missing term."""
    return b.combiner is not None and any(
        roundoff(w.value.dtype) * num_terms(b) > _BLUNT for w in b.writes
    )


def evaluate_bounded(func: Function, *arrays: Any, num_threads: int = 1) -> list[Bounded]:
    """The outputs as `evaluate` gives them, each with its bounds."""
    memory = memory_of(func, arrays)
    errors: dict[str, Array] = {}
    with np.errstate(all="ignore"):
        for _, block in walk(func.body):
            is_product = evaluate_block(block, memory, num_threads)
            _bound_block(block, memory, errors, is_product, num_threads)
    return [
        Bounded(
            as_given(b, memory[b.name]),
            None if (e := errors.get(b.name)) is None else as_given(b, e),
        )
        for b in func.outputs
    ]


def _bound_block(
    b: Block, memory: dict[str, Array], errors: dict[str, Array], is_product: bool, num_threads: int
) -> None:
    spatial = numbers([i.extent for i in b.spatial])
    if b.init and b.combiner:
        for w in b.writes:
            errors.pop(w.buffer, None)
    if 0 in spatial or 0 in numbers([i.extent for i in b.reducing]):
        return
    if is_product:
        error = _product_error(b, memory, errors, num_threads)
        buffer = b.writes[0].buffer
        if error is not None:
            before = errors.get(buffer)
            errors[buffer] = error if before is None else before + error
        return
    if not _rounds(b, errors):
        return
    for w in b.writes:
        errors.setdefault(w.buffer, np.zeros(memory[w.buffer].shape, np.float32))
    if not is_independent(b):
        for w in b.writes:  # what it read is overwritten
            errors[w.buffer][...] = np.nan
        return
    chunks = [*boxes(spatial, max(1, _CHUNK_ELEMENTS // num_terms(b)))]
    each(lambda spans: _bound_chunk(b, memory, errors, spans), chunks, num_threads)


def _rounds(b: Block, errors: Mapping[str, Array]) -> bool:
    """Whether any result of the block may be inexact."""
    if b.combiner is not None and b.combiner.op not in ("max", "min"):
        values = [*b.combiner.values, *(w.value for w in b.writes)]
        if any(v.dtype.is_float for v in values):
            return True
    for w in b.writes:
        for e in postorder(w.value, below):
            if isinstance(e, Load) and e.buffer in errors:
                return True
            if isinstance(e, Binary | Unary) and _own_roundings(e.op, e.dtype):
                return True
            if isinstance(e, Binary) and e.op in ("floordiv", "mod") and e.dtype.is_float:
                return True
            if isinstance(e, Cast) and _narrows(e.x.dtype, e.dtype):
                return True
    return any(w.buffer in errors for w in b.writes)


def _narrows(source: DType, to: DType) -> bool:
    """Whether a cast may round. Floats become integers by truncation, which is exact."""
    if not to.is_float or source.kind == "b":
        return False
    if source.is_float:
        return roundoff(to) > roundoff(source) or (to is not source and to.bits == source.bits)
    return source.bits - (source.kind == "i") > (8 if to is BFLOAT16 else
                                                 {16: 11, 32: 24, 64: 53}[to.bits])  # fmt: skip


def _own_roundings(op: str, d: DType) -> float:
    """The error of an operation itself, relative to its result, in units of the result's u."""
    if not d.is_float or op in _EXACT_UNARY | _STEPS or op in ("max", "min", "fmod"):
        return 0.0
    if op in ("add", "sub", "mul"):
        return 2.0
    more = 2 * (_ROUNDINGS.get(op, _FUNCTION_ROUNDINGS))
    # 16-bit floats: functions are computed in float32.
    return more if d.bits > 16 else 2.0 + more * roundoff(FLOAT32) / roundoff(d)


def _bound_chunk(b: Block, memory: dict[str, Array], errors: dict[str, Array], spans: Box) -> None:
    rank, axes = len(spans), axes_of(b, spans)
    full = tuple(a.stop - a.start for a in axes.values())
    at = _Bounding(axes, memory, errors)
    mask = at.mask(b)
    pairs = [at.pair(w.value) for w in b.writes]
    values = [np.broadcast_to(np.asarray(v), full) for v, _ in pairs]
    bounds = [_spread(e, full) for _, e in pairs]
    if mask is not None and b.combiner:
        identity = [c.value for c in b.combiner.identity]
        values = [
            np.where(mask, v, np.asarray(i, v.dtype)) for v, i in zip(values, identity, strict=True)
        ]
        bounds = [None if e is None else np.where(mask, e, 0) for e in bounds]
    spatial = {i.name: axes[i.name] for i in b.spatial}
    here, there = At(spatial, memory), At(spatial, errors)
    cells = [cells_of(there, w, full[:rank]) for w in b.writes]
    if b.combiner:
        results = [a[c] for a, c in (cells_of(here, w, full[:rank]) for w in b.writes)]
        bounds = _reduced(b, values, bounds, results, rank)
        old = [a[c] for a, c in cells]
        bounds = [o if e is None else o + e for o, e in zip(old, bounds, strict=True)]
    keep = None if mask is None or b.combiner else np.broadcast_to(mask, full)
    for (a, c), e in zip(cells, bounds, strict=True):
        new = np.broadcast_to(np.asarray(0.0 if e is None else e, np.float32), full[:rank])
        if keep is None:
            a[c] = new
        elif c is ...:
            a[keep] = new[keep]
        else:
            a[tuple(x[keep] for x in c)] = new[keep]


def _spread(e: Error, shape: tuple[int, ...]) -> Array | None:
    return None if e is None else np.broadcast_to(np.asarray(e), shape)


def _reduced(
    b: Block, values: Sequence[Array], bounds: Sequence[Error], results: Sequence[Array], rank: int
) -> list[Error]:
    """Of the values that a block joins: the bounds of what they are joined to."""
    combiner = b.combiner
    assert combiner is not None
    terms = num_terms(b)
    if combiner.op is None:
        return _joined(combiner, values, bounds, results, rank, terms)
    (t,), (e,), (total,) = values, bounds, results
    axes = tuple(range(rank, t.ndim))
    d = combiner.values[0].dtype
    if combiner.op in ("max", "min"):
        return [None if e is None else e.max(axis=axes)]
    if combiner.op == "mul":
        if not d.is_float:
            return [None if e is None else np.where((e != 0).any(axis=axes), np.nan, 0)]
        relative = 2 * roundoff(d) * terms
        if e is not None:
            relative = relative + np.where(e == 0, 0, e / _size(t)).sum(axis=axes)
        return [_size(total) * relative]
    passed = None if e is None else e.sum(axis=axes, dtype=np.float64)
    if not d.is_float:
        return [passed]
    wide = _size(t).astype(np.float64)
    if is_blunt(b) and _is_whole(t) and (wide.sum(axis=axes) <= 1 / roundoff(d)).all():
        return [passed]
    typical = np.sqrt(np.square(wide).sum(axis=axes))
    return [_plus(_sum_error(d, terms, total, typical), passed)]


def _sum_error(d: DType, terms: int, total: Array, typical: Error) -> Array:
    size = _size(total)
    factor = 8.0 if d.bits > 16 else 2.0
    error = factor * roundoff(d) * (8 + sqrt(terms)) * (size + typical) + _least(d)
    # Where partial sums may overflow, others may not.
    return np.where(np.isfinite(size), error, np.nan)


def _joined(
    combiner: Combiner, values: Sequence[Array], bounds: Sequence[Error],
    results: Sequence[Array], rank: int, terms: int,
) -> list[Error]:  # fmt: skip
    """As the oracle joins: one half with the other. Kernels may join one by one, so that their
    roundings are as many more as a walk is longer than a tree is high.
    """
    flat = [v.reshape(*v.shape[:rank], -1) for v in values]
    error: list[Error] = [None if e is None else e.reshape(*e.shape[:rank], -1) for e in bounds]
    height = 0
    while (n := flat[0].shape[-1]) > 1:
        half, height = n // 2, height + 1
        parts = [slice(0, half), slice(half, 2 * half)]
        x, y = ([v[..., p] for v in flat] for p in parts)
        ex, ey = ([None if e is None else e[..., p] for e in error] for p in parts)
        at = _Bounding({}, {}, {}, join_args(x, y), join_args(ex, ey))
        pairs = [at.pair(v) for v in combiner.values]
        rest = slice(2 * half, None)
        joined = [np.asarray(v).astype(f.dtype, copy=False) for (v, _), f in
                  zip(pairs, flat, strict=True)]  # fmt: skip
        error = [
            None if e is None and old is None else np.concatenate(
                [_spread(0.0 if e is None else e, v.shape),
                 (np.zeros_like(f[..., rest], np.float32) if old is None else old[..., rest])],
                axis=-1,
            )
            for (_, e), old, v, f in zip(pairs, error, joined, flat, strict=True)
        ]  # fmt: skip
        flat = [np.concatenate([v, f[..., rest]], -1) for v, f in zip(joined, flat, strict=True)]
    longer = 4 * max(1.0, sqrt(terms) / max(height, 1))
    return [None if e is None else e[..., 0] * longer for e in error]


def _product_error(
    b: Block, memory: dict[str, Array], errors: Mapping[str, Array], num_threads: int
) -> Array | None:
    """Of a block that `contract` has computed."""
    w = b.writes[0]
    factors, total, d, terms = factors_of(w.value), memory[w.buffer], w.value.dtype, num_terms(b)
    assert factors is not None
    passed: Array | None = None
    for k, (inexact, _) in enumerate(factors):
        if inexact.buffer in errors:
            arrays = [_size(memory[load.buffer]) for load, _ in factors]
            arrays[k] = errors[inexact.buffer]
            sums = _sums_of_products(b, [load for load, _ in factors], arrays, num_threads)
            passed = sums if passed is None else passed + sums
    if not d.is_float:
        return passed
    if is_blunt(b) and _holds_sums(d, [memory[load.buffer] for load, _ in factors], terms, total):
        return passed
    finite = total[np.isfinite(total)] if not np.isfinite(total).all() else total
    square = np.square(finite, dtype=np.float64).mean() if finite.size else 0.0
    own = _sum_error(d, terms, total, sqrt(float(square))).astype(np.float32)
    return own if passed is None else own + passed


def _sums_of_products(
    b: Block, loads: Sequence[Load], arrays: Sequence[Array], num_threads: int
) -> Array:
    """The same sums, of other arrays."""
    names = [f"#{k}" for k in range(len(loads))]
    value: Expr = Load(names[0], loads[0].index, FLOAT32)
    for name, load in zip(names[1:], loads[1:], strict=True):
        value = Binary("mul", value, Load(name, load.index, FLOAT32), FLOAT32)
    write = replace(b.writes[0], buffer="#", value=value)
    block = replace(b, writes=(write,), combiner=plain_combiner("add", FLOAT32))
    shape = tuple(numbers([i.extent for i in b.spatial]))
    memory = {n: a.astype(np.float32, copy=False) for n, a in zip(names, arrays, strict=True)}
    memory["#"] = np.zeros(shape, np.float32)
    done = contract(block, memory, num_threads)
    assert done
    return memory["#"]


def _holds_sums(d: DType, factors: Sequence[Array], terms: int, total: Array) -> bool:
    """Whether all partial sums of products of these arrays, in whatever order, are whole numbers
    that the type holds. Terms of random sign walk at random, once in a million beyond 5 sigma.
    """
    if not all(map(_is_whole, factors)):
        return False
    largest = prod(float(_size(f).max(initial=0.0)) for f in factors)
    squares = prod(float(np.square(_size(f), dtype=np.float64).mean()) for f in factors)
    reached = max(float(_size(total).max(initial=0.0)), 5 * sqrt(terms * squares))
    return min(terms * largest, reached) <= 1 / roundoff(d)


def _is_whole(a: Array) -> bool:
    a = a if a.dtype.itemsize > 2 else a.astype(np.float32)
    return bool((a == np.rint(a)).all())


def _size(a: Any) -> Array:
    """|a|, as float32 at least."""
    a = np.asarray(a)
    wide = np.float64 if a.dtype.itemsize == 8 or a.dtype.kind in "iu" else np.float32
    out: Array = np.abs(a.astype(wide, copy=False))
    return out


def _least(d: DType) -> float:
    """An error that every rounding may have: devices may flush subnormal numbers to zero."""
    if d.bits == 16 and d is not BFLOAT16:
        return float(2.0**-24)
    return float(2.0**-126)  # bounds are float32, also those of float64


def _plus(a: Error, b: Error) -> Error:
    return b if a is None else a if b is None else a + b


class _Bounding(At):
    """Values of expressions over a grid, with the errors of each."""

    def __init__(
        self,
        axes: Mapping[str, Any],
        memory: Mapping[str, Array],
        errors: Mapping[str, Array],
        args: Mapping[str, Array] | None = None,
        arg_errors: Mapping[str, Error] | None = None,
    ) -> None:
        super().__init__(axes, memory, args)
        self.buffers, self.arg_errors = errors, arg_errors or {}
        self.errors: dict[int, Error] = {}

    def pair(self, e: Expr) -> tuple[Any, Error]:
        self.values, self.outside, self.errors = {}, [], {}
        order = postorder(e, below)
        last = {id(y): k for k, x in enumerate(order) for y in below(x)}
        dying: dict[int, list[int]] = {}
        for node, k in last.items():
            dying.setdefault(k, []).append(node)
        for k, x in enumerate(order):
            self.values[id(x)] = self.node(x)
            self.errors[id(x)] = self.error(x)
            for node in dying.get(k, ()):
                del self.values[node], self.errors[node]
        return self.values[id(e)], self.errors[id(e)]

    def error(self, e: Expr) -> Error:
        v, err = self.values, self.errors
        r = v[id(e)]
        match e:
            case Load():
                return self._load_error(e)
            case Select(cond=c, a=a, b=b):
                return _select(v[id(c)], v[id(a)], v[id(b)], err[id(c)], err[id(a)], err[id(b)])
            case Unary(op=op, x=x):
                return _unary(op, v[id(x)], err[id(x)], r, e.dtype)
            case Binary(op=op, a=a, b=b):
                return _binary(op, v[id(a)], v[id(b)], err[id(a)], err[id(b)], r, a.dtype)
            case Cast(x=x):
                return _cast(v[id(x)], err[id(x)], r, x.dtype, e.dtype)
        name = getattr(e, "name", None)
        return self.arg_errors.get(name) if name is not None else None

    def _load_error(self, e: Load) -> Error:
        out: Error = None
        if e.buffer in self.buffers:
            out = self.load(e, self.buffers)
        for p in e.index:
            for a in opaque_atoms(p):
                inexact = self.errors.get(id(a.expr)) if isinstance(a, Dynamic) else None
                if inexact is not None:  # it may read any element
                    out = _plus(out, np.where(inexact == 0, 0.0, np.nan))
        return out


def _around(f: Callable[..., Any], r: Any, *ends: tuple[Any, Error]) -> Error:
    """The largest distance of f from r at the ends of its operands' errors; NaN if f is not defined
    at one.
    """
    if all(e is None for _, e in ends):
        return None
    wide = [np.asarray(x, np.float64) for x, _ in ends]
    sides = [(x,) if e is None else (x - e, x + e) for x, (_, e) in zip(wide, ends, strict=True)]
    base, out = np.asarray(r, np.float64), np.float64(0.0)
    corners = product(*sides)
    for corner in corners:
        out = np.maximum(out, np.abs(f(*corner) - base))
    exact = np.ones((), bool)
    for _, e in ends:
        exact = exact & (True if e is None else np.equal(e, 0))
    return np.where(exact, 0.0, out)


def _rounded(passed: Error, r: Any, d: DType, roundings: float, may_fuse: bool = False) -> Error:
    """The errors that came with the operands, and those of the operation itself."""
    may_be_wider = may_fuse or d.bits == 16
    size = _size(r)
    own = size * (roundings * roundoff(d)) + _least(d)
    total = own if passed is None else own + passed
    highest = float(d.highest()) if d.bits > 16 else _HIGHEST[d.name]
    finite = np.isfinite(size)
    if finite.all() and not (size + total > highest).any():
        return total
    # Infinite or NaN: as certain as its operands were. What may be computed in a wider type, or
    # fused with what follows, need not overflow.
    doubtful = np.False_ if passed is None else ~(np.asarray(passed) == 0)
    special = np.where(doubtful | (np.isinf(size) & may_be_wider), np.nan, 0.0)
    return np.where(finite, np.where(size + total > highest, np.nan, total), special)


_HIGHEST = {"float16": 65504.0, "bfloat16": 3.3895e38}


def _unary(op: str, x: Any, e: Error, r: Any, d: DType) -> Error:
    if op in _EXACT_UNARY:
        return e
    if not d.is_float:
        return None if e is None else np.where(np.equal(e, 0), 0.0, np.nan)

    def f(z: Array) -> Any:
        return semantics.unary(op, z, FLOAT64)

    slope = _SLOPES.get(op)
    passed = _around(f, r, (x, e)) if e is None or slope is None else np.minimum(slope * e, 2.0)
    if op in _STEPS:
        return passed
    if op in ("sin", "cos"):  # near their zeros, the error is that of the argument
        passed = _plus(passed, 2 * _FUNCTION_ROUNDINGS * roundoff(d if d.bits > 16 else FLOAT32))
    return _rounded(passed, r, d, _own_roundings(op, d))


def _binary(op: str, a: Any, b: Any, ea: Error, eb: Error, r: Any, d: DType) -> Error:
    """`d` is the type of the operands."""
    if op in _COMPARISONS:
        both = _plus(ea, eb)
        if both is None:
            return None
        gap = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
        return np.where((both == 0) | (gap > both), 0.0, 1.0)
    if op in ("max", "min"):
        return ea if eb is None else eb if ea is None else np.maximum(ea, eb)
    if op in ("and", "or"):
        return _plus(ea, eb)
    if op in ("add", "sub"):
        passed = _plus(ea, eb)
        return _where_inexact(op, a, b, passed, r, d) if d.is_float else passed
    if op == "mul":
        passed = _plus(None if ea is None else _size(b) * ea, None if eb is None else _size(a) * eb)
        if ea is not None and eb is not None:
            passed = passed + ea * eb
        return _where_inexact(op, a, b, passed, r, d) if d.is_float else passed
    if op in ("floordiv", "mod", "fmod") and d.is_float:
        return _divided(op, a, b, ea, eb, r, d)

    def f(x: Array, y: Array) -> Any:
        if d.is_float:
            return semantics.binary(op, x, y, FLOAT64)
        x, y = (semantics.cast(np.rint(z), d) for z in (x, y))
        return np.asarray(semantics.binary(op, x, y, d), np.float64)

    passed = _around(f, r, (a, ea), (b, eb))
    if passed is not None and op in ("div", "pow", "floordiv", "truncdiv"):
        # A pole between the ends.
        passed = np.where(_size(b) > (0.0 if eb is None else eb), passed, np.nan)
    return _rounded(passed, r, d, _own_roundings(op, d)) if d.is_float else passed


def _where_inexact(op: str, a: Any, b: Any, passed: Error, r: Any, d: DType) -> Error:
    """Of a sum, difference or product, which rounds nothing if double precision gives the same."""
    total = _rounded(passed, r, d, 2.0, may_fuse=op == "mul")
    if d.bits == 64:
        return total
    wide = semantics.binary(op, np.asarray(a, np.float64), np.asarray(b, np.float64), FLOAT64)
    exact = wide == r
    if passed is not None:
        exact &= np.equal(passed, 0)
    elif np.all(exact):
        return None
    return np.where(exact, 0.0, total)


def _divided(op: str, a: Any, b: Any, ea: Error, eb: Error, r: Any, d: DType) -> Error:
    """a // b and the remainders, which jump where the quotient is whole."""
    if op == "fmod" and ea is None and eb is None:
        return None
    quotient = np.asarray(a, np.float64) / np.asarray(b, np.float64)
    near = _plus(_around(np.divide, quotient, (a, ea), (b, eb)), 8 * roundoff(d) * _size(quotient))
    is_fixed = np.floor(quotient - near) == np.floor(quotient + near)
    if op == "floordiv":
        return np.where(is_fixed, 0.0, np.where(np.isnan(near), np.nan, 1.0))
    passed = _plus(ea, None if eb is None else eb * _size(quotient))
    passed = _plus(passed, 4 * roundoff(d) * _size(a))
    return np.where(is_fixed, passed, passed + _size(b))


def _cast(x: Any, e: Error, r: Any, source: DType, to: DType) -> Error:
    if to.kind == "b":
        return None if e is None else np.where((e == 0) | (_size(x) > e), 0.0, 1.0)
    if to.is_float:
        if not _narrows(source, to):
            return e
        size = _size(r)
        own = size * (2 * roundoff(to)) + _least(to)
        total = own if e is None else own + e
        exact = np.equal(np.asarray(x, np.float64), np.asarray(r, np.float64))
        total = np.where(exact if e is None else exact & np.equal(e, 0), 0.0, total)
        # An overflow is certain if the value is beyond the largest number by more than its error.
        given = _size(x)
        highest = _HIGHEST.get(to.name, float(to.highest()))
        sure = given - (0.0 if e is None else e) > highest * (1 + 2 * roundoff(to))
        over = np.where(sure | np.isinf(given), 0.0, np.inf)
        over = np.where(np.isnan(size), 0.0 if e is None else np.where(e == 0, 0.0, np.nan), over)
        total = np.where(size + total > highest, np.inf, total)
        return np.where(np.isfinite(size), total, over)
    if not source.is_float:
        return e
    return _around(lambda z: np.asarray(semantics.cast(z, to), np.float64), r, (x, e))


def _select(c: Any, a: Any, b: Any, ec: Error, ea: Error, eb: Error) -> Error:
    taken: Error = None
    if ea is not None or eb is not None:
        taken = np.where(c, 0.0 if ea is None else ea, 0.0 if eb is None else eb)
    if ec is None:
        return taken
    gap = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
    both = _plus(gap, _plus(ea, eb))
    return np.where(ec == 0, 0.0 if taken is None else taken, both)
