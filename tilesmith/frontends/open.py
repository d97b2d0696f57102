"""ts.load_onnx and ts.from_torch: a model in, a Graph out. The packages onnx and torch are loaded
when they are first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilesmith.base.errors import GraphError
from tilesmith.base.given import checks_given
from tilesmith.base.process import few_collections
from tilesmith.graph.program import OpenGraph


@checks_given(error=GraphError)
def load_onnx(
    model: Any,
    dims: Mapping[str, int] | None = None,
    operators: Mapping[str, Callable[..., Any]] | None = None,
) -> OpenGraph:
    """A model from a file's path or from an onnx.ModelProto. It needs `tilesmith[onnx]`.

    - `model`: the path, or the proto. Files are checked and not trusted.
    - `dims`: numbers for open dimensions by their names, as {"batch": 1}. One that has none in
      the model is called after its input and its place, as "x.0".
    - `operators`: functions of the DSL for operators of one's own, or in the place of built-in
      ones, by domain and name, as {"com.example.HardShrink": hard_shrink}. A function's tensors
      are the operator's inputs, and its other parameters the attributes.

    The result is a Graph; where sizes stay open, or depend on what the model computes, it is a
    Program, whose parts become graphs at the first call with new shapes.

    Example:

        graph = ts.load_onnx("model.onnx", dims={"batch": 1})
        model = ts.compile_model(graph)
    """
    with few_collections():
        try:
            from tilesmith.frontends.onnx.load import load
        except ModuleNotFoundError as error:
            if error.name != "onnx":
                raise
            raise GraphError(
                "ONNX models need the onnx package; install it: pip install 'tilesmith[onnx]'"
            ) from None
        return load(model, dims, operators)


@checks_given(error=GraphError)
def from_torch(
    module: Any,
    example_inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    name: str | None = None,
) -> OpenGraph:
    """A PyTorch module, as it computes in inference, as a graph. It needs `tilesmith[torch]`.

    - `module`: the torch.nn.Module.
    - `example_inputs`: what it is called with, a tuple, or a dict by the names of the arguments.
    - `kwargs`: further arguments by name.
    - `dynamic_shapes`: the sizes that stay open, see torch.export.export.
    - `name`: the graph's name, by default the module's class.

    Inputs have the names of the arguments of forward; outputs those of the places in what it
    returns: "output" for one tensor, "output_0" in a tuple, "logits" in a dict. Parameters are
    shared with the module, not copied; kernels whose weights are packed ahead keep a copy in that
    form. The result is a Graph. With `dynamic_shapes` or where PyTorch has to run an operator it is
    a Program, whose parts become graphs at the first call with new shapes; which operators those
    are is said in a warning.

    Example:

        import torch

        module = torch.nn.Linear(8, 4).eval()
        graph = ts.from_torch(module, (torch.zeros(2, 8),))
        outputs = ts.compile_model(graph)({"input": torch.ones(2, 8)})
    """
    try:
        from tilesmith.frontends.torch.export import from_torch as load
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise GraphError(
            "PyTorch models need the torch package; install it: pip install 'tilesmith[torch]'"
        ) from None
    return load(module, example_inputs, kwargs, dynamic_shapes=dynamic_shapes, name=name)
