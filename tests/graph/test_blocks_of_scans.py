"""Running sums of models for GPUs are cut into tiles and blocks; the answers stay."""

from __future__ import annotations

import numpy as np
import pytest

import tilesmith as ts
from tests.support.gpu_programs import OPENCL, launch_form
from tilesmith.graph.passes.blocks_of_scans import blocks_of_scans
from tilesmith.ir.nodes import For
from tilesmith.tune.build_request import drafts_of
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
        ((3, 4000), 1, True), ((100_000,), 0, True), ((2, 600), 1, True), ((2, 600, 1, 1), 1, True),
        ((40, 200), 1, True), ((900, 40), 0, False),
    ],
)  # fmt: skip
def test_long_last_axes_have_tiles(shape: tuple[int, ...], axis: int, tile: bool) -> None:
    graph = blocks_of_scans(graph_of(shape, axis))
    (node,) = (n for n in graph.nodes if n.function is ts.ops.cumsum)
    size = node.setting("tile") or 0
    assert bool(size) == tile
    if tile:
        assert node.setting("row") or size % node.setting("block") == 0
        assert size * 4 * 2 * 17 // 16 <= 48 << 10  # of shared memory
        extent = int(np.prod(shape)) if node.setting("row") else shape[axis]
        assert (-(-extent // size) - 1) * size < extent
        assert size % (node.setting("row") or 1) == 0


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2685, 64), "float32"), ((5, 67), "float16"), ((3, 4, 130, 1), "float32"),
        ((9, 2), "int64"), ((40, 511), "float64"), ((7, 17), "int64"),
    ],
)  # fmt: skip
def test_short_rows_share_a_tile(shape: tuple[int, ...], dtype: str) -> None:
    axis = max(k for k, n in enumerate(shape) if n > 1)
    ((task, _),) = extract_tasks(graph_of(shape, axis, dtype), OPENCL)
    (draft,) = drafts_of(task)
    body = launch_form(draft.apply(task.func), OPENCL).body
    assert len([s for s in body if isinstance(s, For)]) == 1
    x = (np.random.default_rng(0).integers(-4, 5, shape)).astype(dtype)
    want = np.cumsum(x.astype(np.float64), axis).ravel()
    np.testing.assert_array_equal(ts.evaluate(task.func, x.ravel()).astype(np.float64), want)


def test_axes_of_one_element_behind_are_no_rows() -> None:
    """All stages of a short sum are one launch."""
    ((task, _),) = extract_tasks(graph_of((642, 1), 0), OPENCL)
    (draft,) = drafts_of(task)
    launches = [s for s in launch_form(draft.apply(task.func), OPENCL).body if isinstance(s, For)]
    assert len(launches) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("ones", [(), (1, 1)])
def test_answers(dtype: str, ones: tuple[int, ...]) -> None:
    graph = graph_of((2, 1500, *ones), 1, dtype)
    ((task, _),) = extract_tasks(graph, OPENCL)
    x = (np.random.default_rng(0).integers(-4, 5, (2, 1500)) / 4).astype(dtype)
    want = np.cumsum(x.astype(np.float64), 1)
    np.testing.assert_allclose(ts.evaluate(task.func, x).astype(np.float64), want, 2e-3, 1e-2)
