"""Which importer reads which operator. A new operator is one function in the file of its family and
one line in that file's IMPORTERS.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.frontends.onnx import (
    activation,
    attention,
    convolution,
    einsum,
    elementwise,
    matmul,
    movement,
    normalization,
    pooling,
    quantized,
    recurrent,
    reduction,
    resize,
)
from tilesmith.frontends.onnx.call import Call, Importer, RunOnHost
from tilesmith.frontends.onnx.model import OnnxNode

IMPORTERS: Mapping[str, Importer] = {
    **activation.IMPORTERS,
    **convolution.IMPORTERS,
    **elementwise.IMPORTERS,
    **matmul.IMPORTERS,
    **einsum.IMPORTERS,
    **attention.IMPORTERS,
    **movement.IMPORTERS,
    **normalization.IMPORTERS,
    **pooling.IMPORTERS,
    **quantized.IMPORTERS,
    **recurrent.IMPORTERS,
    **reduction.IMPORTERS,
    **resize.IMPORTERS,
}


def importer_of(node: OnnxNode) -> Importer:
    if not node.domain and node.op in IMPORTERS:
        return IMPORTERS[node.op]
    return _on_host


def _on_host(call: Call) -> None:
    raise RunOnHost("no kernel is known for it")
