"""Example arrays for the inputs of a Function, the same on every machine for the same seed.

They are drawn in several ways, so that a wrong kernel cannot hide behind rounding, or behind values
that never occur. Integers used as an index stay within the buffer they index. In front of a
function that is flat for large arguments, one factor of a sum of products is small, so that the sum
is not large.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import isqrt, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BFLOAT16, DType
from tilesmith.base.errors import MeasureError
from tilesmith.expr.dynamic import Dynamic, loads_of
from tilesmith.expr.ints import opaque_atoms
from tilesmith.expr.nodes import Binary, Cast, Expr, Load, Select, Unary, children
from tilesmith.expr.walk import preorder
from tilesmith.ir.contract import MOST_TERMS, narrow_terms
from tilesmith.ir.function import Function, is_blunt, num_terms, numbers
from tilesmith.ir.nodes import walk
from tilesmith.task.slices import fewer_slices

Array = np.ndarray[Any, Any]


def require_memory(func: Function) -> None:
    """Raises if measuring the Function takes more memory than this machine has free. Measuring
    holds its parameters and intermediate buffers for the oracle, and for each draw of inputs as the
    expected result and for the kernel.
    """
    nbytes = _nbytes(fewer_slices(func).func) + 2 * len(draws(func)) * _nbytes(func)
    free = _free_nbytes()
    if nbytes > free:
        raise MeasureError(
            f"measuring {func.name} takes {_readable(nbytes)} of memory, and {_readable(free)} are "
            "free here; measure it with smaller sizes"
        )


def _nbytes(func: Function) -> int:
    return sum(
        prod(n.number for n in b.shape) * b.dtype.nbytes for b in (*func.params, *func.buffers)
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


@dataclass(frozen=True, slots=True)
class Draw:
    """A way to choose inputs, so that wrong results differ from right ones.

    - "whole": small whole numbers, whose sums are exact in every order, so that a missing term
      shows even in a narrow type or among very many.
    - "special": zeros, infinities, NaN, the largest and the smallest numbers among others of all
      magnitudes; for functions that sum nothing, because NaN would spread.
    - "ordinary": numbers around 1; some rows are of other magnitudes, of one sign, or of halves.

    Integers cover the range of their type. `tries` are settings from the most to the least
    demanding: the first is taken under which the results tell enough.
    """

    kind: str
    tries: tuple[str, ...]


_WHOLE = Draw("whole", ("signed", "positive"))
_SPECIAL = Draw("special", ("signed",))
_ORDINARY = Draw("ordinary", ("rows", "plain", "small", "positive"))
# Inputs and outputs, and points of all loops, above which a task is checked on one draw: the oracle
# takes seconds.
_DRAWN = 1 << 19  # elements of an array; of a larger one, others repeat these
_LARGE_NBYTES, _LARGE_POINTS = 1 << 30, 1 << 35


def draws(func: Function) -> tuple[Draw, ...]:
    """The draws on which kernels are checked. They are timed on the last."""
    floats = any(b.dtype.is_float for b in func.inputs)
    blocks = [b for _, b in walk(func.body)]
    is_long = any(map(is_blunt, blocks))
    is_narrow = any(b.dtype.is_float and b.dtype.bits == 16 for b in func.params)
    if floats and (is_long or (is_narrow and any(b.combiner for b in blocks))):
        if _is_large(func):
            return (_WHOLE if is_long else _ORDINARY,)
        return (_WHOLE, _ORDINARY)
    sums_nothing = all(b.combiner is None or b.combiner.op in ("max", "min") for b in blocks)
    if floats and sums_nothing and not _is_large(func):
        return (_SPECIAL, _ORDINARY)
    return (_ORDINARY,)


def kept_nbytes(func: Function) -> int:
    """Of the inputs, expected outputs and limits of all draws."""
    each = sum(prod(numbers(b.shape)) * b.dtype.nbytes for b in func.params)
    return len(draws(func)) * (each + sum(2 * prod(numbers(b.shape)) for b in func.outputs))


def _is_large(func: Function) -> bool:
    nbytes = sum(prod(n.number for n in b.shape) * b.dtype.nbytes for b in func.params)
    blocks = [b for _, b in walk(fewer_slices(func).func.body)]
    points = sum(prod(i.extent.number for i in b.iters) for b in blocks)
    return nbytes > _LARGE_NBYTES or points > _LARGE_POINTS


def example_inputs(
    func: Function, seed: int = 0, draw: Draw = _ORDINARY, setting: str = ""
) -> list[Array]:
    """`setting` is one of the draw's `tries`; the first if it is not given."""
    setting = setting or draw.tries[0]
    rng = np.random.default_rng(seed)
    limits = index_limits(func)
    shrunk = {} if setting == "positive" else _shrunk_inputs(func)
    largest, density = _whole_numbers(func)
    sums = any(b.combiner for _, b in walk(func.body))
    out: list[Array] = []
    for b in func.inputs:
        shape = drawn_shape(numbers(b.shape))
        if b.dtype.kind == "b":
            data: Array = rng.integers(0, 2, shape, np.int8)
        elif not b.dtype.is_float:
            data = _integers(rng, shape, b.dtype, limits.get(b.name))
        elif draw.kind == "whole":
            low = 1 if setting == "positive" else -largest
            data = rng.integers(low, largest + 1, shape, np.int8)
            if density < 1:
                data *= rng.random(shape, np.float32) < density
        elif draw.kind == "special":
            data = _specials(rng, shape, b.dtype)
        else:
            data = np.asarray(rng.random(shape, np.float32))
            data *= np.float32(1.0 if setting == "positive" else 3.0)
            data += np.float32(0.25 if setting == "positive" else -1.5)
            data *= np.float32(shrunk.get(b.name, 1.0))
            if setting == "rows":
                data = _by_row(rng, data, sums)
            elif setting == "small":
                data *= np.float32(2.0**-7)
        data = data.astype(b.dtype.numpy, copy=False)
        out.append(data if data.shape == numbers(b.shape) else np.resize(data, numbers(b.shape)))
    return out


