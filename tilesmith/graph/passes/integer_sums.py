"""What a quantize node makes of sums of products of integers: one rounding behind the sum in int32,
with the bias, the residual and the bounds of activations in it.
"""

from __future__ import annotations

from math import inf

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.graph.edit import Editor
from tilesmith.graph.graph import Array, Node, Value
from tilesmith.graph.passes.integer_sources import Sources
from tilesmith.graph.passes.scaled_integers import (
    CONVOLUTIONS,
    PRODUCTS,
    Scaled,
    Total,
    integer_product,
)
from tilesmith.ops.elementwise import add, bias_add, clip, maximum, minimum, relu
from tilesmith.ops.quantize import requantize, requantize_sum, scaled_reals, weighted_sum
from tilesmith.ops.transform import reshape


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a value in front of a quantize node, and the nodes that set them."""

    low: float = -inf
    high: float = inf
    nodes: tuple[Node, ...] = ()

    @staticmethod
    def of(e: Editor, x: Value) -> tuple[Value, Limits]:
        """The value without what only limits it."""
        found = Limits()
        while (maker := e.maker(x)) is not None and e.is_inside(x, found.nodes):
            if maker.function not in (relu, clip):
                break
            low, high = maker.setting("low", 0.0), maker.setting("high")
            # Those further outside win where bounds contradict each other.
            below = -inf if low is None else min(float(low), found.high)
            above = inf if high is None else max(float(high), found.low)
            bounds = max(found.low, below), min(found.high, above)
            found = Limits(*bounds, (*found.nodes, maker))
            x = e.builder.value(maker.inputs[0])
        return x, found

    def applied(self, e: Editor, y: Value, target: Scaled) -> Value:
        """To the integers, whose order is that of the numbers."""
        kind = target.value.dtype
        for bound, limit, function in (
            (self.low, kind.lowest(), maximum), (self.high, kind.highest(), minimum),
        ):  # fmt: skip
            place = np.rint(np.float32(bound) / target.scale.item()) + int(target.zero.item())
            at = int(np.clip(place, kind.lowest(), kind.highest()))
            if at != limit:
                y = e.add(function, y, e.constant(np.asarray(at, kind.numpy)))
        return y


def quantized_sum(
    e: Editor, sources: Sources, x: Value, target: Scaled, reals: bool = True
) -> Value | None:
    """The integers of x, if that is a sum of products, of two quantised values or of both. With
    `reals`, a sum of products that only an addition reads stays in float32 up to there.
    """
    x, limits = Limits.of(e, x)
    total = total_of(e, sources, x, limits.nodes)
    if total is not None:
        y: Value | None = _rounded(e, total, target)
    else:
        y = _added(e, sources, x, limits, target, reals)
    return None if y is None else limits.applied(e, y, target)


def total_of(e: Editor, sources: Sources, v: Value, readers: tuple[Node, ...] = ()) -> Total | None:
    """A value as a sum of integers, if nobody reads it but these nodes and the one that is being
    rewritten: a product, with constants added and under other shapes.
    """
    maker = e.maker(v)
    if maker is None or not e.is_inside(v, readers):
        return None
    if maker.function in (*CONVOLUTIONS, *PRODUCTS):
        return product_of(e, sources, maker)
    inputs = [e.builder.value(x) for x in maker.inputs]
    if maker.function is reshape:
        inner = total_of(e, sources, inputs[0], (maker,))
        return None if inner is None else inner.reshaped(e, v.shape)
    if maker.function not in (add, bias_add) or len(inputs) != 2:
        return None
    x, c = inputs if sources.reals(e, inputs[0]) is None else inputs[::-1]
    bias = sources.reals(e, c)
    along = None if bias is None else _axis_of(maker, bias, v)
    if bias is None or along is None:
        return None
    inner = total_of(e, sources, x, (maker,))
    return None if inner is None else inner.plus(e, bias.reshape(-1), along)


def _axis_of(maker: Node, bias: Array, v: Value) -> int | None:
    """The dimension of a result along which constants are added to it."""
    rank = len(v.shape)
    if maker.function is bias_add:
        return int(maker.setting("axis", 1)) % rank
    wide = [d + rank - bias.ndim for d, n in enumerate(bias.shape) if n != 1]
    if len(wide) != 1 or bias.ndim > rank or bias.size != v.shape[wide[0]]:
        return None
    return wide[0]


def product_of(e: Editor, sources: Sources, node: Node) -> Total | None:
    """A product of quantised operands as a sum of integers."""
    if len(node.inputs) != 2:
        return None
    x, w = (sources.of(e, e.builder.value(name)) for name in node.inputs)
    if x is None or w is None or not x.is_uniform:
        return None
    return integer_product(e, node, x, w)


def real_sum(e: Editor, total: Total) -> Value:
    """The numbers that a sum stands for, in float32."""
    total = total.summed(e)
    terms = [e.constant(total.lined_up(total.scale.astype(np.float32)))]
    if total.rest is not None:
        terms.append(e.constant(total.lined_up(total.rest.astype(np.float32))))
    return e.add(scaled_reals, total.value, *terms)


def _rounded(e: Editor, total: Total, target: Scaled) -> Value:
    total = total.summed(e)
    # As a small integer, from whose type the code generator knows the limits of the result.
    terms = [e.constant(target.zero.astype(target.value.dtype.numpy).reshape(()))]
    if total.rest is not None:
        rest = (total.rest / target.scale.astype(np.float64)).astype(np.float32)
        terms.append(e.constant(total.lined_up(rest)))
    factor = total.lined_up((total.scale / target.scale).astype(np.float32))
    dtype = target.value.dtype.name
    return e.add(requantize, total.value, e.constant(factor), *terms, dtype=dtype)


def _added(
    e: Editor, sources: Sources, x: Value, limits: Limits, target: Scaled, reals: bool
) -> Value | None:
    """The sum of two values of one shape, at least one of them quantised."""
    root = e.maker(x)
    if root is None or root.function is not add or not e.is_inside(x, limits.nodes):
        return None
    values = [e.builder.value(name) for name in root.inputs]
    if len(values) != 2 or values[0].shape != values[1].shape:
        return None
    known = [sources.of(e, v) for v in values]
    if any(s is not None and not s.is_uniform for s in known):
        return None
    match known:
        case (Scaled() as a, Scaled() as b):
            return _weighted(e, a, b, (root, *limits.nodes), target, reals)
        case (None, Scaled() as b):
            return _with_residual(e, total_of(e, sources, values[0], (root,)), b, target)
        case (Scaled() as b, None):
            return _with_residual(e, total_of(e, sources, values[1], (root,)), b, target)
    return None


def _with_residual(e: Editor, total: Total | None, b: Scaled, target: Scaled) -> Value | None:
    """A sum of products plus quantised numbers, with one rounding."""
    if total is None:
        return None
    total = total.summed(e)
    of_b = b.scale.astype(np.float64) / target.scale
    rest = -of_b * b.zero
    if total.rest is not None:
        rest = rest + total.rest / target.scale.astype(np.float64)
    zeros, rest = _part_of(rest, target)
    given = total.scale / target.scale, rest, of_b
    factor, shift, weight = (e.constant(total.lined_up(a.astype(np.float32))) for a in given)
    y = total.value
    dtype = target.value.dtype.name
    terms = [e.constant(z.astype(target.value.dtype.numpy).reshape(())) for z in zeros]
    return e.add(requantize_sum, y, factor, shift, b.value, weight, *terms, dtype=dtype)


def _part_of(rest: Array, target: Scaled) -> tuple[tuple[Array, ...], Array]:
    """The zero point of a result as a part of what is added, if that is right: halves round to the
    even neighbour also if an even number is added before.
    """
    return ((target.zero,), rest) if target.zero % 2 else ((), rest + target.zero)


def _weighted(
    e: Editor, a: Scaled, b: Scaled, chain: tuple[Node, ...], target: Scaled, reals: bool
) -> Value:
    """The sum of two quantised values."""
    wide = [t.scale.astype(np.float64) / target.scale for t in (a, b)]
    zeros, shift = _part_of(-wide[0] * a.zero - wide[1] * b.zero, target)
    small = target.value.dtype.numpy
    numbers = [e.constant(x.astype(np.float32).reshape(())) for x in (*wide, shift)]
    numbers += [e.constant(z.astype(small).reshape(())) for z in zeros]
    left, right = (_unrounded(e, t.value, chain) if reals else t.value for t in (a, b))
    return e.add(weighted_sum, left, right, *numbers, dtype=target.value.dtype.name)


def _unrounded(e: Editor, v: Value, chain: tuple[Node, ...]) -> Value:
    """A sum that only this addition reads stays in float32: where converting it takes several
    instructions, it costs as much as all the rest.
    """
    node = e.maker(v)
    made = (e.maker(e.builder.value(name)) for name in chain[0].inputs)
    if node is None or node.function is not requantize:
        return v
    if not e.is_inside(v, [*chain, *(n for n in made if n is not None)]):
        return v
    inputs = (e.builder.value(x) for x in node.inputs)
    return e.add(requantize, *inputs, **dict(node.settings), real=True)
