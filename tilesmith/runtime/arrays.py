"""Arguments of kernels: converts what a user passes to a NumPy array that fits the parameter, and
gets its address.

NumPy arrays are used as they are. Anything with `__dlpack__` in host memory is borrowed without a
copy. A number stands for an array of rank 0. A caller who gives tensors of PyTorch gets such back.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
from numpy import ndarray

from tilesmith.base.dataclass import dataclass
from tilesmith.base.dtype import DTYPES, DType, dtype
from tilesmith.base.errors import ArgumentError
from tilesmith.codegen.artifact import Parameter

Array = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64  # a cache line, and the widest vector
_BYTE = np.dtype(np.uint8)
_uninitialized = np.empty


def _slow_address(array: Array) -> int:
    return int(array.ctypes.data)


# In NumPy's C interface the data pointer follows the object's head. Reading it there takes 0.2 us;
# `array.ctypes.data` takes 1.6 us and `__array_interface__` 2.4 us. If a Python lays out objects
# differently, the slow way is used.
_HEAD_NBYTES = object.__basicsize__
_at = ctypes.c_size_t.from_address


def _fast_address(array: Array) -> int:
    return _at(id(array) + _HEAD_NBYTES).value


def _is_fast_right() -> bool:
    # Python 3.14 and later call it builtin_method. Other implementations of Python have none.
    if not type(_at).__name__.startswith("builtin_") or not hasattr(ctypes, "pythonapi"):
        return False
    samples = [np.empty(n, t) for n in (1, 7, 4096) for t in (np.int8, np.float64)]
    return all(_fast_address(s) == _slow_address(s) for s in samples)


address_of = _fast_address if _is_fast_right() else _slow_address


def empty(shape: tuple[int, ...], kind: np.dtype[Any], nbytes: int) -> tuple[Array, int]:
    """An uninitialised array that starts at a cache line, and its address."""
    raw = _uninitialized(nbytes + ALIGNMENT, _BYTE)
    address = address_of(raw)
    offset = -address % ALIGNMENT
    return ndarray(shape, kind, raw, offset), address + offset


def at_a_line(array: Array) -> Array:
    """The array, or a copy of it that starts at a cache line: else each of the widest loads takes
    bytes of two lines.
    """
    if not array.flags.c_contiguous or address_of(array) % ALIGNMENT == 0:
        return array
    copy, _ = empty(array.shape, array.dtype, array.nbytes)
    copy[...] = array
    return copy


def library_of(value: Any) -> str:
    """The library of a tensor of PyTorch or CuPy, else "". It is loaded already, so that nothing
    is imported here.
    """
    roots = (c.__module__.partition(".")[0] for c in type(value).__mro__)
    return next((r for r in roots if r in ("torch", "cupy") and r in sys.modules), "")


def is_torch(given: Iterable[Any]) -> bool:
    """Whether a tensor of PyTorch is among what a caller gives."""
    return any(type(v) is not ndarray and library_of(v) == "torch" for v in given)


def torch_tensor(array: Any) -> Any:
    """A tensor of PyTorch over the memory of an array."""
    torch = sys.modules["torch"]
    a = np.asarray(array)
    if not a.flags.writeable or any(s < 0 for s in a.strides):  # PyTorch has no such tensors
        a = a.copy()
    if a.dtype.name == "bfloat16":  # NumPy itself has none
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def without_gradient(value: Any, who: str) -> Any:
    """A tensor of PyTorch that a caller gives under torch.no_grad() needs no gradient."""
    if getattr(value, "requires_grad", False) is not True or not is_torch([value]):
        return value
    if sys.modules["torch"].is_grad_enabled():
        raise ArgumentError(
            f"{who} got a {type(value).__name__} that requires a gradient, and kernels have none; "
            "call it under torch.no_grad(), or pass x.detach()"
        )
    return value.detach()


def convert(value: Any, p: Parameter) -> Array:
    """Converts an argument to a NumPy array, without checking that it fits the parameter."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    value = without_gradient(value, f"parameter {p}")
    if hasattr(value, "__dlpack__"):
        if not p.output and p.dtype.name != "bfloat16":
            # Five times as fast as the code below, which also explains failures.
            with suppress(BufferError, RuntimeError, TypeError, ValueError):
                return np.from_dlpack(value)
        return _borrow(value, p)
    if isinstance(value, bool | int | float):
        return _number(value, p)
    raise ArgumentError(
        f"parameter {p} got a {type(value).__name__}; it takes a NumPy array or anything with "
        "__dlpack__"
    )


def convert_output(value: Any, p: Parameter) -> Array:
    """The same for an array that is written to, which a number is not."""
    if isinstance(value, bool | int | float | np.generic):
        raise ArgumentError(f"out for {p} is the number {value!r}; it must be an array")
    return convert(value, p)


@dataclass(frozen=True, slots=True)
class _Advice:
    """What to write instead, in the words of the library whose tensor was given."""

    cast: str
    contiguous: str
    new: str
    copy: str


_NUMPY = _Advice("x.astype(np.{})", "np.ascontiguousarray(x)", "np.empty", "x.copy()")
_ADVICE = {
    "torch": _Advice("x.to(torch.{})", "x.contiguous()", "torch.empty", "x.clone()"),
    "cupy": _Advice("x.astype(cupy.{})", "cupy.ascontiguousarray(x)", "cupy.empty", "x.copy()"),
}


