"""The cost models pass the suite that users can run on theirs, and so does the example's."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

import tilesmith as ts
from tilesmith.search.classic.ensemble import upper_confidence_bound
from tilesmith.testing.landscape import matmul_task, measured
from tilesmith.testing.models import CostModelContract, candidates, drawn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
Ridge = import_module("custom_cost_model").Ridge


class TestRandomModel(CostModelContract):
    model = ts.RandomModel()
    learns = False


class TestRidge(CostModelContract):
    model = Ridge()


class TestGbdt(CostModelContract):
    model = ts.Gbdt()


class TestEnsembleByItsUpperBound(CostModelContract):
    model = ts.Ensemble(ts.Gbdt(rounds=40), members=3, acquire=upper_confidence_bound)


class TestEnsembleByExpectedImprovement(CostModelContract):
    model = ts.Ensemble(ts.Gbdt(rounds=40), members=3)


class TestTransfer(CostModelContract):
    model = ts.Transfer(measured(candidates(drawn(matmul_task(96, 16, 32), 100, 3))))


def test_programs_that_were_held_out_end_a_fit_that_gains_nothing() -> None:
    """Costs by chance can be learned by heart only; those held out tell."""
    task = matmul_task()
    known = measured(candidates(drawn(task, 300, 1)))
    rng = np.random.default_rng(0)
    chance = [replace(m, seconds=(float(rng.uniform(1e-4, 1e-3)),)) for m in known]
    rounds = {}
    for many in (100, 1000):
        fitted = ts.Gbdt(rounds=80, many=many, held_out=0.3, patience=5).fit(chance)
        assert fitted is not None
        rounds[many] = fitted.booster.num_boosted_rounds()
    assert rounds[1000] == 80  # too few programs to hold some out
    assert rounds[100] < 60
