"""Calibration: a model in float32 and typical inputs in; its layers, the scales of what they read,
and what each alone loses out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT32, DType
from tilesmith.base.errors import ArgumentError, GraphError
from tilesmith.graph.graph import Array, Graph, rebuilt
from tilesmith.graph.layer_notes import LayerNote
from tilesmith.graph.passes.affine import bias_apart
from tilesmith.graph.passes.batch_norm import fold_batch_norm
from tilesmith.graph.passes.half_precision import largest
from tilesmith.graph.passes.patterns import exporters_patterns
from tilesmith.graph.pipeline import Pass, before_halves, run_passes
from tilesmith.graph.program import Feeds, Program, Signature
from tilesmith.graph.quantization.layers import Layer, Movements, layers_of, scales_of, sources_of
from tilesmith.graph.quantization.loss import Loss
from tilesmith.graph.quantization.scales import Extremes, Range, Scale
from tilesmith.graph.quantization.simulate import losses_in
from tilesmith.graph.stages import checked_feeds
from tilesmith.ops.quantize import dequantize, quantize
from tilesmith.tune.specialise import known_graphs

_SAMPLED = 8  # inputs on which the losses of layers are computed, at most
Run = Callable[[Feeds], Mapping[str, Array]]
Compile = Callable[[Graph], Run]
CompilePasses = Callable[[Graph, Sequence[Pass]], Run]


def plain_graph(graph: Graph | Program) -> Graph:
    """The one graph of a model in float32, with norms of a batch in its weights."""
    graphs = known_graphs(graph)
    if len(graphs) != 1:
        raise GraphError(
            f"{graph.name} has {len(graphs)} stages, because some nodes run on the host; models "
            "of one stage can be quantised"
        )
    if is_quantized(graphs[0]):
        raise GraphError(f"{graph.name} is quantised already; give the model in float32")
    named = (replace(n, origin=n.origin or n.name) for n in graphs[0].nodes)
    plain = replace(graphs[0], nodes=tuple(named))
    return run_passes(plain, (bias_apart, exporters_patterns, fold_batch_norm))


def is_quantized(graph: Graph) -> bool:
    return any(n.function in (quantize, dequantize) for n in graph.nodes)


def checked_calibration(graph: Graph, calibration: Sequence[Mapping[str, Any]]) -> list[Feeds]:
    values = [graph.values[x] for x in graph.inputs]
    inputs = tuple(Signature(v.name, v.dtype, v.shape) for v in values)
    if not len(calibration):
        names = ", ".join(f"{s.name!r}: array" for s in inputs)
        raise ArgumentError(
            f"calibration of {graph.name} is empty; give some typical inputs, as [{{{names}}}]"
        )
    feeds: list[Feeds] = []
    for k, given in enumerate(calibration):
        arrays = checked_feeds(inputs, given, f"calibration[{k}] of {graph.name}")
        for name, a in arrays.items():
            if a.dtype.kind == "f" and not np.isfinite(a).all():
                raise ArgumentError(
                    f"calibration[{k}] of {graph.name}: input {name!r} holds numbers that are not "
                    "finite; give typical inputs"
                )
        feeds.append(arrays)
    return feeds


@dataclass(frozen=True)
class Calibrated:
    """What calibration says of a graph in float32: its layers, the scale of each set of values
    that only move, and what each layer alone loses.
    """

    graph: Graph
    layers: tuple[Layer, ...]
    moves: Movements
    scales: Mapping[str, Scale]
    losses: Mapping[str, Loss]  # by the name of the node
    zero: frozenset[str]  # values that were 0 throughout

    @staticmethod
    def of(
        graph: Graph, feeds: Sequence[Feeds], compiled: Compile, percentile: float = 100.0
    ) -> Calibrated:
        layers, moves = layers_of(graph), Movements(graph)
        operands = tuple(dict.fromkeys(x for one in layers for x in one.operands))
        sources = tuple(dict.fromkeys(s for x in operands for s in sources_of(graph, x)))
        ends = {x: Extremes(percentile, len(feeds)) for x in dict.fromkeys((*operands, *sources))}
        run = InsideOf(graph, tuple(ends), compiled)
        for arrays in run(feeds):
            for x, end in ends.items():
                end.add(arrays[x])
        ranges: dict[str, Range] = {x: end.range() for x, end in ends.items()}
        scales = scales_of(layers, moves, ranges)
        losses: dict[str, Loss] = {}
        for one in layers:
            own = tuple(scales.get(moves.name(x)) for x in one.operands)
            if None not in own:
                losses[one.node.name] = Loss(graph, one, own)  # type: ignore[arg-type]
        for arrays in run(feeds[:: -(-len(feeds) // _SAMPLED)]):
            for loss in losses.values():
                loss.add(tuple(arrays[x] for x in loss.layer.operands))
        zero = frozenset(x for x, r in ranges.items() if r.is_zero)
        return Calibrated(graph, layers, moves, scales, losses, zero)

    def obstacle(self, layer: Layer) -> str:
        """Why a layer without a loss cannot have integers."""
        is_zero = not self.zero.isdisjoint(layer.operands)
        return f"its inputs are {'all 0' if is_zero else 'not finite'} on the calibration inputs"

    def note(self, layer: Layer, max_error: float, keep: Sequence[str]) -> LayerNote:
        loss = self.losses.get(layer.node.name)
        if loss is None:
            return LayerNote(layer.name, "float32", 0.0, why=self.obstacle(layer))
        if layer.name in keep:
            return LayerNote(layer.name, "float32", loss.relative)
        if loss.relative > max_error:
            why = f"int8 would lose {loss.relative:.2g}, more than {max_error:g}"
            return LayerNote(layer.name, "float32", loss.relative, why=why)
        return LayerNote(layer.name, "int8", loss.relative)


class InsideOf:
    """Runs a graph and gives some of its values, those inside too."""

    def __init__(self, graph: Graph, wanted: Sequence[str], compiled: Compile) -> None:
        self._graph, self._wanted = graph, wanted
        inside = [x for x in wanted if x not in graph.inputs and not graph.is_constant(x)]
        shown = rebuilt(graph, graph.nodes, outputs=tuple((x, x) for x in inside), checks=())
        self._model = compiled(shown) if inside else None

    def __call__(self, feeds: Sequence[Feeds]) -> Iterator[Mapping[str, Array]]:
        known = {x: self._graph.constants[x] for x in self._wanted if self._graph.is_constant(x)}
        for one in feeds:
            inside = {} if self._model is None else self._model(one)
            yield {**known, **one, **inside}


@dataclass(frozen=True)
class SeenHalves:
    """What calibration says of a model in float16 or bfloat16: the values that the type cannot
    hold, as the passes before the one that makes halves name them; the nodes of the model that read
    or make them; and by its name, what each other layer alone loses (see `LayerNote.error`).
    """

    beyond: frozenset[str] = frozenset()
    near: frozenset[str] = frozenset()
    errors: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(
        graph: Graph, passes: Sequence[Pass], feeds: Sequence[Feeds], compiled: CompilePasses,
        half: DType,
    ) -> SeenHalves:  # fmt: skip
        done = run_passes(graph, passes[: before_halves(passes)])
        floats = [
            x for x, v in done.values.items() if v.dtype is FLOAT32 and not done.is_constant(x)
        ]
        found: set[str] = set()
        for arrays in InsideOf(done, floats, lambda one: compiled(one, ()))(feeds):
            for x in floats:
                size = np.abs(arrays[x])
                if size.max(initial=0, where=np.isfinite(size)) > largest(half):
                    found.add(x)
        near = (n for n in done.nodes if not found.isdisjoint((*n.inputs, *n.outputs)))
        names = frozenset(n.origin or n.name for n in near)
        layers = [x for x in layers_of(done) if x.name not in names]
        return SeenHalves(
            frozenset(found), names, _losses_of_halves(done, layers, feeds, compiled, half)
        )


def _losses_of_halves(
    graph: Graph, layers: Sequence[Layer], feeds: Sequence[Feeds], compiled: CompilePasses,
    half: DType,
) -> dict[str, float]:  # fmt: skip
    if not layers:
        return {}
    model = compiled(losses_in(graph, layers, half.name), ())
    sums = np.zeros((2, len(layers)))
    for one in feeds[:: -(-len(feeds) // _SAMPLED)]:
        found = model(one)
        sums += [found["errors"], found["results"]]
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.sqrt(sums[0] / sums[1])
    return dict(zip((x.name for x in layers), map(float, relative), strict=True))


def warn_of_kept(model: str, kept: Sequence[LayerNote], stacklevel: int) -> None:
    """`kept` are layers that stay in float32, with a reason."""
    if kept:
        text = "; ".join(f"{n.name} ({n.why})" for n in kept)
        warnings.warn(f"{model}: {len(kept)} layers stay in float32: {text}", stacklevel=stacklevel)
