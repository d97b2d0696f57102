"""The structures that networks of torchvision and transformers are made of, one small block each:
right, no operator on the host, and no plain loop nest where a schedule matters.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilesmith as ts

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402


class Block(nn.Module):
    """Layers by name, and what is done with them."""

    def __init__(self, forward: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self._forward = forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *given: Tensor) -> Tensor:
        return self._forward(self, *given)


def branches(m: Block, x: Tensor) -> Tensor:
    """Inception, GoogLeNet, SqueezeNet: pointwise results written into a concatenation."""
    x = f.relu(m.first(x))
    pooled = m.pooled(f.avg_pool2d(x, 3, 1, 1))
    return torch.cat([f.relu(m.one(x)), f.relu(m.three(f.relu(m.before(x)))), pooled], 1)


def shuffle(m: Block, x: Tensor) -> Tensor:
    """ShuffleNet."""
    left, right = x.chunk(2, 1)
    y = torch.cat([left, f.relu(m.out(m.depth(f.relu(m.into(right)))))], 1)
    n, c, h, w = y.shape
    return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def squeezed(m: Block, x: Tensor) -> Tensor:
    """EfficientNet, MobileNet-V3, RegNet-Y: groups, and channels scaled by their means."""
    y = f.silu(m.grouped(f.hardswish(m.into(x))))
    scale = torch.sigmoid(m.up(f.relu(m.down(f.adaptive_avg_pool2d(y, 1)))))
    return x + m.out(y * scale)


def dense(m: Block, x: Tensor) -> Tensor:
    """DenseNet: norms of concatenations."""
    y = m.one(f.relu(m.norm(x)))
    return f.avg_pool2d(m.two(f.relu(m.later(torch.cat([x, y], 1)))), 2)


def windows(m: Block, x: Tensor) -> Tensor:
    """Swin: attention in shifted windows."""
    n, h, w, c = x.shape
    y = torch.roll(m.norm(x), (-3, -3), (1, 2))
    y = y.view(n, h // 7, 7, w // 7, 7, c).transpose(2, 3).reshape(-1, 49, c)
    q, k, v = m.qkv(y).view(-1, 49, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
    y = (torch.softmax(q @ k.transpose(-1, -2) * 0.2, -1) @ v).transpose(1, 2).reshape(-1, 49, c)
    y = m.out(y).view(n, h // 7, w // 7, 7, 7, c).transpose(2, 3).reshape(n, h, w, c)
    return x + torch.roll(y, (3, 3), (1, 2))


def video(m: Block, x: Tensor) -> Tensor:
    """R(2+1)D, S3D, MViT: filters in space, then in time."""
    return f.max_pool3d(f.relu(m.time(f.relu(m.space(x)))), (1, 3, 3), (1, 2, 2), (0, 1, 1))


def segments(m: Block, x: Tensor) -> Tensor:
    """DeepLab, FCN, LR-ASPP: dilated filters and enlarged results."""
    y = f.relu(m.dilated(x)) + f.interpolate(m.pooled(f.adaptive_avg_pool2d(x, 1)), x.shape[-2:])
    return f.interpolate(m.out(y), scale_factor=2, mode="bilinear", align_corners=False)


def scanned(m: Block, x: Tensor) -> Tensor:
    """Mamba: a causal filter and a recurrence, step by step."""
    n, t, _ = x.shape
    y, gate = m.into(x).chunk(2, -1)
    y = f.silu(m.causal(y.transpose(1, 2))[..., :t])
    decay = torch.exp(-f.softplus(m.decay(y.transpose(1, 2))))
    state, kept = torch.zeros(n, y.shape[1]), []
    for k in range(t):
        state = state * decay[:, k] + y[..., k]
        kept.append(state)
    return x + m.out(torch.stack(kept, 1) * f.silu(gate))


def rotary(m: Block, x: Tensor) -> Tensor:
    """Llama, Qwen, Gemma: rotated heads that share keys, and a gated layer."""
    n, t, c = x.shape
    y = f.rms_norm(x, (c,))
    q = m.q(y).view(n, t, 4, c // 4).transpose(1, 2)
    k, v = m.kv(y).view(n, t, 2, 2, c // 4).permute(2, 0, 3, 1, 4)
    angle = torch.outer(torch.arange(t), 0.1 ** torch.arange(c // 8)).repeat(1, 2)

    def turned(z: Tensor) -> Tensor:
        a, b = z.chunk(2, -1)
        return z * angle.cos() + torch.cat([-b, a], -1) * angle.sin()

    k, v = (z.repeat_interleave(2, 1) for z in (turned(k), v))
    y = f.scaled_dot_product_attention(turned(q), k, v, is_causal=True)
    x = x + m.o(y.transpose(1, 2).reshape(n, t, c))
    return x + m.down(f.silu(m.gate(x)) * m.up(x))


def conv(*sizes: int, **settings: int) -> nn.Module:
    return nn.Conv2d(*sizes, **settings)  # type: ignore[arg-type]


STRUCTURES: dict[str, tuple[Block, tuple[int, ...]]] = {
    "branches": (
        Block(branches, first=conv(3, 32, 3), pooled=conv(32, 13, 1), one=conv(32, 24, 1),
              before=conv(32, 16, 1), three=conv(16, 20, 3, padding=1)),
        (1, 3, 29, 29),
    ),
    "shuffle": (
        Block(shuffle, into=conv(24, 24, 1), depth=conv(24, 24, 3, padding=1, groups=24),
              out=conv(24, 24, 1)),
        (1, 48, 28, 28),
    ),
    "squeezed": (
        Block(squeezed, into=conv(32, 64, 1), grouped=conv(64, 64, 3, padding=1, groups=8),
              down=conv(64, 8, 1), up=conv(8, 64, 1), out=conv(64, 32, 1)),
        (1, 32, 14, 14),
    ),
    "dense": (
        Block(dense, norm=nn.BatchNorm2d(32), one=conv(32, 12, 3, padding=1),
              later=nn.BatchNorm2d(44), two=conv(44, 22, 1)),
        (1, 32, 16, 16),
    ),
    "windows": (
        Block(windows, norm=nn.LayerNorm(32), qkv=nn.Linear(32, 96), out=nn.Linear(32, 32)),
        (1, 14, 14, 32),
    ),
    "video": (
        Block(video, space=nn.Conv3d(3, 24, (1, 7, 7), (1, 2, 2), (0, 3, 3)),
              time=nn.Conv3d(24, 16, (3, 1, 1), 1, (1, 0, 0))),
        (1, 3, 4, 24, 24),
    ),
    "segments": (
        Block(segments, dilated=conv(32, 24, 3, padding=4, dilation=4), pooled=conv(32, 24, 1),
              out=conv(24, 21, 1)),
        (1, 32, 14, 14),
    ),
    "scanned": (
        Block(scanned, into=nn.Linear(48, 192), causal=nn.Conv1d(96, 96, 4, padding=3, groups=96),
              decay=nn.Linear(96, 96), out=nn.Linear(96, 48)),
        (1, 12, 48),
    ),
    "rotary": (
        Block(rotary, q=nn.Linear(64, 64), kv=nn.Linear(64, 64), o=nn.Linear(64, 64),
              gate=nn.Linear(64, 160), up=nn.Linear(64, 160), down=nn.Linear(160, 64)),
        (1, 37, 64),
    ),
}  # fmt: skip


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure_is_right_and_scheduled(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, shape = STRUCTURES[name]
    x = torch.randn(shape)
    graph = ts.from_torch(module.eval(), (x,))
    model = ts.compile_model(graph, ts.cpu(1), cache=tmp_path / "cache", progress=False)
    assert model.host_steps == ()
    for executor in model.executors:
        for kernel, step in zip(executor.kernels, executor.plan.steps, strict=True):
            assert kernel.origin.kind != "naive" or step.func.flops <= 1e5, step.func.name
    with torch.no_grad():
        want = module(x).numpy()
    (got,) = model({model.inputs[0].name: x.numpy()}).values()
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * float(np.abs(want).max()))
