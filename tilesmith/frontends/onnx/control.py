"""Control flow that becomes nodes: `If` those of its branch, once the condition is known; short
loops of known length their bodies, one after the other. Other loops run on the host, which
calls their compiled bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tilesmith.base.errors import GraphError, TilesmithError
from tilesmith.frontends.onnx.long_sequences import in_pieces
from tilesmith.frontends.onnx.loop_form import (
    MAX_STEPS,
    WALKS,
    LoopForm,
    body_of,
    loop_form,
    scan_form,
    scan_steps,
)
from tilesmith.frontends.onnx.model import (
    OnnxGraph,
    OnnxNode,
    concat,
    constant,
    free_names,
    identity,
    label_of,
    old,
    renamed,
    sliced,
)
from tilesmith.graph.graph import Array, Value
from tilesmith.graph.limits import LIMITS
from tilesmith.graph.program import HostStep, Program, Runner, Signature

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


MakeBody = Callable[[OnnxGraph, tuple[Signature, ...]], Program]


def loop_step(
    node: OnnxNode, make_body: MakeBody, type_of: Callable[[str], Value]
) -> HostStep | None:
    """Loop and Scan; None for other nodes."""
    if node.domain or node.op not in ("Loop", "Scan"):
        return None
    form = loop_form(node) if node.op == "Loop" else scan_form(node)
    if not form.is_loop:
        scan_steps(node, form, type_of)  # raises where the lengths differ
    outer = free_names(form.body)
    types = tuple(Signature(x, type_of(x).dtype, type_of(x).shape) for x in outer)

    def run(arrays: Sequence[Array | None], runners: Sequence[Runner]) -> list[Any]:
        given, rest = arrays[: len(node.inputs)], arrays[len(node.inputs) :]
        feeds = {x: a for x, a in zip(outer, rest, strict=True) if a is not None}
        turn = _Turn(node, form, runners[0], feeds)
        return _run_loop(turn, given) if form.is_loop else _run_scan(turn, given)

    return HostStep(
        node.name, node.op, (*node.inputs, *outer), node.outputs, run,
        bodies=(make_body(form.body, types),), reason="the host counts, its body is compiled",
    )  # fmt: skip


class _Turn:
    """One run of a loop: the values that it carries, and what it has put together so far."""

    def __init__(self, node: OnnxNode, form: LoopForm, body: Runner, outer: dict[str, Array]):
        self.node, self.form, self.body, self.outer = node, form, body, outer
        self.parts: list[list[Array]] = [[] for _ in form.gives]
        self.states: list[Array] = []

    def start(self, arrays: Sequence[Array | None]) -> None:
        for name, a in zip(self.form.states, arrays, strict=True):
            if a is None:
                raise GraphError(
                    f"{self.node}: the first value of {name or 'a state'!r} is missing"
                )
            self.states.append(np.asarray(a))

    def step(self, own: dict[str, Array]) -> dict[str, Array]:
        """Runs the body with the inputs that are its own."""
        states = dict(zip(self.form.body_states, self.states, strict=True))
        got = self.body({**self.outer, **states, **own})
        self.states = [got[x] for x in self.form.next_states]
        for made, x in zip(self.parts, self.form.parts, strict=True):
            made.append(got[x])
        return got

    def results(self) -> list[Array]:
        out = [*self.states]
        for made, strip in zip(self.parts, self.form.gives, strict=True):
            try:
                out.append(np.stack(made[::-1] if strip.is_reversed else made, strip.axis))
            except ValueError as error:
                raise GraphError(f"{self.node}: its results do not fit together: {error}") from None
        return out

    def empty(self, own: dict[str, Array]) -> list[Array]:
        """The results of a loop without steps. Only the body knows the shapes of what it would
        give, so it is run once, and what it computes is thrown away.
        """
        states = self.states
        out = [*states]
        if self.form.gives:
            try:
                self.step(own)
            except TilesmithError as error:
                raise GraphError(
                    f"{self.node} has no steps, and the shapes of its results are not known, as "
                    f"its body cannot be run: {error}"
                ) from None
            for (made,), strip in zip(self.parts, self.form.gives, strict=True):
                one = np.expand_dims(made, strip.axis)
                out.append(np.take(one, [], strip.axis % one.ndim))
        return out


def _run_loop(turn: _Turn, arrays: Sequence[Array | None]) -> list[Array]:
    count, condition = arrays[0], arrays[1]
    turn.start(arrays[2:])
    goes_on = True if condition is None else bool(np.asarray(condition).reshape(-1)[0])
    most = None if count is None else int(np.asarray(count).reshape(-1)[0])
    first, second = turn.form.body.inputs[:2]

    def own(t: int) -> dict[str, Array]:
        return {
            s.name: a.reshape((1,) if s.dims == (1,) else ())
            for s, a in ((first, np.array(t, np.int64)), (second, np.array(goes_on)))
        }

    done = 0
    while goes_on and (most is None or done < most):
        got = turn.step(own(done))
        goes_on = bool(np.asarray(got[turn.form.body.outputs[0]]).reshape(-1)[0])
        done += 1
        if done >= LIMITS.turns:
            raise GraphError(f"{turn.node} has not ended after {done} turns")
    return turn.results() if done else turn.empty(own(0))


def _run_scan(turn: _Turn, arrays: Sequence[Array | None]) -> list[Array]:
    form = turn.form
    turn.start(arrays[: len(form.states)])
    given = [np.asarray(a) for a in arrays[len(form.states) :]]
    strips = [strip for _, strip in form.takes]
    steps = given[0].shape[strips[0].axis]

    def own(t: int) -> dict[str, Array]:
        out = {}
        for x, a, (axis, is_reversed) in zip(form.body_takes, given, strips, strict=True):
            out[x] = np.take(a, steps - 1 - t if is_reversed else t, axis)
        return out

    if not steps:
        zeros = {
            x: np.zeros(np.delete(a.shape, axis), a.dtype)
            for x, a, (axis, _) in zip(form.body_takes, given, strips, strict=True)
        }
        return turn.empty(zeros)
    for t in range(steps):
        turn.step(own(t))
    return turn.results()
