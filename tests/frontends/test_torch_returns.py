"""What torch.compile(backend="tilesmith") returns: views of inputs and of one another as in eager,
eager's strides, and the weights of now.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch_views import assert_same_memory

import tilesmith as ts
from tilesmith.tune.torch_backend import tilesmith


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def compiled(f: Any, dynamic: bool = False, **options: Any) -> Any:
    return torch.compile(
        f, backend=tilesmith, dynamic=dynamic, options={"cache": None, "quiet": True, **options}
    )


def swapped(x: torch.Tensor) -> Any:
    y = x.t().clone()
    x.copy_(x.flip(0))
    return x, y


def part_and_whole(x: torch.Tensor) -> Any:
    y = x * 2
    return y[:, 1:], y.t(), y[:1].expand(3, 6)


RETURNS: dict[str, Callable[[torch.Tensor], Any]] = {
    "chunk": lambda x: x.chunk(2, -1),
    "narrow": lambda x: x.narrow(1, 1, 3),
    "slice": lambda x: x[:, : x.shape[1] // 2],
    "expand": lambda x: x[:, :1].expand(4, 6),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2), 1),
    "computed as_strided": lambda x: (x * 2).as_strided((3, 2), (1, 7), 1) + 1,
    "windows": lambda x: (x * 2).unfold(1, 3, 1),
    "other dtype": lambda x: x.view(torch.int32),
    "transposed and added": lambda x: x.t() + 1,
    "part of a result": lambda x: (x * 2)[:, 1:4],
    "results of one memory": part_and_whole,
    "a result twice": lambda x: [x * 2] * 2,
    "a copy": lambda x: (x * 2, (x * 2).clone(), x.clone()),
    "a copy of what is written": lambda x: (x.clone(), x.mul_(2)),
    "written": swapped,
    "channels last": lambda x: x.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last).neg(),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", RETURNS)
def test_results_lie_in_memory_as_in_eager(name: str, dynamic: bool) -> None:
    function = RETURNS[name]
    x = torch.arange(24.0).reshape(4, 6)
    mine, theirs = x.clone(), x.clone()
    fast = compiled(function, dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        got = pytree.tree_leaves(fast(mine))
    want = pytree.tree_leaves(function(theirs))
    assert_same_memory([mine, *got], [theirs, *want], name)


def test_a_view_beyond_an_argument_reads_the_callers_memory() -> None:
    """In a static graph, too, an argument may lie elsewhere at the next call."""
    memory = torch.arange(60.0)
    fast = compiled(lambda x: x.as_strided((2, 2), (1, 6), 1) * 2)
    for first in (6, 18):
        x = memory[first : first + 12].reshape(2, 6)
        assert fast(x).tolist() == [[2, 14], [4, 16]]


def test_constants_are_new_at_each_call() -> None:
    fast = compiled(lambda x: (torch.arange(3), x + 1))
    fast(torch.ones(2))[0].fill_(9)
    assert fast(torch.ones(2))[0].tolist() == [0, 1, 2]


def test_weights_of_inference_mode_may_be_written() -> None:
    """PyTorch does not count how often such a one is written."""
    with torch.inference_mode():
        module = nn.Linear(3, 2)
        fast, x = compiled(module), torch.randn(4, 3)
        for _ in range(2):
            torch.testing.assert_close(fast(x), module(x))
            module.weight.mul_(3)
            module.bias.add_(1)
        torch.testing.assert_close(fast(x), module(x))


def test_a_graph_has_the_weights_of_its_import() -> None:
    """All of them: some are packed into copies when it is compiled, others are read in place."""
    module = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 4), nn.LayerNorm(4)).eval()
    ids = torch.tensor([1, 4])
    want = module(ids).numpy()
    graph = ts.from_torch(module, (ids,))
    for p in module.parameters():
        p.add_(1)
    model = ts.compile_model(graph, cache=None, progress=False)
    for p in module.parameters():
        p.add_(1)
    np.testing.assert_allclose(model({"input": ids})["output"], want, rtol=1e-5, atol=1e-5)


def test_the_bound_of_shapes_is_told_after_other_warnings() -> None:
    fast = compiled(lambda x: x.erfc() + 1, dynamic=True, max_shapes=1)
    with pytest.warns(UserWarning, match="erfc"):
        fast(torch.ones(2))
    with pytest.warns(UserWarning, match="max_shapes"):
        fast(torch.ones(3))


SIZES = [(3, 3), (4, 7), (9, 13), (6, 3), (12, 20), (5, 2)]


@pytest.mark.parametrize("corners", [None, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_images(mode: str, corners: bool | None) -> None:
    x = torch.randn(1, 2, 6, 7)
    how = {"mode": mode, "antialias": True, "align_corners": corners}

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        scaled = [F.interpolate(x, scale_factor=s, **how) for s in (0.5, 1.3, (1.1, 0.7))]
        return [*scaled, *(F.interpolate(x, size=s, **how) for s in SIZES)]

    torch.testing.assert_close(compiled(function)(x), function(x), atol=1e-5, rtol=1e-4)


def test_images_of_nearest_elements() -> None:
    """Positions are rounded as PyTorch rounds them, in float32."""

    class Nearest(nn.Module):
        def forward(self, x: torch.Tensor, line: torch.Tensor) -> list[torch.Tensor]:
            sizes = [F.interpolate(line, size=n) for n in (286, 598, 299, 100)]
            scales = [F.interpolate(x, scale_factor=s) for s in (1.1, 2.05, (0.7, 1.3))]
            exact = [F.interpolate(x, scale_factor=s, mode="nearest-exact") for s in (1.3, 0.6)]
            wide = F.interpolate(x, scale_factor=1.1, mode="bilinear")
            longer = F.interpolate(line[:, :, :3], scale_factor=1.3)
            return [*sizes, *scales, *exact, wide, longer]

    x, line = torch.randn(1, 2, 5, 6), torch.randn(1, 2, 299)
    model = ts.compile_model(ts.from_torch(Nearest(), (x, line)), cache=None, progress=False)
    got = list(model({"x": x, "line": line}).values())
    torch.testing.assert_close(got, Nearest()(x, line))


class Blocks(nn.Module):
    """As in ConvNeXt and Swin: the mean of a permuted image is where PyTorch writes as_strided."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        y = torch.roll(y, (1, 1), (1, 2)).reshape(1, 2, 2, 2, 2, -1).transpose(2, 3).flatten(1, 2)
        y = y.reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
        return F.adaptive_avg_pool2d(y, 1).flatten(1)


