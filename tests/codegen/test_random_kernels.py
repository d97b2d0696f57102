"""The central property: any program under any legal trace gives the same result compiled,
interpreted and by NumPy.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tilesmith.codegen.pipeline import PASSES
from tilesmith.testing.programs import random_inputs, random_program
from tilesmith.testing.traces import random_trace

CASES, GROUP = 1600, 100


def outputs(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def agree(got: object, want: object, note: str) -> None:
    for g, w in zip(outputs(got), outputs(want), strict=True):
        np.testing.assert_allclose(
            np.asarray(g, np.float64), np.asarray(w, np.float64), rtol=2e-4, atol=1e-4, err_msg=note
        )


@pytest.mark.parametrize("start", range(0, CASES, GROUP))
def test_compiled_random_traces(start: int) -> None:
    for seed in range(start, start + GROUP):
        rng = np.random.default_rng(seed)
        func = random_program(rng)
        arrays = random_inputs(func, rng)
        sch = random_trace(func, rng, int(rng.integers(0, 12)))
        note = f"seed {seed}\n{sch.trace}"
        packed = [
            ts.pack(sch.func, b.name, x) for b, x in zip(sch.func.inputs, arrays, strict=True)
        ]
        kernel = ts.build(sch, ts.cpu(1 + seed % 2))
        agree(kernel(*packed), ts.evaluate(func, *arrays), note)


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_every_pass_on_random_traces(start: int) -> None:
    for seed in range(start, start + 50):
        rng = np.random.default_rng(10_000 + seed)
        func = random_program(rng)
        arrays = random_inputs(func, rng)
        sch = random_trace(func, rng, 8)
        want = ts.evaluate(func, *arrays)
        packed = [
            ts.pack(sch.func, b.name, x) for b, x in zip(sch.func.inputs, arrays, strict=True)
        ]
        stage, physical = sch.func, False
        for step in PASSES:
            stage = step(stage)
            physical = physical or step.__name__ == "apply_layouts"
            note = f"seed {seed}, after {step.__name__}\n{sch.trace}"
            agree(ts.interpret(stage, *(packed if physical else arrays)), want, note)
