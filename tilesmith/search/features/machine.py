"""A vectorised interpreter of arithmetic programs over integer rows, with a line of floats per row
as the result. It is a single native function, compiled once by LLVM: one function per operation,
which processes a slot in vectors, and one that decodes instructions and calls them.

An instruction is four numbers: opcode, two arguments, destination. Rows are processed in blocks. A
slot holds one value per row of the block, and an instruction processes whole slots. So decoding
costs little, and all slots stay in L1.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilesmith.base.dataclass import dataclass
from tilesmith.base.process import LLVM_LOCK
from tilesmith.space.domains import Matrix

BLOCK = 64  # rows per block
LANES = 16  # lanes of a vector; LLVM maps them to the processor's registers
_V = f"<{LANES} x float>"
_I = f"<{LANES} x i32>"
_B = f"<{LANES} x i1>"


def _all(kind: str, value: str) -> str:
    return "<" + ", ".join([f"{kind} {value}"] * LANES) + ">"


def _float(x: float) -> str:
    """A float literal of LLVM: the bits of the double of that value."""
    (bits,) = struct.unpack("<Q", struct.pack("<d", float(np.float32(x))))
    return _all("float", f"0x{bits:016X}")


_ONE, _ZERO = _float(1), _float(0)

# The minimax polynomial of log2(1 + f) / f for f from sqrt(1/2) - 1 to sqrt(2) - 1, constant first.
# Its error is a sixth of the rounding error of a float.
_LOG = (
    1.4426950216293335, -0.7213473320007324, 0.4808982312679291, -0.3606966435909271,
    0.2885673940181732, -0.23961740732192993, 0.20460063219070435, -0.1910627782344818,
    0.1861748844385147, -0.10994941741228104,
)  # fmt: skip
_HALF_ROOT = 0x3F3504F3  # bits of sqrt(1/2): mantissas are normalised to [sqrt(1/2), sqrt(2))


def _logarithm() -> str:
    lines = [
        f"%tiny = fcmp olt {_V} %x, {_float(2.0**-126)}",
        f"%scaled = fmul {_V} %x, {_float(2.0**24)}",
        f"%normal = select {_B} %tiny, {_V} %scaled, {_V} %x",
        f"%bits = bitcast {_V} %normal to {_I}",
        f"%above = sub {_I} %bits, {_all('i32', str(_HALF_ROOT))}",
        f"%power = ashr {_I} %above, {_all('i32', '23')}",
        f"%place = shl {_I} %power, {_all('i32', '23')}",
        f"%mantissa = sub {_I} %bits, %place",
        f"%m = bitcast {_I} %mantissa to {_V}",
        f"%f = fsub {_V} %m, {_ONE}",
        f"%whole = sitofp {_I} %power to {_V}",
        f"%less = fsub {_V} %whole, {_float(24)}",
        f"%e = select {_B} %tiny, {_V} %less, {_V} %whole",
    ]
    sum_ = _float(_LOG[-1])
    for k, c in enumerate(reversed(_LOG[:-1])):
        lines.append(_muladd(f"%q{k}", sum_, "%f", _float(c)))
        sum_ = f"%q{k}"
    lines += [
        _muladd("%usual", sum_, "%f", "%e"),
        f"%wrong = fcmp ult {_V} %x, {_ZERO}",
        f"%none = fcmp oeq {_V} %x, {_ZERO}",
        f"%endless = fcmp oeq {_V} %x, {_float(np.inf)}",
        f"%r0 = select {_B} %wrong, {_V} {_float(np.nan)}, {_V} %usual",
        f"%r1 = select {_B} %none, {_V} {_float(-np.inf)}, {_V} %r0",
        f"%z = select {_B} %endless, {_V} %x, {_V} %r1",
    ]
    return "\n  ".join(lines)


def _muladd(to: str, a: str, b: str, c: str) -> str:
    """a * b + c, fused if the processor has the instruction."""
    return f"{to} = call {_V} @llvm.fmuladd.v{LANES}f32({_V} {a}, {_V} {b}, {_V} {c})"


def _extreme(compare: str) -> str:
    """Minimum or maximum that propagates NaN, like NumPy's."""
    return f"""%first = fcmp {compare} {_V} %x, %y
  %either = select {_B} %first, {_V} %x, {_V} %y
  %nan = fcmp uno {_V} %x, %x
  %z = select {_B} %nan, {_V} %x, {_V} %either"""


