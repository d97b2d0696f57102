"""TensorProto in, NumPy array out. What a message claims is checked before anything is made."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilesmith.base.errors import GraphError
from tilesmith.graph.graph import Array

Bytes = bytes | memoryview
_MAX_RANK = 32  # of NumPy 1

_TYPES = onnx.TensorProto
# Several of these share one byte, or have no fixed size.
ODD = {
    _TYPES.DataType.Value(n): bits
    for n, bits in (
        ("INT4", 4), ("UINT4", 4), ("FLOAT4E2M1", 4), ("INT2", 2), ("UINT2", 2), ("STRING", 0),
    )
    if n in _TYPES.DataType.keys()  # noqa: SIM118 - not a dict
}  # fmt: skip


def tensor_array(tensor: onnx.TensorProto) -> Array:
    """A tensor whose data lies in the message itself."""
    shape = shape_of(tensor)
    if tensor.data_location == _TYPES.EXTERNAL:
        raise GraphError(
            f"the data of {tensor.name!r} lies in another file; load the model by its path"
        )
    if tensor.data_type in ODD:
        return _odd(tensor, shape)
    if tensor.HasField("raw_data"):
        return array_of(tensor, tensor.raw_data)
    kind = type_of(tensor)
    numbers = _numbers(tensor, kind)
    if numbers.size != prod(shape):
        given = f"{numbers.size} elements" if numbers.size else "no data"
        raise GraphError(f"{_named(tensor)} needs {prod(shape)} elements; the file has {given}")
    return numbers.reshape(shape)


def array_of(tensor: onnx.TensorProto, data: Bytes) -> Array:
    """The array over these bytes: a view, unless the bytes lie at an odd address."""
    shape, kind = shape_of(tensor), type_of(tensor)
    need = prod(shape) * kind.itemsize
    if len(data) != need:
        raise GraphError(f"{_named(tensor)} needs {need} bytes of data; the file has {len(data)}")
    a: Array = np.frombuffer(data, np.uint8).view(kind) if need else np.zeros(0, kind)
    if not a.flags.aligned:
        a = a.copy()
    if kind == np.bool_ and a.view(np.uint8).max(initial=0) > 1:  # kernels rely on 0 and 1
        a = a.view(np.uint8) != 0
    return a.reshape(shape)


def nbytes_of(tensor: onnx.TensorProto) -> int:
    """The bytes that its elements take in a file."""
    count = prod(shape_of(tensor))
    if (bits := ODD.get(tensor.data_type)) is not None:
        return (count * bits + 7) // 8
    return count * type_of(tensor).itemsize


def shape_of(tensor: onnx.TensorProto) -> tuple[int, ...]:
    shape = tuple(map(int, tensor.dims))
    if any(n < 0 for n in shape) or prod(max(n, 1) for n in shape) >= 1 << 62:
        raise GraphError(f"the tensor {tensor.name!r} has the impossible shape {list(shape)}")
    if len(shape) > _MAX_RANK:
        raise GraphError(
            f"the tensor {tensor.name!r} has {len(shape)} dimensions; at most {_MAX_RANK} work"
        )
    return shape


def type_of(tensor: onnx.TensorProto) -> np.dtype[Any]:
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    except (KeyError, TypeError):
        raise GraphError(
            f"the tensor {tensor.name!r} is of type {tensor.data_type}, which ONNX does not define"
        ) from None


def _numbers(tensor: onnx.TensorProto, kind: np.dtype[Any]) -> Array:
    """From the field of numbers that is for this type."""
    field = helper.tensor_dtype_to_field(tensor.data_type)
    match field:
        case "float_data":
            return np.array(tensor.float_data, np.float32).view(kind)
        case "double_data":
            return np.array(tensor.double_data, np.float64).view(kind)
        case "int64_data":
            return np.array(tensor.int64_data, np.int64)
        case "uint64_data":
            return np.array(tensor.uint64_data, np.uint64).astype(kind)
    held = np.array(tensor.int32_data, np.int32)
    if kind.kind in "iub":
        return held.astype(kind)
    # Other floats are held as the bits of each.
    return held.astype(f"u{kind.itemsize}").view(kind)


def _odd(tensor: onnx.TensorProto, shape: tuple[int, ...]) -> Array:
    held = (
        len(tensor.string_data)
        if tensor.data_type == _TYPES.STRING
        else 8 * max(len(tensor.raw_data), len(tensor.int32_data)) // ODD[tensor.data_type]
    )
    if held < prod(shape):  # before an array of that size is made
        raise GraphError(f"{_named(tensor)} needs {prod(shape)} elements; the file has fewer")
    try:
        array: Array = numpy_helper.to_array(tensor)
    except Exception as error:  # of the package: a damaged message raises anything
        raise GraphError(f"{_named(tensor)} cannot be read: {error}") from None
    return array


def _named(tensor: onnx.TensorProto) -> str:
    names = {v: k for k, v in _TYPES.DataType.items()}
    kind = names.get(tensor.data_type, str(tensor.data_type)).lower()
    return f"the tensor {tensor.name!r} ({kind}{list(tensor.dims)})"
