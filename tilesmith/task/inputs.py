"""Example arrays for the inputs of a Function, the same on every machine for the same seed.

Integers used as an index stay within the buffer they index. Where the rounding of a long sum would
hide a wrong term, floats are small whole numbers, whose sums are exact. In front of a function that
is flat for large arguments, one factor of a sum of products is small, so that the sum is not large.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.base.dtype import BFLOAT16, DType
from tilesmith.base.errors import MeasureError
from tilesmith.expr.dynamic import Dynamic, loads_of
from tilesmith.expr.ints import opaque_atoms
from tilesmith.expr.nodes import Binary, Cast, Expr, Load, Unary, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.function import Function
from tilesmith.ir.nodes import Block, walk

Array = np.ndarray[Any, Any]

# Operations on floats that do not round.
_EXACT = frozenset(("max", "min", "neg", "abs", "floor", "ceil", "round", "trunc", "fmod"))


def require_memory(func: Function) -> None:
    """Raises if measuring the Function takes more memory than this machine has free. Measuring
    holds its parameters and intermediate buffers three times: for the oracle, as the expected
    result, and for the kernel.
    """
    nbytes = 3 * sum(
        prod(n.const or 0 for n in b.shape) * b.dtype.nbytes for b in (*func.params, *func.buffers)
    )
    free = _free_nbytes()
    if nbytes > free:
        raise MeasureError(
            f"measuring {func.name} takes {_readable(nbytes)} of memory, and {_readable(free)} are "
            "free here; measure it with smaller sizes"
        )


def _free_nbytes() -> int:
    """The memory that the system reports as available, or else all of it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _readable(nbytes: int) -> str:
    for unit, size in (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if nbytes >= size:
            return f"{nbytes / size:,.1f} {unit}"
    return f"{nbytes} bytes"


def example_inputs(func: Function, seed: int = 0, positive: bool = False) -> list[Array]:
    """`positive`: only positive floats, for functions with roots or logarithms."""
    rng = np.random.default_rng(seed)
    limits = index_limits(func)
    whole = needs_whole_numbers(func)
    shrunk = {} if positive else _shrunk_inputs(func)
    out: list[Array] = []
    for b in func.inputs:
        shape = tuple(n for n in (e.const for e in b.shape) if n is not None)
        if b.dtype.is_float and whole:
            data: Array = rng.integers(1 if positive else -1, 3 if positive else 2, shape, np.int8)
        elif b.dtype.is_float:
            data = np.asarray(rng.random(shape, np.float32))
            data *= np.float32(1.0 if positive else 3.0)
            data += np.float32(0.25 if positive else -1.5)
            data *= np.float32(shrunk.get(b.name, 1.0))
        elif b.dtype.kind == "b":
            data = rng.integers(0, 2, shape, np.int8)
        else:
            low = 0 if b.dtype.kind == "u" or b.name in limits else -4
            data = rng.integers(low, limits.get(b.name, 5), shape)
        out.append(data.astype(b.dtype.numpy, copy=False))
    return out


_FLAT = ("tanh", "sigmoid", "erf")  # for large arguments: there, wrong sums would not be seen


def _shrunk_inputs(func: Function) -> dict[str, float]:
    """Factors by which inputs are multiplied, so that sums of K products are about as large as one.
    Rounding errors are then relative to what a flat function's argument is, not to sqrt(K).
    """
    values = [(b, w.value) for _, b in walk(func.body) for w in b.writes]
    if not any(
        isinstance(e, Unary) and e.op in _FLAT for _, v in values for e in preorder(v, children)
    ):
        return {}
    inputs = {b.name for b in func.inputs}
    out: dict[str, float] = {}
    for b, value in values:
        if b.combiner is None or not isinstance(value, Binary) or value.op != "mul":
            continue
        factors = [e.x if isinstance(e, Cast) else e for e in (value.a, value.b)]
        read = [e.buffer for e in factors if isinstance(e, Load) and e.buffer in inputs]
        if read:  # the second factor is the weights, mostly
            out[read[-1]] = min(out.get(read[-1], 1.0), num_terms(b) ** -0.5)
    return out


def index_limits(func: Function) -> dict[str, int]:
    """For each buffer that is read inside an index, the smallest extent that it indexes."""
    limits: dict[str, int] = {}
    buffers = func.all_buffers
    for _, b in walk(func.body):
        for w in b.writes:
            for load in loads_of(w.value):
                for p, extent in zip(load.index, buffers[load.buffer].shape, strict=True):
                    for a in opaque_atoms(p):
                        if not isinstance(a, Dynamic) or (n := extent.const) is None:
                            continue
                        for name in _sources(a.expr):
                            limits[name] = max(1, min(limits.get(name, n), n))
    return limits


def _sources(e: Expr) -> Iterator[str]:
    """The buffers that an index is loaded from, possibly as a sum."""
    match e:
        case Load():
            yield e.buffer
        case Cast() | Binary(op="add" | "sub" | "mul"):
            for x in children(e):
                yield from _sources(x)


def roundoff(d: DType) -> float:
    """Half the distance from 1 to the next number; 0 for integers."""
    if not d.is_float:
        return 0.0
    bits = 8 if d is BFLOAT16 else {16: 11, 32: 24, 64: 53}[d.bits]
    return float(2.0**-bits)


def coarsest_roundoff(func: Function) -> float:
    """The largest `roundoff` of the dtypes that the Function stores or computes in. Kernels may
    compute in a wider one, and round elsewhere.
    """
    values = [w.value for _, b in walk(func.body) for w in b.writes]
    computed = (
        e
        for v in values
        for e in preorder(v, children)
        if isinstance(e, Binary | Unary) and e.op not in _EXACT
    )
    return max((roundoff(e.dtype) for e in (*values, *computed)), default=0.0)


def num_terms(b: Block) -> int:
    """The number of values a block reduces to one; 1 if it does not reduce."""
    return max(1, prod(i.extent.const or 1 for i in b.reducing))


def needs_whole_numbers(func: Function) -> bool:
    """Whether the rounding error of the longest sum may be as large as a term: the error grows like
    roundoff * terms, and tests tolerate about a hundred times that.
    """
    longest = max((num_terms(b) for _, b in walk(func.body)), default=1)
    return coarsest_roundoff(func) * longest > 1 / 256
