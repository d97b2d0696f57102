"""What a measurement says, and by what order one is called the best."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf, nan

import pytest

from tilesmith.search.evolution import better
from tilesmith.search.training import labels_of
from tilesmith.task.task import Failure, Measurement, Standing, standing_of, trust
from tilesmith.testing.measurements import measured, task_of

TASK = task_of()


def timed(seconds: tuple[float, ...], references: tuple[float, ...] = ()) -> Measurement:
    return replace(measured(TASK, 1, seconds), references=references)


def test_one_sample_is_its_own_interval():
    m = timed((2e-3,), (2e-4,))
    assert m.cost == 2e-3
    assert m.confidence == (2e-3, 2e-3)
    assert m.normal_confidence == pytest.approx((1e-3, 1e-3))
    assert m.normal_cost == pytest.approx(1e-3)


@pytest.mark.parametrize(
    "seconds", [(), (nan,), (inf,), (0.0,), (-1.0,), (1.0, nan, 1.0), (1.0, -inf), (1.0, 1.0, 0.0)]
)
@pytest.mark.parametrize("references", [(), (1e-4,), (1e-4, 1e-4, 1e-4), (nan,)])
def test_samples_that_are_no_times_have_no_cost(seconds, references):
    m = timed(seconds, references)
    assert m.cost == m.normal_cost == inf
    assert m.confidence == m.normal_confidence == (inf, inf)
    assert standing_of(m) is Standing.FAILED
    assert trust(timed((1e9,))) < trust(m)
    assert not better(m, timed((1.0,) * 3))
    assert labels_of([m, timed((1.0,))])[0] == 0


@pytest.mark.parametrize(
    "references", [(), (0.0, 1.0), (1.0,), (nan, 1.0), (inf, 1.0), (-1.0, 1.0)]
)
def test_without_references_that_are_times_a_measurement_is_raw(references):
    m = timed((1.0, 3.0), references)
    assert not m.is_normal
    assert m.normal_seconds == m.seconds
    assert m.normal_cost == m.cost == 2.0
    assert standing_of(m) is Standing.MEASURED_RAW


def test_references_so_small_that_nothing_finite_is_left_do_not_win():
    m = timed((1e300,), (1e-300,))
    assert m.normal_cost == inf
    assert standing_of(m) is Standing.FAILED


def test_the_order_is_confirmed_then_calm_then_busy_and_normal_before_raw():
    order = []
    for contended, confirmed, references in product((False, True), (True, False), ((1e-4,), ())):
        m = replace(timed((1.0,), references), contended=contended, confirmed=confirmed)
        order.append(standing_of(m))
    assert order == [
        Standing.CONFIRMED, Standing.CONFIRMED_RAW, Standing.MEASURED, Standing.MEASURED_RAW,
        Standing.CONTENDED, Standing.CONTENDED_RAW, Standing.CONTENDED, Standing.CONTENDED_RAW,
    ]  # fmt: skip
    failed = measured(TASK, 1, (1.0,), Failure("wrong"), confirmed=True)
    assert standing_of(failed) is Standing.FAILED


def test_a_model_learns_from_each_scale_by_itself():
    raw = [timed((s,)) for s in (1e-3, 2e-3)]
    normal = [timed((s,), (1e-6,)) for s in (1e-3, 4e-3)]  # 100 and 400 times as long
    assert labels_of([*raw, *normal]).tolist() == pytest.approx([1, 0.5, 1, 0.25])


def test_a_descent_does_not_compare_scales():
    raw, normal = timed((1e-3,) * 4), timed((1.0,) * 4, (1e-4,) * 4)
    assert better(normal, raw)
    assert not better(raw, normal)
