"""Functions of one quantised value become tables: what a chain of element-wise operators makes of
each of the 256 bytes is computed ahead of time, if the chain is longer than a read of a table.

    to_integers(gelu(to_reals(q)))  ->  lookup(q, table)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.expr.nodes import FLOAT_FUNCTIONS, Binary, Select, Unary, children
from tilesmith.expr.walk import preorder
from tilesmith.graph.builder import node_function
from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Array, Graph, Node, Operator, Settings, Value
from tilesmith.graph.kinds import Kind, stages_of, work_of
from tilesmith.graph.shapes import Type, applied
from tilesmith.ir.evaluate import evaluate
from tilesmith.ops.quantize import lookup
from tilesmith.ops.transform import reshape

# Instructions of a chain from which on a read of a table takes less time, and of functions and
# divisions, which are several.
_WORTH = 24.0
_FUNCTION, _DIVISION = 16.0, 4.0


@dataclass(frozen=True, slots=True)
class Cone:
    """What makes a value of bytes: the nodes between it and its source, all of them element-wise or
    another shape.
    """

    source: str
    nodes: frozenset[str] = frozenset()


def byte_tables(graph: Graph) -> Graph:
    cones = _cones(graph)
    chosen = {v: c for v, c in cones.items() if _is_worth(graph, v, c)}
    if not chosen:
        return graph

    def rule(e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
        cone = chosen.get(node.outputs[0])
        if cone is None:
            return None
        table = _table(graph, node.outputs[0], cone)
        x = e.new[cone.source]
        y = e.add(lookup, x, e.constant(table))
        return e.reshape(y, graph.values[node.outputs[0]].shape)

    return edited(graph, rule)


def _cones(graph: Graph) -> dict[str, Cone]:
    """By value, for those that are a function of one value of bytes."""
    found = {x: Cone(x) for x in graph.inputs if _is_bytes(graph.values[x])}
    for node in graph.nodes:
        cone = _joined(graph, node, found)
        for x in node.outputs:
            if cone is not None:
                found[x] = cone
            elif _is_bytes(graph.values[x]):
                found[x] = Cone(x)
    return found


def _joined(graph: Graph, node: Node, found: dict[str, Cone]) -> Cone | None:
    """The cone of an element-wise node, all of whose operands come from one source."""
    if len(node.outputs) != 1:
        return None
    computed = [x for x in node.inputs if not graph.is_constant(x)]
    cones = [found.get(x) for x in computed]
    known = [c for c in cones if c is not None]
    if not known or len(known) < len(cones) or len({c.source for c in known}) > 1:
        return None
    if any(graph.constants[x].size != 1 for x in node.inputs if graph.is_constant(x)):
        return None
    nodes = frozenset({node.name}).union(*(c.nodes for c in known))
    cone = Cone(known[0].source, nodes)
    if node.function is reshape:
        return cone
    (shape,) = {graph.values[x].shape for x in node.outputs}
    same = all(graph.values[x].shape == shape for x in computed)
    work = work_of(graph, node)
    return cone if same and work.kind is Kind.ELEMENTWISE and work.pointwise else None


def _is_bytes(v: Value) -> bool:
    return v.dtype.is_int and v.dtype.bits == 8


def _is_worth(graph: Graph, value: str, cone: Cone) -> bool:
    if value == cone.source or not _is_bytes(graph.values[value]):
        return False
    nodes = (n for n in graph.nodes if n.name in cone.nodes)
    return sum(_instructions(graph, n) for n in nodes) >= _WORTH


def _instructions(graph: Graph, node: Node) -> float:
    types = tuple((graph.values[x].shape, graph.values[x].dtype) for x in node.inputs)
    return _counted(node.function, types, node.settings)


@lru_cache(maxsize=1024)
def _counted(function: Operator, types: tuple[Type, ...], settings: Settings) -> float:
    total = 0.0
    for stage in stages_of(applied(function, types, settings).outputs):
        for e in (e for v in stage.values for e in preorder(v, children)):
            match e:
                case Unary(op=op) if op in FLOAT_FUNCTIONS:
                    total += _FUNCTION
                case Binary(op="pow"):
                    total += _FUNCTION
                case Binary(op="div" | "mod"):
                    total += _DIVISION
                case Unary() | Binary() | Select():
                    total += 1
    return total


def _table(graph: Graph, value: str, cone: Cone) -> Array:
    """What the value is for each byte of its source."""
    kind = graph.values[cone.source].dtype
    live: dict[str, Array] = {cone.source: np.arange(256, dtype=np.uint8).view(kind.numpy)}
    for node in graph.nodes:
        if node.name in cone.nodes:
            arrays = [_operand(graph, live, x) for x in node.inputs]
            if node.function is reshape:
                live[node.outputs[0]] = arrays[0]
                continue
            result = evaluate(node_function(node, arrays), *arrays)
            assert not isinstance(result, tuple)
            live[node.outputs[0]] = result
    return live[value]


def _operand(graph: Graph, live: Mapping[str, Array], x: str) -> Array:
    return live[x] if x in live else graph.constants[x].reshape(())