def cast_advice(given: Any, kind: DType) -> str:
    """How to make another dtype of what was given."""
    library = library_of(given)
    if kind.name == "bfloat16" and not library:  # NumPy itself has none
        return "x.astype(ml_dtypes.bfloat16)"
    return _ADVICE.get(library, _NUMPY).cast.format(kind)


def reject(array: Array, p: Parameter, given: Any = None) -> NoReturn:
    """Raises an ArgumentError that says why an array does not fit, and what would. It was made of
    what was `given`.
    """
    library = library_of(given)
    advice = _ADVICE.get(library, _NUMPY)
    got = f"parameter {p} got {array.dtype.name}[{', '.join(map(str, array.shape))}]"
    if array.dtype != p.dtype.numpy:
        if array.dtype.newbyteorder() == p.dtype.numpy:
            raise ArgumentError(f"{got} in foreign byte order; pass x.astype('{p.dtype}')")
        raise ArgumentError(f"{got}; pass {cast_advice(given, p.dtype)}")
    if array.shape != p.shape:
        if p.packed is not None and array.shape == tuple(n.const for n in p.packed.given_shape):
            raise ArgumentError(f"{got}, which is not packed; pass kernel.pack({p.name!r}, x)")
        raise ArgumentError(f"{got}; its shape must be {p.shape}")
    if not array.flags.c_contiguous:
        how = f"an array made by {advice.new}" if p.output else advice.contiguous
        strides = tuple(s // array.itemsize for s in array.strides) if library else array.strides
        raise ArgumentError(f"{got} that is not C-contiguous (strides {strides}); pass {how}")
    if not array.flags.aligned:
        how = advice.copy
        raise ArgumentError(f"{got} whose elements do not lie on their boundaries; pass {how}")
    raise ArgumentError(f"{got} that is read-only; an output is written")


def _number(value: float, p: Parameter) -> Array:
    """A number as the parameter's dtype, which must hold it exactly (floats are rounded)."""
    if p.shape:
        raise ArgumentError(f"parameter {p} got the number {value!r}; it takes an array")
    d = p.dtype
    if d.kind == "b":
        fits = isinstance(value, bool)
    elif d.is_int:
        fits = type(value) is int and d.lowest() <= value <= d.highest()
    else:
        fits = not isinstance(value, bool)
    if not fits:
        raise ArgumentError(f"parameter {p} got {value!r}, which is no {d}")
    return np.asarray(value, d.numpy)


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h; the older DLManagedTensor begins with its tensor."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("owner", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_HOST = (1, 3)  # kDLCPU, and host memory that CUDA has pinned
_READ_ONLY = 1
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.argtypes, _pointer_in.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes, _is_capsule.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int


class _Memory:
    """Memory for np.asarray, which keeps the capsule alive. np.from_dlpack lacks bfloat16."""

    def __init__(self, capsule: object, interface: dict[str, Any]) -> None:
        self.capsule = capsule
        self.__array_interface__ = interface


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A tensor of another library, as DLPack describes it. `strides` count elements; None: it is
    contiguous. `capsule` keeps its memory alive.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: DType
    read_only: bool
    capsule: object


def dlpack_device(value: Any, p: Parameter) -> tuple[int, int]:
    """DLPack's number of the kind of device that a tensor is on, and which of them it is."""
    try:
        kind, index = value.__dlpack_device__()
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"parameter {p} got a {type(value).__name__}: {error}") from error
    return int(kind), int(index)


def is_on_host(kind: int) -> bool:
    return kind in _HOST


def borrow(value: Any, p: Parameter, stream: int | None = None) -> Borrowed:
    """Without a copy. On a GPU, `stream` is the CUDA stream that will use it, or -1 if the caller
    takes care of that.
    """
    settings: dict[str, Any] = {} if stream is None else {"stream": stream}
    try:
        try:
            capsule = value.__dlpack__(max_version=(1, 0), **settings)
        except TypeError:  # older than DLPack 1.0
            capsule = value.__dlpack__(**settings)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(f"parameter {p} got a {type(value).__name__}: {error}") from error
    read_only = False
    if _is_capsule(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer_in(capsule, b"dltensor_versioned"))
        read_only = bool(managed.flags & _READ_ONLY)
        tensor = managed.tensor
    else:
        tensor = _Tensor.from_address(_pointer_in(capsule, b"dltensor"))
    name = "bool" if tensor.code == 6 else f"{_CODES.get(tensor.code, '?')}{tensor.bits}"
    if name not in DTYPES or tensor.lanes != 1:
        raise ArgumentError(f"parameter {p} got a {type(value).__name__} of an unknown dtype")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    address = (tensor.data or 0) + tensor.byte_offset
    return Borrowed(address, shape, strides, dtype(name), read_only, capsule)


def _borrow(value: Any, p: Parameter) -> Array:
    device, _ = dlpack_device(value, p)
    if not is_on_host(device):
        raise ArgumentError(
            f"parameter {p} got a {type(value).__name__} on a device (number {device} of "
            "DLPack's); move it to the processor's memory"
        )
    b = borrow(value, p)
    kind = b.dtype.numpy
    if 0 in b.shape:
        return np.empty(b.shape, kind)
    strides = None if b.strides is None else tuple(kind.itemsize * s for s in b.strides)
    plain = np.dtype(f"u{kind.itemsize}")  # __array_interface__ has no bfloat16
    array: Array = np.asarray(
        _Memory(
            b.capsule,
            {
                "version": 3,
                "typestr": plain.str,
                "shape": b.shape,
                "strides": strides,
                "data": (b.address, b.read_only),
            },
        )
    )
    # view() accepts non-contiguous arrays here, because the element size does not change
    return array.view(kind)
