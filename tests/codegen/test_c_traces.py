"""Random programs and schedules as C: NVRTC compiles them for three architectures, and they run on
the devices that are here. test_gpu_suite.py has the operators, bench/gpu_kernels.py thousands.
"""

from __future__ import annotations

import numpy as np
import pytest
from gpu_targets import ARCHITECTURES, devices, nvidia

import tilesmith as ts
from tests.support.meaning import assert_close
from tests.support.programs import random_inputs, random_program
from tests.support.traces import GPU_WEIGHTS, random_trace
from tests.support.wide_programs import random_wide_program
from tilesmith.codegen.c.nvrtc import parted
from tilesmith.ir.pack import packed


def check(func: ts.Function, scheduled: ts.Function, seed: int, on: list[ts.Target]) -> None:
    """It compiles for one architecture, and the devices agree with the oracle."""
    artifact = ts.build(scheduled, nvidia(ARCHITECTURES[seed % 3])).artifact
    assert all(cubin[:4] == b"\x7fELF" for cubin in parted(artifact.code))
    assert all(x.resources is not None for x in artifact.entries[0].launches)
    arrays = random_inputs(func, np.random.default_rng(seed))
    given = [packed(b, a, func.name) for b, a in zip(scheduled.inputs, arrays, strict=True)]
    for target in on:
        kernel = ts.build(scheduled, target)
        assert_close(kernel(*given), ts.evaluate(func, *arrays), kernel.source, func)


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