# The instructions that compute %z from %x and %y, or from %x alone.
_BODIES = {
    "add": f"%z = fadd {_V} %x, %y",
    "subtract": f"%z = fsub {_V} %x, %y",
    "multiply": f"%z = fmul {_V} %x, %y",
    "divide": f"%z = fdiv {_V} %x, %y",
    "minimum": _extreme("olt"),
    "maximum": _extreme("ogt"),
    "greater": f"""%more = fcmp ogt {_V} %x, %y
  %z = select {_B} %more, {_V} {_ONE}, {_V} {_ZERO}""",
    "floor_divide": f"""%share = fdiv {_V} %x, %y
  %z = call {_V} @llvm.floor.v{LANES}f32({_V} %share)""",
    "ceil": f"%z = call {_V} @llvm.ceil.v{LANES}f32({_V} %x)",
    "log2": _logarithm(),
}
_SPECIAL = (
    "column",  # argument: number of the column
    "constant",  # argument: bits of a float
    "curve",  # arguments: position of its points in the program, bits of its share
    "output",  # arguments: slot, position in the line
)
CODES = {name: k for k, name in enumerate((*_BODIES, *_SPECIAL))}


def _loop(head: str, bound: str, body: str, before: str = "") -> str:
    """A function that carries out the body for %i from 0 up to a bound."""
    return f"""
define internal void @{head} {{
entry:
  {before}
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  {body}
  %next = add i64 %i, 1
  %more.rows = icmp slt i64 %next, {bound}
  br i1 %more.rows, label %loop, label %done
done:
  ret void
}}
"""


def _operation(name: str, body: str) -> str:
    load = f"%y = load {_V}, ptr %pb, align 64" if "%y" in body else ""
    return _loop(
        f"{name}(ptr %a, ptr %b, ptr %to, i64 %vectors)", "%vectors",
        f"""%pa = getelementptr {_V}, ptr %a, i64 %i
  %pb = getelementptr {_V}, ptr %b, i64 %i
  %pz = getelementptr {_V}, ptr %to, i64 %i
  %x = load {_V}, ptr %pa, align 64
  {load}
  {body}
  store {_V} %z, ptr %pz, align 64""",
    )  # fmt: skip


_COLUMN = _loop(
    "column(ptr %column, i64 %down, i64 %count, i64 %lanes, ptr %to)", "%lanes",
    """; the last vector is filled up with the last row
  %row = call i64 @llvm.smin.i64(i64 %i, i64 %last)
  %at = mul i64 %row, %down
  %p = getelementptr i32, ptr %column, i64 %at
  %whole = load i32, ptr %p, align 4
  %x = sitofp i32 %whole to float
  %pz = getelementptr float, ptr %to, i64 %i
  store float %x, ptr %pz, align 4""",
    before="%last = sub i64 %count, 1",
)  # fmt: skip

_CONSTANT = _loop(
    "constant(i32 %bits, ptr %to, i64 %vectors)", "%vectors",
    f"""%pz = getelementptr {_V}, ptr %to, i64 %i
  store {_V} %z, ptr %pz, align 64""",
    before=f"""%x = bitcast i32 %bits to float
  %one = insertelement {_V} poison, float %x, i32 0
  %z = shufflevector {_V} %one, {_V} poison, {_I} zeroinitializer""",
)  # fmt: skip

_OUTPUT = _loop(
    "output(ptr %a, ptr %line, i64 %width, i64 %count)", "%count",
    """%to = phi ptr [ %line, %entry ], [ %below, %loop ]
  %pa = getelementptr float, ptr %a, i64 %i
  %x = load float, ptr %pa, align 4
  store float %x, ptr %to, align 4
  %below = getelementptr float, ptr %to, i64 %width""",
)  # fmt: skip

