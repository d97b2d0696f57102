"""Hardware instructions of CPUs, each described in the DSL and given its code: what `tensorize`
takes.

`emit` works on the text builder of the LLVM code generator; operands come as vectors of all their
elements in row-major order.
"""

from __future__ import annotations

from typing import Any

from tilesmith.base.dtype import INT32
from tilesmith.expr.dsl import compute, placeholder, reduce_axis
from tilesmith.expr.dsl import sum as sum_over
from tilesmith.expr.values import cast
from tilesmith.ir.function import Function
from tilesmith.ir.lower import function
from tilesmith.ir.nodes import Intrinsic


def _dot(lanes: int, left: str, right: str, name: str) -> Function:
    """Four products into each int32 lane: C[i] += sum_k A[k] * B[i, k]."""
    a = placeholder((4,), left, name="A")
    b = placeholder((lanes, 4), right, name="B")
    k = reduce_axis(4, name="k")
    c = compute(
        (lanes,), lambda i: sum_over(cast(a[k], INT32) * cast(b[i, k], INT32), axis=k), name="C"
    )
    return function([a, b, c], name=name)


def _broadcast_quads(b: Any, a: Any, lanes: int) -> Any:
    """Four bytes, as one int32, in every lane."""
    t = type(a.type)
    word = b.value(t("i32"), f"bitcast {a} to i32")
    return b.splat(word, lanes)


def _emit_vnni(b: Any, operands: dict[str, Any]) -> Any:
    acc, a, w = operands["C"], operands["A"], operands["B"]
    lanes = acc.type.lanes
    t = type(acc.type)
    # Since LLVM 22 the byte operands are byte vectors; they are what the instruction reads anyway.
    quads = _broadcast_quads(b, a, lanes)
    left = b.value(t("i8", 4 * lanes), f"bitcast {quads} to <{4 * lanes} x i8>")
    return b.target_call(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", acc.type, acc, left, w)


def _emit_sdot(b: Any, operands: dict[str, Any]) -> Any:
    acc, a, w = operands["C"], operands["A"], operands["B"]
    quads = _broadcast_quads(b, a, acc.type.lanes)
    left = b.value(w.type, f"bitcast {quads} to {w.type}")
    return b.call("llvm.aarch64.neon.sdot", acc.type, acc, left, w, overload="v4i32.v16i8")


def _emit_udot(b: Any, operands: dict[str, Any]) -> Any:
    acc, a, w = operands["C"], operands["A"], operands["B"]
    quads = _broadcast_quads(b, a, acc.type.lanes)
    left = b.value(w.type, f"bitcast {quads} to {w.type}")
    return b.call("llvm.aarch64.neon.udot", acc.type, acc, left, w, overload="v4i32.v16i8")


AVX512_DOT_U8S8 = Intrinsic(
    "avx512.dot_u8s8",
    _dot(16, "uint8", "int8", "dot_u8s8"),
    frozenset({"avx512f", "vnni"}),
    _emit_vnni,
)
NEON_DOT_S8S8 = Intrinsic(
    "neon.dot_s8s8", _dot(4, "int8", "int8", "dot_s8s8"), frozenset({"dotprod"}), _emit_sdot
)
NEON_DOT_U8U8 = Intrinsic(
    "neon.dot_u8u8", _dot(4, "uint8", "uint8", "dot_u8u8"), frozenset({"dotprod"}), _emit_udot
)

INTRINSICS = (AVX512_DOT_U8S8, NEON_DOT_S8S8, NEON_DOT_U8U8)
