"""Tiles on GPUs that need not divide their loops. The default rules have none, as conditions around
every multiply-add take the compiler long; rules of your own may, and what they derive is right.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilesmith as ts
from tests.support.gpu_programs import OPENCL, GpuCheck
from tilesmith.cli.operators import operator
from tilesmith.space.rules_gpu import TileForGpu
from tilesmith.space.spaces import SketchSpace, structured
from tilesmith.space.variant import lower

H200 = ts.Target.named("nvidia-h200")
SHAPES = {
    "matmul": (31, 29, 23), "conv2d": (17, 3, 19, 3, 1, 1), "group-conv2d": (17, 6, 51, 3, 1, 1, 3),
    "transpose-batch-matmul": (17, 3, 19),
}  # fmt: skip


@pytest.mark.parametrize("target", [H200, OPENCL], ids=["h200", "opencl"])
@pytest.mark.parametrize("name", SHAPES)
def test_candidates_are_right(name, target):
    check = GpuCheck(operator(name, SHAPES[name]), target)
    task, rng = ts.Task(check.func, target), np.random.default_rng(2)
    rules = tuple(
        replace(r, tiling=replace(r.tiling, policy="both")) if isinstance(r, TileForGpu) else r
        for r in ts.default_rules(target)
    )
    uneven = 0
    for sketch in SketchSpace(rules).sketches(task)[:2]:
        v = lower(task, next(iter(structured(sketch))))
        for row in v.sample(rng, 4):
            check.run(v.function(row))
            tiles = (
                d.extent - row[at].prod()
                for d, at in zip(v.domains, v.spans, strict=True)
                if d.tile
            )
            uneven += any(tiles)
    assert uneven >= 2
