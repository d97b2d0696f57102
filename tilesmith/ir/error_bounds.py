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
leaves room for minimal filtering (schedule/winograd.py) and for tensor cores, which truncate. Where
sums are so long or their type so narrow that a missing term would drown in that, sums of whole
numbers that the type holds are exact in every order, and are taken as that. If instructions round
factors (schedule/rounding.py), with roundoff v, those that have more digits add

    v (2 |sum| + 6 sqrt(sum of t**2))

of each sum's own terms: a row of large numbers is rounded more than the others.

A bound of NaN means that anything is right: say, a float16 product that overflows, and would not
have in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod, sqrt
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT16, FLOAT32, DType
from tilesmith.expr.dynamic import Dynamic, below
from tilesmith.expr.ints import opaque_atoms
from tilesmith.expr.nodes import (
    Binary,
    Cast,
    Combiner,
    Expr,
    Load,
    Select,
    Unary,
    join_args,
    plain_combiner,
)
from tilesmith.expr.walk import postorder
from tilesmith.ir import error_rules as rules
from tilesmith.ir.contract import MOST_TERMS, contract, factors_of, narrow_terms, sums_products
from tilesmith.ir.error_rules import Error
from tilesmith.ir.evaluate import (
    At,
    axes_of,
    cells_of,
    evaluate_block,
    evaluate_chunk,
    is_independent,
    memory_of,
    put,
    scattered_cells,
)
from tilesmith.ir.evaluators import as_given
from tilesmith.ir.function import Function, is_blunt, num_terms, numbers
from tilesmith.ir.intrinsics import TF32_ROUNDOFF
from tilesmith.ir.nodes import Block, walk
from tilesmith.ir.pieces import Box, boxes, each, of_each

Array = np.ndarray[Any, Any]

_CHUNK_ELEMENTS = 1 << 17  # of one temporary array


@dataclass(frozen=True, slots=True)
class Bounded:
    """A result of the oracle; `error` has its shape, or is None if it is exact."""

    value: Array
    error: Array | None


def evaluate_bounded(func: Function, *arrays: Any, num_threads: int = 1) -> list[Bounded]:
    """The outputs as `evaluate` gives them, each with its bounds."""
    return bounded_in_ways(func, ("",), *arrays, num_threads=num_threads)[0]


def bounded_in_ways(
    func: Function, ways: Sequence[str], *arrays: Any, num_threads: int = 1
) -> list[list[Bounded]]:
    """The outputs with their bounds in each of the `ways` to round:

    ""           as is stated
    "chunks"     sums of products of float16 may add up some terms in float16 (schedule/chunks.py)
    "factors"    factors of float32 may be rounded to TF32 (schedule/rounding.py)
    """
    memory = memory_of(func, arrays)
    every: list[tuple[str, dict[str, Array]]] = [(way, {}) for way in ways]
    with np.errstate(all="ignore"):
        for _, block in walk(func.body):
            if _is_plain(block) and all(_rounds(block, errors) for _, errors in every):
                for _, errors in every:
                    _evaluate_with_bounds(block, memory, errors, num_threads)
                continue
            is_product = evaluate_block(block, memory, num_threads)
            for way, errors in every:
                _bound_block(block, memory, errors, is_product, num_threads, way)
    return [
        [
            Bounded(
                as_given(b, memory[b.name]),
                None if (e := errors.get(b.name)) is None else as_given(b, e),
            )
            for b in func.outputs
        ]
        for _, errors in every
    ]


def _is_plain(b: Block) -> bool:
    """Whether it is element-wise, everywhere."""
    return b.combiner is None and not b.domain and not b.scatters and is_independent(b)


def _evaluate_with_bounds(
    b: Block, memory: dict[str, Array], errors: dict[str, Array], num_threads: int
) -> None:
    """Values and bounds of an element-wise block at once: the bounds need all values anyway."""
    spatial = numbers([i.extent for i in b.spatial])
    if 0 in spatial:
        return
    for w in b.writes:
        errors[w.buffer] = np.zeros(memory[w.buffer].shape, np.float32)
    chunks = [*boxes(spatial, _CHUNK_ELEMENTS)]
    each(lambda spans: _bound_chunk(b, memory, errors, spans, values_too=True), chunks, num_threads)