_CURVE = f"""
define internal ptr @slot_of(ptr %slots, ptr %points, i64 %k) {{
  %p = getelementptr i32, ptr %points, i64 %k
  %number = load i32, ptr %p, align 4
  %wide = sext i32 %number to i64
  %slot = getelementptr [{BLOCK} x float], ptr %slots, i64 %wide
  ret ptr %slot
}}

define internal void @curve(ptr %slots, ptr %points, i32 %bits, ptr %to, i64 %vectors) {{
entry:
  %n32 = load i32, ptr %points, align 4
  %n = sext i32 %n32 to i64
  %x0.slot = call ptr @slot_of(ptr %slots, ptr %points, i64 1)
  %y0.at = add i64 %n, 1
  %y0.slot = call ptr @slot_of(ptr %slots, ptr %points, i64 %y0.at)
  %end.slot = call ptr @slot_of(ptr %slots, ptr %points, i64 %n)
  %share1 = bitcast i32 %bits to float
  %one = insertelement {_V} poison, float %share1, i32 0
  %share = shufflevector {_V} %one, {_V} poison, {_I} zeroinitializer
  br label %rows
rows:
  %i = phi i64 [ 0, %entry ], [ %next, %found ]
  %px = getelementptr {_V}, ptr %x0.slot, i64 %i
  %py = getelementptr {_V}, ptr %y0.slot, i64 %i
  %pe = getelementptr {_V}, ptr %end.slot, i64 %i
  %x.first = load {_V}, ptr %px, align 64
  %y.first = load {_V}, ptr %py, align 64
  %end = load {_V}, ptr %pe, align 64
  %at = fmul {_V} %share, %end
  br label %test
test:  ; the last point before, and the one after it
  %k = phi i64 [ 1, %rows ], [ %k.next, %point ]
  %x = phi {_V} [ %x.first, %rows ], [ %x.next, %point ]
  %y = phi {_V} [ %y.first, %rows ], [ %y.next, %point ]
  %xl = phi {_V} [ %x.first, %rows ], [ %xl.next, %point ]
  %yl = phi {_V} [ %y.first, %rows ], [ %yl.next, %point ]
  %xr = phi {_V} [ %x.first, %rows ], [ %xr.next, %point ]
  %yr = phi {_V} [ %y.first, %rows ], [ %yr.next, %point ]
  %k.next = add i64 %k, 1
  %more.points = icmp slt i64 %k, %n
  br i1 %more.points, label %point, label %found
point:
  %y.at = add i64 %k.next, %n
  %x.slot = call ptr @slot_of(ptr %slots, ptr %points, i64 %k.next)
  %y.slot = call ptr @slot_of(ptr %slots, ptr %points, i64 %y.at)
  %px.next = getelementptr {_V}, ptr %x.slot, i64 %i
  %py.next = getelementptr {_V}, ptr %y.slot, i64 %i
  %x.next = load {_V}, ptr %px.next, align 64
  %y.next = load {_V}, ptr %py.next, align 64
  %passed = fcmp olt {_V} %x, %at
  %xl.next = select {_B} %passed, {_V} %x, {_V} %xl
  %yl.next = select {_B} %passed, {_V} %y, {_V} %yl
  %xr.next = select {_B} %passed, {_V} %x.next, {_V} %xr
  %yr.next = select {_B} %passed, {_V} %y.next, {_V} %yr
  br label %test
found:
  %length = fsub {_V} %xr, %xl
  %long = fcmp ogt {_V} %length, {_float(1e-9)}
  %length1 = select {_B} %long, {_V} %length, {_V} {_float(1e-9)}
  %way = fsub {_V} %at, %xl
  %part = fdiv {_V} %way, %length1
  %under = fcmp olt {_V} %part, {_ZERO}
  %part1 = select {_B} %under, {_V} {_ZERO}, {_V} %part
  %over = fcmp ogt {_V} %part1, {_ONE}
  %part2 = select {_B} %over, {_V} {_ONE}, {_V} %part1
  %rise = fsub {_V} %yr, %yl
  %risen = fmul {_V} %part2, %rise
  %z = fadd {_V} %yl, %risen
  %pz = getelementptr {_V}, ptr %to, i64 %i
  store {_V} %z, ptr %pz, align 64
  %next = add i64 %i, 1
  %more.rows = icmp slt i64 %next, %vectors
  br i1 %more.rows, label %rows, label %done
done:
  ret void
}}"""

_INTRINSICS = f"""
declare i64 @llvm.smin.i64(i64, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare {_V} @llvm.floor.v{LANES}f32({_V})
declare {_V} @llvm.ceil.v{LANES}f32({_V})
declare {_V} @llvm.fmuladd.v{LANES}f32({_V}, {_V}, {_V})
"""


