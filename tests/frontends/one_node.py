"""Models of a single node, and their results by the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tilesmith.frontends.open import load_onnx
from tilesmith.graph.oracle import evaluate_program

Arrays = Mapping[str, Any]


def model_of(
    op: str, arrays: Arrays, fixed: tuple[str, ...] = (), opset: int = 17,
    outputs: tuple[str, ...] = ("y",), types: tuple[Any, ...] = (), domain: str = "",
    **attributes: Any,
) -> Any:  # fmt: skip
    """Inputs named in `fixed` are initializers; an input whose name begins with "_" is left out.
    Outputs are of the type of the first input, or of `types`.
    """
    code = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in arrays.items() if a is not None}
    first = next(iter(code.values()))
    names = ["" if n.startswith("_") else n for n in arrays]
    node = helper.make_node(op, names, list(outputs), name="n", domain=domain, **attributes)
    made = [helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in types] or [first] * len(outputs)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(n, code[n], arrays[n].shape)
         for n in names if n and n not in fixed],
        [helper.make_value_info(y, helper.make_tensor_type_proto(t, None))
         for y, t in zip(outputs, made, strict=True) if y],
        [numpy_helper.from_array(np.asarray(arrays[n]), n) for n in fixed],
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(domain, opset)], ir_version=9
    )


def feeds_of(model: Any, arrays: Arrays) -> dict[str, Any]:
    return {i.name: np.asarray(arrays[i.name]) for i in model.graph.input}


def ran_all(model: Any, arrays: Arrays) -> dict[str, Any]:
    return evaluate_program(load_onnx(model), feeds_of(model, arrays))


def ran(model: Any, arrays: Arrays) -> Any:
    return ran_all(model, arrays)["y"]
