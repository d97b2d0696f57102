"""The types in which a model's products are computed: which there are, what the machine has
instructions for, and the graph and passes that follow from one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilesmith.base.dataclass import dataclass
from tilesmith.base.errors import ArgumentError, GraphError
from tilesmith.base.target import Target
from tilesmith.graph.graph import Graph
from tilesmith.graph.passes.half_precision import HalfPrecision
from tilesmith.graph.pipeline import Pass, with_half_precision, with_tf32
from tilesmith.graph.program import Program
from tilesmith.schedule.rounding import TF32_ERROR
from tilesmith.tune.calibrate import (
    SeenHalves,
    checked_calibration,
    is_quantized,
    plain_graph,
    warn_of_kept,
)
from tilesmith.tune.precision_choice import HALVES, Chooser, Compiled
from tilesmith.tune.specialise import known_graphs

PRECISIONS = ("float32", "tf32", "float16", "bfloat16", "int8", "auto")
AUTO_ACCURACY = 1e-2  # of precision="auto" if none is asked for


@dataclass(frozen=True)
class Settled:
    """A model in the types that were asked for: `passes` make the rest of it. `accuracy` is that of
    the kernels.
    """

    graph: Graph | Program
    passes: tuple[Pass, ...]
    accuracy: float | None = None


def is_faster(precision: str, target: Target) -> bool:
    """Whether a machine computes products in a type faster than in float32."""
    if target.kind != "cpu":
        return precision in ("int8", "tf32", *HALVES) and target.gpu.warp_products
    machine, features = target.machine, target.features
    tiles = machine.tiles is not None and machine.tiles.feature in features
    match precision:
        case "int8":
            return tiles or bool(machine.byte_dots(features))
        case "bfloat16":
            return (tiles and "amxbf16" in features) or machine.multiplies(precision, features)
        case "float16":
            return "fp16" in features
    return False


def require_precision(precision: Any, target: Target, who: str) -> None:
    """An error for an unknown precision, and for one that a machine cannot compute with."""
    if precision not in PRECISIONS:
        known = ", ".join(map(repr, PRECISIONS))
        raise GraphError(f"{who}(precision={precision!r}) is unknown; give one of {known}")
    if precision == "float16" and target.kind == "cpu" and not target.features & {"fp16", "f16c"}:
        raise GraphError(
            f'{who}(precision="float16"): {target.name} has no instructions for '
            'half precision (fp16 or f16c); leave precision="float32"'
        )


def of_operator(
    precision: Any, target: Target, accuracy: float | None, who: str
) -> float | None:  # fmt: skip
    """The accuracy of one operator whose products are computed in this type."""
    if precision == "float32":
        return accuracy
    require_precision(precision, target, who)
    if precision != "tf32":
        raise GraphError(
            f"{who}(precision={precision!r}): an operator is computed in the types of its tensors, "
            'or float32 in "tf32"; make its placeholders of another dtype'
        )
    _tell_if_slow(precision, target, who, 6)
    return _of_tf32(target, accuracy, who)


def _of_tf32(target: Target, accuracy: float | None, who: str) -> float | None:
    """An accuracy that instructions with TF32 have, where there are any."""
    if not is_faster("tf32", target):
        return accuracy
    if accuracy is not None and accuracy < TF32_ERROR:
        raise ArgumentError(
            f'{who}(precision="tf32", accuracy={accuracy}): products of TF32 have an error of up '
            f'to {TF32_ERROR:.2g}; leave accuracy out, or precision="float32"'
        )
    return accuracy or TF32_ERROR


def settled(
    graph: Graph | Program, target: Target, precision: str, passes: Sequence[Pass],
    accuracy: float | None, calibration: Sequence[Mapping[str, Any]], compiled: Compiled, who: str,
) -> Settled:  # fmt: skip
    """`compiled` makes a model of a graph and passes, and runs it where calibration can."""
    require_precision(precision, target, who)
    _tell_if_slow(precision, target, who, 6)
    plain = Settled(graph, tuple(passes), accuracy)
    match precision:
        case "float16" | "bfloat16":
            narrow = HalfPrecision(HALVES[precision])
            if calibration:
                feeds = checked_calibration(one := _single(graph), calibration)
                seen = SeenHalves.of(one, passes, feeds, compiled, narrow.dtype)
                errors = tuple(seen.errors.items())
                narrow = replace(narrow, beyond=seen.beyond, errors=errors)
            return replace(plain, passes=with_half_precision(passes, narrow))
        case "tf32" if is_faster(precision, target):
            own = _of_tf32(target, accuracy, who)
            plain = replace(plain, passes=with_tf32(passes), accuracy=own)
        case "int8" | "auto" if not _is_quantized(graph):
            return _chosen(plain, target, precision, calibration, compiled, who)
    if calibration and precision not in ("int8", "auto"):
        raise ArgumentError(
            f'{who}(calibration=...) is for precision="float16", "bfloat16", "int8" and "auto"; '
            f"the precision is {precision!r}"
        )
    return plain


def _tell_if_slow(precision: str, target: Target, who: str, stacklevel: int) -> None:
    if precision in ("float32", "auto") or is_faster(precision, target):
        return
    what = {
        "float16": "products are computed in float32, and only memory is saved",
        "bfloat16": "products are computed in float32, and only memory is saved",
        "int8": "products of integers take longer than those of float32",
        "tf32": "products are computed in float32",
    }[precision]
    if precision == "int8" and target.kind != "cpu":
        what = "products are computed in float32"
    warnings.warn(
        f"{who}(precision={precision!r}): {target.name} has no faster products of {precision} than "
        f"of float32: {what}",
        stacklevel=stacklevel,
    )


def _is_quantized(graph: Graph | Program) -> bool:
    """Whether it is a model with quantize nodes, as exporters write one."""
    return isinstance(graph, Graph) and is_quantized(graph)


def _single(graph: Graph | Program) -> Graph:
    graphs = known_graphs(graph)
    if len(graphs) != 1:
        raise GraphError(
            f"{graph.name} has {len(graphs)} stages, because some nodes run on the host; models "
            "of one stage can be calibrated"
        )
    return graphs[0]


def _chosen(
    plain: Settled, target: Target, precision: str, calibration: Sequence[Mapping[str, Any]],
    compiled: Compiled, who: str,
) -> Settled:  # fmt: skip
    if precision == "int8" and target.kind != "cpu" and not is_faster("int8", target):
        return plain
    half = next((t for t in ("bfloat16", "float16") if is_faster(t, target)), "")
    fast = tuple(t for t in ("int8", half) if t and is_faster(t, target))
    kinds = fast if precision == "auto" else ("int8",)
    if not kinds:
        return plain
    if not calibration:
        inputs = plain.graph.inputs if isinstance(plain.graph, Graph) else ()
        given = ", ".join(f"{x!r}: array" for x in inputs) or "..."
        text = (
            f"{who}(precision={precision!r}) takes typical inputs, from which it sees what is "
            f"lost: give calibration=[{{{given}}}, ...] (--calibration FILE.npz)"
        )
        if precision == "int8":
            raise ArgumentError(text)
        warnings.warn(f"{text}; without them all is computed in float32", stacklevel=7)
        return plain
    graph = plain_graph(plain.graph)
    feeds = checked_calibration(graph, calibration)
    bound = plain.accuracy if precision == "int8" else plain.accuracy or AUTO_ACCURACY
    chooser = Chooser(graph, target, plain.passes, feeds, kinds, bound, compiled)
    made = chooser.chosen(by_time=precision == "auto")
    if precision == "int8":
        warn_of_kept(graph.name, [n for n in made.graph.layers if n.why], 7)
    return Settled(made.graph, made.passes)
