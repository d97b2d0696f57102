"""The strategies pass the suite that users can run on theirs, and so does the example's."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import tilesmith as ts
from tilesmith.testing.strategies import StrategyContract

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
Climb = import_module("custom_strategy").Climb
Ridge = import_module("custom_cost_model").Ridge

BRIEF = {"chains": 32, "iterations": 20, "plan": 16}
BRIEFER = {"chains": 16, "iterations": 5, "plan": 16}  # where nothing is learnt


class TestRandom(StrategyContract):
    strategy = ts.Random()
    learns = False


class TestGrid(StrategyContract):
    strategy = ts.Grid()
    learns = False
    draws = False


class TestGenetic(StrategyContract):
    strategy = ts.Genetic(population=32)


class TestAnnealing(StrategyContract):
    strategy = ts.Annealing(**BRIEF, cost_model=Ridge())


class TestAnnealingWithGbdt(StrategyContract):
    strategy = ts.Annealing(
        chains=32, iterations=15, plan=32, cost_model=ts.Gbdt(rounds=20, depth=4)
    )


class TestAnnealingByTheAnalyticScore(StrategyContract):
    strategy = ts.Annealing(**BRIEFER, cost_model=None)
    learns = False


class TestAnnealingWithAModelOfNothing(StrategyContract):
    strategy = ts.Annealing(**BRIEFER, cost_model=ts.RandomModel(), diversity=0.0)
    learns = False


class TestEvolution(StrategyContract):
    strategy = ts.Evolution(population=128, generations=2, cost_model=Ridge())


class TestEvolutionWithoutAModel(StrategyContract):
    strategy = ts.Evolution(population=128, generations=2, cost_model=None)
    learns = False  # the draft picks among what is bred, and it knows nothing of this landscape


class TestClimb(StrategyContract):
    strategy = Climb()
