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
    "rsqrt": lambda a, b: ts.rsqrt(ts.abs(a)),
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


def _rows(dtype: str, names: tuple[str, ...], values: list[Any], n: int) -> Any:
    """Row number k is value number k."""

    def row(k: Any, i: Any) -> Any:
        out = values[-1](i)
        for number in reversed(range(len(values) - 1)):
            out = ts.where(k == number, values[number](i), out)
        return out

    return ts.compute((len(names), n), row, name="y")


def operands(dtype: str) -> tuple[Array, Array]:
    d = ts.dtype(dtype)
    rng = np.random.default_rng(1)
    n = 67
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
    func = ts.function([a, b, _rows(dtype, names, values, len(x))], name=f"operations_{dtype}")
    return Case(f"operations on {dtype}", func, (x, y), names, TOLERANCE.get(dtype, 0.0))


def of_casts(have: str, wide: str) -> Case:
    """Casts to every dtype, read as `wide`, which holds what they give."""
    x = specials(have)
    a = ts.placeholder(x.shape, have, name="a")
    wants = ("int64", "uint64", "bool", "int8") if wide == "int64" else (*FLOATS, *INTS[:6])
    values = [lambda i, w=w: ts.cast(ts.cast(a[i], w), wide) for w in wants]
    func = ts.function([a, _rows(wide, wants, values, len(x))], name=f"casts_{have}_{wide}")
    return Case(f"casts of {have} as {wide}", func, (x,), wants)


def table() -> list[Case]:
    cases = [of_dtype(d) for d in (*FLOATS, *INTS)]
    return cases + [of_casts(d, w) for d in (*FLOATS, *INTS, "bool") for w in ("float64", "int64")]
