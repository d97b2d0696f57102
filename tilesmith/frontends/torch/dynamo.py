"""What torch.compile calls with each graph of TorchDynamo: a callable for its tensors comes back.

AOTAutograd makes the graph functional and takes it apart into ATen's core operators; it also writes
what the graph changes in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd

from tilesmith.base.errors import GraphError, TilesmithError
from tilesmith.frontends.torch.compiled import Building, CompiledGraph
from tilesmith.frontends.torch.decompositions import core_table, without_onednn

Compiled = Callable[..., Any]


def compiled(
    module: fx.GraphModule, example_inputs: Sequence[Any], settled: Callable[[], Building]
) -> Compiled:
    """`settled` reads the user's options, and may raise. An error of the user is raised when the
    result is called, as TorchDynamo wraps those of a compilation into its own.
    """
    try:
        _refuse_training(example_inputs)
        building = settled()
    except TilesmithError as error:
        return _refusal(error)
    parameters = [*module.parameters(), *module.buffers(), *_parameters(module, example_inputs)]

    def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> CompiledGraph:
        return CompiledGraph(graph, parameters, building)

    with without_onednn():
        made: Compiled = aot_autograd(
            fw_compiler=compile_graph, inference_compiler=compile_graph,
            decompositions=core_table(), keep_inference_input_mutations=True,
        )(module, list(example_inputs))  # fmt: skip
    return made


def _parameters(module: fx.GraphModule, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """Parameters and buffers of the user's modules, which come as inputs of the graph."""
    nodes = [n for n in module.graph.nodes if n.op == "placeholder"]
    return [
        x for n, x in zip(nodes, inputs, strict=False)
        if isinstance(x, nn.Parameter) or (isinstance(x, torch.Tensor) and _is_buffer(n))
    ]  # fmt: skip


def _is_buffer(node: fx.Node) -> bool:
    """By where TorchDynamo found it; it counts a module's buffers as static inputs."""
    held = node.meta.get("tensor_dict") or {}
    if "_dynamo_static_input_type" in held:
        return True
    source = getattr(node, "_dynamo_source", None)
    return source is not None and "_buffers" in repr(source)


def _refuse_training(inputs: Sequence[Any]) -> None:
    if not torch.is_grad_enabled():
        return
    count = sum(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
    if count:
        raise GraphError(
            f"tilesmith compiles for inference, and {count} of the tensors that this graph reads "
            "require gradients while gradients are enabled; call it under torch.no_grad() or "
            "torch.inference_mode(), or call module.requires_grad_(False)"
        )


def _refusal(error: TilesmithError) -> Compiled:
    def refuse(*args: Any) -> NoReturn:
        raise error

    return refuse
