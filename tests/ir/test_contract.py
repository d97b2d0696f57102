"""The fast path of the oracle agrees with the general one where indices divide iterators."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.ir import evaluate as oracle
from tilesmith.ir.contract import contract
from tilesmith.ir.nodes import walk
from tilesmith.task.inputs import example_inputs


def grouped(channels: int, results: int, divisor: int) -> ts.Function:
    """Each `divisor` results read the same channel of A."""
    a, b = ts.placeholder((channels, 5), name="A"), ts.placeholder((results, 5), name="B")
    k = ts.reduce_axis(5, name="k")
    c = ts.compute((results,), lambda i: ts.sum(a[i // divisor, k] * b[i, k], axis=k), name="C")
    return ts.function([a, b, c])


@pytest.mark.parametrize(
    ("channels", "results", "divisor", "is_fast"),
    [(3, 12, 4, True), (12, 12, 1, True), (1, 12, 12, True), (3, 11, 4, False)],
)
def test_divided_iterators(
    channels: int, results: int, divisor: int, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    func = grouped(channels, results, divisor)
    inputs = example_inputs(func, 0)
    got = ts.evaluate(func, *inputs)
    memory = {b.name: a for b, a in zip(func.inputs, inputs, strict=True)}
    memory["C"] = np.zeros(results, np.float32)
    (block,) = (b for _, b in walk(func.body))
    assert contract(block, memory) == is_fast
    monkeypatch.setattr(oracle, "contract", lambda *_: False)
    typical = float(np.abs(got).max())  # terms of sums may cancel
    np.testing.assert_allclose(got, ts.evaluate(func, *inputs), rtol=1e-6, atol=1e-7 * typical)
    np.testing.assert_allclose(got, ts.interpret(func, *inputs), rtol=1e-5, atol=1e-6 * typical)
