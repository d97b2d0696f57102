"""The generator of DCGAN (Radford et al., ICLR 2016): transposed convolutions from noise to a 64x64
image.
"""

from __future__ import annotations

from torch import Tensor, nn


class Generator(nn.Module):  # type: ignore[misc]
    def __init__(self, noise: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels, stride, padding = noise, 1, 0
        for out in (8 * width, 4 * width, 2 * width, width):
            layers += [
                nn.ConvTranspose2d(channels, out, 4, stride, padding, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(),
            ]
            channels, stride, padding = out, 2, 1
        layers += [nn.ConvTranspose2d(channels, 3, 4, 2, 1, bias=False), nn.Tanh()]
        self.layers = nn.Sequential(*layers)

    def forward(self, noise: Tensor) -> Tensor:
        return self.layers(noise)
