"""Checks a model before any node is read: its versions are known, every name is defined once, and
producers come before their consumers; and that each operator, also in bodies and functions, can
run: it has an importer, is a function, or runs on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import onnx

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.call import OnHost
from tilesmith.frontends.onnx.convert import text
from tilesmith.frontends.onnx.functions import Function, is_function, key_of, nodes_of_function
from tilesmith.frontends.onnx.host import host_step
from tilesmith.frontends.onnx.loop_form import body_of, loop_form, scan_form
from tilesmith.frontends.onnx.model import OnnxGraph, OnnxNode, reads_of
from tilesmith.frontends.onnx.operators import importer_of

OLDEST_OPSET = 6


def opsets_of(proto: onnx.ModelProto) -> dict[str, int]:
    """The version of each domain that a model uses; "" is ONNX's own."""
    if not proto.HasField("graph"):
        raise GraphError("it is no ONNX model: it has no graph")
    if proto.ir_version > onnx.IR_VERSION:
        raise GraphError(
            f"it is of IR version {proto.ir_version}; the installed onnx package knows versions up "
            f"to {onnx.IR_VERSION}"
        )
    if not proto.opset_import:
        raise GraphError("it does not say which opset it is written for")
    opsets: dict[str, int] = {}
    for o in proto.opset_import:
        domain = "" if o.domain == "ai.onnx" else text(o.domain)
        if opsets.setdefault(domain, o.version) != o.version:
            raise GraphError(f"it imports two versions of the domain {domain or 'ai.onnx'!r}")
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST_OPSET <= opsets.get("", newest) <= newest:
        raise GraphError(
            f"it is written for opset {opsets['']}; opsets {OLDEST_OPSET} to {newest} are known"
        )
    return opsets


def checked(graph: OnnxGraph, outer: frozenset[str] = frozenset()) -> OnnxGraph:
    """The graph with its nodes in order. `outer` are the names that an enclosing graph makes."""
    known = _known(graph)
    made_by: dict[str, OnnxNode] = {}
    for node in graph.nodes:
        if not node.op:
            raise GraphError(f"the node {node.name!r} does not say which operator it is")
        for x in node.outputs:
            if not x:
                continue
            if x in known or x in made_by:
                other = f"{made_by[x]}" if x in made_by else "an input or initializer"
                raise GraphError(f"{node} makes the value {x!r}, which {other} makes already")
            made_by[x] = node
    for node in graph.nodes:
        for x in reads_of(node):
            if x not in known and x not in made_by and x not in outer:
                raise GraphError(f"{node} reads {x!r}, which nothing makes")
    for x in graph.outputs:
        if x not in known and x not in made_by and x not in outer:
            raise GraphError(f"nothing makes the output {x!r}")
    nodes = _in_order(graph.nodes, made_by)
    names = outer | known | made_by.keys()
    return replace(graph, nodes=tuple(_with_checked_bodies(n, names) for n in nodes))


def _known(graph: OnnxGraph) -> set[str]:
    names = [s.name for s in graph.inputs]
    for what, given in (("input", names), ("output", graph.outputs)):
        if what == "input" and "" in given:
            raise GraphError(f"an {what} has no name")
        if len(set(given)) != len(given):
            twice = next(x for x in given if given.count(x) > 1)
            raise GraphError(f"two {what}s are called {twice!r}")
    return {*names, *graph.initializers}


def _in_order(nodes: tuple[OnnxNode, ...], made_by: Mapping[str, OnnxNode]) -> Sequence[OnnxNode]:
    """Producers first; nodes that are in order already stay where they are."""
    ordered: list[OnnxNode] = []
    state: dict[int, int] = {}  # 1 while what a node needs is looked at, 2 when it is in order
    for first in nodes:
        stack = [first]
        while stack:
            node = stack[-1]
            if id(node) not in state:
                state[id(node)] = 1
                for x in reads_of(node):
                    need = made_by.get(x)
                    if need is None or state.get(id(need)) == 2:
                        continue
                    if state.get(id(need)) == 1:
                        raise GraphError(f"{node} reads {x!r}, which is made from its own result")
                    stack.append(need)
                continue
            stack.pop()
            if state[id(node)] == 1:
                state[id(node)] = 2
                ordered.append(node)
    return ordered


def _with_checked_bodies(node: OnnxNode, names: frozenset[str]) -> OnnxNode:
    bodies = {k: checked(v, names) for k, v in node.attributes.items() if isinstance(v, OnnxGraph)}
    return replace(node, attributes={**node.attributes, **bodies}) if bodies else node


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
