"""What each node of an ATen graph gives for inputs of given shapes: fake tensors, and numbers where
a node computes with sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from tilesmith.frontends.torch.call import Type
from tilesmith.frontends.torch.tensors import torch_dtype

Results = dict[fx.Node, Any]


class Unknown:
    """The result of a node that depends on what tensors hold."""


UNKNOWN = Unknown()


def is_settled(graph: fx.Graph) -> bool:
    """Whether all results are known from the trace already."""
    for node in graph.nodes:
        if node.op in ("placeholder", "call_function"):
            for v in _leaves(node.meta.get("val", UNKNOWN)):
                if isinstance(v, Unknown | torch.SymInt | torch.SymFloat | torch.SymBool):
                    return False
                if isinstance(v, torch.Tensor) and not all(isinstance(n, int) for n in v.shape):
                    return False
    return True


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for v in value for leaf in _leaves(v)]
    return [value]


def traced(graph: fx.Graph) -> Results:
    return {n: n.meta["val"] for n in graph.nodes if "val" in n.meta}


def propagated(module: fx.GraphModule, given: Mapping[str, Any]) -> Results:
    """The results for these tensors, types and numbers, by the names of placeholders. What follows
    from an unknown result is unknown.
    """
    results: Results = {}
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        for node in module.graph.nodes:
            if node.op == "placeholder" or node.name in given:
                results[node] = _faked(mode, given.get(node.name, UNKNOWN))
            elif node.op == "get_attr":
                results[node] = _faked(mode, attribute(module, str(node.target)))
            elif node.op == "call_function":
                results[node] = _result(node, results)
    return results


def _faked(mode: FakeTensorMode, v: Any) -> Any:
    if isinstance(v, Type):
        if v.strides is None:
            return torch.empty(v.shape, dtype=torch_dtype(v.dtype))
        return torch.empty_strided(v.shape, v.strides, dtype=torch_dtype(v.dtype))
    return mode.from_tensor(v, static_shapes=True) if isinstance(v, torch.Tensor) else v


def _result(node: fx.Node, results: Results) -> Any:
    if any(isinstance(results[n], Unknown) for n in node.all_input_nodes):
        return UNKNOWN
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: results[n])
    try:
        return node.target(*args, **kwargs)
    except Exception:  # sizes that depend on contents, and whatever else only real tensors tell
        return UNKNOWN


def attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module
