"""One table of arithmetic for all back ends: per dtype, a Function whose row number k is operation
number k, with values at which operations differ. `evaluate` says what is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from cast_cases import specials

import tilesmith as ts

Array = np.ndarray[Any, Any]
Op = Callable[[Any, Any], Any]
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 3e-6, "float64": 1e-13}

COMPARED: dict[str, Op] = {
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    "both": lambda a, b: (a > 0) & ~(b > 0), "either": lambda a, b: (a > b) | (b > 1),
}  # fmt: skip
COMMON: dict[str, Op] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "fmod": ts.fmod,
    "max": ts.maximum, "min": ts.minimum, "neg": lambda a, b: -a, "abs": lambda a, b: ts.abs(a),
    "select": lambda a, b: ts.where(a > b, a - b, b),
    "shared": lambda a, b: ts.where(a > b, (a + b) * (a + b), (a - b) * (a - b)),
    "nested": lambda a, b: ts.where(a > 0, ts.where(b > 0, a, b), ts.where(b > a, b, a + 1)),
}  # fmt: skip
OF_FLOATS: dict[str, Op] = {
    "div": lambda a, b: a / b, "pow": lambda a, b: ts.power(ts.abs(a), b),
    "log": lambda a, b: ts.log(ts.abs(a)), "sqrt": lambda a, b: ts.sqrt(ts.abs(a)),
    "rsqrt": lambda a, b: ts.rsqrt(ts.abs(a)), "log2": lambda a, b: ts.log2(ts.abs(a)),
    "log10": lambda a, b: ts.log10(ts.abs(a)),
    **{
        n: (lambda f: lambda a, b: f(a))(getattr(ts, n))
        for n in ("exp", "tanh", "sigmoid", "erf", "sin", "cos", "atan", "expm1", "floor", "ceil",
                  "round", "trunc", "sign")
    },
}  # fmt: skip
OF_INTS: dict[str, Op] = {
    "truncdiv": ts.trunc_divide, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
    "shl3": lambda a, b: a << 3, "shr3": lambda a, b: a >> 3, "not": lambda a, b: ~a,
    "div7": lambda a, b: a // 7, "mod7": lambda a, b: a % 7, "sum": lambda a, b: a * b + a - b * 3,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    name: str
    func: ts.Function
    arrays: tuple[Array, ...]
    ops: tuple[str, ...]  # of the rows
    rtol: float = 0.0

    def __str__(self) -> str:
        return self.name

    def check(self, got: Array, who: str) -> None:
        """Compares with the oracle; names the operation and the operands that differ."""
        want = np.asarray(ts.evaluate(self.func, *self.arrays))
        assert got.dtype == want.dtype
        for k, op in enumerate(self.ops):
            x, y = got[k], want[k]
            if ts.dtype(want.dtype).is_float:
                x, y = x.astype(np.float64), y.astype(np.float64)
                same = np.isclose(x, y, rtol=self.rtol, atol=self.rtol, equal_nan=True)
            else:
                same = x == y
            if not same.all():
                at = int(np.argmin(same))
                operands = [a[at] for a in self.arrays]
                raise AssertionError(f"{who}: {op} of {operands} is {x[at]}, not {y[at]}")


def _rows(names: tuple[str, ...], values: list[Any], n: int) -> Any:
    """Row number k is value number k."""

    def row(k: Any, i: Any, low: int = 0, high: int = len(values)) -> Any:
        if high - low == 1:
            return values[low](i)
        middle = (low + high) // 2
        return ts.where(k < middle, row(k, i, low, middle), row(k, i, middle, high))

    return ts.compute((len(names), n), lambda k, i: row(k, i), name="y")


def operands(dtype: str) -> tuple[Array, Array]:
    d = ts.dtype(dtype)
    rng = np.random.default_rng(1)
    n = 45
    if d.is_float:
        a, b = (rng.uniform(-3, 3, n) for _ in range(2))
        a[:8] = (np.nan, 1.0, np.inf, -np.inf, 0.0, -0.0, 2.5, -2.5)
        b[:8] = (1.0, np.nan, 1.0, 1.0, -0.0, 1.0, 1.0, -1.0)
        a[8:24], b[8:24] = np.arange(16) - 8, 4  # whole quotients
        if d.bits == 16:  # no quotient near a whole number, where rounding decides
            a[24:], b[24:] = np.rint(a[24:] * 8), 4
        return a.astype(d.numpy), b.astype(d.numpy)
    info = np.iinfo(d.numpy)
    a = rng.integers(info.min, info.max, n, d.numpy, endpoint=True)
    b = rng.integers(max(info.min, -70), 70, n).astype(d.numpy)
    a[:5], b[:5] = info.min, (0, 1, 2, info.max, 0)
    b[5:13], a[13:20] = 0, info.max
    if d.kind == "i":
        b[:2], b[20:24], a[24:26] = -1, info.min, info.min
    return a, b


def of_dtype(dtype: str) -> Case:
    """Every operation on values of a dtype."""
    x, y = operands(dtype)
    a, b = (ts.placeholder(x.shape, dtype, name=n) for n in "ab")
    ops = {**COMMON, **(OF_FLOATS if dtype in FLOATS else OF_INTS)}
    if dtype[0] == "u":
        del ops["neg"]
    values = [lambda i, f=f: f(a[i], b[i]) for f in ops.values()]
    values += [lambda i, f=f: ts.cast(f(a[i], b[i]), dtype) for f in COMPARED.values()]
    names = (*ops, *COMPARED)
    func = ts.function([a, b, _rows(names, values, len(x))], name=f"operations_{dtype}")
    return Case(f"operations on {dtype}", func, (x, y), names, TOLERANCE.get(dtype, 0.0))


def of_casts(wide: str) -> Case:
    """Casts from every dtype to others, read as `wide`, which holds what they give."""
    wants = ("int64", "uint64", "bool", "int8") if wide == "int64" else (*FLOATS, *INTS[:6])
    held = [specials(d) for d in (*FLOATS, *INTS, "bool")]
    n = max(map(len, held))
    arrays = tuple(np.resize(x, n) for x in held)
    tensors = [ts.placeholder((n,), x.dtype.name, name=f"{x.dtype.name}_") for x in arrays]
    values = [lambda i, a=a, w=w: ts.cast(ts.cast(a[i], w), wide) for a in tensors for w in wants]
    names = tuple(f"{a.dtype} to {w}" for a in tensors for w in wants)
    func = ts.function([*tensors, _rows(names, values, n)], name=f"casts_{wide}")
    return Case(f"casts as {wide}", func, arrays, names)


def table() -> list[Case]:
    return [*(of_dtype(d) for d in (*FLOATS, *INTS)), *map(of_casts, ("float64", "int64"))]
