"""Random sums of products in small types, as unscheduled Functions, with arrays at the ends of the
types' ranges: what dot products and matrix tiles of hardware are for, and where they go wrong.

Every result is the same for any order of summation, so that a kernel's answer must be equal to the
oracle's. Integers wrap. Floats are multiples of one unit, few enough that float32 holds every sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any

import numpy as np

import tilesmith.ops as ops
from tests.support.programs import extents
from tilesmith.expr import functions, reductions, values
from tilesmith.expr.dsl import Tensor, compute, placeholder, reduce_axis
from tilesmith.expr.values import Value
from tilesmith.ir.function import Function, num_terms
from tilesmith.ir.lower import function
from tilesmith.ir.nodes import walk

Rng = np.random.Generator
Array = np.ndarray[Any, Any]

MIXES = (
    ("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8"),
    ("bfloat16", "bfloat16"), ("float16", "float16"), ("int8", "int16"), ("bfloat16", "float32"),
    ("uint8", "int32"), ("float16", "float32"),
)  # fmt: skip
_WEIGHTS = np.array([4, 4, 4, 4, 4, 2, 1, 1, 1, 1], float)
_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 70, 96)
_DEPTHS = (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 128, 130, 192)
_MOST_WORK = 500_000  # products; the oracle computes them all
_WHOLE = 1 << 24  # whole numbers up to here are exact in float32
_BIAS = 100


@dataclass(frozen=True, slots=True)
class Typed:
    func: Function
    mix: str  # as "int8 x uint8"
    kind: str  # as "conv2d, requantised"


def random_typed_program(rng: Rng) -> Typed:
    draw = _Draw(rng)
    kind, tensors, total = draw.one_of(draw.product, draw.product, draw.conv, draw.direct)()
    a, b = tensors[:2]
    behind, more, result = draw.epilogue(total)
    constants = [b] if draw.chance(0.5) else []
    func = function([*tensors, *more, result], name="typed", constants=constants)
    return Typed(func, f"{a.dtype} x {b.dtype}", f"{kind}{behind}")


class _Draw:
    def __init__(self, rng: Rng) -> None:
        self.rng = rng
        self.large = rng.random() < 0.5  # enough for the tiles of instructions
        self.left, self.right = MIXES[int(rng.choice(len(MIXES), p=_WEIGHTS / _WEIGHTS.sum()))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one_of(self, *items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def sizes(self) -> tuple[int, int, int]:
        """Rows, columns and terms."""
        while True:
            m, n, k = self.one_of(*_SIZES), self.one_of(*_SIZES), self.one_of(*_DEPTHS)
            if self.large and min(m, n, k) < 24:
                continue
            if m * n * k <= _MOST_WORK:
                return m, n, k

    def inputs(self, left: Sequence[int], right: Sequence[int]) -> tuple[Tensor, Tensor]:
        return placeholder(left, self.left, name="A"), placeholder(right, self.right, name="B")

    def wide(self) -> str | None:
        """The type of the result: that of the sum, or by default the operands' own."""
        return "float32" if self.left in ("bfloat16", "float16") and self.chance(0.6) else None

    # sums
    def product(self) -> tuple[str, list[Tensor], Tensor]:
        m, n, k = self.sizes()
        lead = (self.one_of(2, 3, 5),) if m * n * k < _MOST_WORK // 5 and self.chance(0.3) else ()
        ta, tb = self.chance(0.3), self.chance(0.4)
        a, b = self.inputs(
            (*lead, *((k, m) if ta else (m, k))), (*lead, *((n, k) if tb else (k, n)))
        )
        make = ops.batch_matmul if lead else ops.matmul
        c = make(a, b, transpose_a=ta, transpose_b=tb, out_dtype=self.wide(), name="C")
        return "batched product" if lead else "product", [a, b], c

    def conv(self) -> tuple[str, list[Tensor], Tensor]:
        rank = self.one_of(1, 2, 2, 2, 3)
        groups = self.one_of(1, 1, 1, 2, 3)
        while True:
            ci, co = (
                groups * self.one_of(1, 3, 4, 8, 16, 17, 32),
                groups * self.one_of(1, 4, 9, 16, 32),
            )
            size = tuple(self.one_of(3, 5, 7, 8, 12) for _ in range(rank))
            taps = tuple(self.one_of(1, 2, 3, 3) for _ in range(rank))
            if prod(size) * prod(taps) * ci * co // groups <= _MOST_WORK:
                break
        stride, dilation = self.one_of(1, 1, 2, 3), self.one_of(1, 1, 2)
        last = self.chance(0.5)
        layout = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}[rank][last]
        x = (1, *size, ci) if last else (1, ci, *size)
        w = (*taps, ci // groups, co) if last else (co, ci // groups, *taps)
        a, b = self.inputs(x, w)
        need = max(0, *((t - 1) * dilation + 1 - n for t, n in zip(taps, size, strict=True)))
        padding = max(-(-need // 2), self.one_of(0, 1, 2))
        make = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}[rank]
        y = make(a, b, stride, padding, dilation, groups, layout, self.wide(), name="C")
        return f"conv{rank}d" + (", groups" if groups > 1 else ""), [a, b], y

    def direct(self) -> tuple[str, list[Tensor], Tensor]:
        """Written by hand: rows with a stride, windows with a dilation, two reduced axes, and
        integers from which a zero point is subtracted.
        """
        m, n, k = self.sizes()
        step, apart, taps = self.one_of(1, 2, 3), self.one_of(1, 2), self.one_of(1, 2, 3)
        a, b = self.inputs(((m - 1) * step + (taps - 1) * apart + 1, k), (taps, k, n))
        total = "float32" if a.dtype.is_float or b.dtype.is_float else "int32"
        zero = 0 if total == "float32" or self.chance(0.6) else self.one_of(1, 127, 128, -128)
        r, d = reduce_axis(taps, name="r"), reduce_axis(k, name="d")

        def body(i: Value, j: Value) -> Any:
            x = values.cast(a[i * step + r * apart, d], total)
            y = values.cast(b[r, d, j], total)
            return reductions.sum((x - zero if zero else x) * y, axis=(r, d))

        kind = "windows of rows" + (", zero point" if zero else "")
        return kind, [a, b], compute((m, n), body, name="C")

    # what follows element by element
    def epilogue(self, c: Tensor) -> tuple[str, list[Tensor], Tensor]:
        if c.dtype.is_float:
            return self._of_floats(c)
        bias = placeholder((extents(c)[-1],), "int32", name="bias")
        scale = placeholder((extents(c)[-1],), "float32", name="scale")
        match int(self.rng.integers(6)):
            case 0 | 1:
                return "", [], c
            case 2:
                d = compute(c.shape, lambda *i: functions.maximum(c[i] + bias[i[-1]], 0), name="D")
                return ", bias and relu", [bias], d
            case 3:
                to = self.one_of("int8", "uint8")
                low, high = (-128, 127) if to == "int8" else (0, 255)
                zero = self.one_of(0, 3, 128) if to == "uint8" else self.one_of(0, -5)

                def quantised(*i: Value) -> Any:
                    real = values.cast(c[i] + bias[i[-1]], "float32") * scale[i[-1]]
                    near = functions.maximum(functions.minimum(real, 1000.0), -1000.0)
                    whole = values.cast(functions.round_(near), "int32") + zero
                    return values.cast(functions.maximum(functions.minimum(whole, high), low), to)

                d = compute(c.shape, quantised, name="D")
                return f", requantised to {to}", [bias, scale], d
            case 4:
                d = compute(
                    c.shape, lambda *i: values.cast(c[i], "float32") * scale[i[-1]], name="D"
                )
                return ", scaled", [scale], d
            case _:
                d = compute(c.shape, lambda *i: values.cast(c[i] >> 5, "int8"), name="D")
                return ", shifted", [], d

    def _of_floats(self, c: Tensor) -> tuple[str, list[Tensor], Tensor]:
        bias = placeholder((extents(c)[-1],), c.dtype, name="bias")
        match int(self.rng.integers(4)):
            case 0 | 1:
                return "", [], c
            case 2:
                d = compute(c.shape, lambda *i: functions.maximum(c[i] * 0.125, 0.0), name="D")
                return ", scaled and relu", [], d
            case _:
                d = compute(c.shape, lambda *i: c[i] + bias[i[-1]], name="D")
                return ", bias", [bias], d


# arrays ------------------------------------------------------------------------------------------

# Of each type: significant bits, and the exponents of the smallest normal number and of the unit
# in the last place of the largest one.
_FORMATS = {"bfloat16": (8, -126, 120), "float16": (11, -14, 5), "float32": (24, -126, 104)}


def extreme_inputs(func: Function, rng: Rng) -> list[Array]:
    """Arrays for a program: integers over their whole range, mostly at its ends; floats that are
    small whole numbers, or the largest numbers of their type times the smallest normal ones.
    """
    sizes = {b.name: tuple(n.number for n in b.shape) for b in func.inputs}
    terms = max(num_terms(b) for _, b in walk(func.body))
    floats = [b for b in func.inputs if b.dtype.is_float and b.name in "AB"]
    large = floats and rng.random() < 0.6
    largest = floats[int(rng.integers(len(floats)))].name if large else ""
    out: list[Array] = []
    for b in func.inputs:
        shape, name = sizes[b.name], b.dtype.name
        if b.name == "scale":
            data: Array = rng.choice([2.0**-12, 0.003, 1 / 3, -0.01, 0.0], shape)
        elif b.name == "bias" and b.dtype.is_int:
            data = rng.integers(-(1 << 20), 1 << 20, shape)
        elif b.dtype.is_int:
            data = _integers(rng, shape, int(b.dtype.lowest()), int(b.dtype.highest()))
        elif b.name == "bias":
            data = rng.integers(-_BIAS, _BIAS + 1, shape) * (not large)
        elif large:
            data = _at_the_end(rng, shape, name, terms, b.name == largest)
        else:
            most = isqrt((_WHOLE - _BIAS) // terms)
            most = min(most, *(2 ** _FORMATS[x.dtype.name][0] - 1 for x in floats))
            data = rng.integers(-most, most + 1, shape)
        out.append(np.asarray(data).astype(b.dtype.numpy))
    return out


def _integers(rng: Rng, shape: tuple[int, ...], low: int, high: int) -> Array:
    if high > 1 << 15:  # so that the sums of products by bytes stay in 32 bits mostly
        low, high = -(1 << 20), 1 << 20
    full = rng.integers(low, high, shape, endpoint=True)
    ends = rng.choice([low, high, 0, 1, -1 if low < 0 else high - 1], shape)
    match int(rng.integers(4)):
        case 0:
            return full
        case 1:
            return np.full(shape, rng.choice([low, high]))
        case _:
            return np.where(rng.random(shape) < 0.7, ends, full)


def _at_the_end(rng: Rng, shape: tuple[int, ...], name: str, terms: int, largest: bool) -> Array:
    """The largest numbers or the smallest normal ones, of both signs, and zeros. Products are
    multiples of one unit by less than 2 ** bits of the larger factor, too few to leave float32.
    """
    bits, least, unit = _FORMATS[name]
    # A sum of `terms` numbers of full length needs more bits than float32 has.
    free = 24 - max(1, terms).bit_length()
    bits = min(bits, max(1, free))
    one = (2.0**bits - 1) * 2.0 ** (unit + _FORMATS[name][0] - bits) if largest else 2.0**least
    return np.asarray(np.where(rng.random(shape) < 0.1, 0.0, one) * rng.choice([-1.0, 1.0], shape))
