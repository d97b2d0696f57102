"""Parts of a search that a user can pass: analytic scores, their constants, feature extractors and
mutators. What is wrong with one is named.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.search.breeding import breed
from tilesmith.search.features.graph import Graph, Term
from tilesmith.search.features.nest import Nest, shared_nests
from tilesmith.search.population import sample as draw
from tilesmith.search.protocol import AnalyticScore, ScoringExtractor
from tilesmith.search.statements import statements_of
from tilesmith.space.spaces import variants
from tilesmith.testing.landscape import MANY, matmul_task, measured
from tilesmith.testing.strategies import keys, rounds, started

TARGET = ts.Target.named("neoverse-n1")


def sample(task: ts.Task, n: int = 64) -> tuple[ts.Variant, Any]:
    (variant, *_) = variants(task, MANY.sketches(task)[0])
    return variant, variant.sample(np.random.default_rng(0), n)


# analytic scores
@dataclass(frozen=True)
class Constant:
    """A score of nothing, as a term and as numbers."""

    value: float = -3.0

    def predict(self, variant: ts.Variant, rows: Any) -> Any:
        return np.full(len(rows), self.value)

    def term(self, variant: ts.Variant) -> Term:
        return shared_nests(variant)[0].of(self.value)

    def estimates(self, nest: Nest) -> tuple[Term, ...]:
        return (nest.graph.of(1),) * 4


def test_scores_are_chosen_by_the_kind_of_target() -> None:
    here = matmul_task()
    there = ts.Task(here.func, ts.Target.named("nvidia-v100"))
    draft = ts.ScoreByTarget(gpu=Constant())
    variant, rows = sample(here)
    assert (draft.predict(variant, rows) == ts.CpuScore().predict(variant, rows)).all()
    variant, rows = sample(there)
    assert (draft.predict(variant, rows) == -3).all()
    for score in (draft, ts.CpuScore(), Constant()):
        assert isinstance(score, AnalyticScore)


def test_features_take_the_score_they_are_given() -> None:
    variant, rows = sample(matmul_task())
    x, scores = ts.StatementFeatures().with_score(variant, rows, Constant(-2.0))
    assert (scores == -2).all()
    assert (x[..., -1] == -2).all()
    assert isinstance(ts.StatementFeatures(), ScoringExtractor)


def test_features_and_scores_survive_variants_that_caches_forgot() -> None:
    """A long run asks for more variants than the caches hold, in an order of its own."""
    task = matmul_task(24, 20, 36)
    for target in (ts.cpu(1), ts.Target.named("nvidia-v100")):
        variant, rows = sample(ts.Task(task.func, target))
        score = ts.ScoreByTarget()
        before = ts.StatementFeatures().with_score(variant, rows, score)
        for v in range(2000):  # a program of its own each: some caches forget, some may not
            shared_nests(replace(variant, trace=variant.trace))
            if v % 500 == 0:
                score.term(variant)
        statements_of.cache_clear()
        after = ts.StatementFeatures().with_score(variant, rows, score)
        for x, y in zip(before, after, strict=True):
            np.testing.assert_array_equal(x, y)


def test_threads_describe_one_program_together() -> None:
    task = matmul_task(24, 20, 44)
    first, rows = sample(task)
    usual = ts.StatementFeatures().extract(first, rows)
    for _ in range(20):
        variant = replace(first)  # new to every cache
        with ThreadPoolExecutor(4) as pool:
            many = list(
                pool.map(lambda _: ts.StatementFeatures().extract(variant, rows), range(4))  # noqa: B023
            )
        for x in many:
            np.testing.assert_array_equal(x, usual)


def test_terms_of_two_graphs_do_not_mix() -> None:
    one, other = Graph(("#a",)), Graph(("#a",))
    with pytest.raises(ValueError, match="another graph"):
        one.compile([one.column("#a"), other.column("#a")])


def test_constants_come_from_the_target() -> None:
    constants = ts.CpuConstants.of(TARGET)
    assert [c.nbytes for c in constants.caches] == [
        TARGET.l1_nbytes, TARGET.l2_nbytes, TARGET.l3_nbytes
    ]  # fmt: skip
    assert constants.lanes(32) == TARGET.lanes(32)
    assert constants.num_vector_registers == TARGET.num_vector_registers


def test_constants_that_were_measured_change_the_score() -> None:
    task = ts.Task(matmul_task(256, 256, 256).func, TARGET)
    variant, rows = sample(task)
    given = ts.CpuConstants.of(TARGET)
    same, slower = ts.CpuScore(given), ts.CpuScore(replace(given, fma_latency=50.0))
    usual = ts.CpuScore().predict(variant, rows)
    assert (same.predict(variant, rows) == usual).all()
    assert (slower.predict(variant, rows) <= usual).all()
    assert (slower.predict(variant, rows) < usual).any()


# feature extractors
@dataclass(frozen=True)
class Features:
    made: Callable[[ts.Variant, Any], Any]

    def extract(self, variant: ts.Variant, rows: Any) -> Any:
        return self.made(variant, rows)


def logs(variant: ts.Variant, rows: Any) -> Any:
    return np.log2(rows[:, None].astype(np.float64))


def test_a_model_learns_from_features_of_ones_own() -> None:
    told = rounds(started(ts.Random(), MANY), 1, 200)
    model = ts.Gbdt(features=Features(logs), rounds=40).fit(told)
    assert model is not None
    variant, rows = sample(matmul_task())
    seconds = [m.cost for m in measured([variant.candidate(r) for r in rows])]
    assert np.corrcoef(model.predict(variant, rows), -np.log(seconds))[0, 1] > 0.7


@pytest.mark.parametrize("features", [ts.StatementFeatures(), ts.RelationFeatures()])
def test_the_width_of_features_is_that_of_no_variant(features: Any) -> None:
    a = ts.placeholder((64, 48), name="A")
    other = ts.Task(ts.function([a, ts.ops.softmax(a)]), TARGET)
    found = []
    for task, space in ((matmul_task(), MANY), (other, ts.SketchSpace())):
        for sketch in space.sketches(task):
            for v in variants(task, sketch):
                rows = v.sample(np.random.default_rng(0), 3)
                x = features.extract(v, rows)
                assert x.dtype == np.float32
                assert np.isfinite(x).all()
                assert len(x) == len(rows)
                found.append(x.shape[2])
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (lambda v, rows: None, r"Features.extract returned .*statements, width"),
        (lambda v, rows: rows, r"returned an array of shape \(\d+, \d+\)"),
        (lambda v, rows: rows[1:, None], r"returned an array of shape"),
        (lambda v, rows: rows[:, None] * np.nan, "not finite"),
        (lambda v, rows: 1 / 0, "Features.extract raised ZeroDivisionError"),
    ],
)
def test_wrong_features_are_named(made: Callable[..., Any], wanted: str) -> None:
    told = rounds(started(ts.Random(), MANY), 1, 40)
    with pytest.raises(ts.TuneError, match=wanted):
        ts.Gbdt(features=Features(made)).fit(told)


def test_features_of_different_widths_are_refused() -> None:
    told = rounds(started(ts.Random(), MANY), 1, 80)
    widths = iter(range(1, 100))
    with pytest.raises(ts.TuneError, match="different widths"):
        ts.Gbdt(features=Features(lambda v, rows: np.ones((len(rows), 1, next(widths))))).fit(told)


@pytest.mark.parametrize("features", ["relations", None, ts.StatementFeatures])
def test_what_is_no_extractor_is_refused(features: Any) -> None:
    with pytest.raises(ts.TuneError, match=r"ts\.RelationFeatures\(\)"):
        ts.Gbdt(features=features)


# mutators
@dataclass(frozen=True)
class Mutating:
    made: Callable[[ts.Variant, Any], Any]

    def mutate(self, variant: ts.Variant, rng: Any, rows: Any) -> Any:
        return self.made(variant, rows)


def evolution(*mutators: Any) -> ts.Evolution:
    return ts.Evolution(population=64, cost_model=None, mutators=mutators)


def test_a_mutator_decides_what_is_proposed() -> None:
    def settled(variant: ts.Variant, rows: Any) -> Any:
        new = rows.copy()
        new[:, variant.spans[0]] = (12, 2, 2)  # of 48
        return new

    usual = rounds(started(evolution(ts.ChangeDecisions()), MANY), 3, 12)
    mutators = ts.ChangeDecisions(), Mutating(settled)
    assert keys(usual) != keys(rounds(started(evolution(*mutators), MANY), 3, 12))
    task = matmul_task()
    catalogue, rng = ts.Catalogue(task, MANY.sketches(task)), np.random.default_rng(0)
    parents = draw(catalogue, rng, [0, 1], 100)
    for number, rows in breed(catalogue, rng, parents, 0.5, mutators, 0.1).groups:
        assert (rows[:, catalogue.lowered(number).spans[0]] == (12, 2, 2)).all()


@pytest.mark.parametrize("factor", [0, 3, -1, 1 << 20])
def test_rows_that_leave_the_space_stay_as_they_were(factor: int) -> None:
    mutators = Mutating(lambda v, rows: rows * factor), ts.ChangeDecisions()
    assert len(rounds(started(evolution(*mutators), MANY), 2, 12)) == 24


def test_a_mutator_may_change_what_it_is_given() -> None:
    def careless(variant: ts.Variant, rows: Any) -> Any:
        rows[...] = -1
        return rows

    assert len(rounds(started(evolution(Mutating(careless)), MANY), 2, 12)) == 24


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (lambda v, rows: None, "Mutating.mutate returned None"),
        (lambda v, rows: rows[1:], r"whole numbers of shape \(\d+, \d+\)"),
        (lambda v, rows: rows * 1.0, "whole numbers"),
        (lambda v, rows: 1 / 0, "Mutating.mutate raised ZeroDivisionError"),
    ],
)
def test_wrong_mutators_are_named(made: Callable[..., Any], wanted: str) -> None:
    with pytest.raises(ts.TuneError, match=wanted):
        rounds(started(evolution(Mutating(made)), MANY), 2, 12)


@pytest.mark.parametrize("mutators", [(), ts.ChangeDecisions(), (ts.ChangeDecisions,), ("x",)])
def test_what_is_no_mutator_is_refused(mutators: Any) -> None:
    with pytest.raises(ts.TuneError, match=r"ts\.ChangeDecisions\(\)"):
        ts.Evolution(mutators=mutators)
