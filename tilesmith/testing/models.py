"""The contract suite of cost models: subclass it and set `model`. Nothing is compiled or timed.

class TestMine(CostModelContract):
    model = MyModel()
"""

from __future__ import annotations

import pickle
from functools import cache

import numpy as np

from tilesmith.base.identity import digest
from tilesmith.schedule.loops import Split
from tilesmith.schedule.trace import Trace
from tilesmith.search.protocol import CostModel, Predictor, Scores
from tilesmith.space.domains import Matrix
from tilesmith.space.spaces import variants
from tilesmith.space.variant import Variant
from tilesmith.task.task import Candidate, Failure, Measurement, Task
from tilesmith.testing.landscape import MANY, matmul_task, measured, seconds_by_tiles

Drawn = list[tuple[Variant, Matrix]]


@cache
def drawn(task: Task, rows: int, seed: int) -> Drawn:
    """`rows` random rows of each variant."""
    rng = np.random.default_rng(seed)
    every = (v for s in MANY.sketches(task) for v in variants(task, s))
    return [(v, v.sample(rng, rows)) for v in every]


def candidates(of: Drawn) -> list[Candidate]:
    return [v.candidate(row) for v, rows in of for row in rows]


def predictions(predictor: Predictor, of: Drawn) -> Scores:
    return np.concatenate([predictor.predict(v, rows) for v, rows in of])


def one_in_five_fails(c: Candidate) -> float | Failure:
    """By its trace alone: with another version of the code generator, the same ones fail."""
    number = int(digest(c.trace.to_json())[:8], 16)
    return Failure("wrong", "off by one") if number % 5 == 0 else seconds_by_tiles(c)


def rank_correlation(a: Scores, b: Scores) -> float:
    """Spearman's rank correlation; equal values share their rank."""
    a, b = (np.unique(x, return_inverse=True)[1].astype(float) for x in (a, b))
    a, b = ((np.searchsorted(np.sort(x), x) + np.searchsorted(np.sort(x), x, "right")) / 2
            for x in (a, b))  # fmt: skip
    return float(np.corrcoef(a, b)[0, 1])


