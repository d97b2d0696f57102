"""When the cost model of a search is fitted again, and where its candidates come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.search.evolution import EvolutionSearch
from tilesmith.search.shared_model import SharedModel
from tilesmith.search.training import groups_of
from tilesmith.testing.landscape import MANY, matmul_task, measured


@dataclass(frozen=True)
class Counting:
    """Remembers how many measurements each fit had."""

    sizes: list[int] = field(default_factory=list)

    def fit(self, measurements: Sequence[ts.Measurement]) -> None:
        self.sizes.append(len(measurements))


def run(strategy: ts.Evolution, rounds: int, batch: int) -> EvolutionSearch:
    task = matmul_task()
    search = strategy.start(task, MANY.sketches(task), np.random.default_rng(0))
    for _ in range(rounds):
        search.tell(measured(search.ask(batch)))
    search.ask(1)
    return search


def test_a_long_run_refits_after_so_many_new_measurements() -> None:
    model = Counting()
    run(ts.Evolution(cost_model=model, population=32, refit=0.5, refit_after=32), 20, 16)
    assert model.sizes[-1] == 320
    steps = np.diff([n for n in model.sizes if n])
    assert max(steps) == 32
    assert len(steps) >= 8


def test_a_short_run_refits_by_share() -> None:
    model = Counting()
    run(ts.Evolution(cost_model=model, population=32, refit=0.5, refit_after=1000), 20, 16)
    steps = np.diff([n for n in model.sizes if n])
    assert max(steps) > 64


def test_refitting_counts_from_one() -> None:
    with pytest.raises(ts.TuneError, match="refit_after"):
        ts.Evolution(refit_after=0)


def test_a_shared_model_does_not_wait_for_a_quarter_of_a_long_run() -> None:
    task = matmul_task()
    search = ts.Random().start(task, MANY.sketches(task), np.random.default_rng(0))
    every = measured(search.ask(1500))
    model = SharedModel(fewest=24, model=ts.Gbdt(rounds=2))
    model.tell(every[:1200])
    model.fit(())
    model.tell(every[1200:1440])
    model.fit(())
    assert model.fits == 1
    model.tell(every[1440:1460])
    model.fit(())
    assert model.fits == 2


def test_the_share_of_descendants_is_a_setting() -> None:
    """What is not random, a neighbour or of the first generation is a descendant."""
    task = matmul_task()
    told = measured(ts.Random().start(task, MANY.sketches(task), np.random.default_rng(1)).ask(40))
    for fresh, least, most in ((0.0, 0.9, 1.0), (0.5, 0.4, 0.6), (1.0, 0.0, 0.0)):
        strategy = ts.Evolution(epsilon=0.0, local=0.0, fresh=fresh, population=128)
        search = strategy.start(task, MANY.sketches(task), np.random.default_rng(0))
        search.tell(told)
        born: set[tuple[int, tuple[int, ...]]] = set()
        bred = search._bred

        def note(people, *rest, bred=bred, born=born):  # type: ignore[no-untyped-def]
            everyone, scores = bred(people, *rest)
            known = {(k, tuple(r)) for k, r in people.members()}
            born |= {(k, tuple(r)) for k, r in everyone.members()} - known
            return everyone, scores

        search._bred = note  # type: ignore[method-assign]
        asked = search.ask(40)
        who = [search.catalogue.individual(c) for c in asked]
        share = sum((w.variant, w.row) in born for w in who if w is not None) / len(asked)
        assert least <= share <= most


def test_a_packed_model_predicts_speeds() -> None:
    """Its scores are shares of the fastest program's speed, without the analytic score added."""
    task = matmul_task()
    told = measured(ts.Random().start(task, MANY.sketches(task), np.random.default_rng(1)).ask(300))
    model = ts.Gbdt(loss="packed", rounds=200).fit(told)
    assert model is not None
    groups = groups_of(told)
    scores = np.concatenate([model.predict(g.variant, g.rows) for g in groups])
    labels = np.concatenate([g.labels for g in groups])
    assert np.sqrt(np.average((scores - labels) ** 2, weights=labels)) < 0.1
    both, base = model.with_base([(g.variant, g.rows) for g in groups])
    np.testing.assert_array_equal(both, scores)
    np.testing.assert_array_equal(
        base, np.concatenate([ts.ScoreByTarget().predict(g.variant, g.rows) for g in groups])
    )


def test_a_packed_model_is_not_transferred() -> None:
    with pytest.raises(ts.TuneError, match="packed"):
        ts.Transfer((), shared=ts.Gbdt(loss="packed"))
