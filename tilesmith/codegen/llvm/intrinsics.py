"""The LLVM code of hardware instructions.

An emitter gets the Builder and each operand as one vector of all its elements in row-major order,
by the names of the description's parameters. It returns the new value of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilesmith.base.errors import BuildError
from tilesmith.codegen.llvm.builder import I32, Builder, Type, V
from tilesmith.ir.intrinsics import AVX512_DOT_U8S8, NEON_DOT_S8S8, NEON_DOT_U8U8
from tilesmith.ir.nodes import Intrinsic

Operands = Mapping[str, V]
Emit = Callable[[Builder, Operands], V]
NAME = "llvm"  # the name of this back end in Intrinsic.emitters


def emitter_of(unit: Intrinsic) -> Emit:
    """The intrinsic's own emitter for LLVM, else the one in this file."""
    emit: Emit | None = unit.emitters.get(NAME) or EMITTERS.get(unit.name)
    if emit is None:
        raise BuildError(
            f"{unit.name} has no LLVM code; give it with "
            f"Intrinsic(..., emitters={{{NAME!r}: emit}})"
        )
    return emit


def _quads(b: Builder, a: V, to: Type) -> V:
    """Four bytes repeated over a vector."""
    word = b.value(I32, f"bitcast {a} to i32")
    return b.value(to, f"bitcast {b.splat(word, to.lanes // 4)} to {to}")


def _vnni(b: Builder, operands: Operands) -> V:
    acc, a, w = operands["C"], operands["A"], operands["B"]
    lanes = acc.type.lanes
    # Since LLVM 22 the operands are vectors of bytes, which is what the instruction reads anyway.
    left = _quads(b, a, Type("i8", 4 * lanes))
    return b.target_call(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", acc.type, acc, left, w)


def _neon_dot(name: str) -> Emit:
    def emit(b: Builder, operands: Operands) -> V:
        acc, a, w = operands["C"], operands["A"], operands["B"]
        return b.call(name, acc.type, acc, _quads(b, a, w.type), w, overload="v4i32.v16i8")

    return emit


EMITTERS: Mapping[str, Emit] = {
    AVX512_DOT_U8S8.name: _vnni,
    NEON_DOT_S8S8.name: _neon_dot("llvm.aarch64.neon.sdot"),
    NEON_DOT_U8U8.name: _neon_dot("llvm.aarch64.neon.udot"),
}
