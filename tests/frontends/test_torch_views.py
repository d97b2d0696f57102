"""Random chains of views and indices through torch.compile and ts.from_torch match eager: values,
strides, what shares memory, and what is written. Most chains are one function, so that they are
traced and built together; each is compared on its own.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch_views import Chain, argument, assert_same_memory, chain

import tilesmith as ts
from tilesmith.frontends.torch.tensors import array_of
from tilesmith.runtime.arrays import torch_tensor
from tilesmith.tune.torch_backend import tilesmith

_AT_ONCE = 12


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what PyTorch runs
        yield
    torch._dynamo.reset()


class Together(torch.nn.Module):
    def __init__(self, parts: list[Chain]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, xs: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        return [f(x) for f, x in zip(self.parts, xs, strict=True)]


def cases(seed: int) -> tuple[Together, list[torch.Tensor]]:
    r = random.Random(seed)
    xs = [argument(r) for _ in range(_AT_ONCE)]
    return Together([chain(r, x) for x in xs]), xs


def twin(x: torch.Tensor) -> torch.Tensor:
    """A copy of all of its memory, so that it lies there in the same way."""
    memory = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0).clone()
    return memory.as_strided(x.shape, x.stride(), x.storage_offset())


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_chains_are_as_in_eager(dynamic: bool) -> None:
    module, xs = cases(3 + dynamic)
    given, expected = [twin(x) for x in xs], [twin(x) for x in xs]
    fast = torch.compile(
        module, backend=tilesmith, dynamic=dynamic, options={"cache": None, "quiet": True}
    )
    got, want = fast(given), module(expected)
    for part, x, y, a, b in zip(module.parts, given, expected, got, want, strict=True):
        assert_same_memory([x, *a], [y, *b], part)


def test_exported_chains_are_as_in_eager() -> None:
    module, xs = cases(5)
    for part in module.parts:
        part.writes = False  # a graph keeps no state
        part.steps = [(n, f) for n, f in part.steps if "as_strided" not in n]
    wants = [t for many in module(xs) for t in many]
    model = ts.compile_model(ts.from_torch(module, (xs,)), cache=None, progress=False)
    feeds = {s.name: array_of(x) for s, x in zip(model.inputs, xs, strict=True)}
    got = [torch_tensor(np.asarray(a)) for a in model(feeds).values()]
    for k, (a, b) in enumerate(zip(got, wants, strict=True)):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), k
        assert torch.equal(a, b), k