def drawn_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of what is drawn for an array. To draw a large one would take longer than to measure
    kernels, so its rows repeat, after a prime number of them: reading at a wrong place is seen, as
    strides and sizes of tiles are no multiples of it.
    """
    if prod(shape) <= _DRAWN:
        return shape
    last = shape[-1] if len(shape) > 1 and shape[-1] <= _DRAWN >> 8 else 1
    rows = next_prime(_DRAWN // last)
    return (rows, last) if last > 1 else (rows,)


def next_prime(n: int) -> int:
    while any(n % k == 0 for k in range(2, isqrt(n) + 1)):
        n += 1
    return n


def _integers(
    rng: np.random.Generator, shape: tuple[int, ...], d: DType, limit: int | None
) -> Array:
    """Of the whole range of a narrow type, with its ends; of wider ones mostly small numbers. An
    index stays below its limit.
    """
    if limit is not None:
        return rng.integers(0, limit, shape)
    low, high = int(d.lowest()), int(d.highest())
    kind = d.numpy
    data = rng.integers(low, high, shape, kind, endpoint=True)
    choice = rng.random(shape, np.float32)
    if d.bits > 16:
        modest = rng.integers(-4 if low else 0, 5, shape).astype(kind)
        middle = rng.integers(-30_000 if low else 0, 30_000, shape).astype(kind)
        data = np.where(choice < 0.5, modest, np.where(choice < 0.9, middle, data))
    ends = np.where(rng.random(shape, np.float32) < 0.5, kind.type(low), kind.type(high))
    return np.asarray(np.where(choice > 0.96, ends, data))


def _specials(rng: np.random.Generator, shape: tuple[int, ...], d: DType) -> Array:
    """Every fourth one is special; the others are of all magnitudes that the type has."""
    u, (low, high) = d.roundoff, _exponents(d)
    top = (2.0 - 2 * u) * 2.0**high
    values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, top, -top, 2.0**low, -(2.0**low), 1.0])
    data = rng.choice(np.array([-1.0, 1.0]), shape) * np.exp2(rng.uniform(low, high, shape))
    near = rng.normal(size=shape) * 3
    choice = rng.random(shape)
    data = np.where(choice < 0.5, near, data)
    return np.asarray(np.where(choice > 0.75, rng.choice(values, shape), data))


def _exponents(d: DType) -> tuple[int, int]:
    """Of the smallest normal number, and of the largest."""
    return {16: (-14, 15), 32: (-126, 127), 64: (-1022, 1023)}[32 if d is BFLOAT16 else d.bits]


_ROW = 32  # neighbours of an array with one dimension that count as a row


def _by_row(rng: np.random.Generator, data: Array, sums: bool) -> Array:
    """Rows of other magnitudes, of one sign, and of halves, which are equal more often. In sums,
    magnitudes do not differ so much that a small term is lost.
    """

    def chosen(*values: float) -> Array:
        """One for each row; the first for three quarters of them."""
        share = [0.75, *[0.25 / (len(values) - 1)] * (len(values) - 1)]
        if data.ndim > 1:
            return rng.choice(np.array(values, np.float32), (*data.shape[:-1], 1), p=share)
        rows = rng.choice(np.array(values, np.float32), -(-data.size // _ROW), p=share)
        return np.repeat(rows, _ROW)[: data.size].reshape(data.shape)

    data = np.where(chosen(0, 1) > 0, np.rint(data * 2) / 2, data)
    sign = chosen(0, 1, -1)
    data = np.where(sign == 0, data, np.abs(data) * sign)
    return data * (chosen(1.0, 0.25, 8.0) if sums else chosen(1.0, 2.0**-8, 2.0**5))


def _whole_numbers(func: Function) -> tuple[int, float]:
    """The largest such that sums of products of two of them, which walk at random, stay whole in
    their type; and how many of them are not 0, if even 1 is too large.
    """
    room = 64.0
    for _, b in walk(func.body):
        if b.combiner is None or not (u := b.writes[0].value.dtype.roundoff):
            continue
        room = min(room, 0.75 / u / min(num_terms(b), 4 * sqrt(num_terms(b))))
        narrow = [x.dtype.roundoff for x in b.loads if x.dtype.is_float and x.dtype.bits == 16]
        if narrow and narrow_terms(b) is not None:  # chunks may be summed in it
            length = min(num_terms(b), MOST_TERMS)
            room = min(room, 0.75 / max(narrow) / min(length, 4 * sqrt(length)))
    return max(int(sqrt(room)), 1), min(1.0, sqrt(room))


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
            for load in (*loads_of(w.value), w.held):
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
        case Select():  # a negative index counts from the end
            yield from _sources(e.a)
            yield from _sources(e.b)
