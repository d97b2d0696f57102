"""The oracle over fewer slices: its results, spread, are those of the whole Function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tests.support.programs import random_program
from tests.support.wide_programs import random_wide_program
from tilesmith.ir.error_bounds import evaluate_bounded
from tilesmith.ir.function import Function, numbers
from tilesmith.measure.child.check import Expected
from tilesmith.measure.child.task_arrays import TaskArrays
from tilesmith.task import slices
from tilesmith.task.inputs import example_inputs
from tilesmith.task.slices import fewer_slices

Array = np.ndarray[Any, Any]


def product(m: int, n: int, k: int) -> Function:
    a, b = ts.placeholder((m, k), name="A"), ts.placeholder((k, n), name="B")
    r = ts.reduce_axis(k)
    return ts.function(
        [a, b, ts.compute((m, n), lambda i, j: ts.sum(a[i, r] * b[r, j], r), name="C")]
    )


def squared(n: int) -> Function:
    a = ts.placeholder((n, n), name="A")
    r = ts.reduce_axis(n)
    return ts.function([a, ts.compute((n, n), lambda i, j: ts.sum(a[i, r] * a[r, j], r), name="C")])


def gram(n: int, k: int) -> Function:
    a = ts.placeholder((n, k), name="A")
    r = ts.reduce_axis(k)
    return ts.function([a, ts.compute((n, n), lambda i, j: ts.sum(a[i, r] * a[j, r], r), name="C")])


def mirrored(n: int) -> Function:
    a = ts.placeholder((n, n), name="A")
    return ts.function([a, ts.compute((n, n), lambda i, j: a[i, j] + 2 * a[j, i], name="C")])


def shifted(n: int, m: int) -> Function:
    a = ts.placeholder((n, m + 2), name="A")
    return ts.function([a, ts.compute((n, m), lambda i, j: a[i, j] - a[i, j + 2], name="C")])


def numbered(n: int, m: int) -> Function:
    """The row's number is part of the value."""
    a = ts.placeholder((n, m), name="A")
    lower = ts.compute((n, m), lambda i, j: ts.where(i >= j, a[i, j], 0.0), name="L")
    return ts.function([a, ts.compute((n, m), lambda i, j: lower[i, j] * 2, name="C")])


def chain(b: int, n: int, m: int) -> Function:
    """A softmax over the middle axis of three, two results."""
    a = ts.placeholder((b, n, m), name="A")
    r = ts.reduce_axis(n)
    top = ts.compute((b, m), lambda i, k: ts.amax(a[i, r, k], r), name="T")
    e = ts.compute((b, n, m), lambda i, j, k: ts.exp(a[i, j, k] - top[i, k]), name="E")
    q = ts.reduce_axis(n)
    total = ts.compute((b, m), lambda i, k: ts.sum(e[i, q, k], q), name="S")
    out = ts.compute((m, n, b), lambda k, j, i: e[i, j, k] / total[i, k], name="C")
    return ts.function([a, total, out])


def looked_up(n: int, m: int, d: int) -> Function:
    at, table = ts.placeholder((n,), "int32", name="I"), ts.placeholder((m, d), name="W")
    return ts.function([at, table, ts.compute((n, d), lambda i, j: table[at[i], j], name="C")])


def part(n: int, m: int) -> Function:
    """Half of the rows are read."""
    a = ts.placeholder((2 * n, m), name="A")
    return ts.function([a, ts.compute((n, m), lambda i, j: a[i, j] * 2, name="C")])


