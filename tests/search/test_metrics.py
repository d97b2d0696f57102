"""The metrics of cost models, by cases small enough to count by hand."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from tilesmith.search.training import packed, pairwise_accuracy, peak_curve, recall_at


def test_pairwise_accuracy_counts_pairs_that_differ() -> None:
    labels = np.array([0.1, 0.2, 0.2, 0.9])
    assert pairwise_accuracy(labels, labels) == 1.0
    assert pairwise_accuracy(-labels, labels) == 0.0
    # 5 pairs differ; the one of programs 0 and 3 is wrong
    assert pairwise_accuracy(np.array([3.0, 4.0, 5.0, 2.5]), labels) == pytest.approx(2 / 5)
    assert pairwise_accuracy(np.zeros(4), labels) == 0.5
    assert pairwise_accuracy(np.zeros(2), np.ones(2)) == 1.0


def test_pairwise_accuracy_is_that_of_all_pairs_one_by_one() -> None:
    rng = np.random.default_rng(0)
    scores, labels = rng.random(40), rng.integers(0, 5, 40).astype(float)
    pairs = [(i, j) for i, j in combinations(range(40), 2) if labels[i] != labels[j]]
    right = sum((scores[i] > scores[j]) == (labels[i] > labels[j]) for i, j in pairs)
    assert pairwise_accuracy(scores, labels) == pytest.approx(right / len(pairs))


def test_recall_is_the_share_of_the_truly_best_among_those_chosen() -> None:
    labels = np.arange(10.0)
    scores = labels.copy()
    scores[[9, 0]] = scores[[0, 9]]  # the best and the worst change places
    assert recall_at(scores, labels, 1) == 0.0
    assert recall_at(scores, labels, 4) == 0.75
    assert recall_at(labels, labels, 4) == 1.0
    assert recall_at(scores, labels, 30) == 1.0


def test_the_peak_curve_rises_to_the_best() -> None:
    labels = np.array([0.2, 1.0, 0.5, 0.4])
    curve = peak_curve(np.array([4.0, 1.0, 3.0, 2.0]), labels, 4)
    assert curve.tolist() == [0.2, 0.5, 0.5, 1.0]
    assert peak_curve(labels, labels, 2).tolist() == [1.0, 1.0]


def test_the_packed_loss_is_ansors() -> None:
    """Its derivatives are those of 0.5 * y * (s - y)^2, by differences."""
    rng = np.random.default_rng(0)
    labels, scores = rng.random(20), rng.standard_normal(20)
    labels[3] = 0.0  # a failure
    slope, bend = packed(labels, np.zeros(20, int))(scores)

    def loss(s: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return np.asarray(0.5 * labels * (s - labels) ** 2)

    step = 1e-4
    np.testing.assert_allclose(slope, (loss(scores + step) - loss(scores - step)) / (2 * step))
    np.testing.assert_allclose(bend, labels)
    assert slope[3] == bend[3] == 0
