"""RNN, GRU and LSTM over many steps: rewrites a node so that it runs in pieces of a few steps.

The first piece is a node like the given one. The others are the iterations of a Scan, whose body is
a node for one piece, so that a long sequence needs no more kernels than a short one:

    LSTM x[1000]  ->  LSTM x[0:8], Scan over 31 pieces of 32 steps (LSTM of a piece), Concat
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tilesmith.frontends.onnx.loop_form import MAX_STEPS
from tilesmith.frontends.onnx.model import (
    OnnxGraph,
    OnnxNode,
    concat,
    constant,
    identity,
    label_of,
    old,
    sliced,
)
from tilesmith.graph.graph import Array, Value
from tilesmith.graph.program import Signature
from tilesmith.ops.recurrent import ACTIVATIONS

Nodes = tuple[OnnxNode, ...]
Known = Callable[[str], Array | None]
TypeOf = Callable[[str], Value]

# Each turn costs the host some 50 microseconds, and each step of a piece is kernels to be called.
_PIECE = 32
_WAYS = {"forward": ("forward",), "reverse": ("reverse",), "bidirectional": ("forward", "reverse")}
_X, _LENGTHS = 0, 4
_WEIGHTS = (1, 2, 3, 7)  # inputs that are the same in all steps: W, R, B and the peepholes
_STATES = (5, 6)  # inputs that each step hands to the next one: h and c


def in_pieces(node: OnnxNode, known: Known, type_of: TypeOf) -> Nodes | None:
    """None for a sequence that is short enough, and for what the importer refuses."""
    if len(node.inputs) < 3 or not all(node.inputs[:3]):
        return None
    x, r = type_of(node.inputs[_X]), type_of(node.inputs[2])
    ways = _WAYS.get(node.attributes.get("direction", "forward"))
    if len(x.shape) != 3 or len(r.shape) != 3 or ways is None or r.shape[0] != len(ways):
        return None
    steps = x.shape[1 if node.attributes.get("layout", 0) else 0]
    return None if steps <= MAX_STEPS else tuple(_Pieces(node, ways, known, type_of).nodes())


class _Pieces:
    def __init__(
        self, node: OnnxNode, ways: tuple[str, ...], known: Known, type_of: TypeOf
    ) -> None:
        self.node, self.ways, self.known, self.type_of = node, ways, known, type_of
        self.label = label_of(node)
        self.layout = bool(node.attributes.get("layout", 0))
        shape = type_of(node.inputs[_X]).shape
        self.steps, self.batch, self.width = (
            (shape[1], shape[0], shape[2]) if self.layout else shape
        )
        self.hidden = type_of(node.inputs[2]).shape[2]
        self.first = self.steps % _PIECE or _PIECE  # of the first piece
        self.turns = (self.steps - self.first) // _PIECE
        self.states = _STATES[: 2 if node.op == "LSTM" else 1]

    def nodes(self) -> Iterator[OnnxNode]:
        x = self.node.inputs[_X]
        if self.layout:
            x = f"{self.label}/x"
            yield old("Transpose", self.node.inputs[_X], x, 13, perm=(1, 0, 2))
        made: list[tuple[str, ...]] = []
        for d, way in enumerate(self.ways):
            own = f"{self.label}/{way}/"
            yield from self._walk(d, x, own)
            made.append((f"{own}y", *(f"{own}last{k}" for k in self.states)))
        for k, (name, parts) in enumerate(
            zip(self.node.outputs, zip(*made, strict=True), strict=False)
        ):
            if not name:
                continue
            whole = f"{name}/ways"
            yield concat(f"{self.node.name}/{name}", parts, whole, 0 if k else 1)
            if self.layout:
                perm = (1, 0, 2) if k else (2, 0, 1, 3)
                yield old("Transpose", whole, name, 13, perm=perm)
            else:
                yield identity(f"{self.node.name}/{name}/given", whole, name)

    def _walk(self, d: int, x: str, own: str) -> Iterator[OnnxNode]:
        """One direction: the first piece, the others, and the results of both."""
        node, turned = self.node, self.ways[d] == "reverse"
        attributes = {**node.attributes, **self._activations(d), "direction": self.ways[d]}
        attributes.pop("layout", None)
        one = replace(node, attributes=attributes, proto=None)
        inputs = [x, *node.inputs[1:], *[""] * (8 - len(node.inputs))]
        held: dict[str, Array] = {}  # weights that are known are constants of the body
        for k in (*_WEIGHTS, *self.states):
            if inputs[k]:
                whole, inputs[k] = inputs[k], f"{own}{k}"
                yield from self._way(whole, inputs[k], d, k in _STATES)
                if k in _WEIGHTS and (a := self.known(whole)) is not None:
                    held[f"{own}{k}/held"] = a[d : d + 1]
        begin = self.steps - self.first if turned else 0  # of the first piece
        rest = 0 if turned else self.first
        yield sliced(x, f"{own}x", 0, begin, begin + self.first)
        lengths = inputs[_LENGTHS]
        if lengths:
            inputs[_LENGTHS] = f"{own}lengths"
            yield from self._minus(lengths, np.array(begin), f"{own}lengths")
        inputs[_X] = f"{own}x"
        made = (f"{own}y0", *(f"{own}state{k}" for k in self.states))
        yield replace(one, inputs=tuple(inputs), outputs=made)

        # the others
        taken = [f"{own}pieces"]
        yield sliced(x, f"{own}rest", 0, rest, rest + self.turns * _PIECE)
        shape = (self.turns, _PIECE, self.batch, self.width)
        yield from _reshaped(f"{own}rest", f"{own}pieces", shape)
        if lengths:
            taken.append(f"{own}left")
            ahead = np.arange(rest, rest + self.turns * _PIECE, _PIECE)
            yield from self._minus(lengths, ahead[:, None], f"{own}left")
        given = list(inputs)
        given[_X], given[_LENGTHS] = f"{own}in/x", f"{own}in/lengths" if lengths else ""
        for k in self.states:
            given[k] = f"{own}in/{k}"
        for k in _WEIGHTS:
            given[k] = f"{given[k]}/held" if f"{given[k]}/held" in held else given[k]
        body = OnnxGraph(
            f"{node.name}/piece",
            tuple(self._signatures(given)),
            (*(f"{own}out/{k}" for k in self.states), f"{own}out/y"),
            (
                replace(
                    one,
                    inputs=tuple(given),
                    outputs=(f"{own}out/y", *(f"{own}out/{k}" for k in self.states)),
                ),
            ),
            held,
        )
        way = (int(turned),)
        yield OnnxNode(
            node.name, "Scan", "", 11, (*made[1:], *taken),
            (*(f"{own}last{k}" for k in self.states), f"{own}y1"),
            {"body": body, "num_scan_inputs": len(taken),
             "scan_input_directions": way * len(taken), "scan_output_directions": way},
        )  # fmt: skip
        shape = (self.turns * _PIECE, 1, self.batch, self.hidden)
        yield from _reshaped(f"{own}y1", f"{own}y2", shape)
        parts = (f"{own}y0", f"{own}y2")
        yield concat(f"{own}y", parts[::-1] if turned else parts, f"{own}y", 0)

    def _signatures(self, given: list[str]) -> Iterator[Signature]:
        dtype = self.type_of(self.node.inputs[_X]).dtype
        for k in self.states:
            yield Signature(given[k], dtype, (1, self.batch, self.hidden))
        yield Signature(given[_X], dtype, (_PIECE, self.batch, self.width))
        if given[_LENGTHS]:
            kind = self.type_of(self.node.inputs[_LENGTHS]).dtype
            yield Signature(given[_LENGTHS], kind, (self.batch,))

    def _minus(self, lengths: str, ahead: Array, made: str) -> Iterator[OnnxNode]:
        """How far sequences go on behind what lies ahead of a piece."""
        yield constant(f"{made}/ahead", ahead.astype(self.type_of(lengths).dtype.numpy))
        yield OnnxNode(made, "Sub", "", 14, (lengths, f"{made}/ahead"), (made,))

    def _way(self, given: str, made: str, d: int, is_state: bool) -> Iterator[OnnxNode]:
        """What belongs to one direction."""
        axis = 1 if is_state and self.layout else 0
        if axis:
            yield sliced(given, f"{made}/way", axis, d, d + 1)
            yield old("Transpose", f"{made}/way", made, 13, perm=(1, 0, 2))
        else:
            yield sliced(given, made, axis, d, d + 1)

    def _activations(self, d: int) -> dict[str, Any]:
        """The functions of one direction, and those of the numbers that these take."""
        names = self.node.attributes.get("activations")
        if names is None or len(self.ways) == 1:
            return {}
        half = len(names) // 2
        counts = [len(ACTIVATIONS.get(str(n).lower(), (None, ()))[1]) for n in names]
        out: dict[str, Any] = {"activations": names[half:] if d else names[:half]}
        for least, key in ((1, "activation_alpha"), (2, "activation_beta")):
            if key in self.node.attributes:
                at = sum(c >= least for c in counts[:half])
                numbers = self.node.attributes[key]
                out[key] = numbers[at:] if d else numbers[:at]
        return out


def _reshaped(given: str, made: str, shape: tuple[int, ...]) -> Iterator[OnnxNode]:
    yield constant(f"{made}/shape", np.array(shape, np.int64))
    yield OnnxNode(made, "Reshape", "", 13, (given, f"{made}/shape"), (made,))
