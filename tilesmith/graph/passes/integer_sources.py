"""Where real numbers of a quantised graph come from: the integers that they were dequantized from,
seen through what only moves or compares elements.
"""

from __future__ import annotations

from dataclasses import field, replace

from tilesmith.base.dataclass import dataclass
from tilesmith.graph.edit import Editor
from tilesmith.graph.graph import Array, Node, Operator, Value
from tilesmith.graph.join import join
from tilesmith.graph.passes.scaled_integers import Scaled, scaled_of
from tilesmith.ops.pool import max_pool, max_pool2d
from tilesmith.ops.quantize import to_reals
from tilesmith.ops.transform import concatenate, reshape, transpose
from tilesmith.ops.views import slice_

# Operators whose results are some of the numbers that they read.
MOVES: frozenset[Operator] = frozenset({
    reshape, transpose, slice_, concatenate, join, max_pool, max_pool2d,
})  # fmt: skip


@dataclass
class Sources:
    """`constants` has the dequantized constants of the new graph, by their names."""

    constants: dict[str, Scaled] = field(default_factory=dict)

    def known(self, value: Value, found: Scaled) -> Value:
        self.constants[value.name] = found
        return value

    def reals(self, e: Editor, v: Value) -> Array | None:
        """The numbers of a constant, of floats or dequantized."""
        known = self.constants.get(v.name)
        if known is not None and (held := e.array(known.value)) is not None:
            return known.reals(held)
        return e.array(v)

    def transposed(self, e: Editor, node: Node, x: Value) -> Value:
        found, rank = self.constants[x.name], len(x.shape)
        axes = node.setting("axes") or tuple(range(rank))[::-1]
        axes = tuple(a % rank for a in axes)
        held = e.array(found.value)
        turned = found.value if held is None else e.constant(held.transpose(axes), found.value.name)
        moved = replace(found, value=turned, axis=axes.index(found.axis))
        return self.known(e.transpose(x, axes), moved)

    def of(self, e: Editor, v: Value) -> Scaled | None:
        if v.name in self.constants:
            return self.constants[v.name]
        node = e.maker(v)
        if node is None:
            return None
        inputs = tuple(e.builder.value(x) for x in node.inputs)
        if node.function is to_reals:
            return scaled_of(e, inputs, node)
        if node.function not in MOVES:
            return None
        inner = [self.of(e, x) for x in inputs]
        known = [s for s in inner if s is not None]
        if len(known) < len(inner) or not all(s.is_like(known[0]) for s in known):
            return None
        if any(e.array(s.value) is not None for s in known):
            return None
        values = [s.value for s in known]
        if node.function is reshape:
            moved = e.reshape(values[0], v.shape)
        elif node.function is transpose:
            moved = e.transpose(values[0], node.setting("axes"))
        else:
            moved = e.add(node.function, *values, **dict(node.settings))
        return replace(known[0], value=moved)
