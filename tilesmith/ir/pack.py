"""Converts an array from a parameter's logical shape to what primitives made of the parameter: it
is prepared (`prepare`), then put into the memory layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilesmith.base.errors import ArgumentError
from tilesmith.base.given import checks_given
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
    dims = [f"d{k}" for k in range(a.ndim)]
    order = [str(p) for p in buf.layout]
    if sorted(order) == sorted(dims):
        out[...] = a.transpose([dims.index(d) for d in order])
        return out
    where = np.indices(a.shape, sparse=True)
    grids: dict[str, Any] = dict(zip(dims, where, strict=True))
    out[tuple(np.broadcast_to(integer(p, grids), a.shape) for p in buf.layout)] = a
    return out


def prepared(buf: Buffer, a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The caller's array after the steps that are done ahead of time, in row-major order."""
    return apply_all(buf.prepared, a, buf.shape)


def _aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Zeros that start at a cache line: a vector load across two lines costs twice as much."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes].view(dtype).reshape(shape)
