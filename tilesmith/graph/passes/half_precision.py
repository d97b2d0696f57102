"""Half precision: float32 weights and activations become float16, and are cast at the borders, so
that a caller sees the dtypes of the model. Sums stay in float32 where an operator sums in it
(`ops/precision.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilesmith.base.dtype import FLOAT16, FLOAT32
from tilesmith.base.errors import GraphError, TilesmithError
from tilesmith.base.machine_name import machine_name
from tilesmith.base.target import Target
from tilesmith.graph.edit import Editor
from tilesmith.graph.graph import Array, Graph, Node, Value
from tilesmith.ops.elementwise import cast

PRECISIONS = ("float32", "float16")
_LARGEST = float(np.finfo(np.float16).max)


def require_precision(precision: Any, target: Target, who: str) -> None:
    """An error for an unknown precision, and for one that a machine cannot compute with."""
    if precision not in PRECISIONS:
        known = " or ".join(map(repr, PRECISIONS))
        raise GraphError(f"{who}(precision={precision!r}) is unknown; give {known}")
    if precision == "float16" and target.kind == "cpu" and not target.features & {"fp16", "f16c"}:
        raise GraphError(
            f'{who}(precision="float16"): {machine_name(target)} has no instructions for '
            'half precision (fp16 or f16c); leave precision="float32"'
        )


def half_precision(graph: Graph) -> Graph:
    e = Editor(graph)
    for x in graph.inputs:
        e.set(x, _narrow(e, e.new[x]))
    for x, a in graph.constants.items():
        if a.dtype == np.float32:
            e.set(x, e.constant(_rounded(a), x))
    for node in graph.nodes:
        e.node = node
        result = _kept(e, node, tuple(e.new[x] for x in node.inputs))
        several = result if isinstance(result, tuple) else (result,)
        for old, new in zip(node.outputs, several, strict=True):
            e.set(old, _narrow(e, new))
        e.done.add(node.name)
    e.node = None
    outputs = {}
    for name, value in graph.outputs:
        new = e.new[value]
        wanted = graph.values[value].dtype
        outputs[name] = new if new.dtype is wanted else e.add(cast, new, dtype=wanted.name)
    return e.builder.finish(outputs)


def _kept(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Any:
    """The node on half precision; one that does not take it computes in float32."""
    try:
        return e.kept(node, inputs)
    except TilesmithError:
        wide = [e.add(cast, v, dtype="float32") if v.dtype is FLOAT16 else v for v in inputs]
        return e.kept(node, tuple(wide))


def _narrow(e: Editor, v: Value) -> Value:
    if v.dtype is not FLOAT32:
        return v
    out: Value = e.add(cast, v, dtype="float16")
    return out


def _rounded(a: Array) -> Array:
    """Finite numbers stay finite: a mask of -1e9 must not become an infinity."""
    limited = np.where(np.isfinite(a), np.clip(a, -_LARGEST, _LARGEST), a)
    return np.asarray(limited.astype(np.float16))
