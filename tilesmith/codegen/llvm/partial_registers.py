"""Vectors that fill a part of a register, such as the last 11 of 27 elements, on processors that
load and store a part in one instruction (AVX-512). Elsewhere such an end is cut into powers of two:
11 is 8 + 2 + 1, each of which takes as long as a whole register.
"""

from __future__ import annotations

from tilesmith.base.target import Target
from tilesmith.codegen.llvm.builder import Builder, Type, V
from tilesmith.codegen.passes.accesses import accesses
from tilesmith.expr.ints import opaque_atoms
from tilesmith.expr.plain_floats import is_plain_arithmetic
from tilesmith.ir.nodes import Alloc, For, If, Store, Write, statements


def fills_parts(s: For, target: Target) -> bool:
    """Whether the end of a vectorized loop may be one part of a register: it computes with floats,
    each lane by itself, and all lanes do the same.
    """
    if not target.masks_vectors:
        return False
    for t in statements(s.body):
        match t:
            case Alloc():
                return False
            case If():
                if any(s.name in p.names for p in t.conds):
                    return False
            case Store():
                if t.intrinsic is not None or not all(_moves(w, s.name) for w in t.writes):
                    return False
    indices = (p for a in accesses(s.body) for p in a.index)
    return not any(s.name in x.names() for p in indices for x in opaque_atoms(p))


def _moves(w: Write, lane: str) -> bool:
    """Whether each lane computes an element of its own."""
    return any(lane in p.names for p in w.index) and is_plain_arithmetic(w.value, lane)


def load(b: Builder, t: Type, pointer: str, align: int) -> V:
    """A vector of consecutive elements; a part of a register under a constant mask."""
    whole = _register_of(t)
    if whole == t:
        return b.value(t, f"load {t}, ptr {pointer}, align {align}")
    name, mask = f"@llvm.masked.load.{whole.suffix}.p0", _mask(t.lanes, whole.lanes)
    b.declarations.setdefault(name, f"declare {whole} {name}(ptr, i32, {mask.type}, {whole})")
    given = b.value(
        whole, f"call {whole} {name}(ptr {pointer}, i32 {align}, {mask}, {whole} poison)"
    )
    return b.part(given, 0, t.lanes)


def store(b: Builder, v: V, pointer: str, align: int) -> None:
    t, whole = v.type, _register_of(v.type)
    if whole == t:
        b.emit(f"  store {v}, ptr {pointer}, align {align}")
        return
    name, mask = f"@llvm.masked.store.{whole.suffix}.p0", _mask(t.lanes, whole.lanes)
    b.declarations.setdefault(name, f"declare void {name}({whole}, ptr, i32, {mask.type})")
    order = ", ".join(f"i32 {k}" if k < t.lanes else "i32 poison" for k in range(whole.lanes))
    wide = b.value(whole, f"shufflevector {v}, {t} poison, <{whole.lanes} x i32> <{order}>")
    b.emit(f"  call void {name}({wide}, ptr {pointer}, i32 {align}, {mask})")


def _register_of(t: Type) -> Type:
    """The next power of two of lanes, as LLVM computes with such a vector."""
    return Type(t.elem, 1 << (t.lanes - 1).bit_length())


def _mask(used: int, lanes: int) -> V:
    bits = ", ".join(f"i1 {'true' if k < used else 'false'}" for k in range(lanes))
    return V(f"<{bits}>", Type("i1", lanes))
