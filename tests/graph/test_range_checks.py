"""Checks of the range of indices: few and many elements, every integer type, parts of arrays."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.base.errors import RangeError
from tilesmith.graph.checks import Check

FEW, MANY = 7, 20_011


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
@pytest.mark.parametrize("low", [0, -100, 3])
def test_a_range_holds_its_low_end_and_not_its_high_end(count: int, dtype: str, low: int) -> None:
    first = max(low, 0) if dtype.startswith("u") else low
    check = Check("x", "Gather", low, 100)
    inside = np.resize(np.arange(first, 100), count).astype(dtype)
    inside[-1] = 99
    check.verify(inside)
    for wrong in (100, 127, low - 1, -128):
        if np.iinfo(dtype).min <= wrong <= np.iinfo(dtype).max:
            outside = inside.copy()
            outside[count // 2] = wrong
            with pytest.raises(RangeError, match=f"index {wrong} is out of range"):
                check.verify(outside)


@pytest.mark.parametrize("count", [FEW, MANY])
def test_each_element_of_the_last_dimension_has_a_range_of_its_own(count: int) -> None:
    check = Check("x", "GatherND", (0, -3), (5, 3))
    pairs = np.stack([np.resize(np.arange(5), count), np.resize(np.arange(-3, 3), count)], -1)
    check.verify(pairs)
    for column, wrong in ((0, -1), (0, 5), (1, -4), (1, 3)):
        outside = pairs.copy()
        outside[count - 1, column] = wrong
        with pytest.raises(RangeError, match=f"index {wrong} is out of range"):
            check.verify(outside)


@pytest.mark.parametrize("count", [FEW, MANY])
def test_rows_that_do_not_follow_each_other_are_checked_too(count: int) -> None:
    held = np.full((count, 2), -1)
    held[:, 1] = 4
    Check("x", "Gather", 0, 5).verify(held[::-1, 1])
    with pytest.raises(RangeError, match="index -1 "):
        Check("x", "Gather", 0, 5).verify(held[::-1, 0])
