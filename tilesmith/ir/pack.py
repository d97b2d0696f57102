"""Converts an array from a parameter's logical shape to what primitives made of the parameter: it
is prepared (`prepare`), then put into the memory layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilesmith.base.errors import ArgumentError
from tilesmith.base.given import checks_given
from tilesmith.expr.ints import FloorDiv, Int, atom, opaque_atoms, var
from tilesmith.ir.evaluators import integer
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Buffer
from tilesmith.ir.prepare import apply_all


@checks_given
def pack(func: Function, name: str, array: Any) -> np.ndarray[Any, Any]:
    """`array` in the layout that transform_layout gave the parameter. Positions without an element
    hold zeros.
    """
    buf = next((b for b in func.params if b.name == name), None)
    if buf is None:
        names = ", ".join(b.name for b in func.params)
        raise ArgumentError(f"{func.name} has no parameter {name!r}; it has {names}")
    return packed(buf, array, func.name)


def packed(buf: Buffer, array: Any, taker: str) -> np.ndarray[Any, Any]:
    """The same for a given buffer; `taker` is the name that an error about the shape uses."""
    a = np.asarray(array)
    shape = tuple(n.const for n in buf.given_shape)
    if a.shape != shape:
        raise ArgumentError(f"{buf.name} has shape {list(a.shape)}; {taker} wants {list(shape)}")
    if buf.is_as_given:
        return a if a.flags.c_contiguous else a.copy()
    a = prepared(buf, a)
    if buf.layout is None:
        return a if a.flags.c_contiguous else a.copy()
    out = _aligned(tuple(n.number for n in buf.physical_shape), a.dtype)
    tiles = _tiles(a, buf.layout)
    if tiles is not None and tiles.shape == out.shape:
        out[...] = tiles
        return out
    where = np.indices(a.shape, sparse=True)
    grids: dict[str, Any] = {f"d{k}": where[k] for k in range(a.ndim)}
    out[tuple(np.broadcast_to(integer(p, grids), a.shape) for p in buf.layout)] = a
    return out


def _tiles(a: np.ndarray[Any, Any], layout: tuple[Int, ...]) -> np.ndarray[Any, Any] | None:
    """A view of the array, filled up with zeros if tiles do not divide it, in the order of a layout
    that tiles each dimension at most once: (d1 // 8, d0, d1 % 8). None for other layouts. Copying
    it is many times as fast as moving element by element.
    """
    parts = [_tile_part(p) for p in layout]
    shape: list[int] = []
    axes: dict[tuple[int, str], int] = {}
    padding = []
    for d, n in enumerate(a.shape):
        own = [part for part in parts if part is not None and part[0] == d]
        sizes = {size for _, _, size in own}
        if sorted(kind for _, kind, _ in own) == ["whole"]:
            axes[d, "whole"] = len(shape)
            shape.append(n)
            padding.append((0, 0))
        elif sorted(kind for _, kind, _ in own) == ["inner", "outer"] and len(sizes) == 1:
            (size,) = sizes
            axes[d, "outer"], axes[d, "inner"] = len(shape), len(shape) + 1
            shape += [-(-n // size), size]
            padding.append((0, -n % size))
        else:
            return None
    if len(axes) != len(layout):
        return None
    whole = np.pad(a, padding) if any(after for _, after in padding) else a
    order = [axes[part[0], part[1]] for part in parts if part is not None]
    return whole.reshape(shape).transpose(order)


def _tile_part(p: Int) -> tuple[int, str, int] | None:
    """The dimension that a place of a layout is of, which part of its index it is, and the size of
    the tiles.
    """
    if len(p.names) != 1:
        return None
    (name,) = p.names
    if p.name is not None:
        return int(name[1:]), "whole", 1
    for q in opaque_atoms(p):
        if isinstance(q, FloorDiv) and q.a == var(name) and (size := q.b.const) is not None:
            if p == atom(q):
                return int(name[1:]), "outer", size
            if p == var(name) - size * atom(q):
                return int(name[1:]), "inner", size
    return None


def prepared(buf: Buffer, a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The caller's array after the steps that are done ahead of time, in row-major order."""
    return apply_all(buf.prepared, a, buf.shape)


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Zeros that start at a cache line: a vector load across two lines costs twice as much."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes].view(dtype).reshape(shape)
