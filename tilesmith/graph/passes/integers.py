"""Quantised models: operators between dequantize and quantize become integer kernels. Products and
convolutions sum small integers in int32 and requantise the sum, as ONNX's QLinear operators do;
what only moves or compares elements works on the integers themselves.

Exporters state a quantised operator as dequantize -> operator in float32 -> quantize.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tilesmith.base.dtype import FLOAT32
from tilesmith.base.dtype import dtype as dtype_named
from tilesmith.base.target import Target
from tilesmith.graph.edit import Editor, edited
from tilesmith.graph.graph import Graph, Node, Value
from tilesmith.graph.passes.scaled_integers import (
    CONVOLUTIONS,
    Scaled,
    integer_product,
    moved_zero,
    scaled_of,
)
from tilesmith.ops.elementwise import add, bias_add, maximum, relu
from tilesmith.ops.matmul import batch_matmul, matmul
from tilesmith.ops.pool import max_pool, max_pool2d
from tilesmith.ops.quantize import (
    dequantize,
    quantize,
    requantize,
    to_integers,
    to_reals,
    weighted_sum,
)
from tilesmith.ops.transform import reshape, transpose

_PRODUCTS = (matmul, batch_matmul)


@dataclass(frozen=True)
class IntegerKernels:
    """The pass. `activations` is the type, int8 or uint8, that results inside of the network get,
    with their zero points moved: the one that the target's instructions multiply by int8. Empty
    leaves them as they are.
    """

    activations: str = ""

    def __call__(self, graph: Graph) -> Graph:
        if not any(n.function is dequantize for n in graph.nodes):
            return graph
        # Weights that remain as floats are folded by the next pass.
        return edited(graph, _Rule(self.activations), unfolded=(dequantize, transpose))


integer_kernels = IntegerKernels()


def integer_kernels_for(target: Target) -> IntegerKernels:
    machine = target.machine
    if machine.tiles is not None and machine.tiles.feature in target.features:  # takes both
        return integer_kernels
    usable = (d.left for d in machine.usable_dots(target.features) if d.right == "int8")
    return IntegerKernels(next(usable, ""))


@dataclass
class _Rule:
    activations: str = ""
    constants: dict[str, Scaled] = field(default_factory=dict)  # by what they were dequantized to

    def __call__(self, e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
        if node.function is dequantize and e.array(inputs[0]) is not None:
            found = scaled_of(e, inputs, node)
            return None if found is None else self._known(e.kept(node, inputs)[0], found)
        if node.function is transpose and inputs[0].name in self.constants:
            return self._transposed(e, node, inputs[0])
        if node.function is quantize:
            target = self._target(e, node, inputs)
            if target is None:
                return None
            done = self._quantized(e, inputs[0], target)
            return done if done is not None else _in_any_order(e, inputs, target)
        if node.function is dequantize and (found := scaled_of(e, inputs, node)) is not None:
            return _real_in_any_order(e, inputs, found)
        return None

    def _known(self, value: Value, found: Scaled) -> Value:
        self.constants[value.name] = found
        return value

    def _transposed(self, e: Editor, node: Node, x: Value) -> Value:
        found, rank = self.constants[x.name], len(x.shape)
        axes = node.setting("axes") or tuple(range(rank))[::-1]
        axes = tuple(a % rank for a in axes)
        held = e.array(found.value)
        turned = found.value if held is None else e.constant(held.transpose(axes), found.value.name)
        moved = replace(found, value=turned, axis=axes.index(found.axis))
        return self._known(e.transpose(x, axes), moved)

    def _source(self, e: Editor, v: Value) -> Scaled | None:
        """The integers that a value was dequantized from, seen through movements."""
        if v.name in self.constants:
            return self.constants[v.name]
        node = e.maker(v)
        if node is None:
            return None
        inputs = tuple(e.builder.value(x) for x in node.inputs)
        if node.function is to_reals:
            return scaled_of(e, inputs, node)
        if node.function not in (reshape, transpose, max_pool, max_pool2d):
            return None
        inner = self._source(e, inputs[0])
        if inner is None or not inner.is_uniform or e.array(inner.value) is not None:
            return None
        if node.function is reshape:
            return replace(inner, value=e.reshape(inner.value, v.shape))
        if node.function is transpose:
            return replace(inner, value=e.transpose(inner.value, node.setting("axes")))
        return replace(inner, value=e.add(node.function, inner.value, **dict(node.settings)))

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
        kind = dtype_named(self.activations) if self.activations and inside else out.dtype
        value = Value(out.name, out.shape, kind)
        return Scaled(value, scale.reshape(-1), moved_zero(zero, kind))

    def _quantized(self, e: Editor, x: Value, target: Scaled) -> Value | None:
        """What a quantize node makes of x, from integers; None if that cannot be said."""
        if (source := self._source(e, x)) is not None and source.is_like(target):
            return source.value  # moved or compared only
        chain, v = list[Node](), x
        while (maker := e.maker(v)) is not None and e.is_inside(v, chain):
            chain.append(maker)
            if maker.function in (*CONVOLUTIONS, *_PRODUCTS):
                return self._sum(e, chain, target)
            if maker.function is add:
                return self._added(e, chain, target)
            if maker.function not in (relu, reshape, bias_add):
                return None
            v = e.builder.value(maker.inputs[0])
        return None

    def _sum(self, e: Editor, chain: list[Node], target: Scaled) -> Value | None:
        """A product of integers, with what follows it up to the quantize node."""
        *after, root = chain
        x, w = (self._source(e, e.builder.value(name)) for name in root.inputs[:2])
        if x is None or w is None or not x.is_uniform or any(n.function is relu for n in after[1:]):
            return None
        total = integer_product(e, root, x, w)
        for one in reversed([n for n in after if n.function is not relu]):
            if total is None:
                return None
            out, *given = (e.builder.value(name) for name in (*one.outputs, *one.inputs[1:]))
            if one.function is reshape:
                total = total.reshaped(e, out.shape)
                continue
            bias, known = e.array(given[0]), self.constants.get(given[0].name)
            if known is not None and (held := e.array(known.value)) is not None:
                bias = known.reals(held)
            total = None if bias is None else total.plus(e, bias, one.setting("axis", 1))
        if total is None:
            return None
        total = total.summed(e)
        terms = [e.constant(target.zero.astype(np.float32).reshape(()))]
        if total.rest is not None:
            rest = (total.rest / target.scale.astype(np.float64)).astype(np.float32)
            terms.append(e.constant(total.lined_up(rest)))
        factor = total.lined_up((total.scale / target.scale).astype(np.float32))
        dtype = target.value.dtype.name
        y = e.add(requantize, total.value, e.constant(factor), *terms, dtype=dtype)
        return _floored(e, y, target) if any(n.function is relu for n in after) else y

    def _added(self, e: Editor, chain: list[Node], target: Scaled) -> Value | None:
        """The sum of two quantised tensors of one shape."""
        *after, root = chain
        terms = [self._source(e, e.builder.value(name)) for name in root.inputs]
        a, b = terms if len(terms) == 2 else (None, None)
        if a is None or b is None or any(n.function is not relu for n in after):
            return None
        if not a.is_uniform or not b.is_uniform or a.value.shape != b.value.shape:
            return None
        wide = [t.scale.astype(np.float64) / target.scale for t in (a, b)]
        shift = -wide[0] * a.zero - wide[1] * b.zero
        # Halves round to the even neighbour also if an even number is added before.
        is_odd = bool(target.zero % 2)
        given = (*wide, shift, target.zero) if is_odd else (*wide, shift + target.zero)
        numbers = (e.constant(x.astype(np.float32).reshape(())) for x in given)
        dtype = target.value.dtype
        left, right = (self._unrounded(e, t.value, chain) for t in (a, b))
        y = e.add(weighted_sum, left, right, *numbers, dtype=dtype.name)
        return _floored(e, y, target) if after else y

    def _unrounded(self, e: Editor, v: Value, chain: list[Node]) -> Value:
        """A sum that only this addition reads stays in float32: converting it costs as much as all
        the rest.
        """
        node = e.maker(v)
        made = (e.maker(e.builder.value(name)) for name in chain[-1].inputs)
        if node is None or node.function is not requantize:
            return v
        if not e.is_inside(v, [*chain, *(n for n in made if n is not None)]):
            return v
        inputs = (e.builder.value(x) for x in node.inputs)
        return e.add(requantize, *inputs, **dict(node.settings), real=True)


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


def _floored(e: Editor, y: Value, target: Scaled) -> Value:
    """The larger of y and what stands for 0."""
    zero = target.zero.reshape(())
    if zero <= target.value.dtype.lowest():
        return y
    return e.add(maximum, y, e.constant(zero))


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
