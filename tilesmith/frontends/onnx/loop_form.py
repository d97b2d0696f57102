"""A common form of Loop and Scan: carried values, sliced inputs and stacked outputs. And how many
steps of an operator along a sequence become nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.call import Call, RunOnHost
from tilesmith.frontends.onnx.model import OnnxGraph, OnnxNode
from tilesmith.graph.graph import Value


class Strip(NamedTuple):
    """A tensor that a Scan takes apart, or that a loop puts together: along which axis, and whether
    from its end.
    """

    axis: int
    is_reversed: bool


class LoopForm(NamedTuple):
    """Loop and Scan alike. The body's inputs are `counters` of them for Loop's own, one for each
    of `states`, one for each of `takes`; its outputs are Loop's condition, the states, and one for
    each of `gives`.
    """

    body: OnnxGraph
    is_loop: bool
    states: tuple[str, ...]  # their first values
    takes: tuple[tuple[str, Strip], ...]
    gives: tuple[Strip, ...]

    @property
    def body_inputs(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.body.inputs)

    @property
    def body_states(self) -> tuple[str, ...]:
        first = 2 * self.is_loop
        return self.body_inputs[first : first + len(self.states)]

    @property
    def body_takes(self) -> tuple[str, ...]:
        return self.body_inputs[2 * self.is_loop + len(self.states) :]

    @property
    def next_states(self) -> tuple[str, ...]:
        return self.body.outputs[self.is_loop :][: len(self.states)]

    @property
    def parts(self) -> tuple[str, ...]:
        """The elements of what the loop puts together."""
        return self.body.outputs[self.is_loop :][len(self.states) :]


def loop_form(node: OnnxNode) -> LoopForm:
    body, states = body_of(node), node.inputs[2:]
    gives = len(body.outputs) - 1 - len(states)
    if len(body.inputs) != 2 + len(states) or gives < 0:
        raise GraphError(
            f"{node} carries {len(states)} values, but its body has {len(body.inputs)} inputs and "
            f"{len(body.outputs)} outputs"
        )
    _check_outputs(node, len(states) + gives)
    return LoopForm(body, True, states, (), (Strip(0, False),) * gives)


def scan_form(node: OnnxNode) -> LoopForm:
    if node.version < 9:
        raise GraphError(
            f"{node} is of opset {node.version}, where Scan has a batch; opset 9 and later work"
        )
    body, count = body_of(node), node.attributes.get("num_scan_inputs")
    if not isinstance(count, int) or not 0 < count <= len(node.inputs):
        raise GraphError(f"{node}: num_scan_inputs is {count!r}; it has {len(node.inputs)} inputs")
    states, scanned = node.inputs[:-count], node.inputs[-count:]
    gives = len(body.outputs) - len(states)
    if len(body.inputs) != len(node.inputs) or gives < 0:
        raise GraphError(
            f"{node} has {len(node.inputs)} inputs and {len(states)} states, but its body has "
            f"{len(body.inputs)} inputs and {len(body.outputs)} outputs"
        )
    _check_outputs(node, len(body.outputs))
    takes = zip(scanned, _sequences(node, "input", count), strict=True)
    return LoopForm(body, False, states, tuple(takes), _sequences(node, "output", gives))


def _check_outputs(node: OnnxNode, count: int) -> None:
    if len(node.outputs) > count:
        raise GraphError(f"{node} has {len(node.outputs)} outputs, but its body gives {count}")


def _sequences(node: OnnxNode, side: str, count: int) -> tuple[Strip, ...]:
    axes = node.attributes.get(f"scan_{side}_axes", (0,) * count)
    turned = node.attributes.get(f"scan_{side}_directions", (0,) * count)
    if len(axes) != count or len(turned) != count:
        raise GraphError(f"{node}: there must be {count} of scan_{side}_axes and _directions")
    return tuple(Strip(a, bool(t)) for a, t in zip(axes, turned, strict=True))


def scan_steps(node: OnnxNode, form: LoopForm, type_of: Callable[[str], Value]) -> int:
    lengths = set()
    for name, (axis, _) in form.takes:
        v = type_of(name)
        if not -len(v.shape) <= axis < len(v.shape):
            raise GraphError(f"{node}: axis {axis} does not exist in {v}")
        lengths.add(v.shape[axis])
    if len(lengths) > 1:
        raise GraphError(f"{node}: what it scans has different lengths: {sorted(lengths)}")
    return lengths.pop()


def body_of(node: OnnxNode, name: str = "body") -> OnnxGraph:
    body = node.attributes.get(name)
    if not isinstance(body, OnnxGraph):
        raise GraphError(f"{node} has no graph {name!r}")
    return body


# Each step is some kernels of its own, which all have to be built and called.
MAX_STEPS = 128
# Operators that walk along a sequence.
WALKS = ("RNN", "GRU", "LSTM", "LinearAttention")


def need_few_steps(call: Call, count: int) -> None:
    """Leaves a long sequence to the host."""
    if count > MAX_STEPS:
        raise RunOnHost(
            f"its sequence has {count} steps; up to {MAX_STEPS} become nodes of the graph"
        )
    if count < 1:
        call.refuse("its sequence is empty")
