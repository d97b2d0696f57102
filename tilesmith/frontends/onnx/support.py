"""Which operators can run at all. A model whose sizes are open is imported when it is called, but
what nothing can run is refused when it is loaded.
"""

from __future__ import annotations

from dataclasses import replace

from tilesmith.frontends.onnx.functions import is_function
from tilesmith.frontends.onnx.host import host_step
from tilesmith.frontends.onnx.model import OnnxGraph
from tilesmith.frontends.onnx.operators import has_importer

_CONTROL = {"If", "Loop", "Scan"}


def refuse_unknown(graph: OnnxGraph) -> None:
    """Raises for a node that has no importer, no function and no reference implementation, in a
    graph and its bodies.
    """
    for node in graph.nodes:
        for body in node.attributes.values():
            if isinstance(body, OnnxGraph):
                refuse_unknown(replace(body, functions=graph.functions))
        is_control = not node.domain and node.op in _CONTROL
        if not is_control and not has_importer(node) and not is_function(node, graph):
            host_step(node, "no kernel is known for it")
