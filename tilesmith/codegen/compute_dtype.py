"""The dtype in which values of a stored dtype are computed, for the passes and the emitters."""

from __future__ import annotations

from tilesmith.base.dtype import BFLOAT16, FLOAT16, FLOAT32, DType


def compute_dtype(d: DType, features: frozenset[str]) -> DType:
    """float32 for half precision, unless it is float16 and the target has arithmetic for it
    (feature `fp16`). All other dtypes are computed as they are stored.
    """
    if d is BFLOAT16 or (d is FLOAT16 and "fp16" not in features):
        return FLOAT32
    return d
