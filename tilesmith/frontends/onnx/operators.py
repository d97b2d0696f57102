"""Which importer reads which operator. A new operator is one function in the file of its family and
one line in that file's IMPORTERS.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilesmith.frontends.onnx import (
    activation,
    attention,
    constants,
    convolution,
    einsum,
    elementwise,
    images,
    indexing,
    loss,
    matmul,
    movement,
    normalization,
    pooling,
    quantized,
    recurrent,
    reduction,
    resize,
    signal,
)
from tilesmith.frontends.onnx.call import Call, Importer, RunOnHost
from tilesmith.frontends.onnx.model import OnnxNode

IMPORTERS: Mapping[str, Importer] = {
    **activation.IMPORTERS,
    **attention.IMPORTERS,
    **constants.IMPORTERS,
    **convolution.IMPORTERS,
    **einsum.IMPORTERS,
    **elementwise.IMPORTERS,
    **images.IMPORTERS,
    **indexing.IMPORTERS,
    **loss.IMPORTERS,
    **matmul.IMPORTERS,
    **movement.IMPORTERS,
    **normalization.IMPORTERS,
    **pooling.IMPORTERS,
    **quantized.IMPORTERS,
    **recurrent.IMPORTERS,
    **reduction.IMPORTERS,
    **resize.IMPORTERS,
    **signal.IMPORTERS,
}


def has_importer(node: OnnxNode) -> bool:
    return not node.domain and node.op in IMPORTERS


def importer_of(node: OnnxNode) -> Importer:
    return IMPORTERS[node.op] if has_importer(node) else _on_host


def _on_host(call: Call) -> None:
    raise RunOnHost("no kernel is known for it")
