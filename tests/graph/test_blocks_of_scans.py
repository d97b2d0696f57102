"""Running sums of models for GPUs are cut into tiles and blocks; the answers stay."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tests.support.gpu_programs import OPENCL
from tilesmith.graph.passes.blocks_of_scans import blocks_of_scans
from tilesmith.tune.compile_model import extract_tasks

torch = pytest.importorskip("torch")


def graph_of(shape: tuple[int, ...], axis: int, dtype: str = "float32") -> ts.Graph:
    class Sum(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x):  # type: ignore[no-untyped-def]
            return torch.cumsum(x, axis)

    return ts.from_torch(Sum(), (torch.zeros(shape, dtype=getattr(torch, dtype)),))


@pytest.mark.parametrize(
    ("shape", "axis", "tile"),
    [
        ((3, 4000), 1, True), ((100_000,), 0, True), ((2, 600), 1, True),
        ((40, 200), 1, False), ((900, 40), 0, False),
    ],
)  # fmt: skip
def test_long_last_axes_have_tiles(shape: tuple[int, ...], axis: int, tile: bool) -> None:
    graph = blocks_of_scans(graph_of(shape, axis))
    (node,) = (n for n in graph.nodes if n.function is ts.ops.cumsum)
    size = node.setting("tile") or 0
    assert bool(size) == tile
    if tile:
        assert size % node.setting("block") == 0
        assert size * 4 * 2 * 17 // 16 <= 48 << 10  # of shared memory
        count = -(-shape[axis] // size)
        assert (count - 1) * size < shape[axis]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_answers(dtype: str) -> None:
    graph = graph_of((2, 1500), 1, dtype)
    ((task, _),) = extract_tasks(graph, OPENCL)
    x = (np.random.default_rng(0).integers(-4, 5, (2, 1500)) / 4).astype(dtype)
    want = np.cumsum(x.astype(np.float64), 1)
    np.testing.assert_allclose(ts.evaluate(task.func, x).astype(np.float64), want, 2e-3, 1e-2)