def _bound_block(
    b: Block, memory: dict[str, Array], errors: dict[str, Array], is_product: bool,
    num_threads: int, way: str,
) -> None:  # fmt: skip
    narrow = narrow_terms(b) if way == "chunks" else None
    chunk = MOST_TERMS if narrow is not None and narrow.dtype is FLOAT16 else 0
    rounded = TF32_ROUNDOFF if way == "factors" and sums_products(b) else 0.0
    spatial = numbers([i.extent for i in b.spatial])
    if b.init and b.combiner:
        for w in b.writes:
            errors.pop(w.buffer, None)
    if 0 in spatial or 0 in numbers([i.extent for i in b.reducing]):
        return
    if is_product:
        error = _product_error(b, memory, errors, num_threads, chunk, rounded)
        buffer = b.writes[0].buffer
        if error is not None:
            before = errors.get(buffer)
            errors[buffer] = error if before is None else before + error
        return
    if not _rounds(b, errors):
        return
    for w in b.writes:
        errors.setdefault(w.buffer, np.zeros(memory[w.buffer].shape, np.float32))
    if b.scatters:
        whole = tuple(slice(0, n) for n in spatial)
        _bound_scatter(b, memory, errors, whole)
        return
    if b.is_running:
        rows = [*boxes(spatial, max(1, _CHUNK_ELEMENTS // num_terms(b)))]
        each(lambda spans: _bound_running(b, memory, errors, spans), rows, num_threads)
        return
    if not is_independent(b):
        for w in b.writes:  # what it read is overwritten
            errors[w.buffer][...] = np.nan
        return
    chunks = [*boxes(spatial, max(1, _CHUNK_ELEMENTS // num_terms(b)))]

    def bound(spans: Box) -> None:
        _bound_chunk(b, memory, errors, spans, chunk=chunk, rounded=rounded)

    each(bound, chunks, num_threads)


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
            if isinstance(e, Binary | Unary) and rules.own_roundings(e.op, e.dtype):
                return True
            if isinstance(e, Binary) and e.op in ("floordiv", "mod") and e.dtype.is_float:
                return True
            if isinstance(e, Cast) and rules.narrows(e.x.dtype, e.dtype):
                return True
    return any(w.buffer in errors for w in b.writes)


def _bound_chunk(
    b: Block, memory: dict[str, Array], errors: dict[str, Array], spans: Box,
    values_too: bool = False, chunk: int = 0, rounded: float = 0.0,
) -> None:  # fmt: skip
    rank, axes = len(spans), axes_of(b, spans)
    full = tuple(a.stop - a.start for a in axes.values())
    at = _Bounding(axes, memory, errors)
    mask = at.mask(b)
    pairs = [at.pair(w.value) for w in b.writes]
    values = [np.broadcast_to(np.asarray(v), full) for v, _ in pairs]
    if values_too and at.clipped:
        evaluate_chunk(b, memory, spans)  # checks which elements are needed
    elif values_too:
        for w, v in zip(b.writes, values, strict=True):
            put(*cells_of(At(axes, memory), w, full), v, None)
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
        bounds = _reduced(b, values, bounds, results, rank, chunk, rounded)
        old = [a[c] for a, c in cells]
        bounds = [o if e is None else o + e for o, e in zip(old, bounds, strict=True)]
    keep = None if mask is None or b.combiner else np.broadcast_to(mask, full)
    for (a, c), e in zip(cells, bounds, strict=True):
        new = np.broadcast_to(np.asarray(0.0 if e is None else e, np.float32), full[:rank])
        put(a, c, new, keep)


def _bound_running(
    b: Block, memory: dict[str, Array], errors: dict[str, Array], spans: Box
) -> None:
    """Of every partial result: that of a sum of the terms so far."""
    axes = axes_of(b, spans)
    full = tuple(a.stop - a.start for a in axes.values())
    at = _Bounding(axes, memory, errors)
    mask = at.mask(b)
    (value, own), (added, more) = (at.pair(w.value) for w in b.writes)
    terms = rules.magnitude(np.broadcast_to(np.asarray(value), full)).astype(np.float64)
    kept = b.writes[1]
    here, there = At(axes, memory), At(axes, errors)
    a, cells = cells_of(here, kept, full)
    if cells is not ...:  # those that the mask leaves out may lie behind the end
        cells = tuple(np.minimum(x, n - 1) for x, n in zip(cells, a.shape, strict=True))
    result = rules.magnitude(a[cells])
    assert b.combiner is not None
    first = b.combiner.values[0]
    assert isinstance(first, Binary)
    count, d = np.arange(1, full[-1] + 1), first.dtype
    passed: Any = 0.0
    if first.op == "mul":
        parts = ((terms, own), (rules.magnitude(np.asarray(added)), more))
        relative = [0.0 if e is None else np.where(np.asarray(e) == 0, 0, e / v) for v, e in parts]
        rows = np.broadcast_to(relative[0], full).cumsum(axis=-1)
        passed = result * (rows + relative[1] + 4 * d.roundoff * (1 + count))
    else:
        for e in (None if own is None else _spread(own, full).cumsum(axis=-1), more):  # type: ignore[union-attr]
            passed = passed + (0.0 if e is None else e)
        if d.is_float:
            typical = np.sqrt(np.square(terms).cumsum(axis=-1)) + rules.magnitude(np.asarray(added))
            roundings = 8.0 * d.roundoff * (8 + np.sqrt(count))
            passed = passed + roundings * (result + typical) + rules.least(d)
    passed = passed + 2 * kept.value.dtype.roundoff * result
    passed = np.where(np.isfinite(result), passed, np.nan)
    a, cells = cells_of(there, kept, full)
    keep = None if mask is None else np.broadcast_to(mask, full)
    put(a, cells, np.broadcast_to(np.asarray(passed, np.float32), full), keep)


def _bound_scatter(
    b: Block, memory: dict[str, Array], errors: dict[str, Array], spans: Box
) -> None:
    """Of elements that are updated: as many roundings as each has updates."""
    (w,), axes = b.writes, axes_of(b, spans)
    full = tuple(a.stop - a.start for a in axes.values())
    at = _Bounding(axes, memory, errors)
    mask = at.mask(b)
    keep = np.ones(full, bool) if mask is None else np.broadcast_to(mask, full)
    value, error = at.pair(w.value)
    terms = rules.magnitude(np.broadcast_to(np.asarray(value), full)[keep]).astype(np.float64)
    own = np.zeros(len(terms)) if error is None else _spread(error, full)[keep]  # type: ignore[index]
    places, number = np.unique(scattered_cells(b, at, mask), return_inverse=True)
    assert b.combiner is not None
    op, d, count = b.combiner.op, w.value.dtype, np.bincount(number)
    flat, total = errors[w.buffer].reshape(-1), memory[w.buffer].reshape(-1)[places]
    if op in (None, "max", "min"):
        passed = np.zeros(len(places))
        np.maximum.at(passed, number, own)
        flat[places] = passed if op is None else np.maximum(flat[places], passed)
        return
    passed = flat[places] + np.bincount(number, own)
    if op == "mul":
        relative = np.bincount(number, np.where(own == 0, 0, own / terms))
        passed = rules.magnitude(total) * (relative + 4 * d.roundoff * count) + flat[places]
    elif d.is_float:
        typical = np.sqrt(np.bincount(number, np.square(terms)))
        one_by_one = count if d.bits <= 16 else np.sqrt(count)  # sums stay in the narrow type
        roundings = 8.0 * d.roundoff * (8 + one_by_one)
        size = rules.magnitude(total)
        passed = passed + np.where(np.isfinite(size), roundings * (size + typical), np.nan)
        passed = passed + rules.least(d)
    flat[places] = passed


def _spread(e: Error, shape: tuple[int, ...]) -> Array | None:
    return None if e is None else np.broadcast_to(np.asarray(e), shape)


def _reduced(
    b: Block, values: Sequence[Array], bounds: Sequence[Error], results: Sequence[Array],
    rank: int, chunk: int, rounded: float,
) -> list[Error]:  # fmt: skip
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
        relative = 2 * d.roundoff * terms
        if e is not None:
            relative = relative + np.where(e == 0, 0, e / rules.magnitude(t)).sum(axis=axes)
        return [rules.magnitude(total) * relative]
    passed = None if e is None else e.sum(axis=axes, dtype=np.float64)
    if not d.is_float:
        return [passed]
    wide = rules.magnitude(t).astype(np.float64)
    if is_blunt(b) and _is_whole(t) and (wide.sum(axis=axes) <= 1 / d.roundoff).all():
        return [passed]
    typical = np.sqrt(np.square(wide).sum(axis=axes))
    if chunk and not (_is_whole(t) and (wide.sum(axis=axes) <= 1 / FLOAT16.roundoff).all()):
        passed = rules.plus(_sum_error(FLOAT16, min(chunk, terms), total, typical), passed)
    if rounded:
        passed = rules.plus(_factor_error(rounded, total, typical), passed)
    return [rules.plus(_sum_error(d, terms, total, typical), passed)]


def _sum_error(d: DType, terms: int, total: Array, typical: Error) -> Array:
    size = rules.magnitude(total)
    factor = 8.0 if d.bits > 16 else 2.0
    error = factor * d.roundoff * (8 + sqrt(terms)) * (size + typical) + rules.least(d)
    # Where partial sums may overflow, others may not.
    return np.where(np.isfinite(size), error, np.nan)


def _factor_error(roundoff: float, total: Array, typical: Any) -> Array:
    """The errors of two factors: of one sign, and of a walk, far out."""
    error: Array = roundoff * (2 * rules.magnitude(total) + 6 * typical)
    return error


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
    b: Block, memory: dict[str, Array], errors: Mapping[str, Array], num_threads: int, chunk: int,
    rounded: float,
) -> Array | None:  # fmt: skip
    """Of a block that `contract` has computed."""
    w = b.writes[0]
    factors, total, d, terms = factors_of(w.value), memory[w.buffer], w.value.dtype, num_terms(b)
    assert factors is not None
    passed: Array | None = None
    for k, (inexact, _) in enumerate(factors):
        if inexact.buffer in errors:
            arrays = [rules.magnitude(memory[load.buffer]) for load, _ in factors]
            arrays[k] = errors[inexact.buffer]
            sums = _sums_of_products(b, [load for load, _ in factors], arrays, num_threads)
            passed = sums if passed is None else passed + sums
    if not d.is_float:
        return passed
    arrays = [memory[load.buffer] for load, _ in factors]
    if all(map(_is_short, arrays)):
        rounded = 0.0
    if is_blunt(b) and _holds_sums(d, arrays, terms, total, num_threads):
        return passed
    length = min(chunk, terms)
    if chunk and _holds_sums(FLOAT16, arrays, length, total[:0], num_threads):
        chunk = 0
    flat = total.reshape(-1)
    before = None if passed is None else passed.reshape(-1)

    def squares(part: slice) -> tuple[float, int]:
        x = flat[part]
        x = x if (finite := np.isfinite(x)).all() else x[finite]
        return float(np.square(x, dtype=np.float64).sum()), x.size

    found = of_each(squares, flat.size, num_threads)
    count = sum(n for _, n in found)
    typical = sqrt(sum(x for x, _ in found) / count) if count else 0.0
    error = np.empty(flat.size, np.float32)
    own_typical = np.empty(0)
    if rounded:
        own_typical = _typical_sums(b, [load for load, _ in factors], arrays, num_threads)

    def bound(part: slice) -> None:
        own = _sum_error(d, terms, flat[part], typical).astype(np.float32)
        if chunk:
            own += _sum_error(FLOAT16, length, flat[part], typical).astype(np.float32)
        if rounded:
            own += _factor_error(rounded, flat[part], own_typical[part]).astype(np.float32)
        error[part] = own if before is None else own + before[part]

    of_each(bound, flat.size, num_threads)
    return error.reshape(total.shape)


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


def _typical_sums(
    b: Block, loads: Sequence[Load], arrays: Sequence[Array], num_threads: int
) -> Array:
    """Of each sum of products, the root of the sum of its squared terms."""
    sizes = [_largest(a, num_threads) or 1.0 for a in arrays]
    squares = [np.square(a / np.float32(n)) for a, n in zip(arrays, sizes, strict=True)]
    sums = np.sqrt(_sums_of_products(b, loads, squares, num_threads), dtype=np.float64)
    return np.asarray(prod(sizes) * sums).reshape(-1)


def _holds_sums(
    d: DType, factors: Sequence[Array], terms: int, total: Array, num_threads: int
) -> bool:
    """Whether all partial sums of products of these arrays, in whatever order, are whole numbers
    that the type holds. Terms of random sign walk at random, once in a million beyond 5 sigma.
    """
    largest, squares = 1.0, 1.0
    for factor in factors:
        flat = factor.reshape(-1)

        def judged(part: slice, flat: Array = flat) -> tuple[bool, float, float]:
            x = rules.magnitude(flat[part])
            square = float(np.square(x, dtype=np.float64).sum())
            return _is_whole(flat[part]), float(x.max(initial=0.0)), square

        found = of_each(judged, flat.size, num_threads)
        if not all(whole for whole, _, _ in found):
            return False
        largest *= max((x for _, x, _ in found), default=0.0)
        squares *= sum(x for _, _, x in found) / max(1, flat.size)
    sums = total.reshape(-1)

    def most(part: slice) -> float:
        return float(rules.magnitude(sums[part]).max(initial=0.0))

    reached = max([*of_each(most, sums.size, num_threads), 5 * sqrt(terms * squares)])
    return min(terms * largest, reached) <= 1 / d.roundoff


def _largest(a: Array, num_threads: int) -> float:
    flat = a.reshape(-1)

    def most(part: slice) -> float:
        size = rules.magnitude(flat[part])
        return float(size.max(initial=0.0, where=np.isfinite(size)))

    return max(of_each(most, flat.size, num_threads), default=0.0)


def _is_short(a: Array) -> bool:
    """Whether numbers have no more digits than a TF32."""
    return a.dtype != np.float32 or not (np.ascontiguousarray(a).view(np.uint32) & 0x1FFF).any()


def _is_whole(a: Array) -> bool:
    a = a if a.dtype.itemsize > 2 else a.astype(np.float32)
    return bool((a == np.rint(a)).all())


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
        self.clipped = False  # whether a load lies outside of its buffer somewhere

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
        self.clipped = self.clipped or bool(self.outside)
        return self.values[id(e)], self.errors[id(e)]

    def error(self, e: Expr) -> Error:
        v, err = self.values, self.errors
        r = v[id(e)]
        match e:
            case Load():
                return self._load_error(e)
            case Select(cond=c, a=a, b=b):
                return rules.select(
                    v[id(c)], v[id(a)], v[id(b)], err[id(c)], err[id(a)], err[id(b)]
                )
            case Unary(op=op, x=x):
                return rules.unary(op, v[id(x)], err[id(x)], r, e.dtype)
            case Binary(op=op, a=a, b=b):
                return rules.binary(op, v[id(a)], v[id(b)], err[id(a)], err[id(b)], r, a.dtype)
            case Cast(x=x):
                return rules.cast(v[id(x)], err[id(x)], r, x.dtype, e.dtype)
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
                    out = rules.plus(out, np.where(inexact == 0, 0.0, np.nan))
        return out
