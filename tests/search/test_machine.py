"""The vector machine against NumPy: random graphs over random rows, and the logarithm by itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilesmith.search.features.graph import MEANING, Graph, Term
from tilesmith.search.features.machine import CODES

COLUMNS = ("#a", "#b", "#c")
BINARY = ("add", "subtract", "multiply", "divide", "minimum", "maximum", "greater", "floor_divide")
DIVISIONS = ("divide", "floor_divide")


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Graph, list[Term]]:
    """With numbers among the constants that lead to infinities and NaN. Nothing is computed from
    logarithms, so that all other numbers are the same to the last bit; and nothing is divided by
    -0, which NumPy takes for the minimum of 0 and -0 or not, as it likes.
    """
    g = Graph(COLUMNS)
    terms = [g.column(c) for c in COLUMNS]
    terms += [g.of(x) for x in draw(st.lists(st.sampled_from([0.0, 1.0, -2.5, 1e30]), max_size=3))]
    some = st.lists(st.integers(0, 10**6), min_size=6, max_size=6)
    for _ in range(draw(st.integers(0, 40))):
        operation = draw(st.sampled_from([*BINARY, "ceil", "curve"]))
        a, b, *others = (terms[k % len(terms)] for k in draw(some))
        if operation == "curve":
            size = draw(st.integers(1, 3))
            xs = [a.maximum(0)]
            for step in (b, *others)[: size - 1]:
                xs.append(xs[-1] + step.maximum(0))
            terms += g.curve(xs, others[:size], draw(st.integers(1, 4)))
        elif operation == "ceil":
            terms.append(a.ceil())
        else:
            terms.append(g.make(operation, a, b + 0.5 if operation in DIVISIONS else b))
    return g, draw(st.lists(st.sampled_from(terms), min_size=1, max_size=30))


def rows_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 60, (count, len(COLUMNS)), np.int32)


@settings(max_examples=150)
@given(graphs(), st.sampled_from([0, 1, 15, 16, 17, 63, 64, 65, 200]), st.integers(0, 99))
def test_programs_say_what_numpy_says(
    drawn: tuple[Graph, list[Term]], count: int, seed: int
) -> None:
    g, exact = drawn
    logs = [t.log2() for t in exact]
    rows = rows_of(count, seed)
    got, want = g.compile([*exact, *logs])(rows), g.evaluate([*exact, *logs], rows)
    np.testing.assert_array_equal(got[:, : len(exact)], want[:, : len(exact)])
    # each is within two units in the last place of the logarithm
    np.testing.assert_array_max_ulp(got[:, len(exact) :], want[:, len(exact) :], 4)


def test_all_operations_have_a_meaning() -> None:
    assert MEANING.keys() == CODES.keys() - {"column", "constant", "output"}


@pytest.mark.parametrize("scale", [1.0, 2.0**-31, 2.0**-149, 2.0**60])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_logarithms_are_those_of_more_digits(scale: float, offset: float) -> None:
    rows = np.random.default_rng(0).integers(1, 2**31 - 1, (100_000, 1), np.int32)
    g = Graph(("#a",))
    x = g.column("#a") * scale + offset
    given_, got = g.compile([x, x.log2()])(rows).T
    want = np.log2(given_.astype(np.float64))
    assert np.all(np.abs(got - want) <= 2 * np.spacing(np.abs(want).astype(np.float32)))


def test_logarithms_of_what_has_none() -> None:
    g = Graph(("#a",))
    a = g.column("#a")
    f = g.compile([a.log2(), (a / 0).log2(), (-1 * a).log2()])
    rows = np.array([[1], [0]], np.int32)
    np.testing.assert_array_equal(f(rows), [[0, np.inf, np.nan], [-np.inf, np.nan, -np.inf]])


def test_rows_may_lie_by_columns_or_apart() -> None:
    g = Graph(COLUMNS)
    f = g.compile([g.column(c) for c in COLUMNS])
    rows = rows_of(100)
    for same in (np.asfortranarray(rows), np.repeat(rows, 2, axis=0)[::2], rows.astype(np.int64)):
        np.testing.assert_array_equal(f(same), rows)
    np.testing.assert_array_equal(f(rows[::-1]), rows[::-1])


def test_whole_numbers_are_divided_exactly() -> None:
    g = Graph(("#a", "#b"))
    f = g.compile([g.make("floor_divide", g.column("#a"), g.column("#b"))])
    b = np.random.default_rng(0).integers(1, 4096, 10_000)
    q = np.random.default_rng(1).integers(1, 2**24 // b)
    for a in (b * q - 1, b * q):  # just below, and there
        np.testing.assert_array_equal(f(np.stack([a, b], axis=1))[:, 0], a // b)


def test_results_do_not_depend_on_who_else_is_asked() -> None:
    g = Graph(COLUMNS)
    a, b, c = (g.column(x) for x in COLUMNS)
    f = g.compile([(a * b).log(), (a / c).ceil(), *g.curve([a, a + 5], [b, c], 3)])
    rows = rows_of(130)
    alone = [f(rows[k : k + 1]) for k in range(len(rows))]
    np.testing.assert_array_equal(f(rows), np.concatenate(alone))
