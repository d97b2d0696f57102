"""Which function imports which operator. A new operator is one function in the file of its family
and one line in that file's IMPORTERS.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.frontends.onnx import (
    attention,
    elementwise,
    images,
    indexing,
    movement,
    normalization,
    products,
    quantized,
    recurrent,
    reduction,
    signal,
    windows,
)
from tilesmith.frontends.onnx.call import Importer
from tilesmith.frontends.onnx.model import OnnxGraph, OnnxNode
from tilesmith.frontends.onnx.signature import Since

IMPORTERS: Mapping[str, Importer | Since] = {
    **attention.IMPORTERS,
    **elementwise.IMPORTERS,
    **images.IMPORTERS,
    **indexing.IMPORTERS,
    **movement.IMPORTERS,
    **normalization.IMPORTERS,
    **products.IMPORTERS,
    **quantized.IMPORTERS,
    **recurrent.IMPORTERS,
    **reduction.IMPORTERS,
    **signal.IMPORTERS,
    **windows.IMPORTERS,
}


def importer_of(node: OnnxNode, graph: OnnxGraph) -> Importer | None:
    """The user's function for it, or else ours."""
    found = graph.operators.get((node.domain, node.op))
    if found is None and not node.domain:
        found = IMPORTERS.get(node.op)
    return found.at(node.version) if isinstance(found, Since) else found
