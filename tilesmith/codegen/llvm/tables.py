"""Reads of tables of 256 bytes at places that bytes name, such as a function of a quantised value.
Registers hold the table, so that all lanes read at once: by permutations of words in two registers
with AVX-512, and of bytes in four registers with Neon.
"""

from __future__ import annotations

from tilesmith.base.target import Target
from tilesmith.codegen.llvm.builder import Builder, Type, V

SIZE = 256  # entries, one for each byte
_WORDS = 32  # of a register of AVX-512
_PERMUTE = "llvm.x86.avx512.vpermi2var.hi.512"
_BYTES = 16  # of a register of Neon


def reads_tables(target: Target, lanes: int) -> bool:
    """Whether so many lanes read a table faster than by scalar loads."""
    chunk = _chunk(target)
    return chunk > 0 and lanes >= 4 and (lanes <= chunk or lanes % chunk == 0)


def looked_up(b: Builder, target: Target, table: str, at: V) -> V:
    """The bytes at the places `at` of the table that the pointer names."""
    chunk, lanes = _chunk(target), at.type.lanes
    by = _by_words if chunk == _WORDS else _by_bytes
    if lanes < chunk:
        return b.part(by(b, table, _widened(b, at, chunk)), 0, lanes)
    parts = [at] if lanes == chunk else [b.part(at, k, chunk) for k in range(0, lanes, chunk)]
    parts = [by(b, table, p) for p in parts]
    while len(parts) > 1:  # there may be an odd number of them
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [_joined(b, x, y) for x, y in pairs] + parts[len(parts) // 2 * 2 :]
    return parts[0]


def _chunk(target: Target) -> int:
    """The lanes that read at once; 0 if the machine has no such instructions."""
    if {"avx512f", "avx512bw"} <= target.features:
        return _WORDS
    return _BYTES if "neon" in target.features else 0


def _widened(b: Builder, v: V, lanes: int) -> V:
    """With more lanes, which hold anything."""
    t = Type(v.type.elem, lanes)
    order = ", ".join(f"i32 {k}" for k in range(v.type.lanes))
    rest = ", i32 poison" * (lanes - v.type.lanes)
    return b.value(t, f"shufflevector {v}, {v.type} poison, <{lanes} x i32> <{order}{rest}>")


def _joined(b: Builder, x: V, y: V) -> V:
    lanes = x.type.lanes + y.type.lanes
    t = Type(x.type.elem, lanes)
    y = _widened(b, y, x.type.lanes) if y.type.lanes < x.type.lanes else y
    order = ", ".join(f"i32 {k}" for k in range(lanes))
    return b.value(t, f"shufflevector {x}, {y}, <{lanes} x i32> <{order}>")


def _loaded(b: Builder, table: str, t: Type, offset: int) -> V:
    p = b.value(Type("ptr"), f"getelementptr i8, ptr {table}, i64 {offset}")
    return b.value(t, f"load {t}, {p}, align 1")


def _by_words(b: Builder, table: str, at: V) -> V:
    """Each pair of registers has 64 words; the lowest bit of a place chooses the byte of a word."""
    t = Type("i16", _WORDS)
    place = b.cast("zext", at, "i16")
    word = b.op("lshr", place, b.const(t, 1))
    words = [_loaded(b, table, t, 2 * _WORDS * k) for k in range(4)]
    low, high = (b.target_call(_PERMUTE, t, words[k], word, words[k + 1]) for k in (0, 2))
    found = b.select(b.compare("ugt", place, b.const(t, SIZE // 2 - 1)), high, low)
    bits = b.op("shl", b.op("and", place, b.const(t, 1)), b.const(t, 3))
    return b.cast("trunc", b.op("lshr", found, bits), "i8")


def _by_bytes(b: Builder, table: str, at: V) -> V:
    """Four registers at a time; places beyond them read 0, or leave what others have found."""
    t = Type("i8", _BYTES)
    found: V | None = None
    for start in range(0, SIZE, 4 * _BYTES):
        quarter = [_loaded(b, table, t, start + _BYTES * k) for k in range(4)]
        place = b.op("sub", at, b.const(t, start)) if start else at
        given = (*quarter, place)
        if found is None:
            found = b.target_call("llvm.aarch64.neon.tbl4.v16i8", t, *given)
        else:
            found = b.target_call("llvm.aarch64.neon.tbx4.v16i8", t, found, *given)
    assert found is not None
    return found
