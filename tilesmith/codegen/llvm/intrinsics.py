"""The LLVM code of hardware instructions: dot products of bytes (VNNI on x86, SDOT, UDOT and USDOT
on ARM) and of bfloat16 (VDPBF16PS, BFDOT), products of blocks (SMMLA, BFMMLA) and of tiles (AMX).

An emitter gets the Builder and each operand as one vector of all its elements in row-major order,
by the names of the description's parameters. It returns the new value of the output. If the
intrinsic has operands `by_address`, it gets Rows instead, writes the output itself and returns
nothing. If its result is `held`, HELD says how that is loaded and stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from tilesmith.base.errors import BuildError
from tilesmith.base.machines.machine import BlockProduct, DotProduct
from tilesmith.codegen.llvm.builder import I32, Builder, Type, V
from tilesmith.ir.intrinsics import AMX_NBYTES, AMX_ROWS, AMX_TILES, BLOCKS, DOTS
from tilesmith.ir.nodes import Intrinsic


class Rows(NamedTuple):
    """An operand in memory: the address of its first element, and how far apart its rows are. If it
    is `streamed`, so much is read before it is read again that it is better not kept in L1.
    """

    pointer: V
    nbytes_apart: int
    streamed: bool = False


Operands = Mapping[str, Any]  # of V, or of Rows
Emit = Callable[[Builder, Operands], Any]
NAME = "llvm"  # the name of this back end in Intrinsic.emitters


def emitter_of(unit: Intrinsic) -> Emit:
    """The intrinsic's own emitter for LLVM, else the one in this file."""
    emit: Emit | None = unit.emitters.get(NAME) or emitters().get(unit.name)
    if emit is None:
        raise BuildError(
            f"{unit.name} has no LLVM code; give it with "
            f"Intrinsic(..., emitters={{{NAME!r}: emit}})"
        )
    return emit


