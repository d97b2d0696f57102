"""floor_divide, trunc, expm1 and log1p: NumPy, the oracle and the compiled kernel agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ops.elementwise import expm1, log1p, trunc
from tilesmith.ops.integer import floor_divide

FLOATS = np.array([1.0, -1.0, 7.5, -7.5, 0.3, 6.0, -6.0, 1e9, 0.0], np.float32)
DIVISORS = np.array([0.1, 0.1, 2.0, 2.0, -0.1, 3.0, 3.0, 7.0, -2.0], np.float32)


def both(op: Any, *arrays: Any) -> tuple[Any, Any]:
    tensors = [ts.placeholder(a.shape, a.dtype.name, name=f"x{k}") for k, a in enumerate(arrays)]
    func = ts.function([*tensors, op(*tensors)])
    return ts.evaluate(func, *arrays), ts.build(func)(*arrays)


@pytest.mark.parametrize(
    ("a", "b"),
    [(FLOATS, DIVISORS), (np.array([7, -7, 7, -7, 0]), np.array([2, 2, -2, -2, 5]))],
)
def test_floor_divide(a: Any, b: Any) -> None:
    for got in both(floor_divide, a, b):
        np.testing.assert_array_equal(got, a // b)


def test_a_float_divided_by_zero_is_infinite() -> None:
    a, b = np.array([1.0, -1.0, 0.0], np.float32), np.zeros(3, np.float32)
    for got in both(floor_divide, a, b):
        np.testing.assert_array_equal(got, [np.inf, -np.inf, np.nan])


@pytest.mark.parametrize(("op", "want"), [(trunc, np.trunc), (expm1, np.expm1), (log1p, np.log1p)])
def test_elementary_functions(op: Any, want: Any) -> None:
    x = np.array([1e-6, -1e-6, 0.4, 2.7, 0.0, -0.3, 20.0], np.float32)
    for got in both(op, x):
        np.testing.assert_allclose(got, want(x), rtol=2e-6)
