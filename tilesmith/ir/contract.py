"""Sums of products of plain reads, by matrix products of blocks: the fast path of the oracle. Every
factor is a strided view of its array, one axis for each iterator.

Sums are taken in double where that is cheap (a small problem), where they are long, or where the
type is double. Otherwise at most `_SINGLE_TERMS` terms are summed in single precision, and these
sums in double: the error is at most 2^-13 of the sum of the terms' magnitudes, whatever their
number. A kernel with sums in single precision is less accurate. Sums of small integers are exact.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT16, FLOAT32, DType
from tilesmith.expr.ints import FloorDiv, opaque_atoms
from tilesmith.expr.nodes import Binary, Cast, Const, Expr, Load, Select, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.block_products import add_products
from tilesmith.ir.nodes import Block

Array = np.ndarray[Any, Any]
_SINGLE_TERMS, _DOUBLE_TERMS = 1 << 11, 1 << 16  # of one matrix product
_MIN_EXACT_TERMS = 1 << 8  # integers are summed in single precision if so many terms are exact


def contract(b: Block, memory: dict[str, Array], num_threads: int = 1) -> bool:
    """Computes the block if it is a sum of products of plain reads. False if it is not."""
    assert b.combiner is not None
    w = b.writes[0]
    if b.combiner.op != "add" or len(b.writes) != 1:
        return False
    if tuple(p.name for p in w.index) != tuple(i.name for i in b.spatial):
        return False
    factors = factors_of(w.value)
    if factors is None:
        return False
    grid, plan = _grid(b, [load for load, _ in factors]), _precision(b, factors)
    if grid is None or plan is None:
        return False
    wide, terms = plan
    views = [_view(grid, memory[load.buffer], load, dtype, wide) for load, dtype in factors]
    known = [v for v in views if v is not None]
    target = memory[w.buffer]
    if len(known) < len(views) or not target.flags.c_contiguous:
        return False
    out = target.reshape(grid.extents[: grid.num_spatial])
    add_products(known, out, wide, terms, num_threads)
    return True


def factors_of(value: Expr) -> list[tuple[Load, DType]] | None:
    """The loads of a product, each with the dtype it is cast to; None if it has anything else. The
    casts of integers need not be made: all that follows is modulo the width of their result.
    """
    whole = value.dtype.is_int
    out: list[tuple[Load, DType]] = []

    def split(e: Expr) -> bool:
        if isinstance(e, Binary) and e.op == "mul":
            return split(e.a) and split(e.b)
        load = e.x if isinstance(e, Cast) and (e.dtype.is_float or whole) else e
        if isinstance(load, Load) and (load.dtype.is_int or not whole):
            out.append((load, e.dtype))
            return True
        return False

    return out if split(value) and len(out) <= 3 else None


def _precision(b: Block, factors: list[tuple[Load, DType]]) -> tuple[np.dtype[Any], int] | None:
    """The type of the matrix products, and how many terms one may sum; None if integers would not
    be exact.
    """
    single, double = np.dtype(np.float32), np.dtype(np.float64)
    row = prod(i.extent.number for i in b.reducing)
    value = b.writes[0].value.dtype
    if value.is_int:
        bits = sum(load.dtype.bits - (load.dtype.kind == "i") for load, _ in factors)
        if row << bits >= 1 << 52:
            return None
        exact = (1 << 24) >> bits
        return (single, exact) if exact >= _MIN_EXACT_TERMS else (double, _DOUBLE_TERMS)
    points = row * prod(i.extent.number for i in b.spatial)
    if value.bits == 64 or row > 1 << 14 or points < 1 << 26:
        return double, _DOUBLE_TERMS
    return single, _SINGLE_TERMS


@dataclass(frozen=True, slots=True)
class _Grid:
    """The axes of views: the iterators, where one that an index divides becomes two (quotient and
    remainder). Their numbers are given by name, as `i`, or `i/` and `i%`.
    """

    axes: dict[str, int]
    extents: tuple[int, ...]
    divisors: dict[str, int]
    num_spatial: int


def _grid(b: Block, loads: list[Load]) -> _Grid | None:
    extent = {i.name: i.extent.number for i in b.iters}
    divisors = _divisors(loads, extent)
    if divisors is None:
        return None
    axes: dict[str, int] = {}
    extents: list[int] = []
    num_spatial = 0
    for i in (*b.spatial, *b.reducing):
        c = divisors.get(i.name)
        parts = {i.name: extent[i.name]} if c is None else {
            f"{i.name}/": extent[i.name] // c, f"{i.name}%": c
        }  # fmt: skip
        for name, n in parts.items():
            axes[name] = len(extents)
            extents.append(n)
        num_spatial += len(parts) if i.kind == "S" else 0
    return _Grid(axes, tuple(extents), divisors, num_spatial)


def _divisors(loads: list[Load], extent: dict[str, int]) -> dict[str, int] | None:
    """The divisor of each iterator that an index divides, such as a channel by the channels of a
    group; None if one has several or is not divided evenly.
    """
    out: dict[str, int] = {}
    for p in (p for load in loads for p in load.index):
        for a in opaque_atoms(p):
            if not isinstance(a, FloorDiv) or a.a.name not in extent or not a.b.const:
                return None
            name, c = a.a.name, a.b.const
            if extent[name] % c or out.setdefault(name, c) != c:
                return None
    return out


def _view(
    grid: _Grid, a: Array, load: Load, dtype: DType, wide: np.dtype[Any]
) -> Array | None:  # fmt: skip
    """The elements that a load reads at all points; None if it is not affine or may read beside
    its array.
    """
    if not dtype.is_int:
        a = a.astype(dtype.numpy, copy=False)
    a = np.asarray(a, order="C")
    steps = [0] * len(grid.extents)  # in elements
    offset, size = 0, a.size
    for p, n in zip(load.index, a.shape, strict=True):
        size //= max(n, 1)
        low = high = 0
        for m, c in p.terms.items():
            if len(m) > 1 or (m and not isinstance(m[0], str | FloorDiv)):
                return None
            if not m:
                low, high, offset = low + c, high + c, offset + c * size
                continue
            for axis, by in _digits(grid, m[0], c):
                steps[axis] += by * size
                low += min(0, by * (grid.extents[axis] - 1))
                high += max(0, by * (grid.extents[axis] - 1))
        if low < 0 or high >= n:
            return None
    touched = prod(n for n, s in zip(grid.extents, steps, strict=True) if s)
    if touched > a.size:  # it would be converted many times
        a = a.astype(wide, copy=False)
    return np.lib.stride_tricks.as_strided(
        a.reshape(-1)[offset:], grid.extents, [s * a.itemsize for s in steps], writeable=False
    )


def _digits(grid: _Grid, atom: Any, c: int) -> list[tuple[int, int]]:
    """The axes of `c * atom`, each with its step."""
    if isinstance(atom, FloorDiv):
        return [(grid.axes[f"{atom.a.name}/"], c)]
    if (by := grid.divisors.get(atom)) is not None:
        return [(grid.axes[f"{atom}/"], c * by), (grid.axes[f"{atom}%"], c)]
    return [(grid.axes[atom], c)]


# Of a chunk of a sum that is added up in a narrow type (schedule/chunks.py); longer ones are hardly
# faster.
MOST_TERMS = 128


def narrow_terms(b: Block) -> Expr | None:
    """The terms of a sum of products as products in the narrow type of both factors; None if the
    block is not such a sum.
    """
    if b.combiner is None or b.combiner.op != "add" or not b.init or len(b.writes) != 1:
        return None
    value = b.writes[0].value
    if not (isinstance(value, Binary) and value.op == "mul" and value.dtype.is_float):
        return None
    x, y = _narrowed(value.a), _narrowed(value.b)
    if x is None or y is None or x.dtype is not y.dtype or x.dtype.bits >= value.dtype.bits:
        return None
    return Binary("mul", x, y, x.dtype)


def sums_products(b: Block) -> bool:
    """Whether the block is a sum of products of float32, which TF32 instructions may compute."""
    if b.combiner is None or b.combiner.op != "add" or not b.init or len(b.writes) != 1:
        return False
    e = b.writes[0].value
    return isinstance(e, Binary) and e.op == "mul" and e.a.dtype is e.b.dtype is FLOAT32


def _narrowed(e: Expr) -> Expr | None:
    """A factor in the type that it was widened from."""
    if isinstance(e, Cast) and e.x.dtype.is_float:
        return e.x
    if isinstance(e, Select) and isinstance(e.b, Const) and e.b.value == 0:
        inner = _narrowed(e.a)
        return None if inner is None else replace(
            e, a=inner, b=Const(0.0, inner.dtype), dtype=inner.dtype
        )  # fmt: skip
    return None


_FEWEST_PRODUCTS = 4


def sums_halves(value: Expr) -> bool:
    """Whether a value is mostly a sum of products of float16 that was written out."""
    products = sum(
        isinstance(e, Binary) and e.op == "mul" and e.dtype is FLOAT16
        for e in preorder(value, children)
    )
    return products >= _FEWEST_PRODUCTS
