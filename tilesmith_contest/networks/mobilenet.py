"""MobileNet-V2 (Sandler et al., CVPR 2018): inverted residuals around depthwise convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tilesmith.base.dataclass import dataclass
from tilesmith_contest.networks.weights import RESIDUAL


@dataclass(frozen=True, slots=True)
class Stage:
    """`count` blocks; the first has the stride."""

    expansion: int
    channels: int
    count: int
    stride: int


FULL = (
    Stage(1, 16, 1, 1), Stage(6, 24, 2, 2), Stage(6, 32, 3, 2), Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1), Stage(6, 160, 3, 2), Stage(6, 320, 1, 1),
)  # fmt: skip


class InvertedResidual(nn.Module):  # type: ignore[misc]
    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        self.adds = stride == 1 and channels == out
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(_normalized(nn.Conv2d(channels, inner, 1, bias=False)))
        layers.append(_normalized(nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)))
        last = nn.BatchNorm2d(out)
        if self.adds:
            last.gain = RESIDUAL
        self.layers = nn.Sequential(*layers, nn.Conv2d(inner, out, 1, bias=False), last)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


def _normalized(conv: nn.Conv2d) -> nn.Module:
    return nn.Sequential(conv, nn.BatchNorm2d(conv.out_channels), nn.ReLU6())


class MobileNetV2(nn.Module):  # type: ignore[misc]
    def __init__(self, stem: int, stages: Sequence[Stage], last: int, classes: int) -> None:
        super().__init__()
        self.stem = _normalized(nn.Conv2d(3, stem, 3, 2, 1, bias=False))
        blocks: list[nn.Module] = []
        channels = stem
        for s in stages:
            for k in range(s.count):
                stride = s.stride if k == 0 else 1
                blocks.append(InvertedResidual(channels, s.channels, stride, s.expansion))
                channels = s.channels
        self.blocks = nn.Sequential(*blocks)
        self.head = _normalized(nn.Conv2d(channels, last, 1, bias=False))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(last, classes)

    def forward(self, image: Tensor) -> Tensor:
        y = self.pool(self.head(self.blocks(self.stem(image))))
        return self.classifier(self.dropout(torch.flatten(y, 1)))
