"""Loops that are not unrolled: the host counts iterations, keeps the carried values and stacks the
outputs; the body is a Program, which is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilesmith.base.errors import GraphError, TilesmithError
from tilesmith.frontends.onnx.loop_form import LoopForm, loop_form, scan_form, scan_steps
from tilesmith.frontends.onnx.model import OnnxGraph, OnnxNode
from tilesmith.frontends.onnx.scope import free_names
from tilesmith.graph.graph import Array, Value
from tilesmith.graph.limits import LIMITS
from tilesmith.graph.program import HostStep, Program, Runner, Signature

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
