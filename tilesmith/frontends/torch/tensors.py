"""Tensors of PyTorch as arrays of NumPy and back, over the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

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


def tensor_of(a: Array) -> torch.Tensor:
    if not a.flags.writeable:  # PyTorch has no such tensors
        a = a.copy()
    if a.dtype.name == "bfloat16":
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)
