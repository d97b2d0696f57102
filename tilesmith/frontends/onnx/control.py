"""Control flow that becomes nodes: `If` those of its branch, once the condition is known; short
loops of known length their bodies, one after the other. Other loops are in loops.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.long_sequences import in_pieces
from tilesmith.frontends.onnx.loop_form import LoopForm, body_of, loop_form, scan_form, scan_steps
from tilesmith.frontends.onnx.model import OnnxGraph, OnnxNode
from tilesmith.frontends.onnx.new_nodes import concat, constant, identity, label_of, old, sliced
from tilesmith.frontends.onnx.rename import renamed
from tilesmith.frontends.onnx.steps import MAX_STEPS, WALKS
from tilesmith.graph.graph import Array, Value

Nodes = tuple[OnnxNode, ...]
# Loops that would become more nodes than this stay loops.
UNROLLED_NODES = 256


class Scope(Protocol):
    """What is known of the values around a node."""

    def contents(self, name: str) -> Array:
        """What a value holds; where that is known at run time only, the import stops here."""
        ...

    def known(self, name: str) -> Array | None:
        """What a constant holds."""
        ...

    def type_of(self, name: str) -> Value: ...


def spliced(node: OnnxNode, scope: Scope) -> Nodes | None:
    """The nodes that stand for control flow; None for other nodes, and for loops that stay."""
    if node.domain:
        return None
    match node.op:
        case "If":
            if len(node.inputs) != 1:
                raise GraphError(f"{node} has {len(node.inputs)} inputs; it must have a condition")
            taken = _condition(node, scope.contents(node.inputs[0]))
            return _branch(node, body_of(node, "then_branch" if taken else "else_branch"))
        case "Scan":
            form = scan_form(node)
            return _unrolled(node, form, scan_steps(node, form, scope.type_of))
        case "Loop":
            form = loop_form(node)
            steps = _known_steps(node, form, scope.known)
            return None if steps is None else _unrolled(node, form, steps)
        case "RNN" | "GRU" | "LSTM":
            return in_pieces(node, scope.known, scope.type_of)
    return None


def _condition(node: OnnxNode, a: Array) -> bool:
    if a.size != 1:
        raise GraphError(f"{node}: its condition has shape {list(a.shape)}; it must be one element")
    return bool(a.reshape(()))


def _branch(node: OnnxNode, branch: OnnxGraph) -> Nodes:
    if len(branch.outputs) < len(node.outputs):
        raise GraphError(f"{node}: a branch has {len(branch.outputs)} outputs, the node has "
                         f"{len(node.outputs)}")  # fmt: skip
    label = label_of(node)
    inner, names = _copied(branch, f"{label}/", {})
    given = tuple(
        identity(f"{node.name}/{outer}", names(x), outer)
        for x, outer in zip(branch.outputs, node.outputs, strict=False)
        if outer
    )
    return (*_constants(node, branch, names), *inner, *given)


# loops
def _known_steps(
    node: OnnxNode, form: LoopForm, known: Callable[[str], Array | None]
) -> int | None:
    """How often a Loop runs, where its count is a constant and its condition stays true."""
    count, condition = node.inputs[0], node.inputs[1]
    steps = known(count) if count else None
    first = known(condition) if condition else np.array(True)
    if steps is None or first is None or steps.size != 1 or first.size != 1:
        return None
    if not first.reshape(()):
        return 0
    return int(steps.reshape(())) if _stays_true(form) else None


def _stays_true(form: LoopForm) -> bool:
    """Whether the body hands on its condition, or says that it is true."""
    made = {n.outputs[0]: n for n in form.body.nodes if n.outputs}
    name, at = form.body.outputs[0], form.body_inputs[1]
    while name in made and made[name].op == "Identity":
        name = made[name].inputs[0]
    if name == at:
        return True
    held = form.body.initializers.get(name)
    if name in made and made[name].op == "Constant":
        held = made[name].attributes.get("value")
    return isinstance(held, np.ndarray) and held.size == 1 and bool(held.reshape(()))


def _size(body: OnnxGraph) -> int:
    """How many nodes one step is, with those that an operator along a sequence may become."""
    return max(1, sum(MAX_STEPS if n.op in WALKS else 1 for n in body.nodes))


def _unrolled(node: OnnxNode, form: LoopForm, steps: int) -> Nodes | None:
    # Of a loop without steps only the body knows what shape its results have.
    if steps < 1 or steps * _size(form.body) > UNROLLED_NODES:
        return None
    label, body = label_of(node), form.body
    states = dict(zip(form.body_states, form.states, strict=True))
    shared = {x: f"{label}/{x}" for x in body.initializers}
    out: list[OnnxNode] = [*_constants(node, body, shared.__getitem__)]
    parts: list[list[str]] = [[] for _ in form.gives]
    for t in range(steps):
        own = f"{label}/{t}/"
        names = {**states, **shared}
        if form.is_loop:
            counters = (np.array(t, np.int64), np.array(True))
            for s, a in zip(body.inputs, counters, strict=False):
                shape = (1,) if s.dims == (1,) else ()
                out.append(constant(f"{own}{s.name}", a.reshape(shape)))
                names[s.name] = f"{own}{s.name}"
        for x, (given, (axis, is_reversed)) in zip(form.body_takes, form.takes, strict=True):
            at = steps - 1 - t if is_reversed else t
            names[x] = f"{own}{x}"
            out += _taken(given, names[x], axis, at)
        inner, new = _copied(body, own, names)
        out += inner
        states = dict(zip(form.body_states, map(new, form.next_states), strict=True))
        for k, (x, (axis, _)) in enumerate(zip(form.parts, form.gives, strict=True)):
            part = f"{own}part{k}"
            out.append(old("Unsqueeze", new(x), part, 11, axes=(axis,)))
            parts[k].append(part)
    given_states = node.outputs[: len(form.states)]
    out += [
        identity(f"{node.name}/{outer}", x, outer)
        for x, outer in zip(states.values(), given_states, strict=False)
        if outer
    ]
    for outer, made, (axis, is_reversed) in zip(
        node.outputs[len(form.states) :], parts, form.gives, strict=False
    ):
        if outer:
            order = tuple(made[::-1] if is_reversed else made)
            out.append(concat(f"{node.name}/{outer}", order, outer, axis))
    return tuple(out)


# parts of the nodes above
def _copied(
    body: OnnxGraph, label: str, names: Mapping[str, str]
) -> tuple[Nodes, Callable[[str], str]]:
    """The nodes of a body with other names for all that it makes, and those names."""
    made = {x: f"{label}{x}" for n in body.nodes for x in n.outputs if x}
    made |= {x: f"{label}{x}" for x in body.initializers}
    made |= names

    def new(name: str) -> str:
        return made.get(name, name)

    return tuple(renamed(n, new, label) for n in body.nodes), new


def _constants(node: OnnxNode, body: OnnxGraph, names: Callable[[str], str]) -> Nodes:
    return tuple(constant(names(x), a) for x, a in body.initializers.items())


def _taken(given: str, made: str, axis: int, at: int) -> Nodes:
    cut = f"{made}/cut"
    return (
        sliced(given, cut, axis, at, at + 1),
        old("Squeeze", cut, made, 11, axes=(axis,)),
    )
