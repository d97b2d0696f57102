"""What tune and build say to arguments that they cannot use: the thing, and what is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.testing.landscape import MANY, matmul_task
from tilesmith.testing.measurers import FakeMeasurer

TASK = matmul_task()


def tune(**settings: Any) -> ts.Result:
    settings = {
        "budget": ts.Budget(trials=4), "measurer": FakeMeasurer(), "strategy": ts.Random(),
        **settings,
    }  # fmt: skip
    return ts.tune(
        settings.pop("func", TASK.func), settings.pop("target", ts.cpu(1)), quiet=True, **settings
    )


def template(sch: Any) -> None:
    sch.loops("C")


BUDGET = r"ts\.Budget\(trials=500\), ts\.Budget\(seconds=60\)"
BUDGETS: list[tuple[dict[str, Any], str]] = [
    ({"trials": 0}, r"Budget\(trials=0\).*from 1 on"),
    ({"trials": -3}, r"Budget\(trials=-3\).*from 1 on"),
    ({"trials": True}, r"Budget\(trials=True\)"),
    ({"trials": 2.5}, r"Budget\(trials=2.5\)"),
    ({"patience": 0}, r"Budget\(patience=0\).*from 1 on"),
    ({"seconds": 0}, r"Budget\(seconds=0\).*above 0"),
    ({"seconds": -1}, r"Budget\(seconds=-1\)"),
    ({"seconds": float("nan")}, r"Budget\(seconds=nan\)"),
    ({"seconds": float("inf")}, r"Budget\(seconds=inf\)"),
    ({"seconds": True}, r"Budget\(seconds=True\)"),
    ({"seconds": "60"}, r"Budget\(seconds='60'\)"),
]
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"budget": 5}, rf"budget=5\) .*{BUDGET}"),
    ({"budget": "60"}, rf"budget='60'\) .*{BUDGET}"),
    ({"budget": None}, rf"budget=None\) .*{BUDGET}"),
    ({"budget": ts.Budget()}, "never ends"),
    ({"target": "cpu"}, r"target='cpu'\).*ts\.cpu\(\)"),
    ({"target": "haswell"}, r"ts\.Target\.named\('haswell'\)"),
    ({"target": ts.cpu}, r"target=...\).*as ts\.cpu\(\)"),
    ({"target": 3}, r"the int 3; it takes a target"),
    ({"database": "tune.db"}, r"ts\.open_database\('tune\.db'\)"),
    ({"database": Path("tune.db")}, r"ts\.open_database\('tune\.db'\)"),
    ({"database": {}}, r"the dict \{\}; it takes what ts\.open_database opened"),
    ({"seed": -1}, "seed=-1: .*from 0 on"),
    ({"seed": 1.5}, "seed=1.5"),
    ({"seed": None}, "seed=None"),
    ({"seed": True}, "seed=True"),
    ({"batch_size": 0}, "batch_size=0: .*from 1 on"),
    ({"batch_size": 2.5}, "batch_size=2.5"),
    ({"batch_size": True}, "batch_size=True"),
    ({"strategy": ts.Evolution}, r"the class Evolution; .*: Evolution\(\)"),
    ({"strategy": "evolution"}, r"strategy='evolution'\) .*text.*ts\.Evolution\(\)"),
    ({"strategy": 3}, r"the int 3; .*ts\.Evolution\(\), or an object .* with start"),
    ({"space": template}, r"space=ts\.TemplateSpace\(template\)"),
    ({"space": ts.SketchSpace}, r"space=.*the class SketchSpace; .*: SketchSpace\(\)"),
    ({"space": ()}, r"space=.*with sketches"),
    ({"measurer": ts.LocalMeasurer}, r"measurer=.*: LocalMeasurer\(\)"),
    ({"measurer": "local"}, r"measurer='local'\) .*text.*ts\.LocalMeasurer\(\)"),
    ({"measurer": 1}, r"measurer=1\) .*with open"),
    ({"observers": print}, r"observers=.*a list, each a function"),
    ({"observers": 3}, "observers=3.*a list, each a function"),
    ({"observers": [3]}, r"observers=.*\[3\] with the int 3; it takes a list, each a function"),
    ({"func": 3}, r"func=3\) .*the int 3; it takes what ts\.function made"),
    ({"func": ts.Schedule(TASK.func)}, r"func=.* a Schedule; .*ts\.TemplateSpace"),
]


@pytest.mark.parametrize(("given", "text"), MISTAKES)
def test_a_mistake_is_named_with_what_is_wanted(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ts.TuneError, match=text) as caught:
        tune(**given)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("given", "text"), BUDGETS)
def test_a_budget_without_sense_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ts.TuneError, match=text):
        ts.Budget(**given)


def test_what_is_like_a_number_is_one() -> None:
    budget = ts.Budget(trials=np.int64(4), seconds=np.float32(60))  # type: ignore[arg-type]
    assert tune(budget=budget, seed=np.int64(3)).trials == 4


@pytest.mark.parametrize("given", [{"target": "cpu"}, {"target": ts.cpu}, {"database": "a.db"}])
def test_build_says_it_too(given: dict[str, Any]) -> None:
    with pytest.raises(ts.BuildError, match=r"build\("):
        ts.build(TASK.func, **given)
    with pytest.raises(ts.BuildError, match=r"build\("):
        ts.build(ts.Schedule(TASK.func), **given)


def test_a_task_is_of_a_function_and_for_a_target() -> None:
    with pytest.raises(ts.TuneError, match=r"Task\(target='cpu'\) .*a target, as ts\.cpu\(\)"):
        ts.Task(TASK.func, "cpu")  # type: ignore[arg-type]
    with pytest.raises(ts.TuneError, match=r"a Schedule; it takes what ts\.function made"):
        ts.Task(ts.Schedule(TASK.func), ts.cpu(1))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Odd:
    """A strategy and a space that give what they are told to."""

    search: Any = None
    found: Any = None

    def start(self, *given: Any) -> Any:
        return self.search

    def sketches(self, task: ts.Task) -> Any:
        return self.found


def asking(found: Any) -> Odd:
    return Odd(SimpleNamespace(ask=lambda n: found, tell=lambda ms: None))


@pytest.mark.parametrize("found", [None, 3, [1, 2], "candidates"])
def test_parts_that_give_the_wrong_thing(found: Any) -> None:
    with pytest.raises(
        ts.ScheduleError, match=r"Odd returns .*sketches\(task\) .* tuple of Traces"
    ):
        tune(space=Odd(found=found))
    with pytest.raises(ts.TuneError, match=r"start\(task, sketches, rng\) of Odd gave"):
        tune(strategy=Odd(search=found))
    with pytest.raises(ts.TuneError, match=r"ask\(n\) of SimpleNamespace gave .* candidates"):
        tune(strategy=asking(found))


@dataclass(frozen=True)
class Model:
    scores: Any

    def fit(self, measurements: Any) -> Any:
        return Predictor(self.scores)


@dataclass(frozen=True)
class Predictor:
    scores: Any

    def predict(self, variant: Any, rows: Any) -> Any:
        return self.scores(rows)


WRONG = [
    (lambda rows: None, "returned None"),
    (lambda rows: 1.0, "returned the float 1.0"),
    (lambda rows: np.zeros(len(rows) + 1), "returned an array of shape"),
    (lambda rows: np.zeros((len(rows), 1)), "returned an array of shape"),
    (lambda rows: np.full(len(rows), np.nan), "returned nan for row 0"),
]


@pytest.mark.parametrize(("scores", "text"), WRONG)
def test_a_model_that_predicts_the_wrong_thing(scores: Any, text: str) -> None:
    strategy = ts.Evolution(population=64, cost_model=Model(scores))
    with pytest.raises(ts.TuneError, match=rf"Predictor\.predict {text}.*one for each row"):
        tune(strategy=strategy, space=MANY, budget=ts.Budget(trials=30))


def test_reprs_are_short() -> None:
    result = tune(budget=ts.Budget(trials=30), space=MANY)
    said = repr(result)
    assert str(result) == said
    for piece in (TASK.func.name, "us", "30 trials (0 failed)"):
        assert piece in said
    broken = FakeMeasurer(cost=lambda c: ts.Failure("crash", "signal 11"))
    with broken.open(TASK) as run:
        (failed,) = run.measure([result.best.candidate])
    shown = [
        said, repr(result.best), repr(failed), repr(result.best.candidate), repr(result.task),
        repr(TASK.func), repr(result.kernel), repr(ts.build(TASK.func)),
    ]  # fmt: skip
    for text in shown:
        assert len(text) <= 250, text
        assert "\n" not in text
        assert TASK.func.name in text
    assert "crash: signal 11" in shown[2]
    assert "A: float32[48, 64]" in shown[4]
