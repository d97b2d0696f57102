"""LLVM IR as text: typed values, and a Builder that emits instructions and returns their results.

LLVM parses text faster than llvmlite builds objects, and text is readable.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import NamedTuple

from tilesmith.base.dtype import DType
from tilesmith.base.machines.machine import CpuMachine


class Type(NamedTuple):
    """A scalar type, or a vector of `lanes` scalars."""

    elem: str  # "float", "double", "half", "i1", "i8", "i32", "i64", "ptr"
    lanes: int = 1

    def __str__(self) -> str:
        return self.elem if self.lanes == 1 else f"<{self.lanes} x {self.elem}>"

    @property
    def suffix(self) -> str:
        """The suffix of overloaded intrinsics: v16f32."""
        e = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}.get(
            self.elem, self.elem
        )
        return e if self.lanes == 1 else f"v{self.lanes}{e}"

    @property
    def bits(self) -> int:
        named = {"float": 32, "double": 64, "half": 16, "ptr": 64}
        return named.get(self.elem) or int(self.elem[1:])

    @property
    def is_float(self) -> bool:
        return self.elem in ("float", "double", "half")

    def of(self, elem: str) -> Type:
        return Type(elem, self.lanes)


class V(NamedTuple):
    """An SSA name or a constant, with its type."""

    name: str
    type: Type

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


I1, I8, I32, I64, PTR, F32, F64 = (
    Type(e) for e in ("i1", "i8", "i32", "i64", "ptr", "float", "double")
)


@cache
def storage_type(d: DType, lanes: int = 1) -> Type:
    """The type of an element in memory. bfloat16 is an i16, which needs no library calls."""
    if d.kind == "f":
        return Type(
            {"float16": "half", "bfloat16": "i16", "float32": "float", "float64": "double"}[d.name],
            lanes,
        )
    return Type(f"i{d.bits}", lanes)


def number(t: Type, value: float | int | bool) -> str:
    """A scalar constant in LLVM's syntax."""
    if t.elem in ("float", "double"):
        wide = struct.unpack("<f", _packed("<f", value))[0] if t.elem == "float" else float(value)
        return f"0x{struct.unpack('<Q', _packed('<d', wide))[0]:016X}"
    if t.elem == "half":
        return f"0xH{struct.unpack('<H', _packed('<e', value))[0]:04X}"
    if t.elem == "i1":
        return "true" if value else "false"
    return str(int(value))


def is_nan(v: V) -> bool:
    """Whether it is a constant NaN, scalar or in all lanes."""
    return v.name[0] != "%" and number(Type(v.type.elem), math.nan) in v.name


def _packed(form: str, value: float) -> bytes:
    """The bytes of a float. Values beyond the largest number become infinity, and all NaNs become
    the same one.
    """
    value = math.nan if value != value else value
    try:
        return struct.pack(form, value)
    except OverflowError:
        return struct.pack(form, math.copysign(math.inf, value))


def _has(any_of: frozenset[str], features: frozenset[str]) -> bool:
    return not any_of or bool(any_of & features)


