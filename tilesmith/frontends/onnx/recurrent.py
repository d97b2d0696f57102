"""RNN, GRU and LSTM: one matrix product for the inputs of all steps; then, for each step, a product
with the state and the element-wise part of the cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.frontends.onnx.call import Call, Importer
from tilesmith.frontends.shared.building import joined, shaped, sliced
from tilesmith.graph.graph import Value
from tilesmith.ops.elementwise import add, bias_add
from tilesmith.ops.matmul import matmul
from tilesmith.ops.recurrent import (
    ACTIVATIONS,
    Activation,
    gru_cell,
    gru_reset,
    lstm_cell,
    rnn_cell,
)
from tilesmith.ops.transform import concatenate, transpose


class Recurrent(TypedDict, total=False):
    """The attributes that the three operators share."""

    activation_alpha: tuple[float, ...]
    activation_beta: tuple[float, ...]
    activations: tuple[str, ...]
    clip: float
    direction: str
    hidden_size: int
    layout: int
    output_sequence: int  # of opset 6: whether Y is wanted, which the outputs say too


class _Tensors(NamedTuple):
    """Inputs (X), weights of the inputs (W) and of the state (R), biases, lengths."""

    x: Value
    w: Value
    r: Value
    b: Value | None
    lengths: Value | None


class _Sequence:
    """What the three operators share: sizes, directions, lengths and activations."""

    def __init__(
        self, call: Call, tensors: _Tensors, gates: int, functions: tuple[str, ...],
        settings: Recurrent,
    ) -> None:  # fmt: skip
        self.call, self.tensors, self.gates = call, tensors, gates
        x, w, r = tensors.x, tensors.w, tensors.r
        for v in (x, w, r):
            if len(v.shape) != 3 or not v.dtype.is_float:
                call.refuse(f"{v} must be of rank 3, of floats")
        self.layout = settings.get("layout", 0)
        if self.layout:
            x = call.add(transpose, x, axes=(1, 0, 2))
        self.x, (self.steps, self.batch, width) = x, x.shape
        self.hidden = r.shape[2]
        if self.steps < 1:
            call.refuse("its sequence is empty")
        way = settings.get("direction", "forward")
        if way not in ("forward", "reverse", "bidirectional"):
            call.refuse(f"direction is {way!r}; it must be forward, reverse or bidirectional")
        self.reversed = {"forward": (False,), "reverse": (True,)}.get(way, (False, True))
        count = len(self.reversed)
        rows = gates * self.hidden
        if w.shape != (count, rows, width) or r.shape != (count, rows, self.hidden):
            call.refuse(f"weights {w} and {r} do not fit {x}, {gates} gates and {way}")
        if settings.get("hidden_size", self.hidden) != self.hidden:
            call.refuse(f"hidden_size is {settings['hidden_size']}, but R is {r}")
        self.activations = _activations(call, settings, functions, count)
        self.lengths = self._lengths()

    def _lengths(self) -> Value | None:
        lengths = self.tensors.lengths
        if lengths is None:
            return None
        if lengths.shape != (self.batch,) or not lengths.dtype.is_int:
            self.call.refuse(f"sequence_lens {lengths} must have {self.batch} whole numbers")
        held = self.call.contents(lengths)
        return None if held is not None and bool((held >= self.steps).all()) else lengths

    def part(self, x: Value, d: int, axis: int, first: int = 0, count: int = -1) -> Value:
        """x[d], and of that `count` elements along an axis of what is left."""
        shape = list(x.shape[1:])
        cut = {0: (d, d + 1, 1)}
        if count >= 0:
            cut[axis + 1] = (first, first + count, 1)
            shape[axis] = count
        return shaped(self.call, sliced(self.call, x, cut), tuple(shape))

    def columns(self, x: Value, d: int, first: int, gates: int) -> Value:
        """The weights of some gates, (inputs, gates * hidden)."""
        rows = self.part(x, d, 0, first * self.hidden, gates * self.hidden)
        return self.call.add(transpose, rows, axes=(1, 0))

    def biases(self, d: int) -> tuple[Value, Value] | None:
        """Those of the input and those of the state, each (gates * hidden)."""
        b = self.tensors.b
        if b is None:
            return None
        n = self.gates * self.hidden
        if b.shape != (len(self.reversed), 2 * n):
            self.call.refuse(f"{b} must be of shape {[len(self.reversed), 2 * n]}")
        return self.part(b, d, 0, 0, n), self.part(b, d, 0, n, n)

    def fed(self, d: int, bias: Value | None) -> Value:
        """What the inputs of all steps give to all gates: (steps, batch, gates * hidden)."""
        call, width = self.call, self.x.shape[2]
        rows = shaped(call, self.x, (self.steps * self.batch, width))
        y = call.add(matmul, rows, self.columns(self.tensors.w, d, 0, self.gates))
        if bias is not None:
            y = call.add(bias_add, y, bias, axis=-1)
        return shaped(call, y, (self.steps, self.batch, self.gates * self.hidden))

    def initial(self, given: Value | None, d: int) -> Value:
        """The first state of a direction, 0 where none is given."""
        if given is None:
            return self.call.constant(np.zeros((self.batch, self.hidden), self.x.dtype.numpy))
        if self.layout:
            given = self.call.add(transpose, given, axes=(1, 0, 2))
        if given.shape != (len(self.reversed), self.batch, self.hidden):
            self.call.refuse(f"the initial state {given} does not fit {self.x}")
        return self.part(given, d, 0)

    def step(self, t: int) -> Value:
        return self.call.constant(np.array(t, np.int32))

    def order(self, d: int) -> list[int]:
        steps = list(range(self.steps))
        return steps[::-1] if self.reversed[d] else steps

    def ending(self) -> tuple[list[Value], dict[str, Any]]:
        """More inputs and settings of a cell, for sequences that end early."""
        return ([], {}) if self.lengths is None else ([self.lengths], {"lengths": True})

    def all_steps(self, shown: list[list[Value]]) -> Value:
        """Y, from the states of each direction at each step."""
        call = self.call
        each = [
            shaped(call, y, (1, 1, self.batch, self.hidden))
            for t in range(self.steps)
            for y in (way[t] for way in shown)
        ]
        y = joined(call, each, 0)
        y = shaped(call, y, (self.steps, len(shown), self.batch, self.hidden))
        if self.layout:
            y = call.add(transpose, y, axes=(2, 0, 1, 3))
        return y

    def last(self, states: list[Value]) -> Value:
        call = self.call
        each = [shaped(call, h, (1, self.batch, self.hidden)) for h in states]
        y = joined(call, each, 0)
        if self.layout:
            y = call.add(transpose, y, axes=(1, 0, 2))
        return y


def _activations(
    call: Call, settings: Recurrent, default: tuple[str, ...], ways: int
) -> list[list[Activation]]:
    """The functions of each direction. Each takes its numbers from what is left of two lists."""
    names = settings.get("activations", default * ways)
    if len(names) != len(default) * ways:
        call.refuse(f"activations are {list(names)}; there must be {len(default) * ways}")
    clip = settings.get("clip")
    left = [list(settings.get("activation_alpha", ())), list(settings.get("activation_beta", ()))]
    made = []
    for name in names:
        if name.lower() not in ACTIVATIONS:
            call.refuse(f"the activation {name!r} is not known")
        _, numbers = ACTIVATIONS[name.lower()]
        taken = [
            given.pop(0) if given else number for number, given in zip(numbers, left, strict=False)
        ]
        made.append(Activation(name.lower(), *taken, **({} if clip is None else {"clip": clip})))
    size = len(default)
    return [made[k * size : (k + 1) * size] for k in range(ways)]


@dataclass(frozen=True, slots=True)
class _Walk:
    """The states of one direction: at each step by its place in the sequence, and at the end."""

    shown: list[Value]
    h: Value
    c: Value | None = None


def _results(s: _Sequence, walks: list[_Walk]) -> tuple[Value | None, ...]:
    y = s.all_steps([w.shown for w in walks]) if s.call.wants(0) else None
    cells = [w.c for w in walks if w.c is not None]
    return y, s.last([w.h for w in walks]), s.last(cells) if cells else None


def _summed(s: _Sequence, d: int) -> Value | None:
    both = s.biases(d)
    return None if both is None else s.call.add(add, *both)


def import_rnn(
    call: Call, x: Value, w: Value, r: Value, b: Value | None = None,
    lengths: Value | None = None, h: Value | None = None, **settings: Unpack[Recurrent],
) -> tuple[Value | None, ...]:  # fmt: skip
    s = _Sequence(call, _Tensors(x, w, r, b, lengths), 1, ("Tanh",), settings)
    more, ending = s.ending()
    walks = []
    for d in range(len(s.reversed)):
        p, weights = s.fed(d, _summed(s, d)), s.columns(r, d, 0, 1)
        y, shown = s.initial(h, d), {}
        for t in s.order(d):
            state = call.add(matmul, y, weights)
            y, *rest = call.add_several(
                rnn_cell, p, s.step(t), state, y, *more, f=s.activations[d][0], **ending
            )
            shown[t] = rest[0] if rest else y
        walks.append(_Walk([shown[t] for t in range(s.steps)], y))
    return _results(s, walks)[:2]


def import_lstm(
    call: Call, x: Value, w: Value, r: Value, b: Value | None = None,
    lengths: Value | None = None, h: Value | None = None, c: Value | None = None,
    peepholes: Value | None = None, *, input_forget: bool = False, **settings: Unpack[Recurrent],
) -> tuple[Value | None, ...]:  # fmt: skip
    s = _Sequence(call, _Tensors(x, w, r, b, lengths), 4, ("Sigmoid", "Tanh", "Tanh"), settings)
    more, ending = s.ending()
    if peepholes is not None:
        if peepholes.shape != (len(s.reversed), 3 * s.hidden):
            call.refuse(f"peepholes {peepholes} must be {[len(s.reversed), 3 * s.hidden]}")
        ending["peephole"] = True
    if input_forget:
        ending["coupled"] = True
    walks = []
    for d in range(len(s.reversed)):
        p, weights = s.fed(d, _summed(s, d)), s.columns(r, d, 0, 4)
        y, cell, shown = s.initial(h, d), s.initial(c, d), {}
        f, g, out = s.activations[d]
        out = replace(out, clip=None)  # engines bound the gates, and not the cell
        given = more if peepholes is None else [s.part(peepholes, d, 0), *more]
        for t in s.order(d):
            state = call.add(matmul, y, weights)
            y, cell, *rest = call.add_several(
                lstm_cell, p, s.step(t), state, y, cell, *given, f=f, g=g, h=out, **ending
            )
            shown[t] = rest[0] if rest else y
        walks.append(_Walk([shown[t] for t in range(s.steps)], y, cell))
    return _results(s, walks)


def import_gru(
    call: Call, x: Value, w: Value, r: Value, b: Value | None = None,
    lengths: Value | None = None, h: Value | None = None, *, linear_before_reset: bool = False,
    **settings: Unpack[Recurrent],
) -> tuple[Value | None, ...]:  # fmt: skip
    s = _Sequence(call, _Tensors(x, w, r, b, lengths), 3, ("Sigmoid", "Tanh"), settings)
    more, ending = s.ending()
    before = linear_before_reset
    if before:
        ending["before"] = True
    n = s.hidden
    walks = []
    for d in range(len(s.reversed)):
        f, g = s.activations[d]
        bias, third = _summed(s, d), call.constant(np.zeros(n, s.x.dtype.numpy))
        both = s.biases(d)
        if before and both is not None:  # the reset acts on the third bias of the state
            assert bias is not None
            own, third = (sliced(call, v, {0: (2 * n, 3 * n, 1)}) for v in both)
            bias = call.add(concatenate, sliced(call, bias, {0: (0, 2 * n, 1)}), own, axis=0)
        p = s.fed(d, bias)
        y, shown = s.initial(h, d), {}
        weights = s.columns(r, d, 0, 3 if before else 2)
        hidden = s.columns(r, d, 2, 1)
        for t in s.order(d):
            state = call.add(matmul, y, weights)
            if not before:
                kept = call.add(gru_reset, p, s.step(t), state, y, f=f)
                third = call.add(matmul, kept, hidden)
            y, *rest = call.add_several(
                gru_cell, p, s.step(t), state, y, third, *more, f=f, g=g, **ending
            )
            shown[t] = rest[0] if rest else y
        walks.append(_Walk([shown[t] for t in range(s.steps)], y))
    return _results(s, walks)[:2]


IMPORTERS: Mapping[str, Importer] = {"RNN": import_rnn, "GRU": import_gru, "LSTM": import_lstm}
