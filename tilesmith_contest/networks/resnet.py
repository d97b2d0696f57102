"""Residual networks: ResNet-50 in its version 1.5 (a block has its stride in the 3x3 convolution;
He et al., CVPR 2016), and 3D-ResNet-18 for video clips (Hara et al., CVPR 2018).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tilesmith_contest.networks.weights import RESIDUAL

_EXPANSION = 4  # output channels of a bottleneck over its inner ones


class Bottleneck(nn.Module):  # type: ignore[misc]
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * _EXPANSION
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(out)
        self.norm3.gain = RESIDUAL
        self.shortcut = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        y = torch.relu(self.norm2(self.conv2(y)))
        return torch.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class BasicBlock3d(nn.Module):  # type: ignore[misc]
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(channels, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm3d(width)
        self.conv2 = nn.Conv3d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm3d(width)
        self.norm2.gain = RESIDUAL
        self.shortcut = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv3d(channels, width, 1, stride, bias=False), nn.BatchNorm3d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):  # type: ignore[misc]
    """Four stages of bottlenecks; the first stage has `width` inner channels, each later one twice
    as many at half the resolution.
    """

    def __init__(self, blocks: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        layers: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            inner = width << stage
            for k in range(count):
                layers.append(Bottleneck(channels, inner, 2 if stage and k == 0 else 1))
                channels = inner * _EXPANSION
        self.stages = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        y = self.pool(self.stages(self.stem(image)))
        return self.classifier(torch.flatten(y, 1))


class ResNet3d(nn.Module):  # type: ignore[misc]
    """Four stages of two-convolution blocks. The first convolution keeps all frames."""

    def __init__(self, blocks: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, width, 7, (1, 2, 2), 3, bias=False), nn.BatchNorm3d(width), nn.ReLU(),
            nn.MaxPool3d(3, 2, 1),
        )  # fmt: skip
        layers: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            for k in range(count):
                layers.append(BasicBlock3d(channels, width << stage, 2 if stage and k == 0 else 1))
                channels = width << stage
        self.stages = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool3d(1)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, clip: Tensor) -> Tensor:
        y = self.pool(self.stages(self.stem(clip)))
        return self.classifier(torch.flatten(y, 1))
