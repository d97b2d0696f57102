"""The type of each layer: the fastest by measured time with which the error of the whole network
stays within a bound. Errors are measured on calibration inputs, with a graph in which each layer
has every type, and in the end of the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf, isnan, nan, sqrt
from typing import Protocol

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import BFLOAT16, FLOAT16
from tilesmith.base.target import Target, cpu
from tilesmith.graph.graph import Array, Graph
from tilesmith.graph.layer_notes import LayerNote, PrecisionReport
from tilesmith.graph.model import Model
from tilesmith.graph.passes.half_precision import HalfPrecision, largest
from tilesmith.graph.pipeline import Pass, with_half_precision
from tilesmith.graph.program import Feeds
from tilesmith.graph.quantization.insert import products_of, quantized
from tilesmith.graph.quantization.layers import Layer
from tilesmith.graph.quantization.simulate import switchable
from tilesmith.tune.calibrate import Calibrated, SeenHalves

HALVES = {"float16": FLOAT16, "bfloat16": BFLOAT16}
# How much faster than in float32 each type is, where nothing can be timed.
_SPEEDS = {"float32": 1.0, "float16": 2.0, "bfloat16": 2.0, "int8": 4.0}
_WORTH = 0.98  # of the time in float32: a narrower type that gains less is not chosen
_SAMPLED = 2  # inputs on which the error of each layer is measured
_VERIFIED = 8  # inputs on which the error of the network is
_ROUNDS = 6  # of choosing again with a smaller bound
_MARGIN = 0.9
_MAX_ERROR = 0.1  # of a layer in int8, where no bound of the network is given


class Compiled(Protocol):
    """Makes a model of a graph, by passes or else by those for float32; it can run here."""

    def __call__(self, graph: Graph, passes: Sequence[Pass] | None = None) -> Model: ...


@dataclass(frozen=True)
class Chosen:
    """A graph with quantised layers, and the passes that make halves of others."""

    graph: Graph
    passes: tuple[Pass, ...]


class Chooser:
    """`kinds` are the types besides float32, `bound` that of the error of the outputs: the largest
    difference from float32 over the largest value. None is no bound.
    """

    def __init__(
        self, graph: Graph, target: Target, passes: tuple[Pass, ...], feeds: Sequence[Feeds],
        kinds: tuple[str, ...], bound: float | None, compiled: Compiled,
    ) -> None:  # fmt: skip
        self.graph, self.target, self.passes, self.feeds = graph, target, passes, feeds
        self.kinds, self.bound, self.compiled = kinds, bound, compiled
        self.found = Calibrated.of(graph, feeds, compiled)
        self.layers = self.found.layers

    def chosen(self, by_time: bool) -> Chosen:
        """The fastest types within the bound; else, the narrowest."""
        self.seconds = self._measured() if by_time else self._expected()
        kinds = self._fastest()
        if self.bound is None:
            return self._made(kinds, by_time)
        bound, errors = _MARGIN * self.bound, dict[int, float]()
        if self._error(kinds) > bound:
            errors = self._errors(kinds)
            kinds = self._within(errors, kinds, bound)
        for left in reversed(range(_ROUNDS)):
            done = self._made(kinds, by_time)
            error = self._verified(done)
            if error <= self.bound or set(kinds) == {"float32"}:
                break
            errors = errors or self._errors(kinds)
            bound *= _MARGIN * self.bound / error if left > 1 else 0.0
            kinds = self._within(errors, kinds, bound)
        return self._made(kinds, by_time, error, errors)

    # times
    def _expected(self) -> list[dict[str, float]]:
        """In proportion to the number of products."""
        return [
            {k: products_of(self.graph, one) / _SPEEDS[k] for k in ("float32", *self._usable(one))}
            for one in self.layers
        ]

    def _measured(self) -> list[dict[str, float]]:
        """Of each layer, the time of its kernels in the network: in place, as they are known or
        drafted.
        """
        if not runs_here(self.target):
            return self._expected()
        times = {"float32": self._seconds(self.compiled(self.graph))}
        for kind in self.kinds:
            kinds = [kind if kind in self._usable(x) else "float32" for x in self.layers]
            times[kind] = self._seconds(self.compiled(self._graph(kinds), self._passes(kinds)))
        return [
            {k: times[k].get(one.name, inf) for k in ("float32", *self._usable(one))}
            for one in self.layers
        ]

    def _seconds(self, model: Model) -> dict[str, float]:
        """By layer; kernels of several layers count for each in equal parts."""
        names = {one.name for one in self.layers}
        found: dict[str, float] = {}
        for kernel in model.profile(self.feeds[0]).kernels:
            own = [n for n in kernel.nodes if n in names]
            for n in own:
                found[n] = found.get(n, 0.0) + kernel.seconds / len(own)
        return found

    def _usable(self, layer: Layer) -> list[str]:
        """The types that a layer can have besides float32."""
        loss = self.found.losses.get(layer.node.name)
        fits = loss is not None and (self.bound is not None or loss.relative <= _MAX_ERROR)
        refused = {"int8": not fits, "float16": self._overflows(layer)}
        return [k for k in self.kinds if not refused.get(k)]

    @cached_property
    def _halves(self) -> SeenHalves:
        """What calibration says of the layers in float16 or bfloat16, where that is a choice."""
        half = next((HALVES[k] for k in self.kinds if k in HALVES), None)
        if half is None:
            return SeenHalves()
        return SeenHalves.of(self.graph, self.passes, self.feeds, self.compiled, half)

    def _overflows(self, layer: Layer) -> bool:
        """Whether float16 cannot hold the weights or, on the calibration inputs, the activations of
        a layer.
        """
        if "float16" not in self.kinds:
            return False
        weights = self.graph.constants.get(layer.weights, np.zeros(1))
        most = np.max(np.abs(weights), initial=0, where=np.isfinite(weights))
        return bool(most > largest(FLOAT16)) or layer.name in self._halves.near

    # errors
    @cached_property
    def _simulation(self) -> tuple[Model, str]:
        graph, name = switchable(
            self.graph, self.layers, self.kinds, self.found.scales, self.found.moves
        )
        return self.compiled(graph), name

    @cached_property
    def _right(self) -> list[Mapping[str, Array]]:
        """The outputs in float32."""
        model = self.compiled(self.graph)
        return [model(one) for one in self.feeds[:_VERIFIED]]

    def _error(self, kinds: Sequence[str], count: int = _SAMPLED) -> float:
        """Of the network, if its layers have these types."""
        model, name = self._simulation
        numbers = [0 if k == "float32" else 1 + self.kinds.index(k) for k in kinds]
        given = {name: np.array(numbers, np.int32)}
        return max(
            difference(model({**one, **given}), right)
            for one, right in zip(self.feeds[:count], self._right, strict=False)
        )

    def _errors(self, kinds: Sequence[str]) -> dict[int, float]:
        """The square of the error of the network by each narrow layer alone, by its place."""
        plain = ["float32"] * len(kinds)
        return {
            k: self._error([*plain[:k], kind, *plain[k + 1 :]]) ** 2
            for k, kind in enumerate(kinds) if kind != "float32"
        }  # fmt: skip

    def _verified(self, done: Chosen) -> float:
        """The error of the model itself."""
        model = self.compiled(done.graph, done.passes)
        return max(
            difference(model(one), right)
            for one, right in zip(self.feeds[:_VERIFIED], self._right, strict=True)
        )

    # choices
    def _fastest(self) -> list[str]:
        out = []
        for times in self.seconds:
            best = min(times, key=lambda k: times[k])
            out.append(best if times[best] < _WORTH * times["float32"] else "float32")
        return out

    def _within(self, errors: Mapping[int, float], kinds: Sequence[str], bound: float) -> list[str]:
        """Layers go back to float32, first those that lose most for the time they gain, until the
        root of the sum of the squares is within the bound.
        """
        kinds = list(kinds)
        left = {k: errors[k] for k, kind in enumerate(kinds) if kind != "float32"}

        def gain(k: int) -> float:
            return self.seconds[k]["float32"] - self.seconds[k][kinds[k]]

        order = sorted(left, key=lambda k: left[k] / max(gain(k), 1e-12), reverse=True)
        for k in order:
            if sqrt(sum(left.values())) <= bound:
                break
            del left[k]
            kinds[k] = "float32"
        return kinds

    def _lost(self, layer: Layer, kind: str) -> float:
        """What a layer alone loses by a type."""
        if kind in HALVES:
            return self._halves.errors.get(layer.name, nan)
        loss = self.found.losses.get(layer.node.name)
        return 0.0 if kind == "float32" else nan if loss is None else loss.relative

    def _shares(self, kinds: Sequence[str], errors: Mapping[int, float]) -> list[float]:
        """By the measured errors, or else by what each layer alone loses."""
        squares = []
        for k, (one, kind) in enumerate(zip(self.layers, kinds, strict=True)):
            own = errors.get(k, nan) if errors else self._lost(one, kind) ** 2
            squares.append(0.0 if kind == "float32" else own)
        whole = sum(squares)
        return [s / whole if whole else 0.0 for s in squares]

    # the result
    def _graph(self, kinds: Sequence[str]) -> Graph:
        narrow = [x for x, k in zip(self.layers, kinds, strict=True) if k == "int8"]
        if not narrow:
            return self.graph
        return quantized(self.graph, narrow, self.found.scales, self.found.moves)

    def _passes(self, kinds: Sequence[str]) -> tuple[Pass, ...]:
        """With the one that makes halves of those layers that shall be."""
        half = next((k for k in kinds if k in HALVES), None)
        if half is None:
            return self.passes
        wide = (x.name for x, k in zip(self.layers, kinds, strict=True) if k != half)
        narrow = HalfPrecision(HALVES[half], frozenset(wide), self._halves.beyond)
        return with_half_precision(self.passes, narrow)

    def _made(
        self, kinds: Sequence[str], by_time: bool, error: float = nan,
        errors: Mapping[int, float] | None = None,
    ) -> Chosen:  # fmt: skip
        shares = self._shares(kinds, errors or {})
        notes = tuple(
            self._note(k, kind, share, by_time)
            for k, (kind, share) in enumerate(zip(kinds, shares, strict=True))
        )
        report = PrecisionReport(notes, error, self.bound)
        graph = replace(self._graph(kinds), checks=self.graph.checks, precision=report)
        return Chosen(graph, self._passes(kinds))

    def _note(self, k: int, kind: str, share: float, by_time: bool) -> LayerNote:
        layer = self.layers[k]
        loss = self.found.losses.get(layer.node.name)
        lost = nan if loss is None else loss.relative
        error = self._lost(layer, kind)
        seconds = self.seconds[k][kind] if by_time and runs_here(self.target) else nan
        why = self._why(k, lost) if kind == "float32" else ""
        return LayerNote(layer.name, kind, error, share, seconds, why)

    def _why(self, k: int, lost: float) -> str:
        """What kept a layer in float32."""
        if self._overflows(self.layers[k]) and len(self.seconds[k]) == 1:
            return f"numbers beyond {largest(FLOAT16):.6g}"
        if self.kinds == ("int8",) and isnan(lost):
            return self.found.obstacle(self.layers[k])
        if self.kinds == ("int8",) and len(self.seconds[k]) == 1:
            return f"int8 would lose {lost:.2g}"
        if min(self.seconds[k].values()) >= _WORTH * self.seconds[k]["float32"]:
            return "nothing is faster"
        return "for the bound of the error"


def runs_here(target: Target) -> bool:
    """Whether what is timed here says how fast it is on the target."""
    return target.kind != "cpu" or target == cpu(1).with_cores(target.num_cores)


def difference(got: Mapping[str, Array], right: Mapping[str, Array]) -> float:
    """The largest over the outputs of floats: the largest difference over the largest value."""
    worst = 0.0
    for name, want in right.items():
        if want.dtype.kind != "f" or not want.size:
            continue
        wide = want.astype(np.float64)
        known = np.isfinite(wide)
        most = np.abs(wide).max(initial=0, where=known)
        with np.errstate(all="ignore"):
            apart = np.where(known, np.abs(got[name].astype(np.float64) - wide), 0.0)
        off = float(apart.max()) if np.isfinite(apart).all() else inf
        worst = max(worst, off / most if most else (inf if off else 0.0))
    return worst
