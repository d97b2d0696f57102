"""Minimal filters: what they compute is the plain sum, with as few products as they say."""

from __future__ import annotations

import numpy as np
import pytest

from tilesmith.schedule.filters import can_filter, filter_of

KINDS = [(2, 3, 1), (4, 3, 1), (3, 5, 1), (2, 2, 1), (4, 7, 2), (2, 4, 2), (2, 5, 3), (3, 5, 4)]


@pytest.mark.parametrize(("results", "taps", "stride"), KINDS)
def test_a_filter_is_the_plain_sum(results: int, taps: int, stride: int) -> None:
    f = filter_of(results, taps, stride)
    rng = np.random.default_rng([results, taps, stride])
    w = rng.standard_normal(taps)
    x = rng.standard_normal(stride * f.products)
    windows = x.reshape(f.products, stride)  # by neighbour, by window
    image = np.array(f.image).reshape(f.products, stride, f.products)
    tiles = np.einsum("psx,xs->ps", image, windows)
    sums = (tiles * (np.array(f.weights) @ w).reshape(f.products, stride)).sum(axis=1)
    want = [x[stride * k : stride * k + taps] @ w for k in range(results)]
    np.testing.assert_allclose(sums @ np.array(f.behind), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("results", "taps", "stride"), KINDS)
def test_products_that_are_zero_are_the_last(results: int, taps: int, stride: int) -> None:
    f = filter_of(results, taps, stride)
    alive = np.abs(np.array(f.weights)).sum(axis=1) > 0
    assert alive.sum() == f.count
    assert alive[: f.count].all()
    windows = [len(range(s, taps, stride)) for s in range(stride)]
    assert f.count == sum(results + n - 1 for n in windows)


def test_two_results_of_three_taps_are_sums_and_differences() -> None:
    f = filter_of(2, 3)
    assert f.image == ((1, 0, -1, 0), (0, 1, 1, 0), (0, 1, -1, 0), (0, 1, 0, -1))
    assert f.behind == ((1, 0), (1, 1), (1, -1), (0, -1))


def test_gain_counts_places_that_nobody_wants() -> None:
    assert filter_of(2, 3).gain(8) == 1.5
    assert filter_of(4, 7, 2).gain(112) == 28 / 13
    assert filter_of(4, 3).gain(5) == 15 / 12


def test_what_can_be_filtered() -> None:
    assert can_filter(4, 7, 2)
    assert not can_filter(4, 3, 3)  # no tap is used again
    assert not can_filter(9, 3, 1)
