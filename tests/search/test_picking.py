"""Picking against the objective computed by hand, and the acquisitions against closed forms and
against chance.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.special import ndtr

from tilesmith.search.classic.ensemble import (
    expected_improvement,
    log_expected_improvement,
    upper_confidence_bound,
)
from tilesmith.search.population import pick


def objective(chosen, variants, rows, scores, diversity):
    parts = {(variants[i], c, int(v)) for i in chosen for c, v in enumerate(rows[i])}
    return sum(scores[i] for i in chosen) + diversity * len(parts)


def candidates(rng, n, values=4):
    variants = [int(k) for k in rng.integers(0, 3, n)]
    rows = [rng.integers(0, values, 2 + k).astype(np.int32) for k in variants]
    return variants, rows, rng.random(n)


@pytest.mark.parametrize("seed", range(5))
def test_every_choice_is_the_greedy_one(seed):
    rng = np.random.default_rng(seed)
    variants, rows, scores = candidates(rng, 60)
    picked = pick(20, variants, rows, scores, 0.3)
    assert len(set(picked)) == len(picked) == 20
    for k, chosen in enumerate(picked):
        worth = [
            objective([*picked[:k], i], variants, rows, scores, 0.3)
            for i in range(60)
            if i not in picked[:k]
        ]
        have = objective([*picked[:k], chosen], variants, rows, scores, 0.3)
        assert have == pytest.approx(max(worth))


@pytest.mark.parametrize("seed", range(5))
def test_near_the_best_batch_there_is(seed):
    variants, rows, scores = candidates(np.random.default_rng(seed), 12)
    picked = pick(4, variants, rows, scores, 0.5)
    best = max(
        objective(batch, variants, rows, scores, 0.5) for batch in combinations(range(12), 4)
    )
    assert objective(picked, variants, rows, scores, 0.5) >= (1 - 1 / np.e) * best


def test_without_diversity_the_best_come_in_order():
    variants, rows, scores = candidates(np.random.default_rng(0), 50)
    assert pick(7, variants, rows, scores, 0.0) == list(np.argsort(-scores)[:7])


def test_diversity_spreads_a_batch():
    """Ten near copies score best; the others differ in everything."""
    rows = [np.array([1, 1, k % 2], np.int32) for k in range(10)]
    rows += [np.array([k, k, k], np.int32) for k in range(2, 12)]
    scores = np.concatenate([np.full(10, 1.0), np.full(10, 0.9)])
    assert sum(i < 10 for i in pick(5, [0] * 20, rows, scores, 0.0)) == 5
    assert sum(i < 10 for i in pick(5, [0] * 20, rows, scores, 0.1)) <= 2


def test_the_same_numbers_of_two_variants_are_two_decisions():
    row = np.array([4, 4], np.int32)
    assert pick(2, [0, 0, 1], [row, row, row], np.array([1.0, 0.9, 0.5]), 1.0) == [0, 2]


def test_few_none_and_columns_that_are_not_there():
    variants, rows, scores = candidates(np.random.default_rng(0), 3)
    assert sorted(pick(10, variants, rows, scores, 0.2)) == [0, 1, 2]
    assert pick(4, [], [], np.zeros(0), 0.2) == []
    assert pick(0, variants, rows, scores, 0.2) == []
    empty = np.zeros(0, np.int32)
    assert pick(2, [0, 1], [empty, empty], np.array([0.1, 0.2]), 0.5) == [1, 0]


def test_expected_improvement_is_what_chance_gives():
    rng = np.random.default_rng(0)
    mean, spread = np.array([0.2, 0.5, 0.9, 0.4]), np.array([0.3, 0.1, 0.05, 1.0])
    draws = mean + spread * rng.standard_normal((400_000, 4))
    want = np.maximum(draws - 0.6, 0).mean(axis=0)
    np.testing.assert_allclose(expected_improvement(mean, spread, 0.6), want, atol=3e-3)


def test_expected_improvement_has_its_closed_form():
    rng = np.random.default_rng(1)
    mean, spread = rng.normal(size=200), rng.uniform(0.01, 2, 200)
    z = (mean - 0.7) / spread
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    want = spread * (z * ndtr(z) + density)
    np.testing.assert_allclose(expected_improvement(mean, spread, 0.7), want, rtol=1e-6, atol=1e-15)


def test_expected_improvement_of_what_is_certain_and_of_what_is_hopeless():
    got = expected_improvement(np.array([1.0, 0.0, -50.0]), np.array([0.0, 0.0, 1.0]), 0.25)
    assert list(got) == [0.75, 0.0, 0.0]
    far = expected_improvement(np.array([-8.0, -7.0, -6.0]), np.ones(3), 0.0)
    assert 0 < far[0] < far[1] < far[2]
    assert expected_improvement(np.zeros(0), np.zeros(0), 0.0).shape == (0,)


def test_upper_confidence_bound():
    got = upper_confidence_bound(np.array([0.5, 0.4]), np.array([0.1, 0.3]), 0.9, width=2.0)
    np.testing.assert_allclose(got, [0.7, 1.0])


def test_the_logarithm_of_expected_improvement_goes_on_where_that_is_zero():
    mean = np.linspace(-60, 2, 400)
    got = log_expected_improvement(mean, np.ones(400), 0.5)
    near = mean > -5
    want = np.log(expected_improvement(mean[near], np.ones(near.sum()), 0.5))
    np.testing.assert_allclose(got[near], want, rtol=0.02)
    assert np.isfinite(got).all()
    assert (np.diff(got) > 0).all()
