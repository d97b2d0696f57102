"""How much a layer alone loses by integers, from a sample of its results: its rows or pixels are
computed by NumPy from the numbers that calibration saw, as they are and as integers stand for them.
"""

from __future__ import annotations

from dataclasses import field
from itertools import product
from math import prod

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.graph.graph import Array, Graph, Node
from tilesmith.graph.passes.scaled_integers import CONVOLUTIONS
from tilesmith.graph.quantization.layers import Layer, channel_axis
from tilesmith.graph.quantization.scales import Scale, weight_scale
from tilesmith.ops.arguments import pad_pairs, per_dim
from tilesmith.ops.matmul import dense

_SAMPLED = 64  # rows or pixels of each array


@dataclass(slots=True)
class Loss:
    """Of a sample of a layer's results. `scales` are those of its computed operands."""

    graph: Graph
    layer: Layer
    scales: tuple[Scale, ...]
    # The squares of the error and of the result, of each sampled row.
    wrong: list[Array] = field(default_factory=list)
    whole: list[Array] = field(default_factory=list)

    @property
    def relative(self) -> float:
        """The root of the mean square of the error over that of the result, row by row: a few large
        rows do not hide what the others lose. Rows that are small beside the median one count as
        half of it.
        """
        if not self.wrong:
            return 0.0
        wrong, whole = np.concatenate(self.wrong), np.concatenate(self.whole)
        base = np.maximum(whole, np.median(whole) / 2)
        known = base > 0
        return float(np.sqrt((wrong[known] / base[known]).mean())) if known.any() else 0.0

    def add(self, arrays: tuple[Array, ...]) -> None:
        """The arrays of its computed operands, in one run."""
        left, right = _terms(self.graph, self.layer, arrays)
        if self.layer.weights:
            w = self.graph.constants[self.layer.weights]
            narrow = weight_scale(w, self.layer.axis).rounded(w)
            rounded = _filters(self.graph, self.layer, narrow)
        else:
            rounded = self.scales[1].rounded(right)
        with np.errstate(all="ignore"):  # of a row that is not finite, nothing is said
            exact, got = left @ right, self.scales[0].rounded(left) @ rounded
            rows = (0, 2) if self.layer.weights else (1, 2)
            wrong = np.square(got - exact, dtype=np.float64).sum(rows)
            whole = np.square(exact, dtype=np.float64).sum(rows)
        known = np.isfinite(wrong) & np.isfinite(whole)
        self.wrong.append(wrong[known])
        self.whole.append(whole[known])


def _terms(graph: Graph, layer: Layer, arrays: tuple[Array, ...]) -> tuple[Array, Array]:
    """Stacked matrices whose product are some of the layer's results."""
    rng = np.random.default_rng(0)
    node = layer.node
    if not layer.weights:
        return _rows_of_both(node, arrays[0], arrays[1], rng)
    right = _filters(graph, layer, graph.constants[layer.weights])
    if node.function in CONVOLUTIONS:
        return _patches(graph, layer, arrays[0], right.shape[0], rng), right
    flat = arrays[0].reshape(-1, arrays[0].shape[-1])
    return flat[rng.integers(0, len(flat), _SAMPLED)][None], right


def _rows_of_both(node: Node, a: Array, b: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    if node.setting("transpose_a"):
        a = np.swapaxes(a, -1, -2)
    if node.setting("transpose_b") or node.function is dense:
        b = np.swapaxes(b, -1, -2)
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rows = (*lead, a.shape[-2])
    at = np.unravel_index(rng.integers(0, prod(rows), _SAMPLED), rows)
    left = np.broadcast_to(a, lead + a.shape[-2:])[at]
    return left[:, None], np.broadcast_to(b, lead + b.shape[-2:])[at[:-1]]


def _filters(graph: Graph, layer: Layer, w: Array) -> Array:
    """Weights as (groups, terms of a sum, results of a group)."""
    if layer.node.function not in CONVOLUTIONS:
        return (w.T if layer.axis == 0 else w)[None]
    if layer.axis:  # the filters are last, behind the channels
        w = np.moveaxis(w, (-1, -2), (0, 1))
    groups = _channels(graph, layer) // w.shape[1]
    return w.reshape(groups, w.shape[0] // groups, -1).swapaxes(1, 2)


def _channels(graph: Graph, layer: Layer) -> int:
    shape = graph.values[layer.operands[0]].shape
    return shape[channel_axis(layer.node, len(shape))]


def _patches(graph: Graph, layer: Layer, x: Array, groups: int, rng: np.random.Generator) -> Array:
    """The windows of some pixels, as (groups, pixels, terms of a sum)."""
    node, count = layer.node, x.ndim - 2
    x = np.moveaxis(x, channel_axis(node, x.ndim), 1)
    w = graph.values[layer.weights].shape
    kernel = w[:count] if layer.axis else w[2:]
    steps = per_dim("stride", node.setting("stride", 1), count)
    apart = per_dim("dilation", node.setting("dilation", 1), count)
    x = np.pad(x, ((0, 0), (0, 0), *pad_pairs(node.setting("padding", 0), count)))
    result = graph.values[node.outputs[0]].shape
    image = result[1:-1] if layer.axis else result[2:]
    batch, *places = (rng.integers(0, n, _SAMPLED) for n in (x.shape[0], *image))
    taps = []
    for tap in product(*map(range, kernel)):
        at = [p * s + k * d for p, s, k, d in zip(places, steps, tap, apart, strict=True)]
        taps.append(x.transpose(0, *range(2, x.ndim), 1)[(batch, *at)])  # (pixels, channels)
    windows = np.stack(taps, axis=-1).reshape(_SAMPLED, groups, -1)
    return windows.swapaxes(0, 1)
