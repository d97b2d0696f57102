"""Candidates of the operator suite and random programs as C: NVRTC compiles them for three
architectures, and they run on the devices that are here. bench/gpu_kernels.py checks thousands.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from gpu_targets import ARCHITECTURES, H200, devices, nvidia

import tilesmith as ts
from tilesmith.cli.operators import operator
from tilesmith.ir.pack import packed
from tilesmith.space.spaces import SketchSpace, variants
from tilesmith.testing.meaning import assert_close
from tilesmith.testing.programs import random_inputs, random_program
from tilesmith.testing.traces import GPU_WEIGHTS, random_trace
from tilesmith.testing.wide_programs import random_wide_program

RULES = {"ansor": ts.ansor_rules, "default": ts.default_rules}
# Small, odd, and with divisors to choose from.
SHAPES = {
    "matmul": (27, 35, 15), "conv1d": (21, 6, 9, 3, 2, 1), "conv2d": (9, 6, 9, 3, 2, 1),
    "conv3d": (5, 3, 6, 3, 1, 1, 3), "group-conv2d": (6, 6, 9, 3, 1, 1, 3),
    "dilated-conv2d": (9, 3, 6, 3, 1, 2), "depthwise-conv2d": (9, 9, 3, 1, 1),
    "conv2d-transpose": (3, 6, 9, 4, 2, 1), "capsule-conv2d": (5, 3, 3, 3, 2, 1, 2),
    "norm": (9, 45), "softmax": (6, 45), "conv2d-bn-relu": (6, 3, 9, 3, 1, 1),
    "transpose-batch-matmul": (9, 3, 15),
}  # fmt: skip


def check(func: ts.Function, scheduled: ts.Function, seed: int, on: list[ts.Target]) -> None:
    """It compiles for one architecture, and the devices agree with the oracle."""
    artifact = ts.build(scheduled, nvidia(ARCHITECTURES[seed % 3])).artifact
    assert artifact.code[:4] == b"\x7fELF"
    assert all(x.resources is not None for x in artifact.entries[0].launches)
    arrays = random_inputs(func, np.random.default_rng(seed))
    given = [packed(b, a, func.name) for b, a in zip(scheduled.inputs, arrays, strict=True)]
    for target in on:
        kernel = ts.build(scheduled, target)
        assert_close(kernel(*given), ts.evaluate(func, *arrays), kernel.source, func)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", SHAPES)
def test_candidates_of_an_operator(name: str, rules: str) -> None:
    """A kernel takes PoCL half a second, so a third of them run there."""
    seed = list(SHAPES).index(name) + list(RULES).index(rules)
    rng = np.random.default_rng(seed)
    task = ts.Task(operator(name, SHAPES[name]), H200)
    sketches = SketchSpace(RULES[rules](H200)).sketches(task)
    every = [v for s in sketches for v in islice(variants(task, s), 4)]
    v = every[seed % len(every)]
    check(task.func, v.function(v.sample(rng, 1)[0]), seed, [] if seed % 3 else devices())


@pytest.mark.parametrize("seed", range(12))
def test_random_traces(seed: int) -> None:
    rng = np.random.default_rng(seed)
    func = (random_wide_program if seed % 3 == 2 else random_program)(rng, 3)
    scheduled = random_trace(func, rng, int(rng.integers(2, 12)), GPU_WEIGHTS).func
    try:
        check(func, scheduled, seed, devices() if seed % 4 == 2 else [])
    except ts.BuildError as e:
        if "compile" in str(e):
            raise
        pytest.skip(f"refused: {e}")