class CostModelContract:
    """Models learn from `rows` of each of two variants. `learns = False` declares that a model
    ignores its data: then its order must be no better than chance.
    """

    model: CostModel
    learns = True
    rows = 100

    def fitted(self, measurements: list[Measurement]) -> Predictor:
        predictor = self.model.fit(measurements)
        assert predictor is not None, f"{len(measurements)} measurements should be enough"
        return predictor

    def measurements(self, task: Task | None = None) -> list[Measurement]:
        of = drawn(matmul_task() if task is None else task, self.rows, 1)
        return measured(candidates(of), one_in_five_fails)

    def check(self, predictor: Predictor, of: Drawn) -> None:
        for v, rows in of:
            scores = predictor.predict(v, rows)
            assert scores.shape == (len(rows),)
            assert np.issubdtype(scores.dtype, np.floating)
            assert np.isfinite(scores).all()

    def test_nothing_teaches_nothing(self) -> None:
        predictor = self.model.fit([])
        if predictor is not None:
            self.check(predictor, drawn(matmul_task(), 5, 2))

    def test_one_measurement_is_no_error(self) -> None:
        for cost in (seconds_by_tiles, lambda c: Failure("crash", "signal 11")):
            predictor = self.model.fit(measured(candidates(drawn(matmul_task(), 5, 1))[:1], cost))
            if predictor is not None:
                self.check(predictor, drawn(matmul_task(), 5, 2))

    def test_failures_alone_are_no_error(self) -> None:
        of = drawn(matmul_task(), self.rows, 1)
        failed = measured(candidates(of), lambda c: Failure("timeout", "10 s"))
        predictor = self.model.fit(failed)
        if predictor is not None:
            self.check(predictor, drawn(matmul_task(), 5, 2))

    def test_one_finite_number_per_row(self) -> None:
        predictor = self.fitted(self.measurements())
        self.check(predictor, drawn(matmul_task(), 50, 2))
        self.check(predictor, drawn(matmul_task(), 1, 2))

    def test_no_rows_no_numbers(self) -> None:
        predictor = self.fitted(self.measurements())
        self.check(predictor, [(v, rows[:0]) for v, rows in drawn(matmul_task(), 1, 2)])

    def test_a_row_has_its_score_whatever_stands_beside_it(self) -> None:
        predictor = self.fitted(self.measurements())
        for v, rows in drawn(matmul_task(), 40, 2):
            together = predictor.predict(v, rows)
            kept = rows.copy()
            apart = np.concatenate([predictor.predict(v, part) for part in (rows[:7], rows[7:])])
            np.testing.assert_allclose(apart, together, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(rows, kept)

    def test_the_same_data_give_the_same_scores(self) -> None:
        of = drawn(matmul_task(), 40, 2)
        once, again = (predictions(self.fitted(self.measurements()), of) for _ in range(2))
        np.testing.assert_allclose(once, again, rtol=1e-6, atol=1e-9)

    def test_a_pickled_predictor_predicts_the_same(self) -> None:
        predictor, of = self.fitted(self.measurements()), drawn(matmul_task(), 40, 2)
        before = predictions(predictor, of)
        copy = pickle.loads(pickle.dumps(predictor))
        np.testing.assert_allclose(predictions(copy, of), before, rtol=1e-6, atol=1e-9)

    def test_several_tasks_at_once(self) -> None:
        """Programs of the other task are ten times as slow; only their order there counts."""
        other = matmul_task(96, 16, 32)
        slow = measured(candidates(drawn(other, self.rows, 1)), lambda c: 10 * seconds_by_tiles(c))
        predictor = self.fitted([*self.measurements(), *slow])
        for task in (matmul_task(), other):
            self.check(predictor, drawn(task, 40, 2))

    def test_what_can_no_longer_be_applied_is_left_out(self) -> None:
        inapplicable = Candidate(matmul_task(), Trace((Split("C.nowhere", (None, 4)),)))
        predictor = self.fitted([*self.measurements(), *measured([inapplicable], lambda c: 1e-9)])
        self.check(predictor, drawn(matmul_task(), 5, 2))

    def test_a_variant_that_was_never_measured(self) -> None:
        first, second = drawn(matmul_task(), self.rows, 1)
        predictor = self.fitted(measured(candidates([first])))
        self.check(predictor, [second])

    def test_it_learns_the_order_of_rows_it_has_not_seen(self) -> None:
        """Over both variants together, so their scores must be comparable."""
        of = drawn(matmul_task(), 200, 2)
        scores = predictions(self.fitted(self.measurements()), of)
        speed = 1 / np.array([seconds_by_tiles(c) for c in candidates(of)])
        correlation = rank_correlation(scores, speed)
        if self.learns:
            assert correlation > 0.5, f"the order predicted and the true one: {correlation:.2f}"
        else:
            assert abs(correlation) < 0.3, (
                "its order is that of the data, or the reverse: it does learn"
            )

    def test_it_learns_which_variant_is_the_faster_one(self) -> None:
        (fast, rows), (slow, others) = drawn(matmul_task(), self.rows, 1)
        half = self.rows // 2
        measurements = measured(candidates([(fast, rows[:half])]))
        measurements += measured(
            candidates([(slow, others[:half])]), lambda c: 5 * seconds_by_tiles(c)
        )
        predictor = self.fitted(measurements)
        better, worse = (
            predictor.predict(fast, rows[half:]),
            predictor.predict(slow, others[half:]),
        )
        if self.learns:
            assert np.median(better) > np.median(worse), (
                f"medians {np.median(better)} of the faster variant, {np.median(worse)} of the "
                "slower one"
            )
        else:  # over all pairs, neither is preferred by more than chance
            preferred = float((better[:, None] > worse).mean())
            assert 0.3 < preferred < 0.7, "it tells the variants apart: it does learn"
