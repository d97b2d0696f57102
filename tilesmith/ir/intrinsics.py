"""Hardware instructions of CPUs for `tensorize`. Each states what it computes, in the DSL, and
which features a target needs. The back ends emit the code (codegen/llvm/intrinsics.py).
"""

from __future__ import annotations

from tilesmith.base.dtype import INT32
from tilesmith.expr.dsl import compute, placeholder, reduce_axis
from tilesmith.expr.dsl import sum as sum_over
from tilesmith.expr.values import cast
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function
from tilesmith.ir.nodes import Intrinsic


def _dot(lanes: int, left: str, right: str, name: str) -> Function:
    """Sums four products into each int32 lane: C[i] += sum_k A[k] * B[i, k]."""
    a = placeholder((4,), left, name="A")
    b = placeholder((lanes, 4), right, name="B")
    k = reduce_axis(4, name="k")
    c = compute(
        (lanes,), lambda i: sum_over(cast(a[k], INT32) * cast(b[i, k], INT32), axis=k), name="C"
    )
    return function([a, b, c], name=name)


AVX512_DOT_U8S8 = Intrinsic(
    "avx512.dot_u8s8", _dot(16, "uint8", "int8", "dot_u8s8"), frozenset({"avx512f", "vnni"})
)
NEON_DOT_S8S8 = Intrinsic(
    "neon.dot_s8s8", _dot(4, "int8", "int8", "dot_s8s8"), frozenset({"dotprod"})
)
NEON_DOT_U8U8 = Intrinsic(
    "neon.dot_u8u8", _dot(4, "uint8", "uint8", "dot_u8u8"), frozenset({"dotprod"})
)

INTRINSICS = (AVX512_DOT_U8S8, NEON_DOT_S8S8, NEON_DOT_U8U8)
