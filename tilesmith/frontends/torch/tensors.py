"""Tensors of PyTorch as arrays of NumPy and back, over the same memory; and what each node of an
ATen graph gives for inputs of given shapes: fake tensors, and numbers where it computes with sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from tilesmith.base.dtype import DTYPES, DType, dtype
from tilesmith.base.errors import GraphError
from tilesmith.frontends.torch.call import Type
from tilesmith.graph.graph import Array

_OF_TORCH: dict[torch.dtype, DType] = {
    getattr(torch, name): dtype(name) for name in DTYPES if hasattr(torch, name)
}
_TO_TORCH = {d: t for t, d in _OF_TORCH.items()}


def dtype_of(kind: torch.dtype) -> DType | None:
    """None where there are no kernels for it, such as complex numbers."""
    return _OF_TORCH.get(kind)


def torch_dtype(kind: DType) -> torch.dtype:
    return _TO_TORCH[kind]


def type_of(x: Any) -> Type | None:
    """The type of a tensor of known extents that kernels can take."""
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.device.type != "cpu":
        return None
    kind = dtype_of(x.dtype)
    if kind is None or not all(isinstance(n, int) for n in x.shape):
        return None
    return Type(tuple(x.shape), kind)


def array_of(x: torch.Tensor) -> Array:
    """The memory of a tensor, without a copy but for tensors that are stored conjugated and the
    like.
    """
    if x.requires_grad:
        x = x.detach()
    if x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()
    array: Array
    if x.dtype is torch.bfloat16:  # NumPy itself has none
        array = x.view(torch.int16).numpy().view(_OF_TORCH[torch.bfloat16].numpy)
        return array
    try:
        array = x.numpy()
    except TypeError as error:
        raise GraphError(
            f"a tensor of {x.dtype} on {x.device} has no NumPy array: {error}"
        ) from None
    return array


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


def is_number(node: fx.Node) -> bool:
    """Whether a node gives a number, as .item() does."""
    val = node.meta.get("val")
    return isinstance(val, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


def attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module
