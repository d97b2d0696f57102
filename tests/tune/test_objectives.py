"""Objectives: their values, and how they answer to each task's seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

import tilesmith as ts
from tilesmith.tune.objectives import slopes


def network(name: str, weights: Sequence[int], *, stalled: Sequence[int] = (0, 0, 0)) -> (
    ts.NetworkCosts
):  # fmt: skip
    seconds = (1e-3, 2e-3, 4e-3)
    return ts.NetworkCosts(name, tuple(weights), seconds, seconds, tuple(stalled))


ONE, OTHER = network("one", (2, 1, 0)), network("other", (0, 3, 1))  # 4 ms, 10 ms


def test_total_latency() -> None:
    assert ts.total_latency([ONE, OTHER]) == pytest.approx(14e-3)
    assert slopes(ts.total_latency, [ONE, OTHER]) == (2, 4, 1)
    assert slopes(lambda n: ts.total_latency(n), [ONE, OTHER]) == pytest.approx((2, 4, 1))


def test_a_network_at_its_target_gets_no_faster() -> None:
    targets = ts.latency_targets([5e-3, 8e-3])
    assert targets([ONE, OTHER]) == pytest.approx(15e-3)
    assert slopes(targets, [ONE, OTHER]) == pytest.approx((0, 3, 1))
    assert slopes(ts.latency_targets([4e-3, 10e-3]), [ONE, OTHER]) == (0, 0, 0)


def test_speedups_count_the_same_for_fast_and_slow_networks() -> None:
    objective = ts.geomean_speedup([8e-3, 20e-3])
    assert objective([ONE, OTHER]) == pytest.approx(-2.0)
    # d sqrt(a b / (x y)) / dx = sqrt(a b / (x y)) / (2 x)
    got = slopes(objective, [ONE, OTHER])
    assert got == pytest.approx((2 / 4e-3, 1 / 4e-3 + 3 / 10e-3, 1 / 10e-3), rel=1e-3)


def test_a_task_that_stalls_is_left_alone() -> None:
    objective = ts.early_stopping(3)
    stalled = network("one", (2, 1, 5), stalled=(3, 2, 9))
    assert objective([stalled]) == pytest.approx(24e-3)
    assert slopes(objective, [stalled]) == pytest.approx((0, 1, 0))


def test_a_callable_of_a_user() -> None:
    def slowest(networks: Sequence[ts.NetworkCosts]) -> float:
        return max(n.latency for n in networks)

    assert slopes(slowest, [ONE, OTHER]) == pytest.approx((0, 3, 1))
    assert slopes(slowest, [ONE, replace(OTHER, weights=(0, 1, 0))]) == pytest.approx((2, 1, 0))


def test_what_cannot_run_has_no_slope() -> None:
    dead = replace(ONE, seconds=(0.0, 2e-3, 4e-3))
    assert slopes(ts.latency_targets([1e-9]), [dead])[0] == 0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ts.latency_targets([1.0])([ONE, OTHER]), "1 times, but there are 2 networks"),
        (lambda: ts.latency_targets([]), "one for each network"),
        (lambda: ts.latency_targets(["x"]), "with the text 'x'; it takes a list, each a number"),
        (lambda: ts.geomean_speedup([0.0]), "one for each network"),
        (lambda: ts.early_stopping(0), "from 1 on"),
        (lambda: slopes(lambda n: float("nan"), [ONE]), "finite number"),
        (lambda: slopes(lambda n: None, [ONE]), "gave None"),
    ],
)
def test_mistakes_are_named(make, text: str) -> None:
    with pytest.raises(ts.TuneError, match=text):
        make()
