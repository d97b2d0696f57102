"""Quantised models: operators between dequantize and quantize become integer kernels. Products and
convolutions sum small integers in int32 and requantise the sum, as ONNX's QLinear operators do;
what only moves or compares elements works on the integers themselves.

Exporters state a quantised operator as dequantize -> operator in float32 -> quantize.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import FLOAT32
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.base.target import Target
from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.passes.integer_sources import MOVES, Sources
from tilesmith.graph.passes.integer_sums import quantized_sum, real_sum
from tilesmith.graph.passes.scaled_integers import (
    CONVOLUTIONS,
    PRODUCTS,
    Scaled,
    integer_product,
    moved_zero,
    scaled_of,
)
from tilesmith.ops.quantize import dequantize, quantize, to_integers, to_reals
from tilesmith.ops.transform import transpose


@dataclass(frozen=True)
class IntegerKernels:
    """The pass. `activations` is the type, int8 or uint8, that results inside of the network get,
    with their zero points moved: the one that the target's instructions multiply by int8. Empty
    leaves them as they are. With `reals`, results that only an addition reads stay in float32.
    """

    activations: str = ""
    reals: bool = True

    def __call__(self, graph: Graph) -> Graph:
        if not any(n.function is dequantize for n in graph.nodes):
            return graph
        # Weights that remain as floats are folded by the next pass.
        unfolded = (dequantize, transpose)
        rounded = edited(graph, _Rule(self.activations, self.reals), unfolded)
        return edited(rounded, _RealSums(), unfolded)


integer_kernels = IntegerKernels()


def integer_kernels_for(target: Target) -> IntegerKernels:
    machine = target.machine
    # Of 4 bytes, if converting to one costs more than to move them.
    reals = not machine.rounds_within_int32
    if machine.tiles is not None and machine.tiles.feature in target.features:  # takes both
        return IntegerKernels(reals=reals)
    usable = (d.left for d in machine.byte_dots(target.features) if d.right == "int8")
    return IntegerKernels(next(usable, ""), reals)


@dataclass
class _Rule:
    activations: str = ""
    reals: bool = True
    sources: Sources = field(default_factory=Sources)

    def __call__(self, e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
        if node.function is dequantize and e.array(inputs[0]) is not None:
            return _constant(self.sources, e, node, inputs)
        if node.function is transpose and inputs[0].name in self.sources.constants:
            return self.sources.transposed(e, node, inputs[0])
        if node.function is quantize:
            target = self._target(e, node, inputs)
            if target is None:
                return None
            done = self._quantized(e, inputs[0], target)
            return done if done is not None else _in_any_order(e, inputs, target)
        if node.function is dequantize and (found := scaled_of(e, inputs, node)) is not None:
            return _real_in_any_order(e, inputs, found)
        return None

    def _quantized(self, e: Editor, x: Value, target: Scaled) -> Value | None:
        """What a quantize node makes of x, from integers; None if that cannot be said."""
        if (source := self.sources.of(e, x)) is not None and source.is_like(target):
            return source.value  # moved or compared only
        return quantized_sum(e, self.sources, x, target, self.reals)

    def _target(self, e: Editor, node: Node, inputs: tuple[Value, ...]) -> Scaled | None:
        """What a quantize node writes, if it has one constant scale and zero point."""
        out = e.graph.values[node.outputs[0]]
        scale = e.array(inputs[1])
        zero = e.array(inputs[2]) if len(inputs) > 2 else np.zeros(1, out.dtype.numpy)
        if scale is None or zero is None or scale.size != 1 or zero.size != 1:
            return None
        if scale.ndim > 1 or zero.ndim > 1:
            return None
        if scale.dtype != np.float32 or node.setting("precision") not in (None, "float32"):
            return None
        if out.dtype.bits != 8 or inputs[0].dtype is not FLOAT32:
            return None
        readers = e.graph.consumers.get(out.name, ())
        inside = out.name not in e.graph.returned and all(_follows(e, n, out) for n in readers)
        moved = self.activations and inside and (zero.any() or not _is_multiplied(e, out.name))
        kind = dtype_named(self.activations) if moved else out.dtype
        value = Value(out.name, out.shape, kind)
        return Scaled(value, scale.reshape(-1), moved_zero(zero, kind))


@dataclass
class _RealSums:
    """Products of quantised operands that are no part of another integer kernel: their sums become
    floats.
    """

    sources: Sources = field(default_factory=Sources)

    def __call__(self, e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
        if node.function is dequantize and e.array(inputs[0]) is not None:
            return _constant(self.sources, e, node, inputs)
        if node.function is transpose and inputs[0].name in self.sources.constants:
            return self.sources.transposed(e, node, inputs[0])
        if node.function in (*CONVOLUTIONS, *PRODUCTS) and len(inputs) == 2:
            x, w = (self.sources.of(e, v) for v in inputs)
            if x is not None and w is not None and x.is_uniform:
                total = integer_product(e, node, x, w)
                return None if total is None else real_sum(e, total)
        return None


def _constant(sources: Sources, e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
    found = scaled_of(e, inputs, node)
    return None if found is None else sources.known(e.kept(node, inputs)[0], found)


def _is_multiplied(e: Editor, value: str) -> bool:
    """Whether a product of two computed operands reads a value: one without a zero point has sums
    of products and nothing else, and must not get one.
    """
    stack = [value]
    while stack:
        for n in e.graph.consumers.get(stack.pop(), ()):
            if n.function in MOVES or n.function is dequantize:
                stack += n.outputs
            elif n.function in PRODUCTS and not any(_is_known(e.graph, x) for x in n.inputs):
                return True
    return False


def _is_known(graph: Graph, value: str) -> bool:
    """Whether a value is a constant, or a dequantized one under any shape."""
    while (maker := graph.producer.get(value)) is not None:
        if maker.function not in MOVES and maker.function is not dequantize:
            return False
        value = maker.inputs[0]
    return graph.is_constant(value)


def _follows(e: Editor, reader: Node, out: Value) -> bool:
    """Whether a node that reads a quantised value reads it as well if its type and zero point are
    moved.
    """
    terms = [e.new.get(x) for x in reader.inputs[1:]]
    known = [t for t in terms if t is not None]
    if reader.function is not dequantize or len(known) < len(terms):
        return False
    found = scaled_of(e, (out, *known), reader)
    return found is not None and found.is_uniform


def _in_any_order(e: Editor, inputs: tuple[Value, ...], target: Scaled) -> Value:
    """quantize, as an operator for which dimensions have no order: transposes can pass it."""
    zero = e.constant(target.zero.reshape(()))
    return e.add(to_integers, inputs[0], inputs[1], zero, dtype=target.value.dtype.name)


def _real_in_any_order(e: Editor, inputs: tuple[Value, ...], found: Scaled) -> Value | None:
    """The same for dequantize, if it has one scale and zero point."""
    if not found.is_uniform:
        return None
    zero = e.constant(found.zero.reshape(()))
    return e.add(to_reals, inputs[0], inputs[1], zero)
