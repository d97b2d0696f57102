"""Checks when a model is loaded that each of its operators, also in bodies and functions, can run:
that it has an importer, is a function, or runs on the host.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilesmith.frontends.onnx.call import OnHost
from tilesmith.frontends.onnx.functions import Function, is_function, key_of, nodes_of_function
from tilesmith.frontends.onnx.host import host_step
from tilesmith.frontends.onnx.loop_form import body_of, loop_form, scan_form
from tilesmith.frontends.onnx.model import OnnxGraph, OnnxNode
from tilesmith.frontends.onnx.operators import importer_of

_CONTROL = ("If", "Loop", "Scan")


def require_runnable(graph: OnnxGraph) -> None:
    """Raises for the first node that nothing can run."""
    seen: set[tuple[str, str, int]] = set()
    functions: set[int] = set()
    queue = [graph.nodes]
    while queue:
        for node in queue.pop():
            queue += [body.nodes for body in _bodies(node)]
            called = _called(node, graph)
            if called is not None:
                if id(called) not in functions:
                    functions.add(id(called))
                    queue.append(nodes_of_function(called))
                continue
            if not node.domain and node.op in _CONTROL:
                _require_form(node)
                continue
            key = (node.domain, node.op, node.version)
            if key not in seen:
                seen.add(key)
                _require(node, graph)


def _called(node: OnnxNode, graph: OnnxGraph) -> Function | None:
    found: Function | None = graph.functions.get(key_of(node))
    return found


def _bodies(node: OnnxNode) -> Iterator[OnnxGraph]:
    for v in node.attributes.values():
        for g in v if isinstance(v, tuple) else (v,):
            if isinstance(g, OnnxGraph):
                yield g


def _is_open(node: OnnxNode) -> bool:
    """Whether it is of a function, and gets attributes from its caller."""
    return node.proto is not None and any(a.ref_attr_name for a in node.proto.attribute)


def _require_form(node: OnnxNode) -> None:
    if _is_open(node):
        return
    match node.op:
        case "If":
            for name in ("then_branch", "else_branch"):
                body_of(node, name)
        case "Loop":
            loop_form(node)
        case _:
            scan_form(node)


def _require(node: OnnxNode, graph: OnnxGraph) -> None:
    if is_function(node, graph) or _is_open(node):
        return
    importer = importer_of(node, graph)
    if importer is None or isinstance(importer, OnHost):
        why = "no kernel is known for it" if importer is None else importer.why
        host_step(node, why)  # raises where there is no such operator