def _interpreter() -> str:
    cases = " ".join(f"i32 {k}, label %do.{name}" for name, k in CODES.items())
    simple = "\n".join(
        f"do.{name}:\n  call void @{name}(ptr %sa, ptr %sb, ptr %to, i64 %vectors)\n"
        "  br label %advance"
        for name in _BODIES
    )
    return f"""
define void @evaluate(ptr %program, i64 %steps, ptr %rows, i64 %n, i64 %down, i64 %across,
                      ptr %slots, ptr %line, ptr %out, i64 %width) {{
entry:
  %nbytes = mul i64 %width, 4
  br label %block
block:
  %begin = phi i64 [ 0, %entry ], [ %end, %block.done ]
  %left = sub i64 %n, %begin
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %lines, label %done
lines:  ; every line begins as what all have in common
  %count = call i64 @llvm.smin.i64(i64 %left, i64 {BLOCK})
  %filled = add i64 %count, {LANES - 1}
  %vectors = sdiv i64 %filled, {LANES}
  %lanes = mul i64 %vectors, {LANES}
  %end = add i64 %begin, %count
  %row.at = mul i64 %begin, %down
  %row = getelementptr i32, ptr %rows, i64 %row.at
  %out.at = mul i64 %begin, %width
  %first = getelementptr float, ptr %out, i64 %out.at
  br label %copy
copy:
  %r = phi i64 [ 0, %lines ], [ %r.next, %copy ]
  %r.at = mul i64 %r, %width
  %own = getelementptr float, ptr %first, i64 %r.at
  call void @llvm.memcpy.p0.p0.i64(ptr %own, ptr %line, i64 %nbytes, i1 false)
  %r.next = add i64 %r, 1
  %more.lines = icmp slt i64 %r.next, %count
  br i1 %more.lines, label %copy, label %fetch
fetch:
  %s = phi i64 [ 0, %copy ], [ %s.next, %advance ]
  %going = icmp slt i64 %s, %steps
  br i1 %going, label %step, label %block.done
step:
  %code.p = getelementptr [4 x i32], ptr %program, i64 %s
  %a.p = getelementptr i32, ptr %code.p, i64 1
  %b.p = getelementptr i32, ptr %code.p, i64 2
  %to.p = getelementptr i32, ptr %code.p, i64 3
  %code = load i32, ptr %code.p, align 4
  %a = load i32, ptr %a.p, align 4
  %b = load i32, ptr %b.p, align 4
  %to32 = load i32, ptr %to.p, align 4
  %aw = sext i32 %a to i64
  %bw = sext i32 %b to i64
  %tow = sext i32 %to32 to i64
  %sa = getelementptr [{BLOCK} x float], ptr %slots, i64 %aw
  %sb = getelementptr [{BLOCK} x float], ptr %slots, i64 %bw
  %to = getelementptr [{BLOCK} x float], ptr %slots, i64 %tow
  switch i32 %code, label %advance [ {cases} ]
{simple}
do.column:
  %column.at = mul i64 %aw, %across
  %column = getelementptr i32, ptr %row, i64 %column.at
  call void @column(ptr %column, i64 %down, i64 %count, i64 %lanes, ptr %to)
  br label %advance
do.constant:
  call void @constant(i32 %a, ptr %to, i64 %vectors)
  br label %advance
do.curve:
  %points = getelementptr i32, ptr %program, i64 %aw
  call void @curve(ptr %slots, ptr %points, i32 %b, ptr %to, i64 %vectors)
  br label %advance
do.output:
  %place = getelementptr float, ptr %first, i64 %bw
  call void @output(ptr %sa, ptr %place, i64 %width, i64 %count)
  br label %advance
advance:
  %s.next = add i64 %s, 1
  br label %fetch
block.done:
  br label %block
done:
  ret void
}}"""


def source() -> str:
    operations = "\n".join(_operation(name, body) for name, body in _BODIES.items())
    return "".join((_INTRINSICS, operations, _COLUMN, _CONSTANT, _OUTPUT, _CURVE, _interpreter()))


Values = np.ndarray[Any, np.dtype[np.float32]]


@cache
def _load() -> tuple[Callable[..., None], Any]:
    """The native function, and the objects that own its code."""
    # Imported here because llvmlite takes 60 MB, which only scoring needs.
    from llvmlite import binding as llvm

    with LLVM_LOCK:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        processor = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
            cpu=llvm.get_host_cpu_name(),
            features=llvm.get_host_cpu_features().flatten(),
            opt=2,
            reloc="pic",
            jit=True,
        )
        linker = llvm.create_lljit_compiler(processor, use_jit_link=True)
        builder = llvm.JITLibraryBuilder().add_ir(source()).add_current_process()
        library = builder.export_symbol("evaluate").link(linker, "rows")
    n, pointer = ctypes.c_int64, ctypes.c_void_p
    signature = ctypes.CFUNCTYPE(None, pointer, n, pointer, n, n, n, pointer, pointer, pointer, n)
    return signature(library["evaluate"]), (linker, library)


@dataclass(frozen=True, eq=False)
class Compiled:
    """A program. `words` holds the instructions, then the points of curves. `line` initialises each
    line of the output: it holds the constants.
    """

    words: np.ndarray[Any, np.dtype[np.int32]]
    steps: int
    slots: int
    line: Values

    def __call__(self, rows: Matrix) -> Values:
        evaluate, _ = _load()
        rows = np.asarray(rows, np.int32)
        down, across = (s // rows.itemsize for s in rows.strides)
        out = np.empty((len(rows), len(self.line)), np.float32)
        slots = np.empty(self.slots * BLOCK + LANES, np.float32)
        start = slots.ctypes.data
        start += -start % 64  # slots are aligned for vectors
        evaluate(
            self.words.ctypes.data, self.steps, rows.ctypes.data, len(rows), down, across,
            start, self.line.ctypes.data, out.ctypes.data, out.shape[1],
        )  # fmt: skip
        return out


def bits_of(x: float) -> int:
    """The bits of a float32, as a signed integer."""
    return int(np.float32(x).view(np.int32))