def _repeated(b: Builder, a: V, to: Type) -> V:
    """Neighbours that make 32 bits, repeated over a vector."""
    count = a.type.lanes
    lanes = to.lanes // count
    if a.name in b.sources:  # as a lane of a longer vector
        whole, start = b.sources[a.name]
        whole = _bfloats(b, whole)
        words = b.value(
            Type("i32", whole.type.lanes // count),
            f"bitcast {whole} to <{whole.type.lanes // count} x i32>",
        )
        order = ", ".join([f"i32 {start // count}"] * lanes)
        same = b.value(
            Type("i32", lanes),
            f"shufflevector {words}, {words.type} poison, <{lanes} x i32> <{order}>",
        )
        return b.value(to, f"bitcast {same} to {to}")
    word = b.value(I32, f"bitcast {_bfloats(b, a)} to i32")
    return b.value(to, f"bitcast {b.splat(word, lanes)} to {to}")


def _bfloats(b: Builder, v: V) -> V:
    """bfloat16 in 16 bits, which were floats so far: LLVM's selection drops what was there and
    back.
    """
    if v.type.elem != "float":
        return v
    bits = b.cast("bitcast", v, "i32")
    return b.cast("trunc", b.op("lshr", bits, b.const(bits.type, 16)), "i16")


def _factor(b: Builder, v: V, name: str) -> V:
    """An operand as LLVM's instructions take it."""
    return b.cast("bitcast", _bfloats(b, v), "bfloat") if name == "bfloat16" else v


def _dot(d: DotProduct) -> Emit:
    def emit(b: Builder, operands: Operands) -> V:
        acc, a, w = operands["C"], operands["A"], operands["B"]
        right = _factor(b, w, d.right)
        left = _factor(
            b, _repeated(b, a, w.type.of("i16") if d.left == "bfloat16" else w.type), d.left
        )
        pair = (left, right) if d.left_first else (right, left)
        return b.target_call(d.call, acc.type, acc, *pair)

    return emit


def _block(p: BlockProduct) -> Emit:
    def emit(b: Builder, operands: Operands) -> V:
        acc = operands["C"]
        pair = (_factor(b, operands[n], kind) for n, kind in (("A", p.left), ("B", p.right)))
        return b.target_call(p.call, acc.type, acc, *pair)

    return emit


class Held(NamedTuple):
    """What is done with the result of an intrinsic that is `held`: it is loaded (or set to zero)
    ahead of all steps, and stored behind them. The emitter itself does not get it.
    """

    begin: Callable[[Builder, Rows, bool], None]
    end: Callable[[Builder, Rows], None]


def _parts(unit: Intrinsic) -> tuple[int, int]:
    """The tiles of the result down and across."""
    rows, columns = (n.number for n in unit.description.all_buffers["C"].shape)
    return rows // AMX_ROWS, columns // AMX_ROWS


def _amx(unit: Intrinsic) -> Emit:
    """Products of tiles. Registers 0 to 3 hold the result, 4 and 5 parts of A, 6 and 7 of B. Every
    register is loaded just before its first use, so that products run meanwhile.
    """
    buffers = unit.description.all_buffers
    down, across = _parts(unit)
    kinds = {("int8", "int8"): "bssd", ("uint8", "int8"): "busd", ("int8", "uint8"): "bsud",
             ("uint8", "uint8"): "buud", ("bfloat16", "bfloat16"): "bf16ps"}  # fmt: skip
    product = f"llvm.x86.tdp{kinds[buffers['A'].dtype.name, buffers['B'].dtype.name]}"

    def emit(b: Builder, operands: Mapping[str, Rows]) -> None:
        w = operands["B"]._replace(nbytes_apart=AMX_NBYTES)
        for j in range(across):
            _move_tile(b, "tileload", 6 + j, w, j, 0)
            for i in range(down):
                if j == 0:
                    _move_tile(b, "tileload", 4 + i, operands["A"], i, 0)
                b.run(product, *(f"i8 {t}" for t in (across * i + j, 4 + i, 6 + j)))

    return emit


def _amx_result(unit: Intrinsic) -> Held:
    down, across = _parts(unit)
    tiles = [(across * i + j, i, j) for i in range(down) for j in range(across)]

    def begin(b: Builder, c: Rows, cleared: bool) -> None:
        _use_tiles(b)
        for tile, i, j in tiles:
            if cleared:
                b.run("llvm.x86.tilezero", f"i8 {tile}")
            else:
                _move_tile(b, "tileload", tile, c, i, j)

    def end(b: Builder, c: Rows) -> None:
        for tile, i, j in tiles:
            _move_tile(b, "tilestore", tile, c, i, j)

    return Held(begin, end)


def _move_tile(b: Builder, how: str, tile: int, at: Rows, down: int, across: int) -> None:
    offset = AMX_ROWS * down * at.nbytes_apart + AMX_NBYTES * across
    p = b.value(Type("ptr"), f"getelementptr i8, {at.pointer}, i64 {offset}")
    hint = "t1" if at.streamed else ""
    b.run(f"llvm.x86.{how}d{hint}64", f"i8 {tile}", str(p), f"i64 {at.nbytes_apart}")


def _use_tiles(b: Builder) -> None:
    """Configures all tile registers with their full size, at the start of the function."""
    if "amx" in b.setup:
        return
    config = bytearray(64)
    config[0] = 1  # the palette
    for tile in range(8):
        config[16 + 2 * tile] = AMX_NBYTES
        config[48 + tile] = AMX_ROWS
    text = ", ".join(f"i8 {x}" for x in config)
    name = "@llvm.x86.ldtilecfg"
    b.declarations.setdefault(name, f"declare void {name}(ptr)")
    b.setup["amx"] = [
        "  %amx.config = alloca [64 x i8], align 64",
        f"  store <64 x i8> <{text}>, ptr %amx.config, align 64",
        f"  call void {name}(ptr %amx.config)",
    ]


@cache
def emitters() -> Mapping[str, Emit]:
    """By the names of intrinsics."""
    return {
        **{unit.name: _dot(d) for unit, d in DOTS.items()},
        **{unit.name: _block(p) for unit, p in BLOCKS.items()},
        **{unit.name: _amx(unit) for unit in AMX_TILES},
    }


@cache
def held_results() -> Mapping[str, Held]:
    return {unit.name: _amx_result(unit) for unit in AMX_TILES}
