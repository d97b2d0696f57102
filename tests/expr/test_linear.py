"""Strides of a shape, and the place of an element."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.expr.intervals import linear, row_major, step_along
from tilesmith.expr.ints import of, product, var


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 1, 7), (4, 3, 2, 5)])
def test_places_are_those_of_a_dense_array(shape: tuple[int, ...]) -> None:
    strides = row_major([of(n) for n in shape])
    for number, at in enumerate(np.ndindex(*shape)):
        assert linear(map(of, at), strides) == of(number)


def test_open_sizes_stay_open() -> None:
    n, m = var("#n"), var("#m")
    assert row_major((var("#b"), n, m)) == (n * m, m, of(1))
    assert linear((var("i"), var("j")), row_major((n, m))) == var("i") * m + var("j")


def test_terms_that_cancel_are_gone() -> None:
    i, n = var("i"), var("#n")
    assert linear((i, i + 3), (2, -2)) == of(-6)
    assert linear((i, i), (n, -n)).terms == {}
    assert linear((i + 1, i), (0, n)) == i * n


def test_a_stride_is_padded_up_to_what_it_is_aligned_to() -> None:
    shape = (of(4), of(6), of(10))
    assert row_major(shape, (1, 16, 0)) == (of(96), of(16), of(1))
    assert row_major(shape, (1, 16, 1)) == (of(102), of(17), of(1))
    assert row_major((of(4), var("#n")), (0, 16, 0)) == (var("#n"), of(1))  # no number yet


def test_a_split_and_the_shape_of_its_parts_cover_the_same_places() -> None:
    extents = [of(3), of(4), of(5)]
    parts = [n - 1 for n in extents]
    assert linear(parts, row_major(extents)) == product(extents) - 1


def test_the_step_of_a_loop_adds_up_over_all_dimensions() -> None:
    i, k = var("i"), var("k")
    assert step_along("i", (i * 2 + k, i, k), (100, 10, 1)) == of(210)
    assert step_along("k", (i * 2 + k, i, k), (100, 10, 1)) == of(101)
    assert step_along("j", (i, k), (10, 1)) == of(0)
