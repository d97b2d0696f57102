"""Expressions of sizes from their values at some points."""

from __future__ import annotations

import pytest

from tilesmith.expr.ints import Int, var
from tilesmith.graph.size_fit import CannotOpen, SizeFit, opened

N, M = var("#n"), var("#m")
FIT = SizeFit(
    [{"#n": 11, "#m": 13}, {"#n": 29, "#m": 23}, {"#n": 512, "#m": 64}], ["#n", "#m"]
)  # fmt: skip


@pytest.mark.parametrize(
    "p", [N, M, N * M, 768 * N, 3 * N * M + 1, M - 5, N + M + 2, N - M, 0 * N + 7, -1 * N]
)
def test_an_expression_is_found_from_its_values(p: Int) -> None:
    assert FIT.expression(FIT.values(p), (), "it") == p


def test_extents_that_are_no_polynomials_are_found_where_they_are_near() -> None:
    half = (N + 1) // 2
    assert FIT.expression(FIT.values(64 * half), (half,), "it") == 64 * half
    with pytest.raises(CannotOpen, match="a width is 6 at n = 11, m = 13, 15 at n = 29"):
        FIT.expression(FIT.values(half), (), "a width")


def test_settings_keep_what_is_equal() -> None:
    versions = [(1, (v, 4), "same", 0.5, None, True) for v in FIT.values(2 * N)]
    assert opened(FIT, versions, (), "it") == (1, (2 * N, 4), "same", 0.5, None, True)
    for other in ((0.5, 0.25, 0.125), ((1,), (1, 1), (1,)), (True, False, True), (1, 1.0, 1)):
        with pytest.raises(CannotOpen, match="at some sizes"):
            opened(FIT, other, (), "it")
