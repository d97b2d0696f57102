"""Models of a few nodes, written in a test, and their results: by the oracle and by a peer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilesmith.frontends.open import load_onnx
from tilesmith.graph.oracle import evaluate_program


def model_of(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Any],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    opset: int = 18,
    is_open: bool = False,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """`is_open` leaves the sizes of all inputs open."""
    inputs = []
    for name, a in feeds.items():
        code = helper.np_dtype_to_tensor_dtype(np.asarray(a).dtype)
        dims = [f"{name}{d}" if is_open else n for d, n in enumerate(np.shape(a))]
        inputs.append(helper.make_tensor_value_info(name, code, dims))
    graph = helper.make_graph(
        list(nodes), "small", inputs,
        [helper.make_value_info(x, helper.make_tensor_type_proto(1, None)) for x in outputs],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )  # fmt: skip
    opsets = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(f.domain, 1) for f in functions),
    ]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def run(
    nodes: Sequence[onnx.NodeProto] | onnx.NodeProto,
    feeds: Mapping[str, Any],
    outputs: Sequence[str] = ("y",),
    **settings: Any,
) -> Any:
    """The outputs by the oracle; one array if there is one."""
    several = [nodes] if isinstance(nodes, onnx.NodeProto) else nodes
    got = evaluate_program(load_onnx(model_of(several, feeds, outputs, **settings)), feeds)
    return got[outputs[0]] if len(outputs) == 1 else [got[x] for x in outputs]


def by_reference(
    nodes: Sequence[onnx.NodeProto] | onnx.NodeProto,
    feeds: Mapping[str, Any],
    outputs: Sequence[str] = ("y",),
    **settings: Any,
) -> Any:
    """The outputs by the onnx package's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    several = [nodes] if isinstance(nodes, onnx.NodeProto) else nodes
    got = ReferenceEvaluator(model_of(several, feeds, outputs, **settings)).run(None, dict(feeds))
    return got[0] if len(outputs) == 1 else got
