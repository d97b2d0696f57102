"""A cost model that returns the wrong thing: one error that names it and says what is wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.testing.landscape import MANY, matmul_task, measured

STRATEGIES: dict[str, Callable[[Any], Any]] = {
    "evolution": lambda model: ts.Evolution(population=32, generations=1, cost_model=model),
    "annealing": lambda model: ts.Annealing(chains=16, iterations=5, plan=8, cost_model=model),
    "ensemble": lambda model: ts.Evolution(
        population=32, generations=1, cost_model=ts.Ensemble(model, members=2)
    ),
}


@dataclass(frozen=True)
class Mine:
    """A predictor that says whatever a function makes of the rows."""

    says: Callable[[Any], Any]

    def predict(self, variant: ts.Variant, rows: Any) -> Any:
        return self.says(rows)


@dataclass(frozen=True)
class MyModel:
    fitted: Callable[[], Any]

    def fit(self, measurements: Any) -> Any:
        return self.fitted()


def search(strategy: str, model: Any) -> None:
    """Some rounds of it, with measurements to learn from."""
    task = matmul_task()
    run = STRATEGIES[strategy](model).start(task, MANY.sketches(task), np.random.default_rng(0))
    for _ in range(3):
        run.tell(measured(run.ask(12)))


def broken() -> Any:
    raise ZeroDivisionError("so it goes")


def one_nan(rows: Any) -> Any:
    scores = np.zeros(len(rows))
    scores[-1] = np.nan
    return scores


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("says", "what"),
    [
        (lambda rows: None, r"None"),
        (lambda rows: 1.0, r"1\.0"),
        (lambda rows: np.zeros(len(rows) + 1), r"shape \(\d+,\)"),
        (lambda rows: np.zeros((len(rows), 1)), r"shape \(\d+, 1\)"),
        (lambda rows: np.full(len(rows), np.inf), r"inf for row 0"),
        (one_nan, r"nan for row \d+"),
        (lambda rows: ["fast"] * len(rows), r"'fast'"),
    ],
)  # fmt: skip
def test_what_a_predictor_must_return(strategy: str, says: Callable[[Any], Any], what: str) -> None:
    wanted = r"it must return an array of \d+ finite numbers, one for each row"
    with pytest.raises(ts.TilesmithError, match=rf"^Mine\.predict returned .*{what}.*; {wanted}$"):
        search(strategy, MyModel(lambda: Mine(says)))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_model_or_predictor_that_raises_is_named(strategy: str) -> None:
    with pytest.raises(ts.TilesmithError, match=r"^MyModel\.fit raised ZeroDivisionError: so it"):
        search(strategy, MyModel(broken))
    with pytest.raises(ts.TilesmithError, match=r"^Mine\.predict raised ZeroDivisionError: so it"):
        search(strategy, MyModel(lambda: Mine(lambda rows: broken())))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("fitted", ["a string", 3, np.zeros(4)])
def test_what_a_model_must_return(strategy: str, fitted: Any) -> None:
    with pytest.raises(ts.TilesmithError, match=r"^MyModel\.fit returned .*; it must return an"):
        search(strategy, MyModel(lambda: fitted))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ts.Evolution(population=-3), r"Evolution\(population=-3\): .* at least 1"),
        (lambda: ts.Evolution(variants=0), "variants is at least 1"),
        (lambda: ts.Evolution(generations=-1), "generations is at least 0"),
        (lambda: ts.Evolution(epsilon=1.5), "epsilon is a share, from 0 to 1"),
        (lambda: ts.Evolution(local=float("nan")), "local is a share"),
        (lambda: ts.Annealing(chains=0), "chains is at least 1"),
        (lambda: ts.Genetic(mutation=-0.1), "mutation is a share"),
        (lambda: ts.Genetic(elite=-1), "elite is at least 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ts.TuneError, match=says):
        make()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_model_must_be(strategy: str) -> None:
    for model in ("gbdt", ts.Gbdt.fit, 4):
        with pytest.raises(ts.TilesmithError, match=r"it takes a cost model, as ts\.Gbdt\(\)"):
            search(strategy, model)


def test_what_a_corrector_and_an_experienced_model_must_return() -> None:
    class Half(Mine):
        base = Mine(lambda rows: np.zeros(len(rows)))

        def with_base(self, parts: Any) -> Any:
            return np.zeros(3)

    with pytest.raises(ts.TilesmithError, match=r"^Half\.with_base returned .*two arrays"):
        search("evolution", MyModel(lambda: Half(lambda rows: np.zeros(len(rows)))))

    class Old(MyModel):
        def familiar(self) -> Any:
            return ["matmul"]

    wanted = r"^Old\.familiar returned the text 'matmul'; it must return a sequence of candidates$"
    with pytest.raises(ts.TilesmithError, match=wanted):
        search("evolution", Old(lambda: None))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lists_and_integers_are_numbers_too(strategy: str) -> None:
    search(strategy, MyModel(lambda: Mine(lambda rows: [int(sum(r)) for r in rows])))
    search(strategy, MyModel(lambda: None))
