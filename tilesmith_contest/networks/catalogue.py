"""The five networks of the benchmarks by name, each also in a small version that tests run in a
fraction of a second: a name in, a network with random weights, its inputs and its float64 outputs
out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError
from tilesmith_contest.networks.bert import BASE, Attention, Bert, Sizes
from tilesmith_contest.networks.dcgan import Generator
from tilesmith_contest.networks.mobilenet import FULL, MobileNetV2, Stage
from tilesmith_contest.networks.resnet import ResNet, ResNet3d
from tilesmith_contest.networks.weights import materialize

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Network:
    """How to build a network, and what it takes and gives.

    The first dimension of its only input is the batch. `dims` names the others; a dimension that
    may be left open in an exported file has the same name there. `below` bounds token identifiers;
    None means that the input is of real numbers.
    """

    build: Callable[[], nn.Module]
    input: str
    dims: Mapping[str, int]
    outputs: tuple[str, ...]
    below: int | None = None
    open_dims: tuple[str, ...] = ()

    @property
    def can_be_open(self) -> tuple[str, ...]:
        return ("batch", *self.open_dims)

    def module(self, seed: int = 0) -> nn.Module:
        """In inference mode, with weights that depend on the seed only."""
        with torch.device("meta"):
            made = self.build()
        return materialize(made, seed)

    def inputs(self, batch: int = 1, seed: int = 0) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        shape = (batch, *self.dims.values())
        if self.below is not None:
            return {self.input: rng.integers(0, self.below, shape)}
        return {self.input: rng.standard_normal(shape, dtype=np.float32)}


_IMAGE = {"channels": 3, "height": 224, "width": 224}
_SMALL_IMAGE = {"channels": 3, "height": 32, "width": 32}
_SIDES = ("height", "width")
_TINY = Sizes(layers=2, hidden=32, heads=2, inner=64, vocabulary=100, positions=32)

NETWORKS: dict[str, Network] = {
    "resnet50": Network(
        lambda: ResNet((3, 4, 6, 3), 64, 1000), "image", _IMAGE, ("logits",), None, _SIDES
    ),
    "mobilenet-v2": Network(
        lambda: MobileNetV2(32, FULL, 1280, 1000), "image", _IMAGE, ("logits",), None, _SIDES
    ),
    "bert-base": Network(
        lambda: Bert(BASE), "tokens", {"sequence": 128}, ("hidden", "pooled"), BASE.vocabulary,
        ("sequence",),
    ),
    "resnet18-3d": Network(
        lambda: ResNet3d((2, 2, 2, 2), 64, 400), "clip",
        {"channels": 3, "frames": 16, "height": 112, "width": 112}, ("logits",),
    ),
    "dcgan": Network(
        lambda: Generator(100, 128), "noise", {"channels": 100, "height": 1, "width": 1}, ("image",)
    ),
}  # fmt: skip
SMALL: dict[str, Network] = {
    "resnet50": Network(
        lambda: ResNet((1, 2), 8, 10), "image", _SMALL_IMAGE, ("logits",), None, _SIDES
    ),
    "mobilenet-v2": Network(
        lambda: MobileNetV2(8, (Stage(1, 4, 1, 1), Stage(6, 8, 2, 2)), 32, 10), "image",
        _SMALL_IMAGE, ("logits",), None, _SIDES,
    ),
    "bert-base": Network(
        lambda: Bert(_TINY), "tokens", {"sequence": 16}, ("hidden", "pooled"), _TINY.vocabulary,
        ("sequence",),
    ),
    "resnet18-3d": Network(
        lambda: ResNet3d((1, 1), 4, 10), "clip",
        {"channels": 3, "frames": 4, "height": 16, "width": 16}, ("logits",),
    ),
    "dcgan": Network(
        lambda: Generator(10, 4), "noise", {"channels": 10, "height": 1, "width": 1}, ("image",)
    ),
}  # fmt: skip


def network(name: str, small: bool = False) -> Network:
    if name not in NETWORKS:
        raise ArgumentError(f"unknown network {name!r}; known are {', '.join(NETWORKS)}")
    return (SMALL if small else NETWORKS)[name]


def use_fused_kernels(module: nn.Module) -> nn.Module:
    """What a user of PyTorch would run: the same function by its fused attention."""
    for layer in module.modules():
        if isinstance(layer, Attention):
            layer.fused = True
    return module


def run(net: Network, module: nn.Module, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What PyTorch computes, by the names of the outputs."""
    with torch.inference_mode():
        out = module(torch.from_numpy(inputs[net.input]))
    arrays = out if isinstance(out, tuple) else (out,)
    return {name: a.contiguous().numpy() for name, a in zip(net.outputs, arrays, strict=True)}


def in_float64(net: Network, module: nn.Module, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The reference: all weights, inputs and sums as float64."""
    x = inputs[net.input]
    exact = {net.input: x.astype(np.float64) if net.below is None else x}
    return run(net, copy.deepcopy(module).double(), exact)