class Builder:
    """Appends instructions to `lines`. `declarations` collects what the module must declare."""

    def __init__(self, machine: CpuMachine, features: frozenset[str] = frozenset()) -> None:
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}
        self.machine, self.features = machine, features
        self._next = 0
        self.setup: dict[str, list[str]] = {}  # what a function needs at its start, by a key
        self.sources: dict[str, tuple[V, int]] = {}  # the vector that a part was taken from

    def fresh(self, hint: str = "v") -> str:
        self._next += 1
        return f"%{hint}{self._next}"

    def names(self, count: int) -> list[str]:
        """`count` new names, the same as that many calls of `value` would give."""
        first = self._next + 1
        self._next += count
        return [f"%v{k}" for k in range(first, first + count)]

    def emit(self, line: str) -> None:
        self.lines.append(line)

    def value(self, t: Type, text: str) -> V:
        """Emits one instruction with a result."""
        self._next += 1
        name = f"%v{self._next}"
        self.emit(f"  {name} = {text}")
        return V(name, t)

    # constants
    def const(self, t: Type, value: float | int | bool) -> V:
        text = number(Type(t.elem), value)
        if t.lanes > 1:
            text = (
                "zeroinitializer"
                if value == 0 and str(value)[0] != "-"
                else f"splat ({t.elem} {text})"
            )
        return V(text, t)

    def table(self, t: Type, values: Sequence[float]) -> str:
        """A constant array in memory that has each value in all lanes of t."""
        elem = Type(t.elem)
        numbers = [number(elem, v) for v in values]
        name = f"@table.{t.suffix}.{sha256(' '.join(numbers).encode()).hexdigest()[:16]}"
        entry = f"{t} splat ({t.elem} {{}})" if t.lanes > 1 else f"{t} {{}}"
        entries = ", ".join(map(entry.format, numbers))
        self.declarations.setdefault(
            name,
            f"{name} = internal unnamed_addr constant [{len(values)} x {t}] [{entries}], align 64",
        )
        return name

    def entry(self, t: Type, table: str, at: int) -> V:
        """An entry of a table, loaded at each use."""
        nbytes = at * t.lanes * t.bits // 8
        return self.value(
            t, f"load volatile {t}, ptr getelementptr (i8, ptr {table}, i64 {nbytes}), align 16"
        )

    def fence(self) -> None:
        """Keeps LLVM from moving instructions across this point when it schedules them. A label for
        debuggers has that effect, and is not in the code.
        """
        name = "@llvm.codeview.annotation"
        self.declarations.setdefault(name, f"declare void {name}(metadata)")
        self.emit(f'  call void {name}(metadata !{{!"fence"}})')

    # arithmetic; op is the name of LLVM's instruction
    def op(self, op: str, a: V, b: V) -> V:
        return self.value(a.type, f"{op} {a.type} {a.name}, {b.name}")

    def fneg(self, a: V) -> V:
        return self.value(a.type, f"fneg {a}")

    @property
    def fuses(self) -> bool:
        """Whether the target has fused multiply-add instructions."""
        return _has(self.machine.fuses_with, self.features)

    @property
    def halves(self) -> bool:
        """Whether the target has conversions between float16 and float."""
        return _has(self.machine.halves_with, self.features)

    def fma(self, a: V, b: V, c: V) -> V:
        """a b + c, rounded once if the target can, else twice; never a library call."""
        if not self.fuses:
            return self.op("fadd", self.op("fmul", a, b), c)
        return self.call("llvm.fma", a.type, a, b, c)

    def call(self, intrinsic: str, result: Type, *args: V, overload: str | None = None) -> V:
        """Calls an intrinsic, overloaded on its first argument or as `overload` says."""
        suffix = (args[0].type.suffix if args else result.suffix) if overload is None else overload
        name = f"@{intrinsic}.{suffix}" if suffix else f"@{intrinsic}"
        self.declarations.setdefault(
            name, f"declare {result} {name}({', '.join(str(a.type) for a in args)})"
        )
        return self.value(result, f"call {result} {name}({', '.join(map(str, args))})")

    def run(self, name: str, *args: str) -> None:
        """Calls an intrinsic without a result. Whole numbers among the arguments are immediate."""
        types = (f"{t} immarg" if t == "i8" else t for t in (a.split()[0] for a in args))
        self.declarations.setdefault(f"@{name}", f"declare void @{name}({', '.join(types)})")
        self.emit(f"  call void @{name}({', '.join(args)})")

    def target_call(self, name: str, result: Type, *args: V) -> V:
        """Calls an intrinsic by its full name."""
        return self.call(name, result, *args, overload="")

    def compare(self, op: str, a: V, b: V) -> V:
        """op is a predicate of fcmp ("olt") or icmp ("slt"), by the type of a."""
        inst = "fcmp" if a.type.is_float else "icmp"
        return self.value(a.type.of("i1"), f"{inst} {op} {a}, {b.name}")

    def select(self, cond: V, a: V, b: V) -> V:
        return self.value(a.type, f"select {cond}, {a}, {b}")

    def cast(self, op: str, a: V, elem: str) -> V:
        """op is LLVM's: sext, zext, trunc, fpext, fptrunc, sitofp, fptosi, bitcast ..."""
        t = a.type.of(elem)
        return self.value(t, f"{op} {a} to {t}")

    def prefetch(
        self, pointer: str, offset: int, elem: str, *, write: bool, level: int = 1
    ) -> None:
        """Prefetches a cache line into cache level 1 or 2."""
        name = "@llvm.prefetch.p0"
        self.declarations.setdefault(name, f"declare void {name}(ptr, i32, i32, i32)")
        at = self.value(PTR, f"getelementptr {elem}, ptr {pointer}, i64 {offset}")
        self.emit(f"  call void {name}({at}, i32 {int(write)}, i32 {4 - level}, i32 1)")

    def splat(self, a: V, lanes: int) -> V:
        """A vector with a scalar in every lane."""
        if lanes == 1:
            return a
        t = Type(a.type.elem, lanes)
        if a.name[0] != "%":
            return V("zeroinitializer" if a.name == "0" else f"splat ({a})", t)
        one = self.value(t, f"insertelement {t} poison, {a}, i64 0")
        return self.value(t, f"shufflevector {one}, {t} poison, <{lanes} x i32> zeroinitializer")

    def part_of(self, v: V, start: int, lanes: int) -> V:
        """The same as `part`, and `sources` remembers where it is from. If nobody asks for the part
        itself, LLVM drops it.
        """
        out = self.part(v, start, lanes)
        self.sources[out.name] = v, start
        return out

    def joined(self, v: V, part: V, start: int) -> V:
        """A vector with other values in consecutive lanes."""
        n, used = v.type.lanes, part.type.lanes
        order = ", ".join(f"i32 {k}" if k < used else "i32 poison" for k in range(n))
        wide = self.value(
            v.type, f"shufflevector {part}, {part.type} poison, <{n} x i32> <{order}>"
        )
        order = ", ".join(
            f"i32 {n + k - start if start <= k < start + used else k}" for k in range(n)
        )
        return self.value(v.type, f"shufflevector {v}, {wide}, <{n} x i32> <{order}>")

    def part(self, v: V, start: int, lanes: int = 1) -> V:
        """Consecutive lanes of a vector; a scalar for a single lane."""
        t = Type(v.type.elem, lanes)
        if lanes == 1:
            return self.value(t, f"extractelement {v}, i64 {start}")
        order = ", ".join(f"i32 {start + k}" for k in range(lanes))
        return self.value(t, f"shufflevector {v}, {v.type} poison, <{lanes} x i32> <{order}>")
