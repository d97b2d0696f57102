"""ONNX's numbers for element types."""

from __future__ import annotations

from tilesmith.base.dtype import DTYPES, DType, dtype
from tilesmith.frontends.onnx.call import Call

# TensorProto.DataType of the ONNX format; those that have no kernels are named for messages.
_NAMES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    8: "string", 9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
    14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float8e4m3fn", 18: "float8e4m3fnuz",
    19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4e2m1",
}  # fmt: skip


def element_type(call: Call, code: int, what: str) -> DType:
    """The dtype of an element type that an attribute names."""
    name = _NAMES.get(code, f"the element type {code}")
    if name not in DTYPES:
        call.refuse(f"{what} is {name}, for which there are no kernels")
    return dtype(name)