def test_blocks_of_convnext_and_swin_become_one_graph() -> None:
    module, x = Blocks().eval(), torch.randn(1, 4, 4, 4)
    graph = ts.from_torch(module, (x,))
    assert isinstance(graph, ts.Graph)
    (got,) = ts.compile_model(graph, cache=None, progress=False)({"x": x}).values()
    np.testing.assert_allclose(got, module(x).numpy(), rtol=1e-4, atol=1e-5)


class Hosted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x).erfc() @ x


def test_a_model_that_pytorch_runs_a_part_of_can_be_tuned() -> None:
    """All its sizes are known, so its tasks are too."""
    module, x = Hosted(), torch.randn(16, 16) * 0.1
    with pytest.warns(UserWarning, match="erfc"):
        program = ts.from_torch(module, (x,))
    assert not isinstance(program, ts.Graph)
    assert sum(count for _, count in ts.extract_tasks(program)) == 2
    model = ts.tune_model(program, budget=ts.Budget(trials=2), quiet=True, cache=None)
    np.testing.assert_allclose(model({"x": x})["output"], module(x).numpy(), rtol=1e-4, atol=1e-4)


def test_memory_around_an_argument_is_refused_in_a_graph() -> None:
    class Around(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.as_strided((2, 2), (1, 2), 0) + 1

    with pytest.raises(ts.GraphError, match=r"aten\.as_strided.*outside"):
        ts.from_torch(Around(), (torch.arange(12.0)[6:],))


def test_a_model_takes_tensors_of_bfloat16_as_they_are():
    x = torch.randn(3, 7).bfloat16()
    model = ts.compile_model(ts.from_torch(torch.nn.Softmax(-1), (x,)), ts.cpu(1))
    (signature,) = model.inputs
    (got,) = model({signature.name: x}).values()
    torch.testing.assert_close(got, torch.softmax(x, -1), rtol=1e-2, atol=0.0)
