"""What values mean: dtypes, promotion, comparisons, casts, functions, where and indirect reads."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special

import tilesmith as ts
from tilesmith.base.dtype import promote
from tilesmith.expr.nodes import Const

NUMPY = {n: np.dtype(ml_dtypes.bfloat16 if n == "bfloat16" else n) for n in ts.DTYPES}
INTS = [n for n in ts.DTYPES if n.startswith(("int", "uint"))]
FLOATS = [n for n in ts.DTYPES if "float" in n]
NUMBERS = INTS + FLOATS


def both(func, *arrays):
    """The result, on which oracle and interpreter agree."""
    want, got = ts.evaluate(func, *arrays), ts.interpret(func, *arrays)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=1e-6, equal_nan=True
    )
    return want


def each(f, *arrays, dtypes=None):
    """f on the elements of arrays."""
    names = dtypes or [a.dtype.name for a in arrays]
    tensors = [
        ts.placeholder((len(arrays[0]),), dtype=d, name=f"x{k}") for k, d in enumerate(names)
    ]
    out = ts.compute((len(arrays[0]),), lambda i: f(*(t[i] for t in tensors)))
    return both(ts.function([*tensors, out]), *arrays)


@pytest.mark.parametrize("name", ts.DTYPES)
def test_every_dtype_is_stored_and_read(name):
    x = np.array([0, 1, 1, 0]).astype(NUMPY[name])
    got = each(lambda v: v, x)
    assert got.dtype == NUMPY[name]
    np.testing.assert_array_equal(got, x)
    assert ts.placeholder((1,), dtype=NUMPY[name]).dtype is ts.dtype(name)


@pytest.mark.parametrize("name", NUMBERS)
def test_arithmetic_in_every_dtype(name):
    x = np.array([7, 3, 120, 1]).astype(NUMPY[name])
    y = np.array([2, 5, 9, 4]).astype(NUMPY[name])
    for op in ("__add__", "__sub__", "__mul__"):
        got = each(lambda a, b, op=op: getattr(a, op)(b), x, y)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got, getattr(x, op)(y))
        assert got.dtype == x.dtype


@pytest.mark.parametrize("name", INTS)
def test_integers_wrap(name):
    limits = np.iinfo(name)
    got = each(lambda v: v + 1, np.array([limits.max], name))
    assert got[0] == limits.min


@pytest.mark.parametrize("a", ts.DTYPES)
@pytest.mark.parametrize("b", ts.DTYPES)
def test_promotion(a, b):
    x, y = ts.dtype(a), ts.dtype(b)
    got = promote(x, y)
    assert got is promote(y, x)
    if x.is_float and not y.is_float:
        assert got is x  # an integer never widens a float
    elif {"uint64"} < {a, b} and "i" in (x.kind, y.kind):
        assert got.name == "int64"  # NumPy has float64
    elif not x.is_float and not y.is_float:
        assert got.numpy == np.promote_types(x.numpy, y.numpy)
    elif {a, b} == {"float16", "bfloat16"}:
        assert got.name == "float32"
    elif x.is_float and y.is_float:
        assert got.bits == max(x.bits, y.bits)
    mixed = ts.compute(
        (1,), lambda i: ts.maximum(ts.placeholder((1,), a)[i], ts.placeholder((1,), b)[i])
    )
    assert mixed.dtype is got


@pytest.mark.parametrize(
    ("number", "dtype", "result"),
    [
        (1, "float16", "float16"),
        (1.5, "float16", "float16"),
        (1, "int8", "int8"),
        (1.5, "int8", "float32"),
        (True, "int32", "int32"),
        (np.float64(0.5), "float32", "float32"),
        (np.int64(3), "int8", "int8"),
    ],
)
def test_a_number_takes_the_dtype_it_meets(number, dtype, result):
    X = ts.placeholder((2,), dtype=dtype, name="X")
    left = ts.compute((2,), lambda i: X[i] + number)
    right = ts.compute((2,), lambda i: number + X[i])
    assert left.dtype.name == right.dtype.name == result


def test_a_numpy_number_prints_as_a_number():
    X = ts.placeholder((2,), name="X")
    text = str(ts.function([X, ts.compute((2,), lambda i: X[i] * np.float64(0.5))]))
    assert "X[i] * 0.5" in text


@pytest.mark.parametrize("op", ["__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"])
@pytest.mark.parametrize("name", NUMBERS)
def test_comparisons(op, name):
    x = np.array([1, 2, 3, 0]).astype(NUMPY[name])
    y = np.array([2, 2, 1, 0]).astype(NUMPY[name])
    got = each(lambda a, b: getattr(a, op)(b), x, y)
    assert got.dtype == np.bool_
    np.testing.assert_array_equal(got, getattr(x, op)(y))


def test_comparisons_with_nan():
    x = np.array([np.nan, 1.0], np.float32)
    np.testing.assert_array_equal(each(lambda a: a == a, x), [False, True])
    np.testing.assert_array_equal(each(lambda a: a != a, x), [True, False])
    np.testing.assert_array_equal(each(ts.isnan, x), [True, False])
    np.testing.assert_array_equal(each(lambda a: a < 2, x), [False, True])


def test_conditions_combine():
    x = np.arange(6, dtype=np.int32)
    got = each(lambda v: ((v > 1) & (v < 4)) | ~(v != 5), x)
    np.testing.assert_array_equal(got, ((x > 1) & (x < 4)) | (x == 5))


@pytest.mark.parametrize("to", ts.DTYPES)
@pytest.mark.parametrize("name", ts.DTYPES)
def test_casts(name, to):
    x = np.array([0, 1, 3, 100] if name != "bool" else [0, 1, 1, 0]).astype(NUMPY[name])
    got = each(lambda v: ts.cast(v, to), x)
    assert got.dtype == NUMPY[to]
    np.testing.assert_array_equal(got, x.astype(NUMPY[to]))


def test_casts_truncate_and_wrap():
    floats = np.array([-1.9, -0.5, 0.5, 1.9], np.float32)
    np.testing.assert_array_equal(each(lambda v: ts.cast(v, "int32"), floats), [-1, 0, 0, 1])
    ints = np.array([-1, 255, 256, 300], np.int32)
    np.testing.assert_array_equal(each(lambda v: ts.cast(v, "uint8"), ints), [255, 255, 0, 44])
    np.testing.assert_array_equal(each(lambda v: ts.cast(v, "int8"), ints), [-1, -1, 0, 44])


@pytest.mark.parametrize("name", NUMBERS)
def test_floor_division_and_remainder(name):
    values = [-7, -6, -1, 0, 1, 6, 7] if ts.dtype(name).kind != "u" else [0, 1, 2, 5, 6, 7, 200]
    x = np.array(values).astype(NUMPY[name])
    for divisor in (3, -3) if ts.dtype(name).kind != "u" else (3, 7):
        y = np.full_like(x, divisor)
        np.testing.assert_array_equal(each(lambda a, b: a // b, x, y), x // y)
        np.testing.assert_array_equal(each(lambda a, b: a % b, x, y), x % y)


def test_division_of_integers_is_a_float():
    got = each(lambda a, b: a / b, np.array([1, 7], np.int32), np.array([2, -2], np.int32))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, [0.5, -3.5])


def test_division_of_integers_by_zero_is_zero():
    x, y = np.array([5, -5], np.int32), np.zeros(2, np.int32)
    np.testing.assert_array_equal(each(lambda a, b: a // b, x, y), [0, 0])
    np.testing.assert_array_equal(each(lambda a, b: a % b, x, y), [0, 0])


FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "sigmoid": scipy.special.expit,
    "erf": scipy.special.erf,
    "sin": np.sin,
    "cos": np.cos,
    "abs": np.abs,
    "atan": np.arctan,
    "expm1": np.expm1,
    "log2": np.log2,
    "log10": np.log10,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "log1p": np.log1p,
    "sign": np.sign,
    "trunc": np.trunc,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", FLOATS)
def test_functions(function, name):
    x = np.array([0.25, 0.5, 1.5, 2.5, 3.75]).astype(NUMPY[name])
    got = each(getattr(ts, function), x)
    assert got.dtype == NUMPY[name]
    want = FUNCTIONS[function](x.astype(np.float64)).astype(NUMPY[name])
    tolerance = {"float64": 1e-14, "float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}[name]
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=1e-14
    )


def test_functions_of_integers_are_float32():
    got = each(ts.exp, np.array([0, 1], np.int32))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, [1, math.e], rtol=1e-6)
    assert each(ts.floor, np.array([3], np.int32)).dtype == np.int32


def test_maximum_and_minimum_pass_nan_on():
    x, y = np.array([np.nan, 1, 2], np.float32), np.array([0, np.nan, 3], np.float32)
    np.testing.assert_array_equal(each(ts.maximum, x, y), [np.nan, np.nan, 3])
    np.testing.assert_array_equal(each(ts.minimum, x, y), [np.nan, np.nan, 2])


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 8, 9, -2, 0.5, 1.5, np.int64(2)])
def test_power(exponent):
    x = np.array([0.5, 1.25, 3], np.float32)
    np.testing.assert_allclose(each(lambda v: v**exponent, x), x**exponent, rtol=1e-6)


def test_power_of_values():
    x, y = np.array([2, 3], np.float32), np.array([-1, 2.5], np.float32)
    np.testing.assert_allclose(each(lambda a, b: a**b, x, y), x**y, rtol=1e-6)
    np.testing.assert_allclose(each(lambda b: 2**b, y), 2**y, rtol=1e-6)
    whole = each(lambda v: v**3, np.array([-2, 5], np.int32))
    assert whole.dtype == np.int32
    np.testing.assert_array_equal(whole, [-8, 125])


@pytest.mark.parametrize("exponent", ["int8", "int64", "uint8", "uint64"])
@pytest.mark.parametrize("base", INTS)
def test_power_of_integers_is_exact_and_wraps(base, exponent):
    d = ts.dtype(base)
    bases = [b for b in (-3, -2, -1, 0, 1, 2, 3, 7, 10) if b >= d.lowest()]
    exponents = [0, 1, 2, 3, 5, 9, 31, 62, 63] + [-1, -2, -9] * exponent.startswith("i")
    x, y = (g.ravel() for g in np.meshgrid(np.array(bases), np.array(exponents)))
    got = each(lambda a, b: a**b, x.astype(base), y.astype(exponent))
    want = [
        int(p) ** int(q) if q >= 0 else int(p) ** int(-q) if abs(p) == 1 else 0
        for p, q in zip(x, y, strict=True)
    ]
    assert got.dtype == np.dtype(base)
    np.testing.assert_array_equal(got, np.array([d.wrap(n) for n in want], base))
    units = np.array([b for b in (-1, 0, 1) if b >= d.lowest()], base)
    got = each(lambda a, b: a**b, units, np.full(len(units), 101, exponent))
    np.testing.assert_array_equal(got, units)


def test_power_of_integers_and_numbers():
    x = np.array([0, 2, -3], np.int32)
    for n in (0, 1, 9, 20):
        got = each(lambda v, n=n: v**n, x)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, x**n)
    np.testing.assert_array_equal(each(lambda v: 2**v, np.array([0, 6], np.uint8)), [1, 64])
    got = ts.evaluate(ts.function([ts.compute((5,), lambda i: (i - 2) ** i)]))
    np.testing.assert_array_equal(got, [1, -1, 0, 1, 16])
    assert each(lambda v: v**-1, x[1:]).dtype == np.float32
    assert each(lambda v: v**1.5, x).dtype == np.float32


def test_signs():
    x = np.array([-2, 3], np.float32)
    np.testing.assert_array_equal(each(lambda v: -v, x), -x)
    np.testing.assert_array_equal(each(abs, x), np.abs(x))
    np.testing.assert_array_equal(each(lambda v: 1 - v, x), 1 - x)
    np.testing.assert_array_equal(each(lambda v: 1 / v, x), 1 / x)
    np.testing.assert_array_equal(each(lambda v: 7 // v, x), 7 // x)
    np.testing.assert_array_equal(each(lambda v: 7 % v, x), 7 % x)


def test_where_reads_only_the_branch_that_is_taken():
    X = ts.placeholder((4,), name="X")
    Y = ts.compute((6,), lambda i: ts.where((i >= 1) & (i < 5), X[i - 1], -1.0))
    got = both(ts.function([X, Y]), np.arange(4))
    np.testing.assert_array_equal(got, [-1, 0, 1, 2, 3, -1])


def test_where_inside_where_and_in_the_condition():
    X, ids = ts.placeholder((4,), name="X"), ts.placeholder((6,), dtype="int32", name="ids")
    Y = ts.compute(
        (6,),
        lambda i: ts.where(ids[i] < 0, -1.0, ts.where(ids[i] >= 4, -2.0, X[ids[i]])),
    )
    got = both(ts.function([X, ids, Y]), np.arange(4), [-5, 0, 3, 4, 99, 1])
    np.testing.assert_array_equal(got, [-1, 0, 3, -2, -2, 1])


def test_a_read_out_of_bounds_that_is_taken_is_found():
    X, n = ts.placeholder((4,), name="X"), ts.placeholder((1,), dtype="int32", name="n")
    Y = ts.compute((4,), lambda i: ts.where(i < n[0], X[i + n[0]], 0))
    func = ts.function([X, n, Y])
    np.testing.assert_array_equal(both(func, np.arange(4), [2]), [2, 3, 0, 0])
    with pytest.raises(ts.ArgumentError, match=r"X is read at index .* = 4 in dimension 0"):
        ts.evaluate(func, np.arange(4), [3])
    with pytest.raises(ts.ArgumentError, match=r"X is read at index .* = 4 in dimension 0"):
        ts.interpret(func, np.arange(4), [3])


@pytest.mark.parametrize(
    ("a", "b", "dtype"),
    [(1, 0, "int64"), (1.0, 0, "float32"), (True, False, "bool"), (ts.size("N"), 1.5, "float32")],
)
def test_where_of_numbers(a, b, dtype):
    assert ts.compute((2,), lambda i: ts.where(i > 0, a, b)).dtype.name == dtype


def test_indirect_reads():
    table, ids = ts.placeholder((5, 3), name="table"), ts.placeholder((4,), "int64", name="ids")
    Y = ts.compute((4, 3), lambda i, j: table[ids[i], j])
    t, at = np.arange(15).reshape(5, 3), np.array([4, 0, 2, 2])
    np.testing.assert_array_equal(both(ts.function([table, ids, Y]), t, at), t[at])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_indirect_reads_with_arithmetic_and_nesting(dtype):
    table = ts.placeholder((6,), name="table")
    ids, more = (ts.placeholder((3,), dtype, name=n) for n in ("ids", "more"))
    Y = ts.compute((3,), lambda i: table[2 * ids[more[i]] + i % 2] + table[ids[i] // 2])
    t, a, b = np.arange(6) * 1.5, np.array([0, 2, 1]), np.array([2, 0, 1])
    got = both(ts.function([table, ids, more, Y]), t, a, b)
    np.testing.assert_allclose(got, t[2 * a[b] + np.arange(3) % 2] + t[a // 2])


def test_axes_are_values():
    Y = ts.compute((3, 4), lambda i, j: i * 10 + j - 1)
    X = ts.placeholder((3, 4), name="X")
    Z = ts.compute((3, 4), lambda i, j: X[i, j] * i + (j + 1) / 2)
    got = ts.evaluate(ts.function([Y]))
    assert got.dtype == np.int64
    i, j = np.mgrid[:3, :4]
    np.testing.assert_array_equal(got, i * 10 + j - 1)
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(both(ts.function([X, Z]), x), x * i + (j + 1) / 2)


def test_a_size_is_a_value_on_either_side():
    n = ts.size("N")
    X = ts.placeholder((n,), name="X")
    Y = ts.compute((n,), lambda i: X[n - 1 - i] * n + n * X[i] + (n - i) - n // (i + 1))
    func = ts.instantiate(ts.function([X, Y]), {"#N": 5})
    x, i = np.arange(5.0), np.arange(5)
    np.testing.assert_allclose(both(func, x), x[::-1] * 5 + 5 * x + (5 - i) - 5 // (i + 1))


def test_a_size_compares_as_a_value():
    n = ts.size("N")
    Y = ts.compute((n,), lambda i: ts.where(n == i + 1, 1.0, ts.where(n > i + 2, 0.0, 0.5)))
    func = ts.instantiate(ts.function([Y]), {"#N": 4})
    np.testing.assert_array_equal(both(func), [0, 0, 0.5, 1])


def test_a_constant_is_rounded_to_its_own_dtype_before_a_cast() -> None:
    def held(value: float, own: str, to: str) -> Any:
        node = ts.cast(ts.cast(value, own), to).node
        assert isinstance(node, Const)
        return node.value

    assert held(0.1, "float16", "float32") == float(np.float16(0.1))
    assert held(0.1, "float32", "float64") == float(np.float32(0.1))
    assert held(0.1, "float64", "float64") == 0.1
    assert held(0.99999999, "float32", "int32") == 1
    assert held(-0.0, "float16", "float64") == 0
    assert np.signbit(held(-0.0, "float16", "float64"))
    assert held(1e5, "float16", "float32") == np.inf