_CASES: list[tuple[Callable[[], Function], list[str]]] = [
    (lambda: product(70, 90, 30), ["A0 C0", "B1 C1"]),
    (lambda: squared(40), []),
    (lambda: gram(60, 30), ["A0 C0 C1"]),
    (lambda: mirrored(60), ["A0 A1 C0 C1"]),
    (lambda: shifted(50, 60), ["A0 C0"]),
    (lambda: numbered(50, 60), []),
    (lambda: chain(40, 13, 30), ["A0 C2 S0", "A2 C0 S1"]),
    (lambda: looked_up(50, 30, 40), ["C1 W1"]),
    (lambda: part(40, 30), ["A1 C1"]),
]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As if every Function took the oracle seconds."""
    fewer_slices.cache_clear()
    monkeypatch.setattr(slices, "_ENOUGH_POINTS", 1)
    yield
    fewer_slices.cache_clear()


@pytest.mark.parametrize(("make", "axes"), _CASES)
def test_axes_that_repeat(make: Callable[[], Function], axes: list[str], short: None) -> None:
    func = make()
    few = fewer_slices(func)
    params = {b.name for b in func.params}
    found: dict[int, set[str]] = {}
    for (name, d), k in few.axes.items():
        if name in params and isinstance(d, int):
            found.setdefault(k, set()).add(f"{name}{d}")
    assert sorted(" ".join(sorted(x)) for x in found.values()) == axes
    assert all(n == slices._FEWEST for _, n in few.lengths)


def assert_spread_as_the_whole(func: Function) -> None:
    arrays = TaskArrays(func)
    assert arrays.fill(3) is None
    for case in arrays.cases:
        results = evaluate_bounded(func, *case.inputs)
        for b, want, limit, whole in zip(
            func.outputs, case.outputs, case.limits[""], results, strict=True
        ):
            assert Expected(b.name, want, limit).differs(whole.value) is None


@pytest.mark.parametrize(("make", "axes"), _CASES)
def test_results_are_those_of_the_whole(
    make: Callable[[], Function], axes: list[str], short: None
) -> None:
    assert_spread_as_the_whole(make())


@pytest.mark.parametrize("make", [random_program, random_wide_program])
@pytest.mark.parametrize("seed", range(0, 24, 2))
def test_random_programs(
    make: Any, seed: int, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "_FEWEST", 4)
    assert_spread_as_the_whole(make(np.random.default_rng(seed)))


def test_neighbours_differ_and_the_ends_are_their_own(short: None) -> None:
    (at, _) = fewer_slices(product(70, 90, 30)).drawn(5)
    assert (np.diff(at) != 0).all()
    assert (at == at[0]).sum() == (at == at[-1]).sum() == 1
    assert sorted({*at.tolist()}) == [*range(slices._FEWEST)]


def test_what_is_quick_is_evaluated_whole() -> None:
    func = product(70, 90, 30)
    assert fewer_slices(func).func is func


def test_batches_of_slow_functions_have_few_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two axes of 4 and 16 batches around what cannot be shortened."""
    x = ts.placeholder((4, 16, 40, 40), name="X")
    y = ts.compute(
        (4, 16, 40, 40), lambda a, b, i, j: ts.where(i >= j, x[a, b, i, j], 0.0), name="Y"
    )
    func = ts.function([x, y])
    fewer_slices.cache_clear()
    monkeypatch.setattr(slices, "_ENOUGH_POINTS", 1)
    assert fewer_slices(func).lengths == ((16, 11),)
    fewer_slices.cache_clear()
    monkeypatch.setattr(slices, "_SLOW_POINTS", 1)
    assert fewer_slices(func).lengths == ((16, 5),)
    assert_spread_as_the_whole(func)
    fewer_slices.cache_clear()


def test_a_large_product_is_evaluated_in_part() -> None:
    """Each row and each column is seen, and its sums are those of the whole."""
    func = product(3001, 2003, 517)
    few = fewer_slices(func)
    assert [numbers(b.shape)[1] for b in few.func.inputs[:1]] == [517]
    arrays = TaskArrays(func)
    assert arrays.fill(0) is None
    (a, b), (c,) = arrays.cases[-1].inputs, arrays.cases[-1].outputs
    rows = [0, 1, 1500, 2999, 3000]
    want = a[rows].astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c[rows], want, rtol=1e-4, atol=1e-4)
    swapped = c.copy()
    swapped[[17, 18]] = swapped[[18, 17]]
    limits = arrays.cases[-1].limits[""][0]
    assert Expected("C", c, limits).differs(swapped) is not None
    swapped[...] = c
    swapped[:, -1] = c[:, -2]
    assert Expected("C", c, limits).differs(swapped) is not None


def test_inputs_of_the_smaller_function_fit_its_indices(short: None) -> None:
    at, table = example_inputs(fewer_slices(looked_up(50, 30, 40)).func)
    assert table.shape == (30, slices._FEWEST)
    assert at.max() < 30
