"""Sums of products of plain reads, by einsum on strided views, which uses BLAS where possible: the
fast path of the oracle.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tilesmith.base.dtype import DType
from tilesmith.expr.ints import FloorDiv, opaque_atoms
from tilesmith.expr.nodes import Binary, Cast, Expr, Load
from tilesmith.ir.nodes import Block

Array = np.ndarray[Any, Any]
_COPIED_ELEMENTS = 1 << 24  # of an operand that einsum may copy


def contract(b: Block, memory: dict[str, Array]) -> bool:
    """Computes the block if it is a sum of products of plain reads. False if it is not."""
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
    extent = {i.name: i.extent.const or 0 for i in b.iters}
    divisors = _divisors([load for load, _ in factors], extent)
    if divisors is None:
        return False
    digits = {n: (f"{n}/", f"{n}%") if n in divisors else (n,) for n in extent}
    for n, c in divisors.items():
        extent |= {f"{n}/": extent[n] // c, f"{n}%": c}
    letter = {d: chr(ord("a") + k) for k, d in enumerate(d for ds in digits.values() for d in ds)}
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
                if len(m) > 1 or (m and not isinstance(m[0], str | FloorDiv)):
                    return False
                if not m:
                    low, high = low + c, high + c
                    offset += c * stride
                    continue
                a0 = m[0]
                steps = [(f"{a0.a.name}/", c)] if isinstance(a0, FloorDiv) else [(str(a0), c)]
                if isinstance(a0, str) and a0 in divisors:
                    steps = [(f"{a0}/", c * divisors[a0]), (f"{a0}%", c)]
                for name, by in steps:
                    used[name] = used.get(name, 0) + by * stride
                    low += min(0, by * (extent[name] - 1))
                    high += max(0, by * (extent[name] - 1))
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
        if not all(any(letter[d] in t for t in terms) for d in digits[i.name]):
            return False
    out = "".join(letter[d] for i in b.spatial for d in digits[i.name])
    if any(not any(c in t for t in terms) for c in out):
        return False
    target = memory[w.buffer]
    total = target + _einsum(terms, out, views).reshape(target.shape)
    target[...] = (total.astype(np.int64) if whole else total).astype(target.dtype)
    return True


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
