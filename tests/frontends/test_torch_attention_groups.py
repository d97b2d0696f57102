"""Attention as people write it in PyTorch becomes a group that may be one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tilesmith as ts
from tilesmith.graph.joined_groups import JoinedGroups
from tilesmith.graph.partition import partition
from tilesmith.graph.pipeline import PASSES, run_passes

JOINED = JoinedGroups(partition)
ROWS, HEADS, WIDTH = 11, 3, 8


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.qkv = way, nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            y.view(*x.shape[:2], HEADS, WIDTH).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)
        )
        match self.way:
            case "fused":
                y = F.scaled_dot_product_attention(q, k, v)
            case "causal":
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            case "mask":
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask > 0)
            case _:
                y = torch.softmax(q @ k.transpose(-1, -2) / WIDTH**0.5 + mask, -1) @ v
        return y.transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize("way", ["fused", "causal", "mask", "written out"])
def test_attention_of_torch_is_joined(way: str) -> None:
    torch.manual_seed(0)
    module = Attention(way).eval()
    given = torch.randn(2, ROWS, HEADS * WIDTH), torch.randn(ROWS, ROWS)
    graph: Any = ts.from_torch(module, given)
    lowered = run_passes(graph, PASSES)
    groups = JOINED(lowered)
    assert [len(g.parts) for g in groups if g.parts] == [3]

    def always(g: ts.Graph) -> tuple[ts.Group, ...]:
        return tuple(ts.Group(x.nodes, x.inputs, x.outputs) for x in JOINED(g))

    if way in ("causal", "mask"):
        model = ts.compile_model(graph, ts.cpu(1), groups=always, cache=None, progress=False)
        feeds = {s: x.numpy() for s, x in zip(graph.inputs, given, strict=False)}
        (got,) = model(feeds).values()
        np.testing.assert_allclose(got, module(*given).detach().numpy(), rtol=1e-4, atol=1e-5)
