"""Tensors of other libraries on a GPU: their addresses, the stream that their library works on, and
new ones of the same library for results.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from math import prod
from typing import Any

from tilesmith.base.errors import ArgumentError
from tilesmith.codegen.artifact import Parameter
from tilesmith.runtime.arrays import Borrowed, borrow, library_of

ON_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_NO_WAIT = -1


def callers_stream(values: Iterable[Any], device: int) -> int | None:
    """The stream on which the libraries of these tensors work at the moment; None if unknown."""
    for v in values:
        match library_of(v):
            case "torch":
                return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
            case "cupy":
                return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return None


def stream_handle(stream: Any) -> int:
    """The handle of what a caller passes as stream=: a number, a stream of PyTorch or CuPy, or
    anything with __cuda_stream__.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    given = getattr(stream, "__cuda_stream__", None)
    if given is not None:
        _, handle = given() if callable(given) else given
        return int(handle)
    for name in ("cuda_stream", "ptr", "handle"):
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(handle)
    raise ArgumentError(
        f"stream is a {type(stream).__name__}; it takes a CUDA stream: its handle as a number, a "
        "stream of PyTorch or CuPy, or anything with __cuda_stream__"
    )


def device_tensor(value: Any, p: Parameter, stream: int | None, alignment: int) -> Borrowed:
    """A tensor on the device that fits the parameter. `stream` will use it; None if it is the
    stream of the tensor's own library.
    """
    b = borrow(value, p, _NO_WAIT if stream is None else stream)
    got = f"parameter {p} got {b.dtype}[{', '.join(map(str, b.shape))}]"
    if b.dtype != p.dtype:
        raise ArgumentError(f"{got}; convert it to {p.dtype}")
    if b.shape != p.shape:
        if p.packed is not None and b.shape == tuple(n.const for n in p.packed.given_shape):
            raise ArgumentError(f"{got}, which is not packed; pass kernel.pack({p.name!r}, x)")
        raise ArgumentError(f"{got}; its shape must be {p.shape}")
    if not _is_contiguous(b):
        raise ArgumentError(f"{got} that is not contiguous (strides {b.strides}); make it so")
    if b.address % alignment and prod(b.shape):
        raise ArgumentError(
            f"{got} at an address that is no multiple of {alignment}; pass a copy of it"
        )
    if p.output and b.read_only:
        raise ArgumentError(f"{got} that is read-only; an output is written")
    return b


def _is_contiguous(b: Borrowed) -> bool:
    if b.strides is None or 0 in b.shape:
        return True
    expected = 1
    for n, stride in zip(reversed(b.shape), reversed(b.strides), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True


def new_tensor(like: Any, p: Parameter, device: int) -> Any:
    """An uninitialised tensor for an output, of the library of `like`."""
    match library_of(like):
        case "torch":
            torch = sys.modules["torch"]
            kind = getattr(torch, p.dtype.name)
            return torch.empty(p.shape, dtype=kind, device=torch.device("cuda", device))
        case "cupy":
            cupy = sys.modules["cupy"]
            with cupy.cuda.Device(device):
                return cupy.empty(p.shape, p.dtype.numpy)
        case _:
            raise ArgumentError(
                f"the result {p} would be a {type(like).__name__} on the device, which Tilesmith "
                "cannot create; pass one as out="
            )
