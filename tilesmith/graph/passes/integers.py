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
from tilesmith.graph.graph import Array, Graph, Node, Value
from tilesmith.graph.passes.scaled_integers import (
    CONVOLUTIONS,
    SAME_SCALE,
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
    if "amx" in target.features:  # takes both
        return integer_kernels
    if {"vnni", "avxvnni"} & target.features:
        return IntegerKernels("uint8")
    return IntegerKernels("int8") if "dotprod" in target.features else integer_kernels


@dataclass
class _Rule:
    activations: str = ""
    constants: dict[str, Scaled] = field(default_factory=dict)  # by what they were dequantized to

    def __call__(self, e: Editor, node: Node, inputs: tuple[Value, ...]) -> Value | None:
        if node.function is dequantize and e.array(inputs[0]) is not None:
            found = scaled_of(e, inputs, node)
            return None if found is None else self._known(e.kept(node, inputs), found)
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
        moved = replace(found, value=e.transpose(found.value, axes), axis=axes.index(found.axis))
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
        if scale.dtype != np.float32 or node.setting("precision") not in (None, "float32"):
            return None
        if out.dtype.bits != 8 or inputs[0].dtype is not FLOAT32:
            return None
        readers = e.graph.consumers.get(out.name, ())
        inside = out.name not in e.graph.returned and all(n.function is dequantize for n in readers)
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
        out = integer_product(e, root, x, w)
        if out is None:
            return None
        total, scale, shift, axis = out
        for one in reversed([n for n in after if n.function is not relu]):
            if one.function is reshape:
                if shift is not None:
                    total, shift = e.add(bias_add, total, e.constant(shift), axis=axis), None
                shape = e.builder.value(one.outputs[0]).shape
                if scale.size > 1 and shape[-1] != total.shape[-1]:
                    return None
                total = e.reshape(total, shape)
                continue
            bias = self._bias(e, e.builder.value(one.inputs[1]), x.scale * scale)
            where = one.setting("axis", 1) % len(total.shape)
            if bias is None or (shift is not None and where != axis % len(total.shape)):
                return None
            bias = bias if shift is None else bias + shift
            total, shift = (
                e.add(bias_add, total, e.constant(bias.astype(np.int32)), axis=where),
                None,
            )
        if shift is not None:
            total = e.add(bias_add, total, e.constant(shift), axis=axis)
        factor = (x.scale * scale / target.scale).astype(np.float32)
        rank = len(total.shape)
        factor = factor.reshape(-1, *(1,) * (rank - 1 - axis % rank)) if factor.size > 1 else factor
        zero = target.zero.astype(np.float32).reshape(())
        y: Value = e.add(
            requantize, total, e.constant(factor.reshape(factor.shape if factor.size > 1 else ())),
            e.constant(zero), dtype=target.value.dtype.name,
        )  # fmt: skip
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
        shift = target.zero - wide[0] * a.zero - wide[1] * b.zero
        numbers = (e.constant(x.astype(np.float32).reshape(())) for x in (*wide, shift))
        dtype = target.value.dtype
        left, right = (self._unrounded(e, t.value, chain) for t in (a, b))
        y: Value = e.add(weighted_sum, left, right, *numbers, dtype=dtype.name)
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
        out: Value = e.add(requantize, *inputs, **dict(node.settings), real=True)
        return out

    def _bias(self, e: Editor, v: Value, scale: Array) -> Array | None:
        """A bias in units of the sum."""
        real, known = e.array(v), self.constants.get(v.name)
        held = None if known is None else e.array(known.value)
        if known is not None and held is not None:
            whole = held.astype(np.int64) - known.zero
            if np.allclose(known.scale, scale, rtol=SAME_SCALE, atol=0):
                return whole
            real = whole * known.scale.astype(np.float64)
        if real is None or not np.all(scale > 0):
            return None
        units = np.rint(real.astype(np.float64) / scale.astype(np.float64))
        return units.astype(np.int64) if np.abs(units).max(initial=0) < 2**30 else None


def _floored(e: Editor, y: Value, target: Scaled) -> Value:
    """The larger of y and what stands for 0."""
    zero = target.zero.reshape(())
    if zero <= target.value.dtype.lowest():
        return y
    out: Value = e.add(maximum, y, e.constant(zero))
    return out


def _in_any_order(e: Editor, inputs: tuple[Value, ...], target: Scaled) -> Value:
    """quantize, as an operator for which dimensions have no order: transposes can pass it."""
    zero = e.constant(target.zero.reshape(()))
    out: Value = e.add(to_integers, inputs[0], inputs[1], zero, dtype=target.value.dtype.name)
    return out


def _real_in_any_order(e: Editor, inputs: tuple[Value, ...], found: Scaled) -> Value | None:
    """The same for dequantize, if it has one scale and zero point."""
    if not found.is_uniform:
        return None
    zero = e.constant(found.zero.reshape(()))
    out: Value = e.add(to_reals, inputs[0], inputs[1], zero)
    return out
