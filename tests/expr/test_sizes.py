"""ts.size: ranges and samples, what is refused, and what a Function keeps of them."""

from __future__ import annotations

import pickle

import pytest

import tilesmith as ts
from tilesmith.expr.sizes import OpenSize


def rows(*sizes, name="rows"):
    tensors = [ts.placeholder((n, 4), name=f"X{k}") for k, n in enumerate(sizes)]
    Y = ts.compute(tensors[0].shape, lambda i, j: tensors[0][i, j] + 1, name="Y")
    return ts.function([*tensors, Y], name=name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": ""}, "is not the name of a size"),
        ({"name": "2 n"}, "is not the name of a size"),
        ({"name": "n", "range": (8, 4)}, r"range of size n is \(8, 4\)"),
        ({"name": "n", "range": (-1, 4)}, "lowest is at least 0"),
        ({"name": "n", "range": (1, 2, 3)}, "two whole numbers"),
        ({"name": "n", "range": (1, 2.5)}, "each a whole number"),
        ({"name": "n", "samples": {}}, "values with weights"),
        ({"name": "n", "samples": {0: 1}}, "sample of size n is 0"),
        ({"name": "n", "samples": {4: 0}}, "sample 4 of size n has weight 0"),
        ({"name": "n", "samples": {4: True}}, "bool True for 4"),
        ({"name": "n", "range": (1, 8), "samples": {9: 1}}, "outside of its range, 1 to 8"),
        ({"name": "n", "samples": {4096: 1}}, "1 to 1024, the default range; give range="),
    ],
)
def test_what_is_not_a_size_is_refused(arguments, said):
    with pytest.raises(ts.TilesmithError, match=said):
        ts.size(**arguments)


def test_a_function_keeps_what_was_said_of_its_sizes():
    n = ts.size("tokens", range=(1, 512), samples={128: 4, 16: 1})
    func = rows(n)
    assert func.declared == (OpenSize("tokens", (1, 512), ((16, 1.0), (128, 4.0))),)
    assert func.declared[0].typical == 128
    again = ts.function_from_json(ts.function_to_json(func))
    assert again == func
    assert pickle.loads(pickle.dumps(func)) == func
    assert ts.instantiate(func, {"tokens": 3}).declared == ()


def test_a_function_with_numbers_is_the_same_as_one_that_was_written_with_them():
    func = ts.instantiate(rows(ts.size("n", range=(1, 9))), {"n": 3})
    assert func.digest == rows(3).digest


def test_equal_names_are_one_size_and_contradictions_are_errors():
    plain, long = ts.size("n"), ts.size("n", range=(1, 4096))
    assert [s.range for s in rows(plain, long).declared] == [(1, 4096)]
    assert [s.range for s in rows(2 * plain, long + 1).declared] == [(1, 4096)]
    with pytest.raises(ts.TilesmithError, match=r"two sizes 'n' with range \(1, 4096\) and \(1, 8"):
        rows(long, ts.size("n", range=(1, 8)))


@pytest.mark.parametrize(
    ("limits", "samples"),
    [
        (None, [1, 4, 16, 64, 256, 1024]),
        ((1, 1), [1]),
        ((0, 3), [1, 2, 3]),
        ((5, 40), [5, 8, 16, 32, 40]),
    ],
)
def test_samples_by_default_are_few_and_reach_both_ends(limits, samples):
    assert list(OpenSize("n", limits).weights) == samples


def test_arithmetic_with_sizes_keeps_declarations():
    n = ts.size("n", range=(2, 8))
    for p in (n + 1, 1 + n, n - 1, 9 - n, n * 2, 2 * n, n // 2, -n + 20, ts.size("m") * n):
        assert OpenSize("n", (2, 8)) in p.declared
    assert n == ts.size("n")
