"""Random weights for networks: activations keep their magnitude from layer to layer, and no batch
normalisation is the identity.

The numbers come from NumPy, so that a seed means the same weights on every machine.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

_RELU = math.sqrt(2.0)  # a ReLU halves the second moment; the weights before it make up for that
RESIDUAL = 0.4  # scale of the last normalisation of a residual branch: the sum grows slowly


def materialize(network: nn.Module, seed: int) -> nn.Module:
    """Gives memory and values to a network that was built on the meta device, for inference.

    A normalisation's `gain` attribute, if it has one, scales its weight.
    """
    network = network.to_empty(device="cpu").eval().requires_grad_(False)
    rng = np.random.default_rng(seed)
    for layer in network.modules():
        _fill(layer, rng)
    return network


def _fill(layer: nn.Module, rng: np.random.Generator) -> None:
    match layer:
        case nn.BatchNorm2d() | nn.BatchNorm3d():
            gain = getattr(layer, "gain", 1.0)
            _uniform(layer.weight, rng, 0.7 * gain, 1.3 * gain)
            _normal(layer.bias, rng, 0.1)
            _normal(layer.running_mean, rng, 0.2)
            _uniform(layer.running_var, rng, 0.6, 1.6)
            layer.num_batches_tracked.fill_(1)
        case nn.LayerNorm():
            _uniform(layer.weight, rng, 0.7, 1.3)
            _normal(layer.bias, rng, 0.1)
        case nn.ConvTranspose2d():
            # An image of one pixel meets one tap per output; larger ones meet 1 / stride of them.
            taps = math.prod(layer.kernel_size) / math.prod(layer.stride)
            fan_in = layer.in_channels * (1 if layer.stride == (1, 1) else taps)
            _normal(layer.weight, rng, _RELU / math.sqrt(fan_in))
        case nn.Conv2d() | nn.Conv3d():
            fan_in = math.prod(layer.weight.shape[1:])
            _normal(layer.weight, rng, _RELU / math.sqrt(fan_in))
        case nn.Linear():
            _normal(layer.weight, rng, 1 / math.sqrt(layer.in_features))
            _normal(layer.bias, rng, 0.1)
        case nn.Embedding():
            _normal(layer.weight, rng, 0.5)


def _normal(t: torch.Tensor, rng: np.random.Generator, scale: float) -> None:
    t.copy_(torch.from_numpy(rng.standard_normal(t.shape, dtype=np.float32) * np.float32(scale)))


def _uniform(t: torch.Tensor, rng: np.random.Generator, low: float, high: float) -> None:
    t.copy_(torch.from_numpy(rng.uniform(low, high, t.shape).astype(np.float32)))
