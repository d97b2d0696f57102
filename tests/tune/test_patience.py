"""Early stopping: a run ends after so many candidates without a better one."""

from __future__ import annotations

import pytest

import tilesmith as ts
from tilesmith.testing.measurers import FakeMeasurer


def matmul(n: int = 48) -> ts.Function:
    a, b = ts.placeholder((n, n), name="A"), ts.placeholder((n, n), name="B")
    return ts.function([a, b, ts.ops.matmul(a, b, name="C")], name="matmul")


@pytest.mark.parametrize("patience", [1, 7, 40])
def test_a_run_ends_when_nothing_gets_better(patience: int) -> None:
    budget = ts.Budget(trials=3000, patience=patience)
    result = ts.tune(matmul(), ts.cpu(1), budget=budget, quiet=True, measurer=FakeMeasurer())
    last = result.curve[-1][1]
    assert result.trials < 3000
    assert result.trials - last == patience


def test_without_patience_all_trials_are_made() -> None:
    budget = ts.Budget(trials=60)
    result = ts.tune(matmul(), ts.cpu(1), budget=budget, quiet=True, measurer=FakeMeasurer())
    assert result.trials == 60
