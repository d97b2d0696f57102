"""What a first user writes: NumPy's functions on values, arithmetic on whole tensors, and the
errors that say what is wanted.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.base.errors import ExpressionError

A = ts.placeholder((3, 4), name="A")
B = ts.placeholder((4, 5), name="B")
S = ts.placeholder((), name="S")
x = np.linspace(0.5, 2, 12).reshape(3, 4).astype(np.float32)


@pytest.mark.parametrize(
    "f",
    [np.exp, np.log, np.sqrt, np.tanh, np.sin, np.cos, np.negative, np.abs, np.floor, np.ceil,
     np.rint, lambda v: np.maximum(v, 1), lambda v: np.minimum(1, v), lambda v: np.power(v, 3),
     lambda v: np.float32(2) * v, lambda v: np.float32(2) - v, lambda v: v / np.float32(3),
     lambda v: np.add(v, v), lambda v: np.remainder(v, 0.75)],
)  # fmt: skip
def test_numpy_functions_of_values(f):
    func = ts.function([A, ts.compute((3, 4), lambda i, j: f(A[i, j]), name="Y")])
    np.testing.assert_allclose(ts.evaluate(func, x), f(x), rtol=1e-5)


@pytest.mark.parametrize(
    "f", [lambda v: np.less(v, 1), lambda v: np.isnan(v), lambda v: np.logical_not(v == 1)]
)
def test_numpy_conditions_of_values(f):
    body = lambda i, j: ts.where(f(A[i, j]), 1.0, 0.0)  # noqa: E731
    func = ts.function([A, ts.compute((3, 4), body, name="Y")])
    np.testing.assert_array_equal(ts.evaluate(func, x), f(x))


def stated(body):
    return lambda: ts.compute((3, 4), body, name="Y")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (stated(lambda i, j: np.arctan2(A[i, j], 1)), r"np\.arctan2 of A\[.*is not known here"),
        (stated(lambda i, j: np.add.reduce(A[i, j])), r"np\.add of A\[.*is not known here"),
        (
            stated(lambda i, j: np.add(A[i, j], x)),
            r"an array of shape \[3, 4\]; make .*placeholder",
        ),
        (stated(lambda i, j: x * A[i, j]), r"an array of shape \[3, 4\]"),
        (lambda: A + 1, r"\+ of the tensor A.*ts\.compute\(A\.shape.*ts\.ops\.add"),
        (lambda: 1 + A, r"\+ of the tensor A"),
        (lambda: A - B, r"- of the tensor A.*ts\.ops\.subtract"),
        (lambda: 2 * A, r"\* of the tensor A.*ts\.ops\.multiply"),
        (lambda: A / 2, r"/ of the tensor A.*ts\.ops\.divide"),
        (lambda: A % 2, r"% of the tensor A: say what each element is"),
        (lambda: A > 0, r"> of the tensor A"),
        (lambda: -A, r"- of the tensor A.*ts\.ops\.negative"),
        (lambda: abs(A), r"abs of the tensor A.*ts\.ops\.absolute"),
        (lambda: A**2, r"\*\* of the tensor A.*ts\.ops\.power"),
        (lambda: np.exp(A), r"np\.exp of the tensor A.*ts\.ops\.exp"),
        (lambda: np.float32(2) * A, r"np\.multiply of the tensor A"),
        (lambda: A @ B, r"ts\.ops\.matmul\(A, B\)"),
        (lambda: x.T @ A, r"tensor A|ts\.ops\.matmul"),
        (stated(lambda i, j: A[i, j] + A), "A is a tensor; read an element of it"),
        (lambda: len(A), r"A\.shape"),
        (lambda: list(A), "A cannot be iterated over"),
        (lambda: bool(A), "the truth of the tensor A"),
        (stated(lambda i, j: A[i]), "A has 2 dimensions but is read with 1 index"),
        (stated(lambda i, j: A[i, j, 0]), "A has 2 dimensions but is read with 3 indices"),
        (
            stated(lambda i, j: A[i, 1.5]),
            r"A is indexed by 1\.5 of dtype float32; an index is an integer",
        ),
        (stated(lambda i, j: A[i, j / 2]), "an index is an integer"),
        (stated(lambda i, j: A[i, :]), "a tensor is read one element at a time"),
        (stated(lambda i, j: A[..., j]), "a tensor is read one element at a time"),
        (stated(lambda i, j: A[i, None]), "a tensor is read one element at a time"),
        (stated(lambda i, j: 1.0 if A[i, j] > 0 else 0.0), r"ts\.where"),
        (stated(lambda i, j: float(A[i, j])), r"float\(\) cannot take it; use ts\.cast"),
        (stated(lambda i, j: int(A[i, j])), r"int\(\) cannot take it; use ts\.cast"),
        (stated(lambda i, j: len(A[i, j])), "a single value and has no length"),
        (stated(lambda i, j: sum(A[i, j])), "a single value and cannot be unpacked"),
        (stated(lambda i, j: A[i, j] + "1"), "is not a value, a number or an axis"),
        (stated(lambda i, j: None), "is not a value, a number or an axis"),
    ],
)
def test_the_error_says_what_is_wanted(state, message):
    with pytest.raises(ExpressionError, match=message):
        state()


def test_a_tensor_without_dimensions_is_a_value():
    body = lambda i, j: (S + A[i, j]) * S - S / 2 + (1 - S) * 3  # noqa: E731
    func = ts.function([A, S, ts.compute((3, 4), body, name="Y")])
    s = np.float32(0.75)
    np.testing.assert_allclose(
        ts.evaluate(func, x, s), (s + x) * s - s / 2 + (1 - s) * 3, rtol=1e-6
    )
