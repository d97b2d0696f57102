"""Which values a node reads, including those that bodies of control flow read from outside."""

from __future__ import annotations

from tilesmith.frontends.onnx.model import OnnxGraph, OnnxNode


def reads_of(node: OnnxNode) -> tuple[str, ...]:
    """What a node reads, the bodies of control flow included."""
    names = dict.fromkeys(x for x in node.inputs if x)
    for v in node.attributes.values():
        if isinstance(v, OnnxGraph):
            names.update(dict.fromkeys(free_names(v)))
    return tuple(names)


def free_names(graph: OnnxGraph) -> tuple[str, ...]:
    """The values of enclosing graphs that a body reads. A name is made once, so what the body
    makes anywhere is its own.
    """
    own = {s.name for s in graph.inputs} | set(graph.initializers)
    own.update(x for node in graph.nodes for x in node.outputs)
    free = dict.fromkeys(x for node in graph.nodes for x in reads_of(node) if x not in own)
    free.update(dict.fromkeys(x for x in graph.outputs if x not in own))
    return tuple(free)
