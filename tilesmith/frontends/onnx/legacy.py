"""Broadcasting before opset 7: the attribute `axis` says at which dimension of the first input the
shape of the second one begins. Since opset 7 the last dimensions are aligned.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilesmith.base.errors import GraphError
from tilesmith.frontends.onnx.model import OnnxNode
from tilesmith.graph.builder import GraphBuilder
from tilesmith.graph.graph import Value
from tilesmith.ops.transform import reshape

_BINARY = {
    "Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less",
}  # fmt: skip


def aligned(
    node: OnnxNode, inputs: Sequence[Value | None], builder: GraphBuilder
) -> Sequence[Value | None]:
    """The inputs as opset 7 wants them."""
    if node.version >= 7 or node.domain or len(inputs) != 2:
        return inputs
    x, y = inputs
    if x is None or y is None:
        return inputs
    match node.op:
        case "PRelu" if len(y.shape) == 1 and y.size > 1:
            axis = 1
        case op if op in _BINARY and node.attributes.get("broadcast") == 1:
            given = node.attributes.get("axis", len(x.shape) - len(y.shape))
            axis = given + len(x.shape) if given < 0 else given
        case _:
            return inputs
    behind = len(x.shape) - axis - len(y.shape)
    if axis < 0 or behind < 0:
        raise GraphError(f"{node}: {y} does not lie at axis {axis} of {x}")
    return x, y if behind == 0 else builder.add(reshape, y, shape=(*y.shape, *[1] * behind))
