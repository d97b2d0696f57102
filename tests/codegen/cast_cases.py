"""What casts are tested on: values at which conversions differ, and what NumPy makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilesmith as ts

Array = np.ndarray[Any, Any]
FLOATS = ("float16", "bfloat16", "float32", "float64")


def around(values: Array) -> Array:
    """The values, their neighbours as float64, and what lies in between."""
    finite = values[np.isfinite(values)].astype(np.float64)
    up, down = np.nextafter(finite, np.inf), np.nextafter(finite, -np.inf)
    return np.concatenate([values.astype(np.float64), up, down])


def specials(dtype: str) -> Array:
    """Infinities, NaN, denormals, overflow, halfway between two halves, the ends of the integers;
    a number of elements that is odd.
    """
    d = ts.dtype(dtype)
    if d.kind == "b":
        return np.arange(37) % 3 == 0
    if d.is_int:
        powers = 2.0 ** np.arange(0, d.bits)
        near = np.array([p + k for p in powers for k in (-3, -1, 0, 1, 3)] + [65519, 65520, 65521])
        many = [int(x) for x in near] + [0x01010001, 0x01018001, 2**62 + 2**54 + 1, 2**63 - 1]
        both = sorted({d.wrap(s * n) for n in many for s in (1, -1)})
        return np.array(both, d.numpy)
    halves = np.array([0.0, 1, 2, 3, 2047, 2049, 4097, 65504, 65519.99, 65520, 65536, 6e-8, 3e-8])
    steps = 1 + np.array([2**-8, 3 * 2**-8, 2**-9, 2**-11, 3 * 2**-11, 2**-12])
    odd = np.concatenate([steps + e for e in (0.0, 2.0**-24, 2.0**-30, -(2.0**-30), 2.0**-40)])
    tiny = np.array([2.0**-14, 2.0**-24, 2.0**-25, 1.5 * 2**-25, 1e-40, 2.0**-133, 2.0**-149])
    huge = np.array([3.3895e38, 3.3961e38, 3.4028235e38, 3.4028236e38, 1e39, 1e300])
    ends = 2.0 ** np.array([7, 8, 15, 16, 31, 32, 63, 64])
    numbers = np.concatenate([halves, odd, tiny, huge, ends, ends - 0.5, ends + 0.5, -ends - 1])
    both = np.concatenate([numbers, -numbers, [np.inf, -np.inf, np.nan]])
    with np.errstate(all="ignore"):
        return around(both).astype(d.numpy)


def expected(x: Array, want: str) -> Array:
    """As the definition says, worked out here: NumPy's own casts, which are undefined where a float
    does not fit an integer.
    """
    d = ts.dtype(want)
    with np.errstate(all="ignore"):
        if x.dtype.kind in "biu" or not d.is_int:
            return x.astype(d.numpy)
        low, high = int(d.lowest()), int(d.highest())
        out = [0 if np.isnan(v) else min(max(_whole(float(v)), low), high) for v in x]
        return np.array(out, d.numpy)


def _whole(v: float) -> int:
    return int(v) if np.isfinite(v) else int(np.sign(v)) << 100


def equal(got: Array, want: Array) -> None:
    assert got.dtype == want.dtype
    if ts.dtype(got.dtype).is_float:
        got, want = got.astype(np.float64), want.astype(np.float64)
        np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))
    np.testing.assert_array_equal(got, want)


def cast_of(have: str, want: str, n: int) -> ts.Function:
    x = ts.placeholder((n,), have, name="x")
    return ts.function([x, ts.compute((n,), lambda i: ts.cast(x[i], want), name="y")])
