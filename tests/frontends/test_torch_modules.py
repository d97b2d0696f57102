"""Modules and functions of PyTorch match eager after ts.from_torch. Many of them are one model, so
that they are traced and built together; each is compared on its own.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch_cases
from torch import nn
from torch.utils import _pytree as pytree

import tilesmith as ts
from tilesmith.frontends.torch.tensors import array_of
from tilesmith.runtime.arrays import torch_tensor

_AT_ONCE = 32
CASES = torch_cases.cases()
# PyTorch runs these: they have no kernel, for the reason that the warning gives.
HOSTED = {
    "aten._embedding_bag_forward_only.default", "aten.atan2.default", "aten.erfc.default",
}  # fmt: skip


class Together(nn.Module):
    def __init__(self, modules: list[nn.Module]) -> None:
        super().__init__()
        self.modules_ = nn.ModuleList(modules)

    def forward(self, inputs: list[tuple[Any, ...]]) -> list[Any]:
        return [m(*x) for m, x in zip(self.modules_, inputs, strict=True)]


def assert_same(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype, name
    assert got.shape == want.shape, name
    loose = {"atol": 2e-5, "rtol": 2e-5} if want.dtype in (torch.float32, torch.float64) else {}
    torch.testing.assert_close(
        got, want, equal_nan=True, msg=lambda text: f"{name}: {text}", **loose
    )


@pytest.mark.turns(6)
@pytest.mark.parametrize("first", range(0, len(CASES), _AT_ONCE))
def test_modules_match_eager(first: int) -> None:
    cases = CASES[first : first + _AT_ONCE]
    built = [torch_cases.build(c) for c in cases]
    module, inputs = Together([m for m, _ in built]), [x for _, x in built]
    wants = module(inputs)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        graph = ts.from_torch(module, (inputs,))
    model = ts.compile_model(graph, cache=None, progress=False)
    leaves = [array_of(t) for t in pytree.tree_leaves(inputs)]
    feeds = dict(zip((s.name for s in model.inputs), leaves, strict=True))
    results = iter(model(feeds).values())
    wrong = []
    for case, want in zip(cases, wants, strict=True):
        for k, leaf in enumerate(pytree.tree_leaves(want)):
            try:
                assert_same(f"{case.name}, output {k}", torch_tensor(next(results)), leaf)
            except AssertionError as error:
                wrong.append(str(error))
    assert not wrong, "\n".join(wrong)
    assert next(results, None) is None
    hosted = {op for step in model.host_steps for op in step.op.split(", ")}
    hosted = {op for op in hosted if op.startswith("aten.")}
    assert hosted <= HOSTED
    said = " ".join(str(w.message) for w in told if "PyTorch runs" in str(w.message))
    assert all(op in said for op in hosted)
