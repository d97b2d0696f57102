"""The cost models pass the suite that users can run on theirs, and so does the example's."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import tilesmith as ts
from tilesmith.search.acquisition import upper_confidence_bound
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
